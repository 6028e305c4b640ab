//! A distant origin, where round trips determine the time.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bywash::origin::memory::MemoryStore;
use bywash::origin::{Capabilities, ReadOnly};
use bywash::{Consistency, Engine, Origin};
use futures::future;
use object_store::path::Path;
use object_store::{
    GetOptions, GetResult, ObjectStoreExt, PutOptions, PutPayload, PutResult, Result,
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

impl Origin for Gathering {
    fn capabilities(&self) -> Capabilities {
        Capabilities::of("memory")
    }
}

bywash_support::forward_object_store! {
    impl[] ObjectStore for Gathering => objects {
        async fn put_opts(
            &self,
            path: &Path,
            payload: PutPayload,
            options: PutOptions,
        ) -> Result<PutResult> {
            self.objects.put_opts(path, payload, options).await
        }

        async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
            if !options.head {
                self.reads.wait().await;
            }
            self.objects.get_opts(path, options).await
        }
    }
}

/// A scan that requests all its columns at once: no read waits for the round trip of another.
#[tokio::test(start_paused = true)]
async fn concurrent_random_reads_are_in_flight_together() {
    let objects = MemoryStore::new();
    let path = Path::from("table");
    let table = vec![7; (2 * BLOCK * READERS) as usize];
    objects.put(&path, table.into()).await.unwrap();
    let origin = ReadOnly::new(Arc::new(Gathering {
        objects,
        reads: Barrier::new(READERS as usize),
    }));
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
