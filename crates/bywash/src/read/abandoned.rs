//! Memory of requests that continue without readers.

use parking_lot::Mutex;

/// Bytes held by flights without waiters, of all buckets of an engine.
#[derive(Debug, Default)]
pub(crate) struct AbandonedMemory(Mutex<u64>);

/// The share of one flight in [`AbandonedMemory`].
#[derive(Debug)]
pub(super) struct AbandonedBytes<'a> {
    memory: &'a AbandonedMemory,
    bytes: u64,
}

impl AbandonedMemory {
    /// Counts `bytes` more until the result is dropped; `None` if the sum would exceed `max`.
    pub(super) fn try_add(&self, bytes: u64, max: u64) -> Option<AbandonedBytes<'_>> {
        let mut held = self.0.lock();
        *held = held.checked_add(bytes).filter(|sum| *sum <= max)?;
        Some(AbandonedBytes {
            memory: self,
            bytes,
        })
    }
}

impl Drop for AbandonedBytes<'_> {
    fn drop(&mut self) {
        *self.memory.0.lock() -= self.bytes;
    }
}
