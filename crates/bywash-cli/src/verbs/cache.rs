//! `bywash cache`: shows and changes the objects in memory of a running server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use bywash::{
    CacheChange, CacheExplanation, CacheLimits, CachedObject, CachedPage, ContentDigest,
    DiskVerification, MemoryLimit,
};
use bywash_console::FetchedFile;
use indicatif::BinaryBytes;
use serde::Serialize;
use serde_json::{Value, json};

use crate::admin::AdminClient;
use crate::failure::Failure;
use crate::interrupt::or_interrupt;
use crate::output::Output;
use crate::serve::data_dir::DEFAULT_DATA_DIR;
use crate::size;

/// Show and change which objects a running server has in memory
///
/// The server is found by its data folder, or named by --admin-addr.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
    /// The server's data folder
    #[arg(long, global = true, value_name = "DIR", env = "BYWASH_DATA_DIR", default_value = DEFAULT_DATA_DIR)]
    data_dir: PathBuf,
    /// Address of the server's admin endpoints [default: that in the data folder]
    #[arg(long, global = true, value_name = "HOST:PORT")]
    admin_addr: Option<SocketAddr>,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// List the objects that the server knows, with the bytes of each in memory
    Ls {
        /// s3://bucket or s3://bucket/prefix [default: all buckets]
        #[arg(value_name = "PREFIX")]
        prefix: Option<BucketPath>,
        /// Print the numbers of blocks in memory, on the disk tier, and in all, for each object, also for objects that no client has
        /// read since the start
        #[arg(long)]
        tier: bool,
    },
    /// Read objects into the server's memory, up to three quarters of it
    Warm {
        /// s3://bucket or s3://bucket/prefix
        #[arg(value_name = "PREFIX")]
        prefix: BucketPath,
    },
    /// Drop objects from memory; the origin keeps them
    Drop {
        /// s3://bucket or s3://bucket/prefix
        #[arg(value_name = "PREFIX")]
        prefix: BucketPath,
    },
    /// Download an object to a file of the server's machine, below the server's --fetch-folder
    ///
    /// Blocks in memory or on the disk tier are not requested again. The file appears once it is complete, compared with its
    /// digest and synced. Ctrl-C cancels; a full disk is retried.
    Fetch {
        /// s3://bucket/key
        #[arg(value_name = "KEY")]
        key: BucketPath,
        /// The file, relative to --fetch-folder
        #[arg(value_name = "PATH")]
        path: String,
        /// SHA-256 that the object must have, in hexadecimal digits
        #[arg(long, value_name = "HEX", value_parser = sha256)]
        sha256: Option<String>,
        /// Fail if the file exists
        #[arg(long)]
        create_only: bool,
    },
    /// Print whether a read would be a hit or a miss, why, and what the object has cost so far
    Why {
        /// s3://bucket/key
        #[arg(value_name = "KEY")]
        key: BucketPath,
    },
    /// Read all blocks of the disk tier, compare each with its checksum, and drop damaged ones
    ///
    /// One block is read at a time, while the server works. Exits with 1 if blocks were damaged or could not be read; the
    /// origin has them.
    Verify {
        /// Max bytes to read a second, as 100MiB [default: no limit]
        #[arg(long, value_name = "SIZE", value_parser = size::parse)]
        rate: Option<u64>,
    },
    /// Print the server's limits of memory and disk, or change them until it stops
    ///
    /// A lower limit of memory evicts objects first. If readers and writers hold more than it, the limit stays. A lower
    /// limit of the disk tier removes the oldest blocks.
    Limit {
        /// The new memory limit, as 512MiB or 4GiB
        #[arg(long, value_name = "SIZE", value_parser = size::parse)]
        memory: Option<u64>,
        /// The new limit of the disk tier, as 100GiB
        #[arg(long, value_name = "SIZE", value_parser = size::parse)]
        disk: Option<u64>,
    },
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let server = AdminClient::find(&args.data_dir, args.admin_addr)?;
    let out = args.output;
    or_interrupt(async {
        match &args.verb {
            Verb::Ls { prefix, tier } => list(&server, prefix.as_ref(), *tier, out).await,
            Verb::Warm { prefix } => change(&server, "warm", prefix, out).await,
            Verb::Drop { prefix } => change(&server, "drop", prefix, out).await,
            Verb::Fetch {
                key,
                path,
                sha256,
                create_only,
            } => {
                let (key, path) = (key.object()?, path.as_str());
                let request = json!({
                    "bucket": key.0, "key": key.1, "path": path, "sha256": sha256, "create_only": create_only,
                });
                fetch(&server, &request, out).await
            }
            Verb::Why { key } => why(&server, key, out).await,
            Verb::Verify { rate } => verify(&server, *rate, out).await,
            Verb::Limit { memory, disk } => limit(&server, *memory, *disk, out).await,
        }
    })
    .await
}

