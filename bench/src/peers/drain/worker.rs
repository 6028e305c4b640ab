//! Our side of `peers drain`, in a process of its own: a line of words is a round, and a line of figures leaves.

use std::io::{BufRead as _, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bywash::{Bucket, Consistency, ContentDigest, Engine, FileDownloadOptions, OriginUrl};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use object_store::ObjectStoreExt as _;
use object_store::path::Path;
use tokio::sync::Semaphore;

use crate::Failure;
use crate::process::{forget_own_peak, own_peak_bytes};
use crate::read::load::{consume, median};

/// Downloads to files at once, of blobs that were read before: as many as Kraken's default.
const DRAINS: usize = 10;

/// Downloads blobs to files (started by `peers drain`).
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct WorkerArgs {
    /// Bytes of memory
    #[arg(long)]
    memory: u64,
}

/// A round.
#[derive(Debug)]
struct Order {
    reads_first: bool,
    /// Key of the blobs, without their numbers.
    key: String,
    folder: PathBuf,
    blobs: usize,
    bytes: usize,
    at_once: usize,
    digest: ContentDigest,
}

impl Order {
    /// As the Go side is asked.
    fn parse(line: &str) -> Result<Self, Failure> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [design, url, folder, blobs, bytes, at_once, _, digest] = words[..] else {
            return Err(format!("{line:?} is no round").into());
        };
        let (_, key) = url
            .split_once("/bench/")
            .ok_or("no bucket in the address")?;
        Ok(Self {
            reads_first: design == "read",
            key: key.to_owned(),
            folder: folder.into(),
            blobs: blobs.parse()?,
            bytes: bytes.parse()?,
            at_once: at_once.parse()?,
            digest: ContentDigest::parse_sha256(digest)?,
        })
    }
}

/// When a blob began, could be read, and was durable.
type Times = (Instant, Instant, Instant);

/// Works until standard input ends.
pub(crate) fn run_worker(args: &WorkerArgs) -> Result<(), Failure> {
    let runtime = crate::runtime()?;
    let _entered = runtime.enter();
    let engine = Engine::builder().memory(args.memory).build()?;
    let url: OriginUrl = "s3://bench".parse()?;
    let bucket = engine.mount_url("bench", &url, Consistency::default())?;
    for line in std::io::stdin().lock().lines() {
        let order = Arc::new(Order::parse(&line?)?);
        forget_own_peak()?;
        let begun = Instant::now();
        let times = runtime.block_on(round(&bucket, &order))?;
        let last = |when: fn(&Times) -> Instant| times.iter().map(when).max().unwrap_or(begun);
        let p50 = |took: fn(&Times) -> Duration| {
            median(
                times
                    .iter()
                    .map(|times| took(times).as_secs_f64() * 1e3)
                    .collect(),
            )
        };
        println!(
            "{} {} {} {} {}",
            (last(|times| times.1) - begun).as_secs_f64(),
            (last(|times| times.2) - begun).as_secs_f64(),
            p50(|times| times.1 - times.0),
            p50(|times| times.2 - times.0),
            own_peak_bytes()?,
        );
        std::io::stdout().flush()?;
    }
    Ok(())
}

async fn round(bucket: &Bucket, order: &Arc<Order>) -> Result<Vec<Times>, Failure> {
    let drains = Arc::new(Semaphore::new(DRAINS));
    let blobs = stream::iter(0..order.blobs).map(|blob| {
        let (bucket, order, drains) = (bucket.clone(), Arc::clone(order), Arc::clone(&drains));
        async move { tokio::spawn(begin(bucket, order, drains, blob)).await? }
    });
    // Each has begun; one that was read has its way to the file left.
    let begun: Vec<_> = blobs.buffer_unordered(order.at_once).try_collect().await?;
    let mut times = Vec::new();
    for (begun, usable, drain) in begun {
        let durable = match drain {
            Some(drain) => drain.await??,
            None => usable,
        };
        times.push((begun, usable, durable));
    }
    Ok(times)
}

type Drain = tokio::task::JoinHandle<Result<Instant, Failure>>;

/// Makes a blob usable, and starts its way to the file if that is not part of it.
async fn begin(
    bucket: Bucket,
    order: Arc<Order>,
    drains: Arc<Semaphore>,
    blob: usize,
) -> Result<(Instant, Instant, Option<Drain>), Failure> {
    let begun = Instant::now();
    if !order.reads_first {
        to_file(&bucket, &order, blob).await?;
        return Ok((begun, Instant::now(), None));
    }
    let mut body = bucket.get(&path(&order, blob)).await?.into_stream();
    let mut bytes = 0;
    while let Some(piece) = body.try_next().await? {
        bytes += consume(&piece);
    }
    if bytes != order.bytes as u64 {
        return Err(format!("blob {blob} has {bytes} bytes").into());
    }
    let usable = Instant::now();
    let drain = tokio::spawn(async move {
        let _turn = drains.acquire_owned().await?;
        to_file(&bucket, &order, blob).await?;
        Ok(Instant::now())
    });
    Ok((begun, usable, Some(drain)))
}

fn path(order: &Order, blob: usize) -> Path {
    Path::from(format!("{}{blob}", order.key))
}

async fn to_file(bucket: &Bucket, order: &Order, blob: usize) -> Result<(), Failure> {
    let options = FileDownloadOptions {
        digest: Some(order.digest),
        ..FileDownloadOptions::default()
    };
    let target = order.folder.join(blob.to_string());
    bucket
        .download_to(&path(order, blob), target, options)
        .await?;
    Ok(())
}
