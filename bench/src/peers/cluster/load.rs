//! Clients that read objects through all nodes that run, until they are stopped.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinHandle;

use super::nodes::SmallClient;
use crate::Failure;

/// Objects that are read one after the other, and what is known of the reads.
#[derive(Debug)]
pub(super) struct Load {
    objects: usize,
    size: u64,
    /// Time between two reads of a client.
    pause: Duration,
    /// S3 endpoints of the nodes that take requests.
    targets: Mutex<Vec<SocketAddr>>,
    next: AtomicUsize,
    failed: AtomicUsize,
    slowest: Mutex<Duration>,
    stopped: AtomicBool,
}

impl Load {
    pub(super) fn new((objects, size): (usize, u64), pause: Duration) -> Self {
        Self {
            objects,
            size,
            pause,
            targets: Mutex::new(Vec::new()),
            next: AtomicUsize::new(0),
            failed: AtomicUsize::new(0),
            slowest: Mutex::new(Duration::ZERO),
            stopped: AtomicBool::new(false),
        }
    }

    /// Sends requests from now on to these.
    pub(super) fn lead_to(&self, targets: Vec<SocketAddr>) {
        *self.targets.lock().expect("no client panics") = targets;
    }

    pub(super) fn stop(&self) {
        // Relaxed: a client that misses it reads once more.
        self.stopped.store(true, Relaxed);
    }

    /// Returns the slowest read since the last call.
    pub(super) fn take_slowest(&self) -> Duration {
        std::mem::take(&mut *self.slowest.lock().expect("no client panics"))
    }

    /// Returns the reads that failed, and were repeated at another node.
    pub(super) fn failed(&self) -> usize {
        // Relaxed: a plain counter.
        self.failed.load(Relaxed)
    }

    /// Returns the number of reads so far.
    pub(super) fn reads(&self) -> usize {
        // Relaxed: a plain counter.
        self.next.load(Relaxed)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.objects as u64 * self.size
    }

    /// Runs so many clients, each a task.
    pub(super) fn start(self: &Arc<Self>, clients: usize) -> Vec<JoinHandle<Result<(), Failure>>> {
        let client = |number| {
            let load = Arc::clone(self);
            tokio::spawn(async move { load.client(number).await })
        };
        (0..clients).map(client).collect()
    }

    /// Reads until [`Self::stop`].
    async fn client(&self, number: usize) -> Result<(), Failure> {
        let mut open: Option<SmallClient> = None;
        // Relaxed, twice: see `stop`; numbers only have to be spread.
        while !self.stopped.load(Relaxed) {
            let read = self.next.fetch_add(1, Relaxed);
            let target = {
                let targets = self.targets.lock().expect("no client panics");
                targets[(read + number) % targets.len()]
            };
            if open.as_ref().is_none_or(|open| open.address() != target) {
                open = SmallClient::connect(target).await.ok();
            }
            let key = format!("s{}/load-{}", self.size, read % self.objects);
            let got = match &mut open {
                Some(client) => client.get(&key).await,
                None => Err("no connection".into()),
            };
            match got {
                Ok((bytes, time)) if bytes == self.size => {
                    let mut slowest = self.slowest.lock().expect("no client panics");
                    *slowest = slowest.max(time);
                }
                Ok((bytes, _)) => return Err(format!("{key}: {bytes} bytes").into()),
                Err(_) => {
                    // Relaxed: a plain counter.
                    self.failed.fetch_add(1, Relaxed);
                    open = None;
                }
            }
            tokio::time::sleep(self.pause).await;
        }
        Ok(())
    }
}
