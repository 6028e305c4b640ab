//! Every door works at every memory limit, after any sequence of changes.

use std::sync::Arc;

use bywash::origin::OriginOptions;
use bywash::{Consistency, Engine, OriginUrl};
use bywash_gateway::{GcsConfig, S3Config};
use bywash_sim::server::Server as Store;
use bywash_sim::server::s3::S3;
use bywash_support::pattern;

use crate::gcs_server::GcsServer;
use crate::http::HttpResponse;
use crate::server::Server;

const MIB: usize = 1 << 20;
/// From the lowest accepted limit to the limit of the start.
const LIMITS: [u64; 5] = [32, 36, 40, 52, 64];

struct Doors {
    s3: Server,
    gcs: GcsServer,
    engine: Engine,
    _store: Store,
}

/// Endpoints over a folder, memory, and a store with parts of a minimum length.
async fn doors() -> Doors {
    let root = tempfile::tempdir().unwrap();
    let engine = Server::engine(64 << 20, &root);
    let store = Store::start(S3::new()).await.unwrap();
    let endpoint = store.url();
    let options = [
        ("endpoint", &*endpoint),
        ("access_key_id", "key"),
        ("secret_access_key", "secret"),
    ];
    let text = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    let options = OriginOptions {
        options: options.into_iter().map(text).collect(),
        ..OriginOptions::default()
    };
    let url: OriginUrl = "s3://data".parse().unwrap();
    let origin = url.open_with(&options).unwrap();
    engine
        .mount("store", Arc::clone(&origin), Consistency::default())
        .unwrap();
    let gcs = GcsServer::start_over(engine.clone(), root, GcsConfig::anonymous("")).await;
    let root = tempfile::tempdir().unwrap();
    let s3 = Server::start_with(engine.clone(), root, S3Config::anonymous()).await;
    Doors {
        s3,
        gcs,
        engine,
        _store: store,
    }
}

fn check(response: HttpResponse, case: &str) -> HttpResponse {
    let text = String::from_utf8_lossy(&response.body[..response.body.len().min(300)]);
    assert!(response.status < 400, "{case}: {} {text}", response.status);
    response
}

fn between<'t>(text: &'t str, before: &str, after: &str) -> &'t str {
    let (_, rest) = text.split_once(before).unwrap();
    rest.split_once(after).unwrap().0
}

impl Doors {
    async fn s3_doors(&self, bucket: &str, case: &str) {
        let s3 = &self.s3;
        let (small, large) = (format!("/{bucket}/small"), format!("/{bucket}/large"));
        let body = pattern(1, 20 * MIB);
        check(s3.put(&small, &[], b"small").await, case);
        check(s3.put(&large, &[], &body).await, case);
        let read = check(s3.get(&large, &[]).await, case);
        assert!(read.body == body, "{case}");
        let source = [("x-amz-copy-source", &*large)];
        check(s3.put(&format!("/{bucket}/copy"), &source, b"").await, case);
        let uploads = format!("/{bucket}/parts?uploads");
        let begun = check(s3.send("POST", &uploads, &[], b"").await, case);
        let begun = String::from_utf8(begun.body).unwrap();
        let id = between(&begun, "<UploadId>", "</UploadId>");
        let mut parts = String::new();
        for (number, part) in [(1, &body[..5 * MIB]), (2, &body[5 * MIB..])] {
            let target = format!("/{bucket}/parts?partNumber={number}&uploadId={id}");
            let stored = check(s3.put(&target, &[], part).await, case);
            let tag = stored.header("etag").unwrap();
            parts += &format!("<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>");
        }
        let list = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
        let target = format!("/{bucket}/parts?uploadId={id}");
        check(s3.send("POST", &target, &[], list.as_bytes()).await, case);
        let listed = format!("/{bucket}?list-type=2");
        check(s3.get(&listed, &[]).await, case);
    }

