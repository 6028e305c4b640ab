//! Our side of `peers upload`, and plain PUTs by the same HTTP library, in a separate process that measures itself.

use std::io::{BufRead as _, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use bywash::upload::UploadOptions;
use bywash::{Bucket, Consistency, Engine, OriginUrl};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use object_store::path::Path;

use super::CONTENT_BYTES;
use super::client::PARTS_AT_ONCE;
use crate::Failure;
use crate::process::cpu_time;

/// Bytes of one write of callers that write in pieces.
const WRITE_BYTES: usize = 64 << 10;

/// Max time without progress of a plain PUT.
const STALL: Duration = Duration::from_secs(20);

/// UploadMode objects are uploaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum UploadMode {
    /// Written to an upload 64 KiB at a time
    Pieces,
    /// Written to an upload in one piece
    Whole,
    /// One PUT each, without an engine
    Plain,
    /// Written to an upload in one piece, to S3
    S3,
}

/// Uploads objects of the sizes in a line of its input, and prints a line of figures (started by `peers upload`).
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct WorkerArgs {
    how: UploadMode,
    /// The store's address, as in `http://127.0.0.1:1234`
    endpoint: String,
    at_once: usize,
    /// Count allocations, on one thread; times are then meaningless
    #[arg(long)]
    count: bool,
}

struct Client {
    how: UploadMode,
    endpoint: String,
    content: Bytes,
    bucket: Option<Bucket>,
    http: reqwest::Client,
}

pub(crate) fn run(args: &WorkerArgs) -> Result<(), Failure> {
    let runtime = if args.count {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?
    } else {
        crate::runtime()?
    };
    let client = Arc::new(runtime.block_on(async { Client::new(args) })?);
    println!("ready");
    for (round, line) in std::io::stdin().lock().lines().enumerate() {
        let sizes: Result<Vec<usize>, _> = line?.split_whitespace().map(str::parse).collect();
        let sizes = sizes?;
        let (begun, cpu) = (Instant::now(), cpu_time());
        let mut result = Ok(());
        let mut work = || {
            result = runtime.block_on(upload_all(&client, &sizes, args.at_once, round));
        };
        let allocated = if args.count {
            allocation_counter::measure(work).bytes_total as f64
        } else {
            work();
            f64::NAN
        };
        result?;
        let cpu = cpu_time().saturating_sub(cpu);
        println!(
            "{} {} {allocated}",
            begun.elapsed().as_secs_f64(),
            cpu.as_secs_f64()
        );
        std::io::stdout().flush()?;
    }
    Ok(())
}

async fn upload_all(
    client: &Arc<Client>,
    sizes: &[usize],
    at_once: usize,
    round: usize,
) -> Result<(), Failure> {
    stream::iter(sizes.iter().copied().enumerate())
        .map(|(at, size)| {
            let client = Arc::clone(client);
            async move {
                // moto keeps all objects in memory, so with it each round replaces the objects of the previous one.
                let round = if client.how == UploadMode::S3 {
                    0
                } else {
                    round
                };
                let name = format!("{:?}-{round}-{at}", client.how).to_lowercase();
                tokio::spawn(async move { client.upload(&name, size).await }).await?
            }
        })
        .buffer_unordered(at_once)
        .try_collect()
        .await
}

impl Client {
    fn new(args: &WorkerArgs) -> Result<Self, Failure> {
        let bucket = if args.how == UploadMode::Plain {
            None
        } else {
            let engine = Engine::builder().memory(1 << 30).build()?;
            // The endpoint comes from the environment, as in other clients.
            let scheme = if args.how == UploadMode::S3 {
                "s3"
            } else {
                "gs"
            };
            let url: OriginUrl = format!("{scheme}://bench").parse()?;
            Some(engine.mount_url("bench", &url, Consistency::default())?)
        };
        let words = (0..CONTENT_BYTES as u64 / 8).map(|word| word.wrapping_mul(0x9E37_79B9));
        Ok(Self {
            how: args.how,
            endpoint: args.endpoint.clone(),
            content: words.flat_map(u64::to_le_bytes).collect::<Vec<u8>>().into(),
            bucket,
            http: reqwest::Client::builder().read_timeout(STALL).build()?,
        })
    }

    async fn upload(&self, name: &str, size: usize) -> Result<(), Failure> {
        let body = self.content.slice(..size);
        let Some(bucket) = &self.bucket else {
            let url = format!("{}/bench/{name}", self.endpoint);
            self.http
                .put(url)
                .body(body)
                .send()
                .await?
                .error_for_status()?;
            return Ok(());
        };
        let options = UploadOptions {
            length: Some(size as u64),
            parallel: if self.how == UploadMode::S3 {
                PARTS_AT_ONCE
            } else {
                1
            },
            ..UploadOptions::default()
        };
        let mut upload = bucket.upload(&Path::from(name), options).await?;
        if self.how != UploadMode::Pieces {
            upload.write(body).await?;
        } else {
            for at in (0..size).step_by(WRITE_BYTES) {
                upload
                    .write(body.slice(at..size.min(at + WRITE_BYTES)))
                    .await?;
            }
        }
        let stored = upload.finish().await?;
        (stored.length == size as u64)
            .then_some(())
            .ok_or_else(|| format!("{name}: {size} bytes became {}", stored.length).into())
    }
}
