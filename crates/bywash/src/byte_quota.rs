//! Bytes that the requests of one kind hold together: a part of the memory limit, which follows that limit at run time.
//! Further requests wait in order, and hold nothing while they do.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Returns the bytes of a quota for a memory limit.
type PartOfLimit = Box<dyn Fn(u64) -> u64 + Send + Sync>;

/// Quota of one kind of memory. It charges nothing: its holders charge the granted bytes to the budget.
pub struct ByteQuota {
    part: PartOfLimit,
    state: Mutex<QuotaState>,
}

#[derive(Debug, Default)]
struct QuotaState {
    total: u64,
    used: u64,
    /// In the order of their requests. One whose receiver is gone has left.
    waiters: VecDeque<QuotaWaiter>,
}

#[derive(Debug)]
struct QuotaWaiter {
    wanted: u64,
    sender: oneshot::Sender<QuotaPermit>,
}

impl fmt::Debug for ByteQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByteQuota")
            .field("state", &*self.state.lock())
            .finish_non_exhaustive()
    }
}

/// Bytes granted by a [`ByteQuota`]. Given back when dropped.
#[derive(Debug)]
#[must_use = "dropping it gives the bytes back"]
pub struct QuotaPermit {
    of: Arc<ByteQuota>,
    bytes: u64,
}

impl QuotaPermit {
    /// Bytes granted: fewer than requested if the quota is smaller.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds `more` bytes without waiting; returns false if they do not fit, or others wait.
    #[must_use]
    pub fn try_grow(&mut self, more: u64) -> bool {
        let grown = self.of.state.lock().try_use(more);
        self.bytes += if grown { more } else { 0 };
        grown
    }

    /// Gives back the excess above `bytes`.
    pub fn shrink_to(&mut self, bytes: u64) {
        let excess = self.bytes.saturating_sub(bytes);
        self.bytes -= excess;
        self.of.give_back(excess);
    }
}

impl Drop for QuotaPermit {
    fn drop(&mut self) {
        self.of.give_back(self.bytes);
    }
}

impl QuotaState {
    /// Takes `bytes` unless others wait, or they do not fit.
    fn try_use(&mut self, bytes: u64) -> bool {
        let fits = self.used.saturating_add(bytes) <= self.total;
        let is_free = fits && self.waiters.iter().all(|waiter| waiter.sender.is_closed());
        self.used += if is_free { bytes } else { 0 };
        is_free
    }

    /// Takes the first waiter that may continue, with the bytes that it is granted.
    fn next(&mut self) -> Option<(QuotaWaiter, u64)> {
        loop {
            let first = self.waiters.front()?;
            if first.sender.is_closed() {
                self.waiters.pop_front();
                continue;
            }
            let granted = first.wanted.min(self.total);
            if self.used.saturating_add(granted) > self.total {
                return None;
            }
            self.used += granted;
            return Some((self.waiters.pop_front()?, granted));
        }
    }
}

impl ByteQuota {
    fn new(limit: u64, part: impl Fn(u64) -> u64 + Send + Sync + 'static) -> Arc<Self> {
        let total = part(limit).max(1);
        Arc::new(Self {
            part: Box::new(part),
            state: Mutex::new(QuotaState {
                total,
                ..QuotaState::default()
            }),
        })
    }

    /// Max bytes of all permits now.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.state.lock().total
    }

    /// Takes `bytes`, or the whole quota if it is smaller, after earlier callers. Dropping the future leaves the queue.
    pub async fn acquire(self: &Arc<Self>, bytes: u64) -> QuotaPermit {
        if let Some(permit) = self.try_acquire(bytes) {
            return permit;
        }
        let (sender, receiver) = oneshot::channel();
        let leaves = WakeNext(self);
        self.state.lock().waiters.push_back(QuotaWaiter {
            wanted: bytes,
            sender,
        });
        // A permit may have come back in between.
        self.wake();
        let permit = receiver.await;
        drop(leaves);
        permit.expect("a waiter is removed only with a permit, or after its receiver is gone")
    }

    /// As [`Self::acquire`], without waiting; `None` if the bytes are not available.
    #[must_use]
    pub fn try_acquire(self: &Arc<Self>, bytes: u64) -> Option<QuotaPermit> {
        let mut state = self.state.lock();
        let bytes = bytes.min(state.total);
        state.try_use(bytes).then(|| QuotaPermit {
            of: Arc::clone(self),
            bytes,
        })
    }

    fn give_back(self: &Arc<Self>, bytes: u64) {
        self.state.lock().used -= bytes;
        self.wake();
    }

    /// Grants the free bytes to the first waiters, in order.
    fn wake(self: &Arc<Self>) {
        loop {
            let next = self.state.lock().next();
            let Some((waiter, bytes)) = next else {
                return;
            };
            let permit = QuotaPermit {
                of: Arc::clone(self),
                bytes,
            };
            // A waiter that has just left drops the permit, without the lock: this loop grants its bytes to the next.
            if let Err(mut unclaimed) = waiter.sender.send(permit) {
                self.state.lock().used -= std::mem::take(&mut unclaimed.bytes);
            }
        }
    }

    /// Follows a change of the memory limit. Permits above a lower quota stay until they are dropped.
    fn set_limit(self: &Arc<Self>, limit: u64) {
        self.state.lock().total = (self.part)(limit).max(1);
        self.wake();
    }
}

