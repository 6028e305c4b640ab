//! The one door to atomics, locks and waiting. Under `--cfg loom` and `--cfg shuttle` the same names are those tools', so that
//! models and storms run the real code.

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
    pub(crate) use foldhash::quality::RandomState as Hashing;
    pub(crate) use parking_lot::Mutex;
    /// A counted pointer whose last drop loom sees as the synchronisation it is.
    pub(crate) use std::sync::Arc as Counted;
    pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
    pub(crate) use std::thread::yield_now;

    use std::sync::atomic::AtomicUsize;

    use super::Step;

    /// Whether a negative control leaves this step out. Never, outside the tools.
    #[inline(always)]
    pub(crate) const fn skipped(_: Step) -> bool {
        false
    }

    /// A number of this thread's own, to deal threads to the lanes of stripes.
    #[inline]
    pub(crate) fn lane() -> usize {
        use std::cell::Cell;
        thread_local! {
            static LANE: Cell<usize> = const { Cell::new(usize::MAX) };
        }
        #[cold]
        fn next() -> usize {
            static NEXT: AtomicUsize = AtomicUsize::new(0);
            // Relaxed: only a number.
            NEXT.fetch_add(1, Ordering::Relaxed)
        }
        LANE.with(|lane| {
            if lane.get() == usize::MAX {
                lane.set(next());
            }
            lane.get()
        })
    }
}

/// The steps of the protocols that the models weaken, one a negative control, to see that loom would notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The acquire of `StateWord::look` and `StateWord::try_own`.
    Evict,
    /// The order of `StateWord::try_probe` before the look through the lanes.
    Probe,
    /// The order of a lane's pin before the look at the word, `Stripes::pin`.
    Stripe,
    /// The release of `Stripes::unpin`, and the acquire of `Stripes::pins`.
    StripeUnpin,
    /// The release of `StateWord::unpin`.
    Unpin,
    /// The release of `StateWord::publish`.
    Publish,
    /// The key is compared under the pin, `BlockPool::pin`.
    Key,
    /// Hand-off pins: `Flight` publishes with one pin for each waiter.
    HandOff,
    /// The release of the bytes written so far, `Progress::raise`.
    Progress,
    /// The store-load pair of `Progress::raise` and an `Audience`.
    Ring,
    /// A frame that came first stays, `Core::grow`.
    FirstFrame,
    /// What a claim wrote stays when its rest is given back, `Extents::settle`.
    Head,
    /// What is in flight is missing, `Extents::complete`.
    Freeze,
    /// A reader's own hold of the frame, `Followed`.
    Hold,
    /// Room is checked and charged under one lock, `Memory::take`.
    Charge,
    /// The store-load pair of `unpin` and a taker's `Ticket`.
    Wake,
    /// The release of an entry, `Table::enter`.
    Enter,
    /// The release of a larger table, `Tables::with_room`.
    Grow,
    /// A miss is believed only if no entry moved, `Registry::find_again`.
    Moves,
    /// Only the entry of one slot is removed, `Registry::remove`.
    Leave,
    /// A block's place in the policy goes before its slot, `BlockPool::retire`.
    Unlink,
    /// Who entered looks again which generation is current, `Gate::enter`.
    Entry,
    /// The release of whoever leaves a generation, `Entered::drop`.
    Exit,
    /// Of the model `first_turn` alone: a name is logged before its series is let go.
    #[cfg(all(test, loom))]
    NameFirst,
}
