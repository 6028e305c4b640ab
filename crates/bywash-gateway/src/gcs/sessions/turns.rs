//! Turns: one request at a time works on a session, and a newer one ends the body of an older one.
//!
//! A client whose connection broke asks for the status on another one, while the server may still wait for bytes of the
//! first.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// Turns of the sessions that requests work on.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<HashMap<String, Arc<SessionTurns>>>);

#[derive(Debug)]
struct SessionTurns {
    one: Arc<Semaphore>,
    /// Number of requests that came.
    arrivals: watch::Sender<u64>,
}

/// The right to work on a session.
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    id: String,
    _permit: Option<OwnedSemaphorePermit>,
    /// Number of this request.
    number: u64,
    arrivals: watch::Receiver<u64>,
}

impl Turns {
    /// Waits until no other request works on the session.
    pub(crate) async fn enter(&self, id: &str) -> Turn<'_> {
        let of_session = {
            let mut all = self.0.lock();
            let made = || {
                Arc::new(SessionTurns {
                    one: Arc::new(Semaphore::new(1)),
                    arrivals: watch::Sender::new(0),
                })
            };
            Arc::clone(all.entry(id.to_owned()).or_insert_with(made))
        };
        let mut number = 0;
        of_session.arrivals.send_modify(|arrivals| {
            *arrivals += 1;
            number = *arrivals;
        });
        let mut turn = Turn {
            turns: self,
            id: id.to_owned(),
            _permit: None,
            number,
            arrivals: of_session.arrivals.subscribe(),
        };
        turn._permit = Arc::clone(&of_session.one).acquire_owned().await.ok();
        turn
    }
}

impl Turn<'_> {
    /// Waits until a newer request waits for the session.
    pub(crate) async fn overtaken(&mut self) {
        let number = self.number;
        // The sender is kept by the table while this exists.
        let _ = self.arrivals.wait_for(|arrivals| *arrivals > number).await;
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut all = self.turns.0.lock();
        // Receivers are those of turns, this one too.
        if all
            .get(&self.id)
            .is_some_and(|of_session| of_session.arrivals.receiver_count() <= 1)
        {
            all.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn newer_request_overtakes_and_the_last_one_clears_the_table() {
        let turns = Turns::default();
        let mut first = turns.enter("a").await;
        assert!(first.overtaken().now_or_never().is_none());
        let mut second = Box::pin(turns.enter("a"));
        assert!(second.as_mut().now_or_never().is_none(), "the first works");
        first.overtaken().now_or_never().unwrap();
        drop(turns.enter("b").await);
        drop(first);
        let mut second = second.await;
        assert!(second.overtaken().now_or_never().is_none());
        assert_eq!(turns.0.lock().len(), 1);
        drop(second);
        assert!(turns.0.lock().is_empty());
    }
}
