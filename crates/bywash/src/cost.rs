//! Cost of one version of an object at the origin.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Requests, bytes and time that one version of an object cost the origin since it became known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
    /// Requests for its data, each attempt counted.
    pub requests: u64,
    /// Bytes of it received.
    pub bytes: u64,
    /// Duration of these requests in milliseconds, concurrent ones added up.
    pub time_ms: u64,
    /// Blocks of it that were loaded into memory.
    pub blocks: u64,
}

/// Counters behind [`Cost`]. Written by loads, read by snapshots; they order nothing, hence relaxed.
#[derive(Debug, Default)]
pub(crate) struct Costs {
    requests: AtomicU64,
    bytes: AtomicU64,
    time_us: AtomicU64,
    blocks: AtomicU64,
}

impl Costs {
    pub(crate) fn request(&self) {
        self.requests.fetch_add(1, Relaxed);
    }

    pub(crate) fn bytes(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn time(&self, took: Duration) {
        self.time_us.fetch_add(took.as_micros() as u64, Relaxed);
    }

    pub(crate) fn block(&self) {
        self.blocks.fetch_add(1, Relaxed);
    }

    /// The number of blocks loaded.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks.load(Relaxed)
    }

    pub(crate) fn read(&self) -> Cost {
        Cost {
            requests: self.requests.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            time_ms: self.time_us.load(Relaxed) / 1000,
            blocks: self.blocks.load(Relaxed),
        }
    }
}
