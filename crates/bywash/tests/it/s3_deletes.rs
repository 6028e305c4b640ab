//! Conditional deletes at an S3 origin: If-Match, where the server heeds it.

use std::sync::Arc;

use bywash::origin::OriginOptions;
use bywash::{DeleteCondition, Origin, OriginUrl};
use bywash_sim::server::s3::S3;
use bywash_sim::server::{HttpRequest, HttpResponse, Protocol, Server};
use http::Method;
use object_store::path::Path;
use object_store::{Error, ObjectStoreExt, Result};

/// A store that gives this response to deletes.
struct DeleteResponse {
    store: Arc<S3>,
    status: u16,
    body: &'static str,
}

impl Protocol for DeleteResponse {
    fn respond(&self, request: &HttpRequest) -> HttpResponse {
        match request.method {
            Method::DELETE => HttpResponse::status(self.status).body(self.body),
            _ => self.store.respond(request),
        }
    }
}

/// Opens the store behind `server` with this setting of conditional deletes.
fn origin(server: &Server, setting: Option<&str>) -> Result<Arc<dyn Origin>> {
    let url = server.url();
    let own = [
        ("endpoint", &*url),
        ("access_key_id", "key"),
        ("secret_access_key", "secret"),
    ];
    let setting = setting.map(|value| ("aws_conditional_delete", value));
    let options = own.into_iter().chain(setting);
    let options = options.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let options = OriginOptions {
        options: options.collect(),
        ..OriginOptions::default()
    };
    let url: OriginUrl = "s3://data/p".parse().unwrap();
    url.open_with(&options)
}

fn path() -> Path {
    Path::from("dir/a b")
}

fn by_e_tag(e_tag: &str) -> DeleteCondition {
    DeleteCondition {
        e_tag: Some(e_tag.trim_matches('"').to_owned()),
        ..DeleteCondition::default()
    }
}

#[tokio::test]
async fn condition_of_a_delete_is_decided_by_the_server() {
    let server = Server::start(S3::new()).await.unwrap();
    let origin = origin(&server, Some("etag")).unwrap();
    let old = origin.put(&path(), "old".into()).await.unwrap();
    let new = origin.put(&path(), "new".into()).await.unwrap();
    let [old, new] = [old, new].map(|put| by_e_tag(&put.e_tag.unwrap()));
    let refused = origin.delete_if(&path(), &old).await.unwrap_err();
    assert!(matches!(refused, Error::Precondition { .. }), "{refused}");
    assert_eq!(origin.head(&path()).await.unwrap().size, 3);
    let sized = DeleteCondition {
        size: Some(3),
        ..new.clone()
    };
    let refused = origin.delete_if(&path(), &sized).await.unwrap_err();
    assert!(matches!(refused, Error::NotImplemented { .. }), "{refused}");
    origin.delete_if(&path(), &new).await.unwrap();
    let absent = origin.delete_if(&path(), &new).await.unwrap_err();
    assert!(matches!(absent, Error::NotFound { .. }), "{absent}");
}

#[tokio::test]
async fn delete_on_a_condition_is_not_sent_to_a_server_that_may_ignore_it() {
    let store = S3::new();
    let server = Server::start(Arc::clone(&store) as Arc<dyn Protocol>)
        .await
        .unwrap();
    for setting in [None, Some("disabled")] {
        let origin = origin(&server, setting).unwrap();
        let put = origin.put(&path(), "body".into()).await.unwrap();
        let condition = by_e_tag(&put.e_tag.unwrap());
        let refused = origin.delete_if(&path(), &condition).await.unwrap_err();
        assert!(matches!(refused, Error::NotImplemented { .. }), "{refused}");
        assert!(
            refused.to_string().contains("aws_conditional_delete"),
            "{refused}"
        );
        assert!(store.objects().get("data", "p/dir/a b").is_some());
    }
    let unknown = origin(&server, Some("yes")).unwrap_err().to_string();
    assert!(unknown.contains("etag or disabled"), "{unknown}");
}

#[tokio::test]
async fn conflicts_are_transient_and_unknown_conditions_not_implemented() {
    let conflict = "<Error><Code>ConditionalRequestConflict</Code><Message>m</Message></Error>";
    for (status, body) in [(409, conflict), (501, "")] {
        let store = DeleteResponse {
            store: S3::new(),
            status,
            body,
        };
        let server = Server::start(Arc::new(store)).await.unwrap();
        let origin = origin(&server, Some("etag")).unwrap();
        let put = origin.put(&path(), "body".into()).await.unwrap();
        let condition = by_e_tag(&put.e_tag.unwrap());
        let error = origin.delete_if(&path(), &condition).await.unwrap_err();
        match status {
            409 => assert!(matches!(error, Error::Generic { .. }), "{error}"),
            _ => assert!(matches!(error, Error::NotImplemented { .. }), "{error}"),
        }
        assert_eq!(origin.head(&path()).await.unwrap().size, 4);
    }
}
