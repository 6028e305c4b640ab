//! What a seed means: one drawn run.

use std::time::Duration;

use bywash::Consistency;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::fault::Weather;
use crate::origin::Validators;

/// All settings of one run, drawn from its seed.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The seed of everything.
    pub seed: u64,
    /// The engine's block size in bytes.
    pub block_size: usize,
    /// The engine's upload chunk in bytes.
    pub chunk_size: usize,
    /// The engine's memory ceiling in bytes.
    pub memory: u64,
    /// Whether that is so little that blocks are evicted and requests may be told to slow down.
    pub tight_memory: bool,
    /// How long answers may be trusted.
    pub consistency: Consistency,
    /// What goes wrong.
    pub weather: Weather,
    /// The objects: what the origin says of each, and its first length in bytes (none: absent).
    pub objects: Vec<(Validators, Option<usize>)>,
    /// Tasks that read.
    pub readers: usize,
    /// Reads of each.
    pub reads: usize,
    /// Tasks that write through the bucket.
    pub writers: usize,
    /// Writes of each.
    pub writes: usize,
    /// Writes and deletes behind the bucket's back.
    pub stranger_writes: usize,
    /// Whether readers leave midway.
    pub leavers: bool,
    /// Whether some reads are downloads.
    pub downloads: bool,
}

impl Plan {
    /// Draws a plan.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let rng = &mut rng;
        let block_size = 4096 << rng.random_range(0..5);
        let chunk_size = block_size * 4;
        let tight_memory = rng.random_bool(0.3);
        // Tight: a chunk for each share and a few blocks. Otherwise all objects fit.
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
        let calm = rng.random_bool(0.3);
        let weather = if calm {
            Weather::calm()
        } else {
            Weather::storm(rng)
        };
        let objects = (0..rng.random_range(1..5))
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
            weather,
            objects,
            readers: rng.random_range(1..9),
            reads: rng.random_range(3..12),
            writers: if changing { rng.random_range(0..3) } else { 0 },
            writes: rng.random_range(1..6),
            stranger_writes: if changing { rng.random_range(0..6) } else { 0 },
            leavers: rng.random_bool(0.5),
            downloads: rng.random_bool(0.4),
        }
    }

    /// Whether nothing goes wrong and nobody leaves.
    #[must_use]
    pub fn is_calm(&self) -> bool {
        self.weather.faults.is_empty() && !self.leavers
    }
}

/// A length at or around the edges that matter.
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
