//! Serves a large object to many clients at once, from one download by parallel ranged requests.
//!
//! ```text
//! cargo run -p bywash --example download_service
//! ```
//!
//! Each client gets the first bytes as soon as they have arrived. All of them together cost each byte of the object once, in the
//! store's traffic and in memory.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bywash::{Bucket, Consistency, DownloadOptions, Engine};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::throttle::{ThrottleConfig, ThrottledStore};
use object_store::{ObjectStore, ObjectStoreExt};
use tokio::io::{AsyncWrite, AsyncWriteExt};

type Failure = Box<dyn Error + Send + Sync>;

const CLIENTS: usize = 16;
const OBJECT_BYTES: usize = 48 << 20;

/// Sends an object to one client, by any protocol. Returns the number of bytes sent.
async fn serve(
    bucket: Bucket,
    path: Path,
    mut client: impl AsyncWrite + Unpin,
) -> Result<u64, Failure> {
    let options = DownloadOptions {
        part_size: 4 << 20,
        parallel: 4,
        ..DownloadOptions::default()
    };
    // Clients of one version share a download. It ends early when its last client has left.
    let download = bucket.download(&path, options).await?;
    let sent = tokio::io::copy(&mut download.reader(), &mut client).await?;
    client.flush().await?;
    // Fails if the object does not have the digest that its store states.
    download.finish().await?;
    Ok(sent)
}

/// Serves the object to all clients. Returns the number of bytes received by clients, and sent by the store.
pub(crate) async fn run() -> Result<(u64, u64), Failure> {
    let slow = ThrottleConfig {
        wait_get_per_call: Duration::from_millis(100),
        ..ThrottleConfig::default()
    };
    let store: Arc<dyn ObjectStore> = Arc::new(ThrottledStore::new(InMemory::new(), slow));
    let path = Path::from("release.img");
    store.put(&path, vec![7; OBJECT_BYTES].into()).await?;

    let engine = Engine::builder().memory(128 << 20).build()?;
    let bucket = engine.wrap("downloads", store, Consistency::default())?;
    let began = Instant::now();
    let clients = (0..CLIENTS).map(|_| serve(bucket.clone(), path.clone(), tokio::io::sink()));
    let sent = futures::future::try_join_all(clients).await?;
    let sent: u64 = sent.iter().sum();
    let stats = engine.stats().buckets["downloads"];
    println!(
        "{CLIENTS} clients got {sent} bytes in {} ms: {} bytes from the store by {} requests",
        began.elapsed().as_millis(),
        stats.origin_bytes,
        stats.origin_data_requests
    );
    Ok((sent, stats.origin_bytes))
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    run().await.map(|_| ())
}
