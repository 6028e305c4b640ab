//! foyer's hybrid cache: values in memory, and on a disk by direct I/O.

use bytes::Bytes;
use foyer::{
    BlockEngineConfig, DeviceBuilder as _, FsDeviceBuilder, HybridCache, HybridCacheBuilder,
    HybridCachePolicy, PsyncIoEngineConfig,
};

use super::worker::{Cache, WorkerArgs, content};
use crate::Failure;
use crate::read::load::consume;

/// Bytes inserted before the disk is waited for: half of the write buffer, or values are dropped.
const FILL_BYTES: usize = 8 << 20;

pub(super) struct FoyerCache {
    cache: HybridCache<u64, Bytes>,
    value_bytes: usize,
    values: u64,
}

impl FoyerCache {
    pub(super) async fn open(args: &WorkerArgs) -> Result<Self, Failure> {
        let device = FsDeviceBuilder::new(&args.folder)
            .with_capacity(args.disk as usize)
            .with_direct(true)
            .build()?;
        let cache = HybridCacheBuilder::new()
            .with_policy(HybridCachePolicy::WriteOnInsertion)
            .memory(args.memory as usize)
            .with_weighter(|_, value: &Bytes| value.len())
            .storage()
            .with_io_engine_config(PsyncIoEngineConfig::new())
            .with_engine_config(BlockEngineConfig::new(device))
            .build()
            .await?;
        Ok(Self {
            cache,
            value_bytes: args.value_bytes,
            values: args.values,
        })
    }
}

impl Cache for FoyerCache {
    async fn fill(&self) -> Result<(), Failure> {
        let at_once = (FILL_BYTES / self.value_bytes) as u64;
        for value in 0..self.values {
            let bytes = content(value, self.value_bytes);
            drop(self.cache.insert(value, bytes.into()));
            if value % at_once == at_once - 1 {
                self.cache.storage().wait().await;
            }
        }
        self.cache.storage().wait().await;
        Ok(())
    }

    async fn read(&self, value: u64) -> Result<bool, Failure> {
        let Some(entry) = self.cache.get(&value).await? else {
            return Ok(false);
        };
        let bytes = entry.value();
        consume(bytes);
        (bytes.len() == self.value_bytes)
            .then_some(true)
            .ok_or_else(|| format!("value {value} has {} bytes", bytes.len()).into())
    }
}
