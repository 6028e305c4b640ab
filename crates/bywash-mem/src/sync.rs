//! The facade over atomics, locks and waiting. Under `--cfg loom` and `--cfg shuttle` the same names are those tools' types, so
//! models and stress tests run the real code.

#[cfg(loom)]
pub(crate) mod loomed;
#[cfg(not(loom))]
mod plain;
#[cfg(shuttle)]
mod shuttled;
#[cfg(any(loom, shuttle))]
mod stand_in;

#[cfg(loom)]
pub(crate) use loomed::*;
#[cfg(not(loom))]
pub(crate) use plain::*;
#[cfg(not(any(loom, shuttle)))]
pub(crate) use real::*;
#[cfg(shuttle)]
pub(crate) use shuttled::*;
#[cfg(any(loom, shuttle))]
pub(crate) use stand_in::*;

#[cfg(not(any(loom, shuttle)))]
mod real {
    pub(crate) use event_listener::{Event, EventListener, Listener};
    pub(crate) use foldhash::quality::RandomState as HashState;
    pub(crate) use parking_lot::{Mutex, MutexGuard};
    /// `Arc` of loom where loom runs: it models the last drop as a synchronisation.
    pub(crate) use std::sync::Arc as Counted;
    pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
    pub(crate) use std::thread::yield_now;

    use std::sync::atomic::AtomicUsize;

    use super::Step;

    /// Returns whether a negative control leaves this step out: never, outside the tools and of planted faults.
    #[inline(always)]
    pub(crate) fn skipped(step: Step) -> bool {
        match step {
            Step::Key => planted!("mem-pin-of-another-key"),
            Step::HandOff => planted!("mem-waiters-without-pins"),
            Step::Charge => planted!("mem-check-and-charge-apart"),
            Step::Unlink => planted!("mem-slot-freed-before-its-place"),
            Step::RemoveSlot => planted!("mem-removal-by-tag"),
            Step::FirstFrame => planted!("mem-later-frame-replaces-first"),
            Step::Freeze => planted!("mem-bytes-in-flight-count"),
            Step::SliceHold => planted!("mem-slice-without-frame"),
            _ => false,
        }
    }

    /// A number of the calling thread, which selects its shard of sharded counters.
    #[inline]
    pub(crate) fn thread_number() -> usize {
        use std::cell::Cell;
        thread_local! {
            static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
        }
        #[cold]
        fn next() -> usize {
            static NEXT: AtomicUsize = AtomicUsize::new(0);
            // Relaxed: only uniqueness matters.
            NEXT.fetch_add(1, Ordering::Relaxed)
        }
        NUMBER.with(|number| {
            if number.get() == usize::MAX {
                number.set(next());
            }
            number.get()
        })
    }
}

/// Protocol steps that negative controls weaken, one a control, to show that the tools notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The acquire of `StateWord::load` and `StateWord::try_own`.
    Evict,
    /// The order of `StateWord::try_probe` before the reads of the shards.
    Probe,
    /// The order of a pin in a shard before the load of the word, `ShardedPins::pin`.
    ShardPin,
    /// The release of `ShardedPins::unpin`, and the acquire of `ShardedPins::pins`.
    ShardUnpin,
    /// The release of `StateWord::unpin`.
    Unpin,
    /// The release of `StateWord::publish`.
    Publish,
    /// The comparison of the key under the pin, `BlockCache::pin`.
    Key,
    /// Hand-off pins: `Flight::publish` counts one pin for each waiter.
    HandOff,
    /// Readers of a buffer learn that another took its place, `Flight::exchange`.
    Exchange,
    /// The release of the written bytes, `Progress::raise`.
    Progress,
    /// The store-load pair of `Progress::raise` and a `ChangeListener`.
    Notify,
    /// The first frame of a span stays, `BufferCore::add_frames`.
    FirstFrame,
    /// Written bytes stay when the rest of a claim is given back, `Extents::finish_claim`.
    ClaimHead,
    /// Bytes in flight count as missing, `Extents::check_complete`.
    Freeze,
    /// A reader's own reference to the frame, `BlockSlice`.
    SliceHold,
    /// Check and charge under one lock, `FrameAllocator::allocate`.
    Charge,
    /// The store-load pair of `StateWord::unpin` and a `QueueEntry`.
    Wake,
    /// The release of an entry, `Table::insert`.
    Insert,
    /// The release of a larger table, `Tables::grow_if_full`.
    Grow,
    /// A miss counts only if no entry moved, `Registry::find_slow`.
    Moves,
    /// Only the entry of one slot is removed, `Registry::remove`.
    RemoveSlot,
    /// A block leaves the policy before its slot is freed, `BlockCache::vacate`.
    Unlink,
    /// A writer rereads the current generation after entering, `Gate::enter`.
    Entry,
    /// The release of a writer that leaves a generation, `GateGuard::drop`.
    Exit,
    /// Of the model `series_log` only: a name is logged before its series is unlocked.
    #[cfg(all(test, loom))]
    NameFirst,
    /// Of the model `lease` only: a lease is held until its release was received.
    #[cfg(all(test, loom))]
    Lease,
    /// Of the model `copies` only: a copy takes all of its memory at once, in the share of uploads.
    #[cfg(all(test, loom))]
    OneReservation,
}