/// A bucket of the server, and a key or the beginning of keys in it.
#[derive(Debug, Clone)]
struct BucketPath {
    bucket: String,
    key: String,
}

/// Checks a SHA-256, which the server parses.
fn sha256(text: &str) -> Result<String, String> {
    ContentDigest::parse_sha256(text).map(|_| text.to_owned())
}

impl BucketPath {
    /// Returns bucket and key of an object.
    fn object(&self) -> Result<(&str, &str), Failure> {
        let Self { bucket, key } = self;
        if key.is_empty() {
            return Err(Failure::usage(format!(
                "s3://{bucket} is a bucket; write s3://{bucket}/key, or list it: bywash cache ls s3://{bucket}"
            )));
        }
        Ok((bucket, key))
    }
}

impl FromStr for BucketPath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rest = text.strip_prefix("s3://").filter(|rest| !rest.is_empty());
        let rest = rest.ok_or("it is no object of the server; write s3://bucket/prefix")?;
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        Ok(Self {
            bucket: bucket.to_owned(),
            key: key.to_owned(),
        })
    }
}

/// One line of `cache ls`.
#[derive(Debug, Serialize)]
struct Line<'a> {
    bucket: &'a str,
    #[serde(flatten)]
    object: &'a CachedObject,
}

async fn list(
    server: &AdminClient,
    prefix: Option<&BucketPath>,
    tier: bool,
    out: Output,
) -> Result<(), Failure> {
    let mut after: Option<String> = None;
    loop {
        let mut query = Vec::new();
        if let Some(prefix) = prefix {
            query.push(("bucket", prefix.bucket.as_str()));
            query.push(("prefix", prefix.key.as_str()));
        }
        query.extend(after.as_deref().map(|after| ("after", after)));
        query.extend(tier.then_some(("disk", "true")));
        let page: CachedPage = server.get("/cache", &query).await?;
        for (bucket, objects) in &page.buckets {
            for object in objects {
                out.line(&Line { bucket, object }, || {
                    if tier {
                        return format!(
                            "{:>7} in memory {:>7} on disk of {:>7} blocks  s3://{bucket}/{}",
                            object.resident_blocks, object.disk_blocks, object.blocks, object.key
                        );
                    }
                    format!(
                        "{:>12} of {:>12} validated {:>7} ago  s3://{bucket}/{}",
                        BinaryBytes(object.resident_bytes).to_string(),
                        BinaryBytes(object.size).to_string(),
                        age(object),
                        object.key
                    )
                })?;
            }
        }
        // A server that repeats a position would never send a last page.
        if page.next.is_none() || page.next == after {
            return Ok(());
        }
        after = page.next;
    }
}

async fn why(server: &AdminClient, key: &BucketPath, out: Output) -> Result<(), Failure> {
    let (bucket, key) = key.object()?;
    let why: CacheExplanation = server
        .get("/cache/why", &[("bucket", bucket), ("key", key)])
        .await?;
    out.lines(&why, || {
        let mut lines = vec![format!("{}: s3://{bucket}/{}", why.outcome, why.key)];
        lines.extend(why.reasons.iter().map(|reason| format!("  {reason}")));
        if let Some(object) = &why.object {
            lines.push(format!(
                "  version {}, {} bytes",
                object.version, object.size
            ));
            lines.push(format!(
                "  tier {}, {} bytes of it there",
                why.tier, object.resident_bytes
            ));
            let cost = object.cost;
            lines.push(format!(
                "  cost so far: {} requests to the origin, {} bytes, {} ms",
                cost.requests, cost.bytes, cost.time_ms
            ));
        }
        lines
    })
}

