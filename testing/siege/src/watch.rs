//! What is looked at while a case runs: the process every 100 ms, and whether a new client is served.

use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use bywash_support::http::Connection;
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use crate::client::{Times, signed};
use crate::judge::MAX_PROBE_WAIT;
use crate::record::Record;

/// Time between two samples.
const SAMPLE_EVERY: Duration = Duration::from_millis(100);
/// Time between the end of a probe and the next.
const PROBE_EVERY: Duration = Duration::from_millis(200);

/// A process at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sample {
    /// Bytes resident without file-backed pages: RssAnon + RssShmem.
    pub rss: u64,
    pub descriptors: u64,
    pub threads: u64,
}

/// Returns the state of a process, or `None` if it is gone.
#[must_use]
pub fn sample(pid: u32) -> Option<Sample> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let number = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    Some(Sample {
        rss: (number("RssAnon:")? + number("RssShmem:")?) << 10,
        descriptors: fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() as u64,
        threads: number("Threads:")?,
    })
}

/// The object that the probe reads.
#[derive(Debug, Clone)]
pub struct Target {
    pub path: String,
    pub body: Bytes,
}

/// Which server is watched now; cases change it by kills and stops.
#[derive(Debug)]
pub struct Watched {
    pid: AtomicU32,
    address: Mutex<SocketAddr>,
    paused: AtomicBool,
    busy: tokio::sync::Mutex<()>,
    pub times: Times,
}

impl Watched {
    #[must_use]
    pub fn new(pid: u32, address: SocketAddr, times: Times) -> Self {
        Self {
            pid: AtomicU32::new(pid),
            address: Mutex::new(address),
            paused: AtomicBool::new(false),
            busy: tokio::sync::Mutex::new(()),
            times,
        }
    }

    /// Another process is the server now.
    pub fn follow(&self, pid: u32, address: SocketAddr) {
        // Relaxed: a watcher that sees the old one for a moment sees a process that is gone.
        self.pid.store(pid, Ordering::Relaxed);
        *self.address.lock() = address;
    }

    /// Ends the probe that is under way and begins no other.
    pub async fn pause(&self) {
        // Relaxed: the lock below orders it.
        self.paused.store(true, Ordering::Relaxed);
        drop(self.busy.lock().await);
    }

    /// Lets probes begin again.
    pub fn resume(&self) {
        // Relaxed: nothing else depends on it.
        self.paused.store(false, Ordering::Relaxed);
    }
}

/// The watchers of one case; they end when dropped.
#[derive(Debug)]
pub struct Watchers(Vec<JoinHandle<()>>);

impl Drop for Watchers {
    fn drop(&mut self) {
        for task in &self.0 {
            task.abort();
        }
    }
}

impl Watchers {
    #[must_use]
    pub fn start(watched: &Arc<Watched>, record: &Arc<Record>, target: Option<Target>) -> Self {
        let mut tasks = vec![tokio::spawn(sampler(
            Arc::clone(watched),
            Arc::clone(record),
        ))];
        if let Some(target) = target {
            tasks.push(tokio::spawn(prober(
                Arc::clone(watched),
                Arc::clone(record),
                target,
            )));
        }
        Self(tasks)
    }
}

async fn sampler(watched: Arc<Watched>, record: Arc<Record>) {
    loop {
        // Relaxed: see `follow`.
        if let Some(sample) = sample(watched.pid.load(Ordering::Relaxed)) {
            record.sample(sample);
        }
        tokio::time::sleep(SAMPLE_EVERY).await;
    }
}

async fn prober(watched: Arc<Watched>, record: Arc<Record>, target: Target) {
    loop {
        let busy = watched.busy.lock().await;
        // Relaxed: the lock orders it.
        if !watched.paused.load(Ordering::Relaxed) {
            let address = *watched.address.lock();
            let began = Instant::now();
            let asked = probe(address, &target, watched.times);
            let trouble = match tokio::time::timeout(2 * MAX_PROBE_WAIT, asked).await {
                Ok(Ok(())) => None,
                Ok(Err(text)) => Some(text),
                Err(_) => Some(format!("nothing in {} s", 2 * MAX_PROBE_WAIT.as_secs())),
            };
            record.probe(began.elapsed(), trouble);
        }
        drop(busy);
        tokio::time::sleep(PROBE_EVERY).await;
    }
}

/// A new client reads the target, and asks for its head on the same connection.
async fn probe(address: SocketAddr, target: &Target, times: Times) -> Result<(), String> {
    let io = |error: std::io::Error| error.to_string();
    let mut connection = Connection::open(address).await.map_err(io)?;
    for method in ["GET", "HEAD"] {
        let request = signed(method, &target.path, "", &[], b"", times);
        let reply = connection.exchange(method, &request).await.map_err(io)?;
        if reply.status != 200 {
            return Err(format!("{method} is {}: {}", reply.status, reply.text()));
        }
        if method == "GET" && reply.body != target.body {
            return Err("other bytes".to_owned());
        }
    }
    Ok(())
}
