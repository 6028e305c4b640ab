//! Observation of a running case: samples the process every 100 ms and probes whether new clients are served.
//!
//! Each watcher has a thread of its own, so that the siege's clients do not delay it.

use std::collections::VecDeque;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use bywash_support::http::Connection;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::client::{ClockOffset, signed};
use crate::judge::MAX_PROBE_WAIT;
use crate::machine::Stopwatch;
use crate::record::Record;

/// Time between two samples.
const SAMPLE_EVERY: Duration = Duration::from_millis(100);
/// Number of samples over which the max of threads and descriptors counts: two seconds. A server releases memory
/// later than the thread or descriptor.
const SAMPLES_HELD: usize = 20;
/// Time between the end of a probe and the next.
const PROBE_EVERY: Duration = Duration::from_millis(200);

/// State of a process at one moment.
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

/// Returns the bytes that a folder and its files take on the disk. A file that is gone meanwhile takes none.
#[must_use]
pub fn allocated(folder: &Path) -> u64 {
    let blocks = |meta: std::io::Result<fs::Metadata>| meta.map_or(0, |meta| meta.blocks());
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let files = files.map(|file| blocks(file.metadata())).sum::<u64>();
    (files + blocks(fs::metadata(folder))) * 512
}

/// The object that the probe reads.
#[derive(Debug, Clone)]
pub struct ProbeTarget {
    pub path: String,
    pub body: Bytes,
}

/// The server under observation, which a case can replace or pause.
#[derive(Debug)]
pub struct WatchedServer {
    pid: AtomicU32,
    address: Mutex<SocketAddr>,
    paused: AtomicBool,
    busy: tokio::sync::Mutex<()>,
    /// Folder and size of the disk tier.
    disk: Mutex<(PathBuf, u64)>,
    pub clock_offset: ClockOffset,
}

impl WatchedServer {
    #[must_use]
    pub fn new(
        pid: u32,
        address: SocketAddr,
        disk: (PathBuf, u64),
        clock_offset: ClockOffset,
    ) -> Self {
        Self {
            pid: AtomicU32::new(pid),
            address: Mutex::new(address),
            paused: AtomicBool::new(false),
            busy: tokio::sync::Mutex::new(()),
            disk: Mutex::new(disk),
            clock_offset,
        }
    }

    /// Watches another process from now on.
    pub fn follow(&self, pid: u32, address: SocketAddr) {
        // Relaxed: a watcher that misses it samples a process that no longer exists.
        self.pid.store(pid, Ordering::Relaxed);
        *self.address.lock() = address;
    }

    /// Sets the size of the disk tier.
    pub fn set_disk(&self, size: u64) {
        self.disk.lock().1 = size;
    }

    /// Returns the bytes that the disk tier takes, and its size.
    #[must_use]
    pub fn disk(&self) -> (u64, u64) {
        let (folder, size) = &*self.disk.lock();
        (allocated(folder), *size)
    }

    /// Waits for the probe in progress and pauses further ones.
    pub async fn pause(&self) {
        // Relaxed: the lock below orders it.
        self.paused.store(true, Ordering::Relaxed);
        drop(self.busy.lock().await);
    }

    /// Resumes probes.
    pub fn resume(&self) {
        // Relaxed: nothing else depends on it.
        self.paused.store(false, Ordering::Relaxed);
    }
}

/// The watchers of one case. They end when dropped; later observations are discarded.
#[derive(Debug)]
pub struct Watchers {
    ended: Arc<AtomicBool>,
    /// Closed when the watchers end.
    _end: watch::Sender<()>,
}

impl Drop for Watchers {
    fn drop(&mut self) {
        // Relaxed: a watcher that misses it records one more sample of a live server.
        self.ended.store(true, Ordering::Relaxed);
    }
}

impl Watchers {
    /// # Errors
    /// If there is no thread for a watcher.
    pub fn start(
        watched: &Arc<WatchedServer>,
        record: &Arc<Record>,
        target: Option<ProbeTarget>,
    ) -> std::io::Result<Self> {
        let ended = Arc::new(AtomicBool::new(false));
        let (end, over) = watch::channel(());
        let observer = Observer {
            watched: Arc::clone(watched),
            record: Arc::clone(record),
            ended: Arc::clone(&ended),
        };
        on_a_thread("siege-sampler", over.clone(), sampler(observer.clone()))?;
        if let Some(target) = target {
            on_a_thread("siege-prober", over, prober(observer, target))?;
        }
        Ok(Self { ended, _end: end })
    }
}

