//! Settings of a run, drawn from its seed.

use std::time::Duration;

use bywash::Consistency;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::fault::FaultProfile;
use crate::origin::Validators;

/// All settings of one run, drawn from its seed.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Seed of all random choices of the run.
    pub seed: u64,
    /// The engine's block size in bytes.
    pub block_size: usize,
    /// The engine's upload chunk in bytes.
    pub chunk_size: usize,
    /// The engine's memory ceiling in bytes.
    pub memory: u64,
    /// Whether memory is so small that blocks are evicted and requests may fail with SlowDown.
    pub tight_memory: bool,
    /// How long responses of the origin may be reused.
    pub consistency: Consistency,
    /// Faults and latencies of the origin.
    pub fault_profile: FaultProfile,
    /// Objects: their validators, and their initial length in bytes (`None`: absent).
    pub objects: Vec<(Validators, Option<usize>)>,
    /// Number of readers.
    pub readers: usize,
    /// Reads per reader.
    pub reads: usize,
    /// Number of writers through the bucket.
    pub writers: usize,
    /// Writes per writer.
    pub writes: usize,
    /// Writes and deletes that bypass the bucket.
    pub writes_behind_bucket: usize,
    /// Whether readers may cancel.
    pub cancelling_readers: bool,
    /// Whether some reads are downloads.
    pub downloads: bool,
    /// Whether some reads are by lease, of memory that other processes can map.
    pub leases: bool,
}

impl Plan {
    /// Draws a plan with faults, of a random half of their kinds.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        Self::draw_with(seed, FaultProfile::random, 0.5)
    }

    /// Draws a plan without faults, mostly without the other disturbances too: little memory, and readers that leave.
    #[must_use]
    pub fn draw_calm(seed: u64) -> Self {
        Self::draw_with(seed, |_| FaultProfile::none(), 0.2)
    }

    fn draw_with(
        seed: u64,
        profile: impl FnOnce(&mut StdRng) -> FaultProfile,
        disturbed: f64,
    ) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let rng = &mut rng;
        let block_size = 4096 << rng.random_range(0..5);
        let chunk_size = block_size * 4;
        let tight_memory = rng.random_bool(disturbed);
        // Tight: one chunk for each share and a few blocks. Otherwise all objects fit.
        let blocks = if tight_memory {
            rng.random_range(16..40)
        } else {
            1024
        };
        let consistency = match rng.random_range(0..10) {
            0 => Consistency::Revalidate(Duration::ZERO),
            1..6 => Consistency::Revalidate(Duration::from_secs(1)),
            6..9 => Consistency::Revalidate(Duration::from_secs(30)),
            _ => Consistency::Immutable,
        };
        let fault_profile = profile(rng);
        let objects = (0..rng.random_range(2..9))
            .map(|_| {
                let validators = match rng.random_range(0..10) {
                    0..5 => Validators::Strong,
                    5..7 => Validators::Weak,
                    7..9 => Validators::LastModified,
                    _ => Validators::None,
                };
                let size = rng.random_bool(0.9).then(|| draw_size(rng, block_size));
                (validators, size)
            })
            .collect();
        let changing = rng.random_bool(0.6);
        Self {
            seed,
            block_size,
            chunk_size,
            memory: (block_size * blocks) as u64,
            tight_memory,
            consistency,
            fault_profile,
            objects,
            readers: rng.random_range(2..9),
            reads: rng.random_range(8..30),
            writers: if changing { rng.random_range(0..3) } else { 0 },
            writes: rng.random_range(2..12),
            writes_behind_bucket: if changing { rng.random_range(0..12) } else { 0 },
            cancelling_readers: rng.random_bool(disturbed),
            downloads: rng.random_bool(0.4),
            leases: rng.random_bool(0.4),
        }
    }

    /// Returns whether the run has no faults and no cancellations.
    #[must_use]
    pub fn is_fault_free(&self) -> bool {
        self.fault_profile.faults.is_empty() && !self.cancelling_readers
    }
}

/// Draws a length, often at or near a multiple of the block size.
pub(super) fn draw_size(rng: &mut StdRng, block: usize) -> usize {
    match rng.random_range(0..10) {
        0 => 0,
        1 => 1,
        2 => rng.random_range(2..200),
        3 => block - 1,
        4 => block,
        5 => block + 1,
        6 => 2 * block,
        7 => 3 * block + rng.random_range(0..block),
        _ => rng.random_range(0..8 * block),
    }
}
