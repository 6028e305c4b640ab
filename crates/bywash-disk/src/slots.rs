//! Slot files: blocks that have no other copy, in temporary files for as long as the process runs.
//!
//! Unlike a [`crate::Tier`], this declines no block by choice, fails with an error that names the limit, and keeps nothing after a
//! restart. A block takes a slot of the smallest size that holds it ([`geometry`]), compressed if that pays ([`compression`]). Each
//! size has files of its own. The lowest free slot is taken first; a file is cut at its end when that is free, and removed when it is
//! empty. Free slots elsewhere are given back to the file system when the limit, or the disk, leaves no other room.

mod allocate;
mod compression;
mod geometry;
mod storage;
mod table;
#[cfg(all(test, not(loom)))]
mod tests;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::DiskError;
use crate::clock::Clock;
use crate::format::crc32c;
use compression::Compression;
use geometry::SlotClass;
#[cfg(all(any(test, feature = "testing"), not(loom)))]
pub(crate) use storage::SlotFile;
use storage::SlotFolder;
pub(crate) use storage::SlotStorage;

use table::{Place, SlotTable};

/// Pause after a failed write. Until it has passed, or a slot is freed, writes fail with the same error without being tried.
const PAUSE: Duration = Duration::from_secs(1);

/// Settings of slot files.
#[derive(Debug, Clone)]
pub struct SlotOptions {
    /// The folder; created if it is missing. One process at a time uses it.
    pub path: PathBuf,
    /// Maximum bytes on the disk.
    pub limit: u64,
    /// Threads that compress at once; 0 for no compression.
    pub compressors: usize,
    /// Length of the largest block that is compressed.
    pub compressed_block: usize,
}

impl SlotOptions {
    /// Memory that compression takes, in bytes.
    #[must_use]
    pub fn memory(&self) -> u64 {
        Compression::memory(self.compressors, self.compressed_block)
    }
}

/// Error of a slot.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SlotError {
    /// The limit is reached.
    #[error(
        "temporary files in {} have no room for {needed} bytes: {used} of {limit} bytes are used; raise the limit, free blocks, or allow more memory", folder.display()
    )]
    Full {
        /// The folder.
        folder: PathBuf,
        /// Bytes of the slot.
        needed: u64,
        /// Bytes on the disk.
        used: u64,
        /// The limit.
        limit: u64,
    },
    /// The disk is full below the limit.
    #[error(
        "the disk of {} is full: {needed} bytes are needed, and temporary files use {used} of {limit} bytes; free disk space, free blocks, or allow more memory", folder.display()
    )]
    DiskFull {
        /// The folder.
        folder: PathBuf,
        /// Bytes of the slot.
        needed: u64,
        /// Bytes on the disk.
        used: u64,
        /// The limit.
        limit: u64,
    },
    /// The block is larger than any slot.
    #[error("a block of {bytes} bytes is larger than the largest slot of {max}; use several")]
    TooLarge {
        /// Its length.
        bytes: usize,
        /// Length of the largest.
        max: usize,
    },
    /// A file operation failed.
    #[error("cannot {operation} the temporary file {}: {source}; check the disk", file.display())]
    File {
        /// The operation.
        operation: &'static str,
        /// The file.
        file: PathBuf,
        /// Error of the operating system.
        #[source]
        source: Arc<io::Error>,
    },
    /// The bytes in a slot differ from the written ones.
    #[error(
        "the temporary file {} has other bytes at {offset} than were written; check the disk", file.display()
    )]
    Damaged {
        /// The file.
        file: PathBuf,
        /// Offset of the slot.
        offset: u64,
    },
}

/// Place and checksum of a block that was written.
#[derive(Debug)]
#[must_use = "the slot stays taken until it is freed"]
pub struct Slot {
    place: Place,
    len: u32,
    stored: u32,
    checksum: u32,
    packed: bool,
}

/// Bytes in slot files, and counters since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SlotStats {
    /// Slots taken.
    pub slots: u64,
    /// Bytes of these slots.
    pub used: u64,
    /// Bytes that the files take on the disk: never above the limit.
    pub allocated: u64,
    /// Blocks written.
    pub written_blocks: u64,
    /// Bytes of these blocks.
    pub block_bytes: u64,
    /// Bytes written for them: less if they were compressed.
    pub stored_bytes: u64,
    /// Blocks read.
    pub read_blocks: u64,
    /// Writes that failed, with those not tried in the pause after one.
    pub failed_writes: u64,
}

#[derive(Debug)]
struct State {
    table: SlotTable,
    stats: SlotStats,
    /// Until when writes fail, and the error.
    pause: Option<(Duration, SlotError)>,
    /// Length of a block that the limit left no room for, and the error. No slot was freed since.
    full: Option<(usize, SlotError)>,
    /// Slots ever freed.
    freed: u64,
}

/// Slot files in a folder, removed when this is dropped.
#[derive(Debug)]
pub struct SlotFiles {
    folder: PathBuf,
    storage: Box<dyn SlotStorage>,
    state: Mutex<State>,
    /// Notified when bytes were given back to the file system.
    released: Condvar,
    compression: Compression,
    clock: Clock,
}

impl SlotFiles {
    /// Opens a folder, and removes files that a killed process left there.
    ///
    /// # Errors
    /// The folder is in use, has foreign files or belongs to another user; or a file operation failed.
    pub fn open(options: &SlotOptions) -> Result<Self, DiskError> {
        let storage = SlotFolder::open(options.path.clone())?;
        Ok(Self::over(Box::new(storage), options, Clock::start()))
    }