    async fn begin(&self, bucket: &str, key: &str, case: &str) -> String {
        let start = format!("/upload/storage/v1/b/{bucket}/o?uploadType=resumable&name={key}");
        let kind = [("content-type", "application/json")];
        let begun = check(self.gcs.post(&start, &kind, b"{}").await, case);
        let location = begun.header("location").unwrap();
        let path = location.split_once("/upload/").unwrap().1;
        format!("/upload/{path}")
    }

    /// Sends bytes of a session; `total` ends it.
    async fn add(&self, session: &str, from: usize, bytes: &[u8], ends: bool, case: &str) {
        let end = from + bytes.len();
        let total = if ends {
            end.to_string()
        } else {
            "*".to_owned()
        };
        let range = format!("bytes {from}-{}/{total}", end - 1);
        let headers = [("content-range", &*range)];
        check(self.gcs.send("PUT", session, &headers, bytes).await, case);
    }

    async fn gcs_doors(&self, bucket: &str, case: &str) {
        let body = pattern(2, 20 * MIB);
        let media = format!("/upload/storage/v1/b/{bucket}/o?uploadType=media&name=media");
        check(self.gcs.post(&media, &[], &body).await, case);
        for chunk in [MIB / 4, 5 * MIB, 8 * MIB] {
            let session = self.begin(bucket, "session", case).await;
            for from in [0, chunk] {
                let bytes = &body[from..from + chunk];
                self.add(&session, from, bytes, false, case).await;
            }
            let rest = &body[2 * chunk..];
            self.add(&session, 2 * chunk, rest, true, case).await;
            let read = format!("/storage/v1/b/{bucket}/o/session?alt=media");
            let read = check(self.gcs.get(&read).await, case);
            assert!(read.body == body, "{case} {chunk}");
        }
        let object = format!("/storage/v1/b/{bucket}/o/media");
        let rewrite = format!("{object}/rewriteTo/b/{bucket}/o/copy");
        check(self.gcs.post(&rewrite, &[], b"").await, case);
        let metadata = br#"{"metadata":{"a":"1"}}"#;
        check(self.gcs.send("PATCH", &object, &[], metadata).await, case);
        let list = format!("/storage/v1/b/{bucket}/o");
        check(self.gcs.get(&list).await, case);
    }
}

/// A generator of numbers.
fn next(state: &mut u64) -> usize {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1);
    (*state >> 33) as usize
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_door_works_at_every_limit_after_any_sequence_of_changes() {
    let doors = doors().await;
    let lowest = doors.engine.cache_limits().memory.min;
    assert_eq!(lowest, LIMITS[0] << 20);
    // Changes that were found not to work, then others.
    let mut state = 5;
    let others: Vec<u64> = (0..2)
        .map(|_| LIMITS[next(&mut state) % LIMITS.len()])
        .collect();
    for (number, limit) in [40_u64, 32, 52].into_iter().chain(others).enumerate() {
        doors.engine.set_memory(limit << 20).unwrap();
        for bucket in ["store", "folder", "memory"] {
            let case = format!("{bucket} at {limit} MiB, change {number}");
            doors.gcs_doors(bucket, &case).await;
            doors.s3_doors(bucket, &case).await;
        }
    }
}

#[tokio::test]
async fn session_that_began_at_a_higher_limit_ends_at_a_lower_one() {
    let doors = doors().await;
    let body = pattern(3, 40 * MIB);
    for bucket in ["store", "folder", "memory"] {
        doors.engine.set_memory(64 << 20).unwrap();
        let session = doors.begin(bucket, "key", bucket).await;
        let chunk = 8 * MIB;
        for from in (0..4 * chunk).step_by(chunk) {
            let case = format!("{bucket} at {from}");
            let bytes = &body[from..from + chunk];
            doors.add(&session, from, bytes, false, &case).await;
            doors.engine.set_memory(40 << 20).unwrap();
        }
        let rest = &body[4 * chunk..];
        doors.add(&session, 4 * chunk, rest, true, bucket).await;
        let read = format!("/storage/v1/b/{bucket}/o/key?alt=media");
        let read = check(doors.gcs.get(&read).await, bucket);
        assert!(read.body == body, "{bucket}");
    }
}