async fn fetch(server: &AdminClient, request: &Value, out: Output) -> Result<(), Failure> {
    let file: FetchedFile = server.post("/cache/fetch", request).await?;
    out.line(&file, || {
        format!(
            "fetched s3://{}/{} to {}, {} in {:.1}s",
            file.bucket,
            file.key,
            file.path,
            BinaryBytes(file.bytes),
            Duration::from_millis(file.time_ms).as_secs_f64()
        )
    })
}

async fn change(
    server: &AdminClient,
    verb: &'static str,
    prefix: &BucketPath,
    out: Output,
) -> Result<(), Failure> {
    let (bucket, prefix) = (&prefix.bucket, &prefix.key);
    let body = serde_json::json!({ "bucket": bucket, "prefix": prefix });
    let changed: CacheChange = server.post(&format!("/cache/{verb}"), &body).await?;
    out.line(&changed, || {
        let done = if verb == "warm" { "warmed" } else { "dropped" };
        let mut text = format!("{done} {} objects, {}", changed.objects, BinaryBytes(changed.bytes));
        if changed.left_out > 0 {
            text += &format!(
                "; {} left out, because they would evict objects read before them (raise --memory of the server)",
                changed.left_out
            );
        }
        text
    })?;
    if changed.failed.is_empty() {
        return Ok(());
    }
    Err(Failure::failed(format!(
        "some objects could not be read: {}",
        changed.failed.join("; ")
    )))
}

async fn verify(server: &AdminClient, rate: Option<u64>, out: Output) -> Result<(), Failure> {
    let options = serde_json::json!({ "rate": rate });
    let found: DiskVerification = server.post("/cache/verify", &options).await?;
    let bad = found.damaged_blocks + found.unreadable_blocks;
    out.line(&found, || {
        format!(
            "{} blocks are as they were written, {} in {:.1} s; {} damaged and dropped, {} unreadable",
            found.good_blocks,
            BinaryBytes(found.good_bytes),
            found.seconds,
            found.damaged_blocks,
            found.unreadable_blocks
        )
    })?;
    if !found.complete {
        return Err(Failure::failed(
            "the disk tier was turned off before all blocks were read; `disk` in /stats has the reason",
        ));
    }
    match bad {
        0 => Ok(()),
        _ => Err(Failure::failed(format!(
            "{bad} blocks of the disk tier were damaged or could not be read; the origin has them"
        ))),
    }
}

async fn limit(
    server: &AdminClient,
    memory: Option<u64>,
    disk: Option<u64>,
    out: Output,
) -> Result<(), Failure> {
    let limits: CacheLimits = match (memory, disk) {
        (None, None) => server.get("/cache/limit", &[]).await?,
        _ => {
            let change = serde_json::json!({ "memory": memory, "disk": disk });
            server.post("/cache/limit", &change).await?
        }
    };
    out.line(&limits, || {
        let MemoryLimit {
            limit,
            used,
            min,
            max,
        } = limits.memory;
        let mut text = format!(
            "memory: {} of {} used; the limit can be {} to {}",
            BinaryBytes(used),
            BinaryBytes(limit),
            BinaryBytes(min),
            BinaryBytes(max)
        );
        if let Some(disk) = &limits.disk {
            let limit = BinaryBytes(disk.limit);
            text += &format!("\ndisk: {} blocks in at most {limit}", disk.blocks);
        }
        text
    })
}

fn age(object: &CachedObject) -> String {
    let age = object.validated_ms_ago.map(Duration::from_millis);
    age.map_or_else(
        || "-".to_owned(),
        |age| format!("{:.1}s", age.as_secs_f64()),
    )
}
