//! A cache with a disk in a separate process, which reads orders and writes figures as JSON lines.

use std::io::{BufRead as _, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use super::foyer_cache::FoyerCache;
use super::http_cache::HttpCache;
use super::ours::Ours;
use super::pread::Pread;
use crate::Failure;

/// Bytes of an object of the origin: many values each, as in files of tables.
pub(super) const OBJECT_BYTES: u64 = 64 << 20;
/// Bytes read at once while a cache over the origin is filled: less than may wait to be written.
pub(super) const FILL_BYTES: u64 = 2 << 20;
/// Times that all values are read until all are on the disk.
pub(super) const MAX_PASSES: usize = 8;

/// Settings of the worker.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct WorkerArgs {
    #[arg(long)]
    pub(super) cache: CacheName,
    /// Folder of its files
    #[arg(long)]
    pub(super) folder: PathBuf,
    /// Address of the server with the cache, if it is behind one
    #[arg(long)]
    pub(super) server: Option<SocketAddr>,
    /// Bytes of memory
    #[arg(long)]
    pub(super) memory: u64,
    /// Maximum bytes on the disk
    #[arg(long)]
    pub(super) disk: u64,
    /// Bytes of a value
    #[arg(long)]
    pub(super) value_bytes: usize,
    /// Number of values
    #[arg(long)]
    pub(super) values: u64,
}

/// The caches that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum CacheName {
    Bywash,
    Foyer,
    Pread,
    /// The engine behind its S3 endpoint
    Serve,
    Nginx,
}

/// Order to the worker.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) enum Order {
    /// Write all values, and wait until they are on the disk.
    Fill,
    /// Read values at random.
    Read {
        readers: usize,
        window_ms: u64,
        seed: u64,
    },
}

/// Result of an order.
#[derive(Debug, Clone, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Figures {
    pub(super) seconds: f64,
    /// Values read, or written.
    pub(super) values: u64,
    /// Values that were not in the cache.
    pub(super) missed: u64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
}

/// A cache whose values are read by number.
pub(super) trait Cache: Send + Sync + 'static {
    /// Writes all values, and waits until they are on the disk.
    fn fill(&self) -> impl Future<Output = Result<(), Failure>> + Send;
    /// Reads a value, and all of its bytes. Returns whether it was in the cache.
    fn read(&self, value: u64) -> impl Future<Output = Result<bool, Failure>> + Send;
    /// Returns the number of values that were read but not in the cache, if `read` cannot detect it.
    fn missed(&self) -> impl Future<Output = Result<u64, Failure>> + Send {
        async { Ok(0) }
    }
}

/// Works until standard input ends.
pub(crate) fn run_worker(args: &WorkerArgs) -> Result<(), Failure> {
    let runtime = crate::runtime()?;
    let _entered = runtime.enter();
    match args.cache {
        CacheName::Bywash => orders(&runtime, args, Ours::open(args)?),
        CacheName::Foyer => orders(&runtime, args, runtime.block_on(FoyerCache::open(args))?),
        CacheName::Serve | CacheName::Nginx => orders(&runtime, args, HttpCache::open(args)?),
        CacheName::Pread => super::pread::orders(args, &Pread::open(args)?),
    }
}

fn orders<C: Cache>(
    runtime: &tokio::runtime::Runtime,
    args: &WorkerArgs,
    cache: C,
) -> Result<(), Failure> {
    let cache = Arc::new(cache);
    serve(|order| {
        let begun = Instant::now();
        match order {
            Order::Fill => {
                runtime.block_on(cache.fill())?;
                Ok(Figures {
                    values: args.values,
                    seconds: begun.elapsed().as_secs_f64(),
                    ..Figures::default()
                })
            }
            Order::Read {
                readers,
                window_ms,
                seed,
            } => {
                let window = Duration::from_millis(window_ms);
                let before = runtime.block_on(cache.missed())?;
                let readers = (0..readers as u64).map(|reader| {
                    let cache = Arc::clone(&cache);
                    tokio::spawn(read_at_random(cache, args.values, seed + reader, window))
                });
                let samples = runtime.block_on(try_join_all(readers))?;
                let samples: Result<Vec<_>, _> = samples.into_iter().collect();
                let mut figures = figures(samples?, begun.elapsed());
                figures.missed += runtime.block_on(cache.missed())? - before;
                Ok(figures)
            }
        }
    })
}

/// Executes orders until standard input ends.
pub(super) fn serve(
    mut execute: impl FnMut(Order) -> Result<Figures, Failure>,
) -> Result<(), Failure> {
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        let figures = execute(serde_json::from_str(&line?)?)?;
        println!("{}", serde_json::to_string(&figures)?);
        std::io::stdout().flush()?;
    }
    Ok(())
}

/// Address of the origin.
pub(super) fn origin() -> Result<SocketAddr, Failure> {
    let origin = std::env::var("AWS_ENDPOINT_URL")?;
    Ok(origin.trim_start_matches("http://").parse()?)
}

/// Times of the reads of one reader, and how many were not in the cache.
pub(super) type Samples = (Vec<Duration>, u64);

async fn read_at_random<C: Cache>(
    cache: Arc<C>,
    values: u64,
    seed: u64,
    window: Duration,
) -> Result<Samples, Failure> {
    let mut random = SmallRng::seed_from_u64(seed);
    let (mut times, mut missed) = (Vec::new(), 0);
    let begun = Instant::now();
    while times.is_empty() || begun.elapsed() < window {
        let one = Instant::now();
        let hit = cache.read(random.random_range(0..values)).await?;
        times.push(one.elapsed());
        missed += u64::from(!hit);
    }
    Ok((times, missed))
}

pub(super) fn figures(samples: Vec<Samples>, took: Duration) -> Figures {
    let missed = samples.iter().map(|(_, missed)| missed).sum();
    let mut times: Vec<f64> = samples
        .iter()
        .flat_map(|(times, _)| times)
        .map(|time| time.as_secs_f64() * 1e6)
        .collect();
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    Figures {
        seconds: took.as_secs_f64(),
        values: times.len() as u64,
        missed,
        p50_us: at(0.5),
        p99_us: at(0.99),
    }
}

/// Returns the bytes of a value. They differ between values, so that a read can verify them.
pub(super) fn content(value: u64, bytes: usize) -> Vec<u8> {
    let word = (value + 1)
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        .to_le_bytes();
    word.repeat(bytes / word.len())
}
