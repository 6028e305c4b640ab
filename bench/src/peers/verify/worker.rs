//! The engines of `peers verify`, in a process of its own: a line of words is a turn, and a line of figures leaves.

use std::io::{BufRead as _, Write as _};
use std::ops::Range;
use std::time::Instant;

use bywash::{Bucket, Consistency, Engine, OriginUrl, Verify};
use futures::TryStreamExt as _;
use object_store::ObjectStoreExt as _;
use object_store::path::Path;

use super::MEMORY_BYTES;
use crate::Failure;
use crate::process::cpu_time;
use crate::read::load::consume;

const RANGE_BYTES: u64 = 64 << 10;
/// Offsets of the first and of the second range, in two blocks that no read-ahead joins.
const OFFSETS: [u64; 2] = [2 << 20, 0];

/// Reads objects (started by `peers verify`).
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct WorkerArgs;

/// Works until standard input ends.
pub(crate) fn run_worker(_: &WorkerArgs) -> Result<(), Failure> {
    let runtime = crate::runtime()?;
    let _entered = runtime.enter();
    let url: OriginUrl = "s3://bench".parse()?;
    let engine = |verify| {
        let engine = Engine::builder()
            .memory(MEMORY_BYTES)
            .verify(verify)
            .build()?;
        engine.mount_url("bench", &url, Consistency::default())
    };
    let (off, whole, always) = (
        engine(Verify::Off)?,
        engine(Verify::Whole)?,
        engine(Verify::Always)?,
    );
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let [what, verify, key, objects] = words[..] else {
            return Err(format!("{line:?} is no turn").into());
        };
        let bucket = match verify.parse::<Verify>()? {
            Verify::Off => &off,
            Verify::Whole => &whole,
            Verify::Always => &always,
        };
        let objects: usize = objects.parse()?;
        let keys = (0..objects).map(|object| Path::from(format!("{key}-{object}")));
        let mut sums = [0.0; 4];
        for key in keys {
            let took = runtime.block_on(async {
                if what == "whole" {
                    let took = timed(whole_object(bucket, &key)).await?;
                    return Ok::<_, Failure>([took.0, took.1, 0.0, 0.0]);
                }
                let first = timed(range(bucket, &key, OFFSETS[0])).await?;
                let second = timed(range(bucket, &key, OFFSETS[1])).await?;
                Ok([first.0, first.1, second.0, second.1])
            })?;
            sums.iter_mut()
                .zip(took)
                .for_each(|(sum, took)| *sum += took);
        }
        let each = sums.map(|sum| (sum / objects as f64).to_string());
        println!("{}", each.join(" "));
        std::io::stdout().flush()?;
    }
    Ok(())
}

/// Seconds of time and of the processor.
async fn timed(read: impl Future<Output = Result<(), Failure>>) -> Result<(f64, f64), Failure> {
    let (begun, cpu) = (Instant::now(), cpu_time());
    read.await?;
    let cpu = cpu_time().saturating_sub(cpu);
    Ok((begun.elapsed().as_secs_f64(), cpu.as_secs_f64()))
}

async fn whole_object(bucket: &Bucket, key: &Path) -> Result<(), Failure> {
    let got = bucket.get(key).await?;
    let size = got.meta.size;
    let mut body = got.into_stream();
    let mut bytes = 0;
    while let Some(piece) = body.try_next().await? {
        bytes += consume(&piece);
    }
    complete(key, bytes, size)
}

async fn range(bucket: &Bucket, key: &Path, offset: u64) -> Result<(), Failure> {
    let range: Range<u64> = offset..offset + RANGE_BYTES;
    let bytes = bucket.get_range(key, range).await?;
    complete(key, consume(&bytes), RANGE_BYTES)
}

fn complete(key: &Path, bytes: u64, wanted: u64) -> Result<(), Failure> {
    (bytes == wanted)
        .then_some(())
        .ok_or_else(|| format!("{key}: {bytes} of {wanted} bytes").into())
}