/// Grants the place of a waiter that leaves to those behind it.
struct WakeNext<'a>(&'a Arc<ByteQuota>);

impl Drop for WakeNext<'_> {
    fn drop(&mut self) {
        self.0.wake();
    }
}

/// The quotas that follow the memory limit of an engine.
#[derive(Debug, Default)]
pub(crate) struct Quotas(Mutex<Vec<Weak<ByteQuota>>>);

impl Quotas {
    pub(crate) fn create(
        &self,
        limit: u64,
        part: impl Fn(u64) -> u64 + Send + Sync + 'static,
    ) -> Arc<ByteQuota> {
        let quota = ByteQuota::new(limit, part);
        let mut all = self.0.lock();
        all.retain(|quota| quota.strong_count() > 0);
        all.push(Arc::downgrade(&quota));
        quota
    }

    pub(crate) fn set_limit(&self, limit: u64) {
        let all: Vec<_> = self.0.lock().iter().filter_map(Weak::upgrade).collect();
        for quota in all {
            quota.set_limit(limit);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use futures::FutureExt;

    use super::*;

    fn quota(total: u64) -> Arc<ByteQuota> {
        ByteQuota::new(total, |limit| limit)
    }

    #[tokio::test]
    async fn requests_wait_in_order_and_a_smaller_one_overtakes_none() {
        let quota = quota(10);
        let held = quota.acquire(8).await;
        let mut large = Box::pin(quota.acquire(6));
        let mut small = Box::pin(quota.acquire(1));
        assert!((&mut large).now_or_never().is_none());
        assert!((&mut small).now_or_never().is_none());
        assert!(quota.try_acquire(1).is_none());
        drop(held);
        assert_eq!(large.await.bytes(), 6);
        assert_eq!(small.await.bytes(), 1);
        assert_eq!(quota.acquire(100).await.bytes(), 10);
    }

    #[tokio::test]
    async fn waiter_that_leaves_makes_way_for_the_next() {
        let quota = quota(10);
        let _held = quota.acquire(8).await;
        let mut large = Box::pin(quota.acquire(6));
        let mut small = Box::pin(quota.acquire(2));
        assert!((&mut large).now_or_never().is_none());
        assert!((&mut small).now_or_never().is_none());
        drop(large);
        assert_eq!(small.await.bytes(), 2);
    }

    #[tokio::test]
    async fn permits_grow_and_shrink_within_the_quota() {
        let quota = quota(10);
        let mut permit = quota.acquire(4).await;
        assert!(permit.try_grow(6));
        assert!(!permit.try_grow(1));
        permit.shrink_to(3);
        assert_eq!((permit.bytes(), quota.acquire(7).await.bytes()), (3, 7));
        drop(permit);
        assert_eq!(quota.state.lock().used, 0);
    }

    #[tokio::test]
    async fn waiter_is_granted_what_a_lowered_limit_leaves() {
        let quota = quota(10);
        let held = quota.acquire(10).await;
        let mut waiter = Box::pin(quota.acquire(9));
        assert!((&mut waiter).now_or_never().is_none());
        quota.set_limit(4);
        assert!((&mut waiter).now_or_never().is_none(), "above the quota");
        drop(held);
        assert_eq!(waiter.await.bytes(), 4);
        quota.set_limit(20);
        assert_eq!(quota.acquire(20).await.bytes(), 20);
    }

    #[tokio::test]
    async fn raised_limit_wakes_a_waiter() {
        let quota = quota(10);
        let _held = quota.acquire(10).await;
        let mut waiter = Box::pin(quota.acquire(5));
        assert!((&mut waiter).now_or_never().is_none());
        quota.set_limit(15);
        assert_eq!(waiter.await.bytes(), 5);
    }
}