    fn over(storage: Box<dyn SlotStorage>, options: &SlotOptions, clock: Clock) -> Self {
        Self {
            folder: options.path.clone(),
            storage,
            state: Mutex::new(State {
                table: SlotTable::new(options.limit),
                stats: SlotStats::default(),
                pause: None,
                full: None,
                freed: 0,
            }),
            released: Condvar::new(),
            compression: Compression::new(options.compressors, options.compressed_block),
            clock,
        }
    }

    /// The counters.
    #[must_use]
    pub fn stats(&self) -> SlotStats {
        let state = self.state.lock();
        let (used, slots) = state.table.used();
        SlotStats {
            slots,
            used,
            allocated: state.table.allocated(),
            ..state.stats
        }
    }

    /// Maximum bytes on the disk.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.state.lock().table.limit()
    }

    /// Writes a block to a slot. Returns when the operating system has it: a slot does not outlive the process.
    ///
    /// # Errors
    /// The limit is reached, the disk is full, or a file operation failed. Nothing is taken.
    pub fn write(&self, block: &[u8]) -> Result<Slot, SlotError> {
        let freed = self.state.lock().freed;
        let written = self.check(block.len());
        let written = written.and_then(|()| self.write_now(block));
        let mut state = self.state.lock();
        match &written {
            Ok(slot) => {
                state.stats.written_blocks += 1;
                state.stats.block_bytes += block.len() as u64;
                state.stats.stored_bytes += u64::from(slot.stored);
                state.pause = None;
            }
            Err(error) => {
                state.stats.failed_writes += 1;
                match error {
                    SlotError::Full { .. } => {
                        let least = state.full.as_ref().map_or(usize::MAX, |(len, _)| *len);
                        if state.freed == freed && block.len() < least {
                            state.full = Some((block.len(), error.clone()));
                        }
                    }
                    SlotError::TooLarge { .. } => {}
                    _ if state.pause.is_some() => {}
                    _ => state.pause = Some((self.clock.now() + PAUSE, error.clone())),
                }
            }
        }
        written
    }

    /// Fails if a write of a block of `len` bytes is not to be tried: an evictor examines many
    /// blocks without success, and would compress each.
    fn check(&self, len: usize) -> Result<(), SlotError> {
        let mut state = self.state.lock();
        match (&state.pause, &state.full) {
            (Some((until, error)), _) if self.clock.now() < *until => Err(error.clone()),
            (_, Some((full, error))) if *full <= len => Err(error.clone()),
            _ => {
                state.pause = None;
                Ok(())
            }
        }
    }

    fn write_now(&self, block: &[u8]) -> Result<Slot, SlotError> {
        let (attempt, packed) = self.compression.pack(block);
        let stored = packed.as_ref().map_or(block, |packed| packed.bytes());
        let class = SlotClass::of(stored.len()).ok_or(SlotError::TooLarge {
            bytes: stored.len(),
            max: geometry::LARGEST,
        })?;
        let (place, file) = self.take(class)?;
        let slot = Slot {
            place,
            len: block.len() as u32,
            stored: stored.len() as u32,
            checksum: crc32c(stored),
            packed: packed.is_some(),
        };
        if let Err(error) = file.write(stored, place.offset()) {
            self.give_back(place, true);
            return Err(self.not_written(class, place, error));
        }
        self.compression
            .written(&attempt, block.len(), stored.len());
        Ok(slot)
    }

    /// Reads the block of a slot.
    ///
    /// # Errors
    /// The read failed, or found other bytes than were written. The slot stays taken.
    ///
    /// # Panics
    /// If the buffer has another length than the block.
    pub fn read(&self, slot: &Slot, block: &mut [u8]) -> Result<(), SlotError> {
        assert_eq!(block.len(), slot.len as usize, "length of the block");
        let place = slot.place;
        let file = self.state.lock().table.file(place);
        let fill = |bytes: &mut [u8]| {
            let read = file.read(bytes, place.offset());
            read.map_err(|error| self.failed("read", place.file, error))?;
            if crc32c(bytes) == slot.checksum {
                Ok(())
            } else {
                Err(self.damaged(place))
            }
        };
        if slot.packed {
            let mut packed = self.compression.packed(slot.stored as usize);
            fill(packed.bytes_mut())?;
            if !packed.unpack(block) {
                return Err(self.damaged(place));
            }
        } else {
            fill(block)?;
        }
        self.state.lock().stats.read_blocks += 1;
        Ok(())
    }

    /// Frees a slot, and shortens or removes its file if its end is free. Writes are tried again if they failed.
    pub fn free(&self, slot: Slot) {
        self.give_back(slot.place, true);
        let mut state = self.state.lock();
        (state.pause, state.full) = (None, None);
        state.freed += 1;
    }

    fn failed(&self, operation: &'static str, file: u32, source: io::Error) -> SlotError {
        SlotError::File {
            operation,
            file: self.storage.path(file),
            source: Arc::new(source),
        }
    }

    fn damaged(&self, place: Place) -> SlotError {
        SlotError::Damaged {
            file: self.storage.path(place.file),
            offset: place.offset(),
        }
    }
}

impl Drop for SlotFiles {
    fn drop(&mut self) {
        for file in self.state.get_mut().table.files() {
            // A file that cannot be removed is removed at the next start.
            let _ = self.storage.remove(file);
        }
    }
}
