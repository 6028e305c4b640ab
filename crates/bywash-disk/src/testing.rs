//! For tests of the engine: a disk in memory that tears, loses, stalls, fills, fails and flips.

use std::sync::Arc;
use std::time::Duration;

use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rustix::io::Errno;

use crate::clock::Clock;
use crate::error::DiskError;
use crate::memory_storage::{Fault, MemoryStorage, Operation};
use crate::tier::{Tier, TierOptions};

/// Names the folder in the headers of its segments.
const FOLDER: [u8; 16] = [5; 16];

/// Fault of a disk, until [`FakeDisk::heal`].
#[derive(Debug, Clone, Copy)]
pub enum DiskFault {
    /// The write after `after` others leaves any of its pages, and then the power is out.
    Tear {
        /// Writes before.
        after: u32,
        /// Draws the pages.
        seed: u64,
    },
    /// The write after `after` others succeeds, and leaves nothing.
    LoseWrite {
        /// Writes before.
        after: u32,
    },
    /// Reads do not return.
    StallReads,
    /// Writes do not return.
    StallWrites,
    /// Each read takes so long.
    SlowReads(Duration),
    /// Files together can have this number of bytes.
    Full(u64),
    /// This number of reads fails.
    FailReads(u32),
    /// This number of writes fails.
    FailWrites(u32),
}

/// A disk in memory. Clones share it.
#[derive(Debug, Clone)]
pub struct FakeDisk {
    storage: MemoryStorage,
    segment_size: u32,
}

impl FakeDisk {
    /// Creates an empty disk for segments of `segment_size` bytes, a multiple of 4 KiB.
    #[must_use]
    pub fn new(segment_size: u32) -> Self {
        Self {
            storage: MemoryStorage::default(),
            segment_size,
        }
    }

    /// Adds a fault.
    pub fn fail(&self, fault: DiskFault) {
        let storage = &self.storage;
        let fail = |operation, times| {
            let all = Fault::all(operation, Errno::IO);
            storage.fail(Fault { times, ..all });
        };
        match fault {
            DiskFault::Tear { after, seed } => storage.tear_after(after, seed),
            DiskFault::LoseWrite { after } => storage.lose_after(after),
            DiskFault::StallReads => storage.stall(Operation::Read),
            DiskFault::StallWrites => storage.stall(Operation::Write),
            DiskFault::SlowReads(time) => storage.delay(Operation::Read, time),
            DiskFault::Full(bytes) => storage.set_capacity(bytes),
            DiskFault::FailReads(times) => fail(Operation::Read, times),
            DiskFault::FailWrites(times) => fail(Operation::Write, times),
        }
    }

    /// Flips one bit anywhere. Returns whether there was one.
    #[must_use]
    pub fn flip(&self, seed: u64) -> bool {
        let is_empty = self.storage.segments().is_empty();
        if !is_empty {
            self.storage.flip(&mut StdRng::seed_from_u64(seed));
        }
        !is_empty
    }

    /// Ends all faults. Bytes stay as they are.
    pub fn heal(&self) {
        self.storage.heal();
    }

    /// Returns a disk with the bytes of this one, as a kill of the process leaves them.
    #[must_use]
    pub fn killed(&self) -> Self {
        Self {
            storage: self.storage.copy(),
            segment_size: self.segment_size,
        }
    }
}

impl Tier {
    /// Opens a tier over a disk in memory, with the disk's contents. The marks of versions under
    /// comparison are in the folder of `options`.
    ///
    /// # Errors
    /// As [`Tier::open`].
    pub fn open_fake(options: &TierOptions, disk: &FakeDisk) -> Result<Self, DiskError> {
        let options = TierOptions {
            segment_size: disk.segment_size,
            ..options.clone()
        };
        let storage = Arc::new(disk.storage.clone());
        let tier = Self::over(storage, FOLDER, &options, Clock::start())?;
        tier.open_marks(&options.path)?;
        Ok(tier)
    }
}
