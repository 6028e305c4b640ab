//! Puts a cache in front of the store of a program that uses object_store.
//!
//! ```text
//! cargo run -p bywash --example cached_store
//! ```
//!
//! The program knows its store as an `Arc<dyn ObjectStore>`, and notices nothing but the time.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bywash::{Consistency, Engine};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::throttle::{ThrottleConfig, ThrottledStore};
use object_store::{ObjectStore, ObjectStoreExt};

type Failure = Box<dyn Error + Send + Sync>;

const FILES: usize = 8;
const FILE_BYTES: usize = 4 << 20;

/// The program. Reads as a query engine reads files of columns: the end of each file first, then one column.
async fn query(store: &Arc<dyn ObjectStore>) -> Result<u64, Failure> {
    let mut sum = 0;
    for number in 0..FILES {
        let path = Path::from(format!("table/{number}"));
        let size = store.head(&path).await?.size;
        let footer = store.get_range(&path, size - 65_536..size).await?;
        let column = store.get_range(&path, 1_000_000..2_000_000).await?;
        let bytes = footer.iter().chain(&column);
        sum += bytes.map(|byte| u64::from(*byte)).sum::<u64>();
    }
    Ok(sum)
}

/// Runs the query twice behind a cache. Returns the requests for data that each run sent to the store.
pub(crate) async fn run() -> Result<Vec<u64>, Failure> {
    // Any store that the program has configured. This one responds as slowly as a cloud, without a network.
    let slow = ThrottleConfig {
        wait_get_per_call: Duration::from_millis(20),
        ..ThrottleConfig::default()
    };
    let store: Arc<dyn ObjectStore> = Arc::new(ThrottledStore::new(InMemory::new(), slow));
    for number in 0..FILES {
        let path = Path::from(format!("table/{number}"));
        let bytes = vec![number as u8; FILE_BYTES];
        store.put(&path, bytes.into()).await?;
    }

    let engine = Engine::builder().memory(64 << 20).build()?;
    // Versions are confirmed once a minute; files that are never replaced need `Consistency::Immutable`.
    let window = Consistency::Revalidate(Duration::from_secs(60));
    let cached: Arc<dyn ObjectStore> = Arc::new(engine.wrap("table", store, window)?);

    let mut sent = Vec::new();
    for _ in 0..2 {
        let began = Instant::now();
        let sum = query(&cached).await?;
        let stats = engine.stats().buckets["table"];
        let requests = stats.origin_data_requests - sent.iter().sum::<u64>();
        println!(
            "sum {sum} in {} ms: {requests} requests for data, {} blocks from memory so far",
            began.elapsed().as_millis(),
            stats.hits
        );
        sent.push(requests);
    }
    Ok(sent)
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    run().await.map(|_| ())
}
