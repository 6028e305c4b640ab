//! How long attackers hold their requests: until the server was measured beside all of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::context::CaseContext;

/// Maximum time for which attackers hold their requests, and the time in a full run.
const HOLD: Duration = Duration::from_secs(6);
/// Number of probes that must end while all attackers hold their requests; they last two seconds on an idle server.
const PROBES: u64 = 10;
/// Time between two looks at the numbers of attackers and probes.
const LOOK: Duration = Duration::from_millis(20);

/// A number of attackers, and the end of their attack.
#[derive(Debug)]
pub(super) struct Hold {
    attackers: u64,
    holding: AtomicU64,
    over: watch::Sender<bool>,
}

impl Hold {
    pub(super) fn new(attackers: u64) -> Arc<Self> {
        Arc::new(Self {
            attackers,
            holding: AtomicU64::new(0),
            over: watch::Sender::new(false),
        })
    }

    /// Counts the caller as one that holds its request, and does `meanwhile` until the attack is over.
    pub(super) async fn during<T>(&self, meanwhile: impl Future<Output = T>) {
        // Relaxed: a count that is seen late lasts one look longer.
        self.holding.fetch_add(1, Ordering::Relaxed);
        let mut over = self.over.subscribe();
        tokio::select! {
            _ = meanwhile => {}
            _ = over.wait_for(|over| *over) => {}
        }
    }

    /// Ends the attack when all attackers have held their requests for `PROBES` probes; in a full run, and at the latest, after `HOLD`.
    pub(super) async fn end(&self, context: &CaseContext) {
        let begun = Instant::now();
        while self.holding.load(Ordering::Relaxed) < self.attackers && begun.elapsed() < HOLD {
            tokio::time::sleep(LOOK).await;
        }
        let (held, probes) = (Instant::now(), context.record.probes());
        let is_measured =
            || !context.campaign.is_full() && context.record.probes() >= probes + PROBES;
        while !is_measured() && held.elapsed() < HOLD {
            tokio::time::sleep(LOOK).await;
        }
        self.over.send_replace(true);
    }
}
