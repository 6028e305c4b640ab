//! Uploads to stores that take parts in any order, over real sockets: S3 and Azure.

mod azure;
mod s3;
mod seeded;

use std::sync::Arc;
use std::time::Duration;

use bywash::{Bucket, Consistency, Engine, Origin, RetryPolicy};

/// Stall limit of upload requests, short so that a stall costs a test little. The tests' time advances in turns: a
/// pause of the machine is no stall.
pub(crate) const STALL: Duration = Duration::from_millis(250);
/// Bytes of a chunk, which is the minimum of the fakes.
pub(crate) const CHUNK: u64 = 8 << 10;

pub(crate) fn bucket(origin: Arc<dyn Origin>) -> Bucket {
    let retry = RetryPolicy {
        initial_backoff: Duration::from_millis(1),
        max_backoff: Duration::from_millis(20),
        stall: STALL,
        ..RetryPolicy::default()
    };
    let engine = Engine::builder()
        .memory(64 << 20)
        .retry(retry)
        .build()
        .unwrap();
    engine
        .mount("uploads", origin, Consistency::Immutable)
        .unwrap()
}
