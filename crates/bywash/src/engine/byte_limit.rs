//! Memory of one kind outside the pool, with a limit of its own: heads of requests, messages of other nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bywash_mem::{Reservation, Share};

use super::Engine;

/// Limit of one kind of memory, which is charged to the engine's budget.
#[derive(Debug)]
pub struct ByteLimit {
    used: AtomicU64,
    limit: u64,
    /// Where each charge is charged too; `None` if the limit is charged there already.
    engine: Option<Engine>,
}

/// A charge under a [`ByteLimit`]. Released when dropped.
#[derive(Debug)]
#[must_use = "dropping it releases the memory"]
pub struct ByteCharge {
    _reservation: Option<Reservation>,
    _counted: Counted,
}

/// Bytes that count under their limit.
#[derive(Debug)]
struct Counted {
    of: Arc<ByteLimit>,
    bytes: u64,
}

impl Drop for Counted {
    fn drop(&mut self) {
        // Relaxed: as in `try_charge`.
        self.of.used.fetch_sub(self.bytes, Relaxed);
    }
}

impl ByteLimit {
    /// A limit of `limit` bytes in the budget of `engine`.
    #[must_use]
    pub fn new(engine: Engine, limit: u64) -> Arc<Self> {
        Arc::new(Self {
            used: AtomicU64::new(0),
            limit,
            engine: Some(engine),
        })
    }

    /// A limit of `limit` bytes, which the caller has charged for as long as it lasts: nothing else can take them.
    #[must_use]
    pub fn charged(limit: u64) -> Arc<Self> {
        Arc::new(Self {
            used: AtomicU64::new(0),
            limit,
            engine: None,
        })
    }

    /// Charges `bytes` if they fit the limit and the budget, in which blocks are evicted for them. Never waits.
    #[must_use]
    pub fn try_charge(self: &Arc<Self>, bytes: u64) -> Option<ByteCharge> {
        // A charge that does not fit is never counted: a smaller one at the same time may fit.
        let fits = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.limit);
        // Relaxed: only a count; it publishes nothing.
        self.used.fetch_update(Relaxed, Relaxed, fits).ok()?;
        let counted = Counted {
            of: Arc::clone(self),
            bytes,
        };
        // Waiters for memory of one share do not block these bytes, which may use the other.
        let reservation = match &self.engine {
            None => None,
            Some(engine) => {
                let charge = |share| engine.try_reserve(share, bytes);
                Some(charge(Share::Download).or_else(|| charge(Share::Upload))?)
            }
        };
        Some(ByteCharge {
            _reservation: reservation,
            _counted: counted,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn charges_end_at_the_limit_and_at_the_budget_and_are_released() {
        let engine = Engine::builder().memory(16 << 20).build().unwrap();
        let limit = ByteLimit::new(engine.clone(), 1 << 20);
        let first = limit.try_charge(1 << 19).unwrap();
        assert!(limit.try_charge((1 << 19) + 1).is_none());
        let second = limit.try_charge(1 << 19).unwrap();
        assert_eq!(engine.budget().used(), 1 << 20);
        assert!(limit.try_charge(1).is_none());
        drop((first, second));
        assert_eq!(engine.budget().used(), 0);

        let step = 1 << 16;
        let mut held = Vec::new();
        for share in [Share::Download, Share::Upload] {
            held.extend(std::iter::from_fn(|| engine.try_reserve(share, step)));
        }
        assert!(limit.try_charge(step).is_none());
        held.pop();
        assert!(limit.try_charge(step).is_some());
    }

    #[test]
    fn bytes_that_are_charged_at_the_start_need_none_of_the_budget() {
        let limit = ByteLimit::charged(1 << 10);
        let first = limit.try_charge(1 << 10).unwrap();
        assert!(limit.try_charge(1).is_none());
        drop(first);
        assert!(limit.try_charge(u64::MAX).is_none());
        assert!(limit.try_charge(1 << 10).is_some());
    }

    #[test]
    fn charge_that_does_not_fit_refuses_no_other_that_does() {
        let limit = ByteLimit::charged(1 << 10);
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (large, stop) = (&limit, &stop);
            scope.spawn(move || {
                while !stop.load(Relaxed) {
                    assert!(large.try_charge((1 << 10) + 1).is_none());
                }
            });
            let fits = (0..100_000).all(|_| limit.try_charge(1).is_some());
            stop.store(true, Relaxed);
            assert!(fits);
        });
    }
}
