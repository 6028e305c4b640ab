//! Loads of this node that wait for bytes of another node.
//!
//! A request of another node must not wait for such a load. Otherwise two nodes that each take the other for the owner of a stripe
//! would wait for each other without end.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Ranges by number of the version, each with the number of its wait.
type Waits = HashMap<u64, Vec<(u64, Range<u64>)>>;

/// The waits of one bucket.
#[derive(Debug, Default)]
pub(crate) struct PeerWaits {
    /// The number of the next wait, and those in progress.
    waits: Mutex<(u64, Waits)>,
    begun: Notify,
}

/// A wait in progress. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct PeerWait {
    waits: Arc<PeerWaits>,
    object: u64,
    number: u64,
}

impl PeerWaits {
    /// Begins a wait: bytes of `range` of the version with the number `object` come from another node, or after such bytes.
    pub(crate) fn begin(self: &Arc<Self>, object: u64, range: Range<u64>) -> PeerWait {
        let mut guard = self.waits.lock();
        let (next, waits) = &mut *guard;
        let number = *next;
        *next += 1;
        waits.entry(object).or_default().push((number, range));
        drop(guard);
        self.begun.notify_waiters();
        PeerWait {
            waits: Arc::clone(self),
            object,
            number,
        }
    }

    /// Returns whether bytes of `range` are waited for.
    pub(crate) fn cover(&self, object: u64, range: &Range<u64>) -> bool {
        let guard = self.waits.lock();
        let overlaps = |wait: &Range<u64>| wait.start < range.end && range.start < wait.end;
        let waits = guard.1.get(&object);
        waits.is_some_and(|waits| waits.iter().any(|(_, wait)| overlaps(wait)))
    }

    /// Completes when `range` is waited for. Sees each wait that began after the call.
    pub(crate) async fn until_cover(&self, object: u64, range: &Range<u64>) {
        loop {
            let begun = self.begun.notified();
            if self.cover(object, range) {
                return;
            }
            begun.await;
        }
    }
}

impl Drop for PeerWait {
    fn drop(&mut self) {
        let mut guard = self.waits.waits.lock();
        let waits = &mut guard.1;
        if let Some(of_object) = waits.get_mut(&self.object) {
            of_object.retain(|(number, _)| *number != self.number);
            if of_object.is_empty() {
                waits.remove(&self.object);
            }
        }
    }
}
