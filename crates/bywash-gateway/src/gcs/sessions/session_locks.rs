//! Locks of sessions: one request at a time works on a session, and a newer one ends the body of an older one.
//!
//! A client whose connection broke asks for the status on another one, while the server may still wait for bytes of the
//! first.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// Locks of the sessions that requests work on.
#[derive(Debug, Default)]
pub(crate) struct SessionLocks(Mutex<HashMap<String, LockState>>);

#[derive(Debug)]
struct LockState {
    one: Arc<Semaphore>,
    /// Number of requests that came.
    arrivals: watch::Sender<u64>,
    /// Requests that hold the lock or wait for it. The last one removes the entry.
    users: usize,
}

/// The right to work on a session.
pub(crate) struct SessionLock<'a> {
    locks: &'a SessionLocks,
    id: String,
    _permit: Option<OwnedSemaphorePermit>,
    /// Number of this request.
    number: u64,
    arrivals: watch::Receiver<u64>,
}

impl SessionLocks {
    /// Waits until no other request works on the session.
    pub(crate) async fn enter(&self, id: &str) -> SessionLock<'_> {
        let (mut lock, one) = self.register(id);
        lock._permit = one.acquire_owned().await.ok();
        lock
    }

    /// Counts a request as a user of the session's lock, which it does not hold yet.
    fn register(&self, id: &str) -> (SessionLock<'_>, Arc<Semaphore>) {
        let mut all = self.0.lock();
        let state = all.entry(id.to_owned()).or_insert_with(|| LockState {
            one: Arc::new(Semaphore::new(1)),
            arrivals: watch::Sender::new(0),
            users: 0,
        });
        // Under the table's lock: a user that drops concurrently would remove the entry.
        state.users += 1;
        let mut number = 0;
        state.arrivals.send_modify(|arrivals| {
            *arrivals += 1;
            number = *arrivals;
        });
        let lock = SessionLock {
            locks: self,
            id: id.to_owned(),
            _permit: None,
            number,
            arrivals: state.arrivals.subscribe(),
        };
        (lock, Arc::clone(&state.one))
    }
}

impl SessionLock<'_> {
    /// Waits until a newer request waits for the session.
    pub(crate) async fn overtaken(&mut self) {
        let number = self.number;
        // The sender is kept by the table while this exists.
        let _ = self.arrivals.wait_for(|arrivals| *arrivals > number).await;
    }
}

impl Drop for SessionLock<'_> {
    fn drop(&mut self) {
        let mut all = self.locks.0.lock();
        let Some(state) = all.get_mut(&self.id) else {
            return;
        };
        state.users -= 1;
        if state.users == 0 {
            all.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::sync::atomic::{AtomicBool, Ordering};

    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn newer_request_overtakes_and_the_last_one_clears_the_table() {
        let locks = SessionLocks::default();
        let mut first = locks.enter("a").await;
        assert!(first.overtaken().now_or_never().is_none());
        let mut second = Box::pin(locks.enter("a"));
        assert!(second.as_mut().now_or_never().is_none(), "the first works");
        first.overtaken().now_or_never().unwrap();
        drop(locks.enter("b").await);
        drop(first);
        let mut second = second.await;
        assert!(second.overtaken().now_or_never().is_none());
        assert_eq!(locks.0.lock().len(), 1);
        drop(second);
        assert!(locks.0.lock().is_empty());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn requests_that_come_while_others_leave_never_work_at_once() {
        let locks = Arc::new(SessionLocks::default());
        let is_held = Arc::new(AtomicBool::new(false));
        let users = (0..4).map(|_| {
            let (locks, is_held) = (Arc::clone(&locks), Arc::clone(&is_held));
            tokio::spawn(async move {
                for _ in 0..20_000 {
                    let _lock = locks.enter("a").await;
                    assert!(!is_held.swap(true, Ordering::SeqCst), "two work at once");
                    tokio::task::yield_now().await;
                    is_held.store(false, Ordering::SeqCst);
                }
            })
        });
        for user in users.collect::<Vec<_>>() {
            user.await.unwrap();
        }
        assert!(locks.0.lock().is_empty());
    }
}
