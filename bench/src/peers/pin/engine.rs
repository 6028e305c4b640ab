//! Warm bodies through the engine: the cost of a hit besides its pin.

use std::hint::black_box;
use std::sync::Arc;

use bywash::origin::memory::MemoryStore;
use bywash::{Bucket, Consistency, Engine};
use futures::{FutureExt, StreamExt};
use object_store::ObjectStoreExt;
use object_store::path::Path;

use super::designs::Design;
use super::workload::BLOCK_LEN;
use crate::Failure;

/// Blocks of a body.
pub(super) const BODY_BLOCKS: usize = 16;

/// One resident object, read whole each time.
#[derive(Debug)]
pub(super) struct WarmBody {
    bucket: Bucket,
    path: Path,
}

impl WarmBody {
    pub(super) fn new() -> Result<Self, Failure> {
        let engine = Engine::builder().memory(64 << 20).block_size(BLOCK_LEN);
        let origin = MemoryStore::new();
        let hot = Arc::new(origin.clone());
        let bucket = engine.build()?.mount("hot", hot, Consistency::Immutable)?;
        let body = Self {
            bucket,
            path: Path::from("object"),
        };
        let bytes = vec![1; BODY_BLOCKS * BLOCK_LEN];
        crate::runtime()?.block_on(async {
            origin.put(&body.path, bytes.into()).await?;
            body.bucket.get(&body.path).await?.bytes().await
        })?;
        Ok(body)
    }

    async fn read(&self) -> object_store::Result<usize> {
        let mut body = self.bucket.get(&self.path).await?.into_stream();
        let mut blocks = 0;
        while let Some(bytes) = body.next().await {
            black_box::<&[u8]>(&bytes?);
            blocks += 1;
        }
        Ok(blocks)
    }
}

impl Design for WarmBody {
    fn pair(&self, _: u32, _: u32) {
        // A warm body is always ready.
        let blocks = self.read().now_or_never();
        let all = matches!(blocks, Some(Ok(BODY_BLOCKS)));
        assert!(all, "{blocks:?} of {BODY_BLOCKS} blocks were read");
    }

    fn keep(&self, _: u32) {}
}

/// Runs as many pairs as a body has blocks.
#[derive(Debug)]
pub(super) struct EachBlock<D>(pub(super) D);

impl<D: Design> Design for EachBlock<D> {
    fn pair(&self, at: u32, thread: u32) {
        for _ in 0..BODY_BLOCKS {
            self.0.pair(at, thread);
        }
    }

    fn keep(&self, at: u32) {
        self.0.keep(at);
    }
}
