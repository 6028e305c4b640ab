//! Conditional writes of whole objects whose response is lost: proven by their mark, or an error that says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use bywash::upload::UploadOptions;
use bywash::{EngineError, RetryPolicy};
use bywash_sim::server::azure::Azure;
use bywash_sim::server::gcs::Gcs;
use bywash_sim::server::s3::S3;
use bywash_sim::server::{HttpRequest, HttpResponse, Protocol, ServerFault};
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutResult,
    Result,
};

use crate::put_checksums::{Store, all, options, store_with};

const BODY: &[u8] = b"of this write";

/// Returns a key that no other case has.
fn new_path() -> Path {
    static CASES: AtomicU64 = AtomicU64::new(0);
    let number = CASES.fetch_add(1, Relaxed);
    Path::from(format!("dir/lock {number}"))
}

#[derive(Debug, Clone, Copy)]
enum Condition {
    Absent,
    Unchanged,
}

impl Store {
    /// Fulfils the condition, and returns it.
    async fn prepare(&self, path: &Path, condition: Condition) -> PutMode {
        match condition {
            Condition::Absent => PutMode::Create,
            Condition::Unchanged => {
                let before = self.bucket.put(path, Bytes::from("before").into());
                PutMode::Update(before.await.unwrap().into())
            }
        }
    }

    async fn write(&self, path: &Path, options: PutOptions) -> Result<PutResult> {
        let body = Bytes::from_static(BODY).into();
        self.bucket.put_opts(path, body, options).await
    }
}

#[tokio::test]
async fn conditional_write_whose_response_is_lost_succeeds_once() {
    let faults: [&[ServerFault]; 6] = [
        &[ServerFault::LoseResponse],
        &[ServerFault::LoseResponse, ServerFault::LoseResponse],
        &[ServerFault::Unavailable, ServerFault::LoseResponse],
        &[ServerFault::LoseResponse, ServerFault::Unavailable],
        &[ServerFault::ResetAfter(1)],
        &[ServerFault::Unavailable],
    ];
    for store in all().await {
        for condition in [Condition::Absent, Condition::Unchanged] {
            for faults in faults {
                let case = format!("{} {condition:?} {faults:?}", store.url);
                let path = new_path();
                let mode = store.prepare(&path, condition).await;
                for fault in faults {
                    store.server.script("PUT ", *fault);
                }
                // The look for the object fails too.
                store.server.script("HEAD ", ServerFault::Unavailable);
                let put = store.write(&path, options(mode)).await;
                let put = put.unwrap_or_else(|error| panic!("{case}: {error}"));
                let found = store.bucket.get(&path).await.unwrap();
                assert_eq!(found.meta.e_tag, put.e_tag, "{case}");
                let sent = options(PutMode::Overwrite).attributes;
                assert_eq!(found.attributes, sent, "{case}");
                assert_eq!(found.bytes().await.unwrap(), BODY, "{case}");
                // The result is a version that the next condition can name.
                let next = store
                    .write(&path, options(PutMode::Update(put.into())))
                    .await;
                next.unwrap_or_else(|error| panic!("{case}: {error}"));
            }
        }
    }
}

/// A server at which another program writes right before or after the first conditional write, which gets no response.
struct Contended<P> {
    inner: Arc<P>,
    applies_first: bool,
    done: AtomicBool,
}

/// Headers of a write that are not the other program's.
const OWN_HEADERS: [&str; 9] = [
    "if-none-match",
    "if-match",
    "x-goog-if-generation-match",
    "x-goog-hash",
    "content-md5",
    "x-amz-checksum-crc32c",
    "x-amz-meta-bywashwrite",
    "x-goog-meta-bywashwrite",
    "x-ms-meta-bywashwrite",
];

impl<P: Protocol> Protocol for Contended<P> {
    fn respond(&self, request: &HttpRequest) -> HttpResponse {
        let is_conditional = OWN_HEADERS[..3]
            .iter()
            .any(|name| request.header(name).is_some());
        let is_first = request.method == http::Method::PUT && is_conditional;
        if !is_first || self.done.swap(true, Relaxed) {
            return self.inner.respond(request);
        }
        let mut other = request.clone();
        for name in OWN_HEADERS {
            other.headers.remove(name);
        }
        if self.applies_first {
            let applied = self.inner.respond(request);
            assert!(applied.status.is_success(), "{}", applied.status);
        }
        let written = self.inner.respond(&other);
        assert!(written.status.is_success(), "{}", written.status);
        HttpResponse::status(503)
    }
}

async fn contended<P: Protocol>(url: &'static str, inner: Arc<P>, applies_first: bool) -> Store {
    let contended = Contended {
        inner,
        applies_first,
        done: AtomicBool::new(false),
    };
    store_with(url, "", Arc::new(contended), RetryPolicy::default()).await
}

