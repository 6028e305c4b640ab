//! Conditional deletes at `gs://` and `az://` origins: the store decides them, by its generation or its ETag.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use bywash::origin::OriginOptions;
use bywash::{DeleteCondition, Origin, OriginUrl};
use bywash_sim::server::azure::Azure;
use bywash_sim::server::gcs::Gcs;
use bywash_sim::server::{HttpRequest, HttpResponse, Protocol, Server};
use chrono::{DateTime, TimeDelta, Utc};
use http::Method;
use object_store::path::Path;
use object_store::{Error, ObjectStoreExt, Result};

/// A store that another program changes just before each delete.
struct Racing {
    store: Arc<dyn Protocol>,
    change: Box<dyn Fn() + Send + Sync>,
}

impl Protocol for Racing {
    fn respond(&self, request: &HttpRequest) -> HttpResponse {
        if request.method == Method::DELETE {
            (self.change)();
        }
        self.store.respond(request)
    }
}

const KINDS: [&str; 2] = ["gs", "az"];

fn options(server: &Server, kind: &str, setting: Option<&str>) -> OriginOptions {
    let url = server.url();
    let azure = format!("{url}/account");
    let own = match kind {
        "gs" => vec![
            ("google_skip_signature", "true"),
            ("google_base_url", &*url),
        ],
        _ => vec![
            ("account_name", "account"),
            ("account_key", "c2VjcmV0"),
            ("azure_storage_endpoint", &*azure),
        ],
    };
    let setting = setting.map(|value| ("google_conditional_delete", value));
    let options = own.into_iter().chain(setting);
    let options = options.map(|(name, value)| (name.to_owned(), value.to_owned()));
    OriginOptions {
        options: options.collect(),
        ..OriginOptions::default()
    }
}

fn open(server: &Server, kind: &str, setting: Option<&str>) -> Result<Arc<dyn Origin>> {
    let url: OriginUrl = format!("{kind}://data/p").parse().unwrap();
    url.open_with(&options(server, kind, setting))
}

/// Starts a server for a store that heeds conditions of deletes.
async fn start(kind: &str, store: Arc<dyn Protocol>) -> (Server, Arc<dyn Origin>) {
    let server = Server::start(store).await.unwrap();
    let setting = (kind == "gs").then_some("generation");
    let origin = open(&server, kind, setting).unwrap();
    (server, origin)
}

fn store(kind: &str) -> Arc<dyn Protocol> {
    match kind {
        "gs" => Gcs::new(),
        _ => Azure::new(),
    }
}

fn path() -> Path {
    Path::from("dir/a b")
}

fn bare(e_tag: Option<String>) -> Option<String> {
    e_tag.map(|e_tag| e_tag.trim_matches('"').to_owned())
}

fn by_e_tag(e_tag: Option<String>) -> DeleteCondition {
    DeleteCondition {
        e_tag: bare(e_tag),
        ..DeleteCondition::default()
    }
}

fn is_refused(result: &Result<()>) -> bool {
    matches!(result, Err(Error::Precondition { .. }))
}

fn is_absent(result: &Result<()>) -> bool {
    matches!(result, Err(Error::NotFound { .. }))
}

#[tokio::test]
async fn condition_of_a_delete_is_decided_by_the_store() {
    for kind in KINDS {
        let (server, origin) = start(kind, store(kind)).await;
        let old = origin.put(&path(), "old".into()).await.unwrap();
        let new = origin.put(&path(), "new".into()).await.unwrap();
        let old = by_e_tag(old.e_tag);
        assert!(is_refused(&origin.delete_if(&path(), &old).await), "{kind}");
        assert_eq!(origin.head(&path()).await.unwrap().size, 3);
        let new = by_e_tag(new.e_tag);
        origin.delete_if(&path(), &new).await.unwrap();
        let log = server.take_log();
        let sent = &log.iter().rev().find(|one| one.line.starts_with("DELETE"));
        let condition = match kind {
            "gs" => "x-goog-if-generation-match",
            _ => "if-match",
        };
        assert!(sent.unwrap().headers.contains_key(condition), "{kind}");
        assert!(is_absent(&origin.delete_if(&path(), &new).await), "{kind}");
        let any = by_e_tag(Some("*".to_owned()));
        assert!(is_absent(&origin.delete_if(&path(), &any).await), "{kind}");
        origin.put(&path(), "any".into()).await.unwrap();
        origin.delete_if(&path(), &any).await.unwrap();
        assert!(origin.head(&path()).await.is_err(), "{kind}");
    }
}

