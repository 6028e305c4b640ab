//! The engine with a disk tier, over the origin of the benchmarks.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use bywash::{Bucket, Consistency, DiskOptions, Engine, OriginUrl};
use object_store::ObjectStoreExt as _;
use object_store::path::Path;

use super::worker::{Cache, FILL_BYTES, MAX_PASSES, OBJECT_BYTES, WorkerArgs, origin};
use crate::Failure;
use crate::read::counters;
use crate::read::load::consume;

pub(super) struct Ours {
    engine: Engine,
    bucket: Bucket,
    origin: SocketAddr,
    value_bytes: u64,
    values: u64,
}

impl Ours {
    pub(super) fn open(args: &WorkerArgs) -> Result<Self, Failure> {
        let engine = Engine::builder()
            .memory(args.memory)
            .block_size(args.value_bytes)
            .disk(DiskOptions {
                path: args.folder.clone(),
                size: args.disk,
                daily_writes: None,
                min_block_size: None,
            })
            .build()?;
        let url: OriginUrl = "s3://bench".parse()?;
        let bucket = engine.mount_url("bench", &url, Consistency::default())?;
        Ok(Self {
            engine,
            bucket,
            origin: origin()?,
            value_bytes: args.value_bytes as u64,
            values: args.values,
        })
    }

    async fn get(&self, range: Range<u64>) -> Result<u64, Failure> {
        let object = range.start / OBJECT_BYTES;
        let path = Path::from(format!("s{OBJECT_BYTES}/data-{object}"));
        let start = range.start % OBJECT_BYTES;
        let bytes = self
            .bucket
            .get_range(&path, start..start + (range.end - range.start))
            .await?;
        Ok(consume(&bytes))
    }

    async fn written(&self) -> Result<u64, Failure> {
        loop {
            let disk = self.engine.stats().disk.ok_or("the disk tier is off")?;
            if disk.queued_blocks == 0 {
                return Ok(disk.blocks);
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

impl Cache for Ours {
    async fn fill(&self) -> Result<(), Failure> {
        let end = self.values * self.value_bytes;
        for _ in 0..MAX_PASSES {
            for start in (0..end).step_by(FILL_BYTES as usize) {
                self.get(start..end.min(start + FILL_BYTES)).await?;
                self.written().await?;
            }
            if self.written().await? >= self.values {
                return Ok(());
            }
        }
        let disk = self.engine.stats().disk;
        Err(format!(
            "not all of {} values are on the disk: {disk:?}",
            self.values
        )
        .into())
    }

    async fn read(&self, value: u64) -> Result<bool, Failure> {
        let start = value * self.value_bytes;
        let bytes = self.get(start..start + self.value_bytes).await?;
        (bytes == self.value_bytes)
            .then_some(true)
            .ok_or_else(|| format!("value {value} has {bytes} bytes").into())
    }

    async fn missed(&self) -> Result<u64, Failure> {
        Ok(counters(self.origin).await?.bytes / self.value_bytes)
    }
}