#[tokio::test]
async fn object_of_another_write_with_the_same_bytes_is_not_taken_for_the_own() {
    for applies_first in [false, true] {
        for condition in [Condition::Absent, Condition::Unchanged] {
            for store in [
                contended("s3://data/p", S3::new(), applies_first).await,
                contended("gs://data/p", Gcs::new(), applies_first).await,
                contended("az://data/p", Azure::new(), applies_first).await,
            ] {
                let path = new_path();
                let mode = store.prepare(&path, condition).await;
                let error = store.write(&path, options(mode)).await.unwrap_err();
                let as_expected = match condition {
                    Condition::Absent => matches!(error, Error::AlreadyExists { .. }),
                    Condition::Unchanged => matches!(error, Error::Precondition { .. }),
                };
                assert!(as_expected, "{} {condition:?}: {error:?}", store.url);
                // It cannot be known whether the first attempt was applied.
                let text = error.to_string();
                assert!(text.contains("another write has replaced"), "{text}");
            }
        }
    }
}

#[tokio::test]
async fn condition_that_does_not_hold_is_refused_without_doubt() {
    for store in all().await {
        let path = new_path();
        store.prepare(&path, Condition::Unchanged).await;
        let error = store
            .write(&path, options(PutMode::Create))
            .await
            .unwrap_err();
        assert!(matches!(error, Error::AlreadyExists { .. }), "{error}");
        assert!(!error.to_string().contains("earlier attempt"), "{error}");
    }
}

fn assert_unproven(store: &Store, error: &Error) {
    let found = EngineError::find(error);
    assert!(
        matches!(found, Some(EngineError::WriteUnproven { .. })),
        "{}: {error}",
        store.url
    );
    let text = error.to_string();
    assert!(text.contains("read the object and compare"), "{text}");
}

#[tokio::test]
async fn write_that_cannot_be_proven_says_so() {
    for store in all().await {
        for condition in [Condition::Absent, Condition::Unchanged] {
            // No room for a mark.
            let path = new_path();
            let mut long = options(store.prepare(&path, condition).await);
            let name = Attribute::Metadata("long".into());
            long.attributes.insert(name, "v".repeat(2030).into());
            store.server.script("PUT ", ServerFault::LoseResponse);
            assert_unproven(&store, &store.write(&path, long).await.unwrap_err());

            // The object may not be looked for.
            let path = new_path();
            let mode = store.prepare(&path, condition).await;
            store.server.script("PUT ", ServerFault::LoseResponse);
            store.server.script("PUT ", ServerFault::Refuse(403));
            assert_unproven(
                &store,
                &store.write(&path, options(mode)).await.unwrap_err(),
            );
        }
    }
    let retry = RetryPolicy {
        deadline: Duration::from_millis(100),
        ..RetryPolicy::default()
    };
    // Nothing but failures until the deadline.
    struct Down;
    impl Protocol for Down {
        fn respond(&self, _: &HttpRequest) -> HttpResponse {
            HttpResponse::status(503)
        }
    }
    for url in ["s3://data/p", "gs://data/p", "az://data/p"] {
        let store = store_with(url, "", Arc::new(Down), retry).await;
        let (path, create) = (new_path(), options(PutMode::Create));
        assert_unproven(&store, &store.write(&path, create).await.unwrap_err());
    }
}

/// Metadata of clients as marks are named: of another Bywash, whose origin this one is, and of a user.
fn named_as_marks() -> Attributes {
    let names = ["bywashwrite", "bywashwrite0", "bywashwriter"];
    let values = ["0123456789abcdef0123456789abcdef", "of a user", ""];
    let all = names.into_iter().zip(values);
    let all = all.map(|(name, value)| (Attribute::Metadata(name.into()), value));
    Attributes::from_iter(all.chain([(Attribute::ContentType, "text/plain")]))
}

#[tokio::test]
async fn metadata_named_as_marks_are_returned_to_their_client() {
    let (attributes, length) = (named_as_marks(), 11 << 20);
    for store in all().await {
        for mode in [PutMode::Overwrite, PutMode::Create] {
            let path = new_path();
            let options = PutOptions {
                attributes: attributes.clone(),
                mode,
                ..PutOptions::default()
            };
            store.server.script("PUT ", ServerFault::LoseResponse);
            store.write(&path, options).await.unwrap();
            let found = store.bucket.get(&path).await.unwrap();
            assert_eq!(found.attributes, attributes, "{}", store.url);
        }
        // In parts.
        let path = new_path();
        let options = UploadOptions {
            attributes: attributes.clone(),
            length: Some(length),
            chunk: Some(8 << 20),
            ..UploadOptions::default()
        };
        let mut upload = store.bucket.upload(&path, options).await.unwrap();
        upload
            .write(vec![1; usize::try_from(length).unwrap()].into())
            .await
            .unwrap();
        upload.finish().await.unwrap();
        let found = store.bucket.get(&path).await.unwrap();
        assert_eq!(found.attributes, attributes, "{}", store.url);
    }
}