#[tokio::test]
async fn sizes_and_times_bind_a_delete_to_the_version_that_has_them() {
    for kind in KINDS {
        let (_server, origin) = start(kind, store(kind)).await;
        let sized = |size, modified: Option<DateTime<Utc>>| DeleteCondition {
            size: Some(size),
            modified,
            ..DeleteCondition::default()
        };
        // Without an ETag, an absent object counts as deleted.
        origin.delete_if(&path(), &sized(3, None)).await.unwrap();
        origin.put(&path(), "new".into()).await.unwrap();
        let found = origin.head(&path()).await.unwrap();
        let later = found.last_modified + TimeDelta::seconds(1);
        for wrong in [sized(4, None), sized(3, Some(later))] {
            let refused = origin.delete_if(&path(), &wrong).await;
            assert!(is_refused(&refused), "{kind}: {refused:?}");
        }
        let right = DeleteCondition {
            e_tag: bare(found.e_tag),
            ..sized(3, Some(found.last_modified))
        };
        origin.delete_if(&path(), &right).await.unwrap();
        assert!(origin.head(&path()).await.is_err(), "{kind}");
    }
}

/// Another program replaces the version once it was looked up: at Google by one with the same bytes, and so with the same ETag.
async fn lose_to_another_writer(
    kind: &str,
    store: Arc<dyn Protocol>,
    replace: impl Fn() + Send + Sync + 'static,
) {
    let change = Box::new(replace);
    let (_server, origin) = start(kind, Arc::new(Racing { store, change })).await;
    let put = origin.put(&path(), "old".into()).await.unwrap();
    let sized = DeleteCondition {
        size: Some(3),
        ..DeleteCondition::default()
    };
    for condition in [by_e_tag(put.e_tag), sized] {
        let refused = origin.delete_if(&path(), &condition).await;
        assert!(is_refused(&refused), "{kind}: {refused:?}");
        assert_eq!(origin.head(&path()).await.unwrap().size, 3);
    }
}

#[tokio::test]
async fn version_that_comes_between_is_never_deleted() {
    let gcs = Gcs::new();
    let objects = Arc::clone(&gcs);
    lose_to_another_writer("gs", gcs, move || {
        let objects = objects.objects();
        objects.put("data", "p/dir/a b", "old".into(), BTreeMap::new(), |_| true);
    })
    .await;
    let azure = Azure::new();
    let objects = Arc::clone(&azure);
    let count = AtomicU32::new(100);
    lose_to_another_writer("az", azure, move || {
        let bytes = count.fetch_add(1, Relaxed).to_string();
        let objects = objects.objects();
        let key = "data/p/dir/a b";
        objects.put("account", key, bytes.into(), BTreeMap::new(), |_| true);
    })
    .await;
}

#[tokio::test]
async fn delete_on_a_condition_is_not_sent_to_a_server_with_googles_protocol_that_may_ignore_it() {
    let store = Gcs::new();
    let server = Server::start(Arc::clone(&store) as Arc<dyn Protocol>);
    let server = server.await.unwrap();
    for setting in [None, Some("disabled")] {
        let origin = open(&server, "gs", setting).unwrap();
        let put = origin.put(&path(), "body".into()).await.unwrap();
        let refused = origin.delete_if(&path(), &by_e_tag(put.e_tag)).await;
        let refused = refused.unwrap_err();
        assert!(matches!(refused, Error::NotImplemented { .. }), "{refused}");
        let text = refused.to_string();
        assert!(text.contains("google_conditional_delete"), "{text}");
        assert!(store.objects().get("data", "p/dir/a b").is_some());
    }
    let unknown = open(&server, "gs", Some("yes")).unwrap_err().to_string();
    assert!(unknown.contains("generation or disabled"), "{unknown}");
}

/// A store with Azure's protocol in which another program holds a lease on each blob.
struct Leased(Arc<dyn Protocol>);

impl Protocol for Leased {
    fn respond(&self, request: &HttpRequest) -> HttpResponse {
        if request.method == Method::DELETE {
            return HttpResponse::status(412).with("x-ms-error-code", "LeaseIdMissing");
        }
        self.0.respond(request)
    }
}

#[tokio::test]
async fn lease_of_another_program_is_not_the_condition_of_a_delete() {
    let (_server, origin) = start("az", Arc::new(Leased(store("az")))).await;
    let put = origin.put(&path(), "body".into()).await.unwrap();
    let refused = origin.delete_if(&path(), &by_e_tag(put.e_tag)).await;
    let refused = refused.unwrap_err();
    assert!(matches!(refused, Error::NotSupported { .. }), "{refused:?}");
    let text = refused.to_string();
    assert!(text.contains("LeaseIdMissing"), "{text}");
}
