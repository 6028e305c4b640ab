//! A distant origin, where round trips determine the time.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bywash::origin::memory::MemoryStore;
use bywash::origin::{Capabilities, ReadOnly, Readable};
use bywash::{Consistency, Engine};
use futures::future;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    GetOptions, GetResult, ListResult, ObjectMeta, ObjectStore, ObjectStoreExt, Result,
};
use tokio::sync::Barrier;

const BLOCK: u64 = 64 << 10;
/// Columns of a table that a scan requests at once.
const READERS: u64 = 48;

/// Responds to no read before [`READERS`] reads have arrived.
#[derive(Debug)]
struct Gathering {
    objects: MemoryStore,
    reads: Barrier,
}

impl fmt::Display for Gathering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("gathering")
    }
}

#[async_trait]
impl Readable for Gathering {
    fn capabilities(&self) -> Capabilities {
        Capabilities::of("memory")
    }

    fn reason(&self) -> &'static str {
        "a test reads it"
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        if !options.head {
            self.reads.wait().await;
        }
        self.objects.get_opts(path, options).await
    }

    fn list(
        &self,
        prefix: Option<&Path>,
        _offset: Option<&Path>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.objects.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.objects.list_with_delimiter(prefix).await
    }
}

/// A scan that requests all its columns at once: no read waits for the round trip of another.
#[tokio::test(start_paused = true)]
async fn concurrent_random_reads_are_in_flight_together() {
    let objects = MemoryStore::new();
    let path = Path::from("table");
    let table = vec![7; (2 * BLOCK * READERS) as usize];
    objects.put(&path, table.into()).await.unwrap();
    let origin = ReadOnly::new(Gathering {
        objects,
        reads: Barrier::new(READERS as usize),
    });
    let engine = Engine::builder()
        .memory(64 << 20)
        .block_size(BLOCK as usize)
        .build()
        .unwrap();
    let bucket = engine.mount("far", Arc::new(origin), Consistency::Immutable);
    let bucket = bucket.unwrap();
    bucket.head(&path).await.unwrap();
    let columns = (0..READERS).map(|n| {
        let start = 2 * n * BLOCK + 1;
        bucket.get_range(&path, start..start + 100)
    });
    let read = tokio::time::timeout(Duration::from_secs(10), future::try_join_all(columns));
    let read = read
        .await
        .expect("all of them are requested before the first response");
    assert!(read.unwrap().iter().all(|column| column.len() == 100));
    let stats = engine.stats().buckets["far"];
    assert_eq!(stats.origin_data_requests, READERS);
    assert_eq!(stats.origin_bytes, READERS * BLOCK);
}