/// Runs a watcher on a thread of its own until `over` is closed.
fn on_a_thread(
    name: &str,
    mut over: watch::Receiver<()>,
    watcher: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let run = move || {
        runtime.block_on(async {
            tokio::select! {
                _ = over.changed() => {}
                () = watcher => {}
            }
        });
    };
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(run)?;
    Ok(())
}

/// What a watcher observes, and where it records.
#[derive(Debug, Clone)]
struct Observer {
    watched: Arc<WatchedServer>,
    record: Arc<Record>,
    ended: Arc<AtomicBool>,
}

impl Observer {
    fn ended(&self) -> bool {
        // Relaxed: see `drop`.
        self.ended.load(Ordering::Relaxed)
    }
}

/// The latest samples, at max [`SAMPLES_HELD`].
#[derive(Debug, Default)]
struct Latest(VecDeque<Sample>);

impl Latest {
    /// Adds a sample. Returns the one with the max threads and descriptors of the latest.
    fn add(&mut self, sample: Sample) -> Sample {
        if self.0.len() == SAMPLES_HELD {
            self.0.pop_front();
        }
        self.0.push_back(sample);
        self.0.iter().fold(sample, |max, earlier| Sample {
            rss: sample.rss,
            descriptors: max.descriptors.max(earlier.descriptors),
            threads: max.threads.max(earlier.threads),
        })
    }
}

async fn sampler(observer: Observer) {
    let mut latest = Latest::default();
    while !observer.ended() {
        // Relaxed: see `follow`.
        if let Some(sample) = sample(observer.watched.pid.load(Ordering::Relaxed)) {
            observer.record.sample(latest.add(sample));
        }
        let (bytes, size) = observer.watched.disk();
        if bytes > size {
            observer.record.disk_excess(bytes, size);
        }
        tokio::time::sleep(SAMPLE_EVERY).await;
    }
}

async fn prober(observer: Observer, target: ProbeTarget) {
    while !observer.ended() {
        let busy = observer.watched.busy.lock().await;
        // Relaxed: the lock orders it.
        if !observer.watched.paused.load(Ordering::Relaxed) {
            let address = *observer.watched.address.lock();
            let wait = Stopwatch::start();
            let error =
                probe_until_late(address, &target, observer.watched.clock_offset, wait).await;
            if !observer.ended() {
                observer.record.probe(wait.counted(), wait.elapsed(), error);
            }
        }
        drop(busy);
        tokio::time::sleep(PROBE_EVERY).await;
    }
}

/// Probes until success. Gives up when the counted wait is twice the limit, or the machine is too slow.
async fn probe_until_late(
    address: SocketAddr,
    target: &ProbeTarget,
    clock_offset: ClockOffset,
    wait: Stopwatch,
) -> Option<String> {
    let probing = probe(address, target, clock_offset);
    tokio::pin!(probing);
    loop {
        let late = 2 * MAX_PROBE_WAIT;
        if wait.counted() >= late || wait.elapsed() >= 5 * late {
            return Some(format!(
                "nothing in {:.1} s, of which {:.1} s count",
                wait.elapsed().as_secs_f64(),
                wait.counted().as_secs_f64()
            ));
        }
        match tokio::time::timeout(SAMPLE_EVERY, &mut probing).await {
            Ok(Ok(())) => return None,
            Ok(Err(text)) => return Some(text),
            Err(_) => {}
        }
    }
}

/// Reads the target with a new client, then its head on the same connection.
async fn probe(
    address: SocketAddr,
    target: &ProbeTarget,
    clock_offset: ClockOffset,
) -> Result<(), String> {
    let io = |error: std::io::Error| error.to_string();
    let mut connection = Connection::open(address).await.map_err(io)?;
    for method in ["GET", "HEAD"] {
        let request = signed(method, &target.path, "", &[], b"", clock_offset);
        let response = connection.exchange(method, &request).await.map_err(io)?;
        if response.status != 200 {
            return Err(format!(
                "{method} is {}: {}",
                response.status,
                response.text()
            ));
        }
        if method == "GET" && response.body != target.body {
            return Err("other bytes".to_owned());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_and_threads_are_maxima_of_two_seconds_and_memory_is_current() {
        let sample = |rss, descriptors, threads| Sample {
            rss,
            descriptors,
            threads,
        };
        let mut latest = Latest::default();
        assert_eq!(latest.add(sample(9, 900, 12)), sample(9, 900, 12));
        for _ in 1..SAMPLES_HELD {
            assert_eq!(latest.add(sample(5, 30, 11)), sample(5, 900, 12));
        }
        assert_eq!(latest.add(sample(5, 30, 11)), sample(5, 30, 11));
    }
}
