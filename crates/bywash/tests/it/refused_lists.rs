//! Lists that a store refuses: which statuses are retried, at stores of each protocol.

use std::sync::Arc;
use std::time::Duration;

use bywash::{Bucket, Consistency, Engine, RetryPolicy, StatusError};
use bywash_sim::server::azure::Azure;
use bywash_sim::server::gcs::Gcs;
use bywash_sim::server::s3::S3;
use bywash_sim::server::{Protocol, Server, ServerFault};
use futures::TryStreamExt;
use object_store::{ObjectStore, Result};

use crate::lying_origin::{Kind, origin};

/// An empty store and a bucket over it. Its retries last longer than the test.
async fn bucket(kind: Kind) -> (Server, Bucket) {
    let protocol: Arc<dyn Protocol> = match kind {
        Kind::S3 => S3::new(),
        Kind::Gcs => Gcs::new(),
        Kind::Azure => Azure::new(),
        Kind::Web => panic!("web servers have no lists"),
    };
    let server = Server::start(protocol).await.unwrap();
    let retry = RetryPolicy {
        initial_backoff: Duration::from_millis(1),
        max_backoff: Duration::from_millis(10),
        ..RetryPolicy::default()
    };
    let builder = Engine::builder().memory(32 << 20).retry(retry);
    let engine = builder.build().unwrap();
    let origin = origin(kind, &server.url());
    let bucket = engine.mount("data", origin, Consistency::default());
    (server, bucket.unwrap())
}

/// Lists in each way that the engine has, and returns each result with its number of requests.
async fn lists(server: &Server, bucket: &Bucket, fault: Option<u16>) -> Vec<(Result<()>, usize)> {
    let mut ends = Vec::new();
    for way in 0..3 {
        let _ = server.take_log();
        if let Some(status) = fault {
            // The word is in the query of every list.
            server.script("list", ServerFault::Refuse(status));
        }
        let prefix = "p".into();
        let end = match way {
            0 => bucket
                .list(Some(&prefix))
                .try_collect()
                .await
                .map(|_: Vec<_>| ()),
            1 => bucket.list_with_delimiter(Some(&prefix)).await.map(drop),
            _ => bucket.list_page("p", None, 10).await.map(drop),
        };
        ends.push((end, server.take_log().len()));
    }
    ends
}

#[tokio::test]
async fn refused_lists_are_not_retried_and_keep_their_status() {
    for kind in [Kind::S3, Kind::Gcs, Kind::Azure] {
        let (server, bucket) = bucket(kind).await;
        for status in [400, 401, 403, 404, 405, 410, 412, 451] {
            for (end, requests) in lists(&server, &bucket, Some(status)).await {
                let error = end.expect_err("the list was refused");
                let found = StatusError::find(&error).map(|found| found.status.as_u16());
                assert_eq!((found, requests), (Some(status), 1), "{kind:?}: {error}");
            }
        }
    }
}

#[tokio::test]
async fn lists_that_may_succeed_later_are_retried() {
    // The store of Azure's protocol has no lists: their statuses are above.
    for kind in [Kind::S3, Kind::Gcs] {
        let (server, bucket) = bucket(kind).await;
        for (_, requests) in lists(&server, &bucket, None).await {
            assert_eq!(requests, 1, "{kind:?}: an empty list is one page");
        }
        for status in [408, 409, 429, 500, 503] {
            for (end, requests) in lists(&server, &bucket, Some(status)).await {
                end.unwrap();
                assert_eq!(requests, 2, "{kind:?}: {status}");
            }
        }
    }
}
