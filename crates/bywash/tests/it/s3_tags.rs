//! Tags of objects at an S3 origin, which keeps them separate from its objects.

use std::sync::Arc;

use bytes::Bytes;
use bywash::origin::{OriginOptions, ReadOnly};
use bywash::{
    Bucket, Consistency, Engine, Origin, OriginError, OriginUrl, PutStreamOptions, ReadInfo,
};
use bywash_sim::server::s3::S3;
use bywash_sim::server::{HttpRequest, HttpResponse, Protocol, Server};
use bywash_support::pattern;
use futures::StreamExt;
use object_store::path::Path;
use object_store::{Error, GetOptions, ObjectStore, PutMultipartOptions, Result, TagSet};

/// A store that has no tags, as some servers with S3's protocol.
struct Tagless(Arc<S3>);

impl Protocol for Tagless {
    fn respond(&self, request: &HttpRequest) -> HttpResponse {
        let tagging = request.header("x-amz-tagging").is_some();
        if tagging || request.query("tagging").is_some() {
            HttpResponse::status(501)
        } else {
            self.0.respond(request)
        }
    }
}

/// A store that gives this response to requests for tags.
struct TagResponse {
    store: Arc<S3>,
    status: u16,
    body: &'static str,
}

impl Protocol for TagResponse {
    fn respond(&self, request: &HttpRequest) -> HttpResponse {
        match request.query("tagging") {
            Some(_) => HttpResponse::status(self.status).body(self.body),
            None => self.store.respond(request),
        }
    }
}

struct World {
    server: Server,
    bucket: Bucket,
}

/// Opens the store behind `server`, with its address, a key and these settings.
fn origin(server: &Server, more: &[(&str, &str)]) -> Arc<dyn Origin> {
    let url = server.url();
    let own = [
        ("endpoint", &*url),
        ("access_key_id", "key"),
        ("secret_access_key", "secret"),
    ];
    let options = own.iter().chain(more);
    let options = options.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let options = OriginOptions {
        options: options.collect(),
        ..OriginOptions::default()
    };
    let url: OriginUrl = "s3://data/p".parse().unwrap();
    url.open_with(&options).unwrap()
}

fn mount(origin: Arc<dyn Origin>) -> Bucket {
    let engine = Engine::builder().memory(64 << 20).build().unwrap();
    engine
        .mount("data", origin, Consistency::Immutable)
        .unwrap()
}

impl World {
    async fn new(protocol: Arc<dyn Protocol>, more: &[(&str, &str)]) -> Self {
        let server = Server::start(protocol).await.unwrap();
        let bucket = mount(origin(&server, more));
        Self { server, bucket }
    }

    async fn put(&self, length: usize, tags: &[(&str, &str)]) -> Result<Bytes> {
        let content = pattern(0, length);
        let options = PutStreamOptions {
            tags: tag_set(tags),
            length: Some(length as u64),
            ..PutStreamOptions::default()
        };
        let body = futures::stream::iter([Ok(content.clone())]).boxed();
        self.bucket.put_stream(&path(), options, body).await?;
        Ok(content)
    }

    async fn tags(&self) -> Vec<(String, String)> {
        self.bucket.object_tags(&path()).await.unwrap()
    }

    /// Returns the number of tags that a HEAD shows.
    async fn count(&self) -> u32 {
        let head = GetOptions {
            head: true,
            ..GetOptions::default()
        };
        let found = self.bucket.get_opts(&path(), head).await.unwrap();
        found.extensions.get::<ReadInfo>().unwrap().tags
    }
}

fn path() -> Path {
    Path::from("dir/a b")
}

fn owned(tags: &[(&str, &str)]) -> Vec<(String, String)> {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    tags.iter().map(owned).collect()
}

fn tag_set(tags: &[(&str, &str)]) -> TagSet {
    let mut set = TagSet::default();
    tags.iter().for_each(|(key, value)| set.push(key, value));
    set
}

const TAGS: [(&str, &str); 2] = [("a b", "1 & 2"), ("\u{fc}", "")];

#[tokio::test]
async fn tags_go_with_writes_of_any_length_and_are_counted() {
    let world = World::new(S3::new(), &[]).await;
    assert!(world.bucket.has_tags());
    // By one request, and by an upload in parts.
    for length in [5, 17 << 20] {
        let content = world.put(length, &TAGS).await.unwrap();
        assert_eq!(world.tags().await, owned(&TAGS), "{length}");
        assert_eq!(world.count().await, 2, "{length}");
        let found = world.bucket.get_opts(&path(), GetOptions::default()).await;
        assert!(found.unwrap().bytes().await.unwrap() == content);
        world.put(length, &[]).await.unwrap();
        assert_eq!((world.tags().await, world.count().await), (vec![], 0));
    }
}

#[tokio::test]
async fn tags_are_replaced_and_deleted_without_another_version() {
    let world = World::new(S3::new(), &[]).await;
    world.put(5, &[("old", "1")]).await.unwrap();
    assert_eq!(world.count().await, 1);
    for tags in [&TAGS[..], &[]] {
        let set = world.bucket.set_object_tags(&path(), owned(tags)).await;
        set.unwrap();
        // The count that was known is known no more, although objects of this bucket never change.
        assert_eq!(world.count().await as usize, tags.len());
        assert_eq!(world.tags().await, owned(tags));
    }
    let none = world.bucket.object_tags(&Path::from("none")).await;
    assert!(matches!(none, Err(Error::NotFound { .. })));
}

#[tokio::test]
async fn tag_that_the_store_refuses_is_a_typed_error_and_is_sent_once() {
    let world = World::new(S3::new(), &[]).await;
    world.put(5, &TAGS).await.unwrap();
    let is_refused = |error: Error| {
        let found = OriginError::find(&error);
        assert!(
            matches!(found, Some(OriginError::InvalidTag { .. })),
            "{error:?}"
        );
    };
    let own = [("aws:a", "1")];
    let _earlier = world.server.take_log();
    is_refused(world.put(5, &own).await.unwrap_err());
    is_refused(world.put(17 << 20, &own).await.unwrap_err());
    let set = world.bucket.set_object_tags(&path(), owned(&own)).await;
    is_refused(set.unwrap_err());
    let options = PutMultipartOptions {
        tags: tag_set(&own),
        ..PutMultipartOptions::default()
    };
    is_refused(
        world
            .bucket
            .create_upload(&path(), options)
            .await
            .unwrap_err(),
    );
    assert_eq!(world.server.take_log().len(), 4);
    assert_eq!(world.tags().await, owned(&TAGS));
}

#[tokio::test]
async fn store_without_tags_and_settings_without_tags_refuse_them() {
    let is_refused =
        |error: Error| assert!(matches!(error, Error::NotImplemented { .. }), "{error:?}");
    let world = World::new(Arc::new(Tagless(S3::new())), &[]).await;
    world.put(5, &[]).await.unwrap();
    is_refused(world.put(5, &TAGS).await.unwrap_err());
    is_refused(world.put(17 << 20, &TAGS).await.unwrap_err());
    is_refused(world.bucket.object_tags(&path()).await.unwrap_err());
    let world = World::new(S3::new(), &[("aws_disable_tagging", "true")]).await;
    assert!(!world.bucket.has_tags());
}

#[tokio::test]
async fn responses_without_tags_are_understood_and_not_requested_again() {
    let tags_of = async |status, body| {
        let store = S3::new();
        let protocol = TagResponse {
            store,
            status,
            body,
        };
        let world = World::new(Arc::new(protocol), &[]).await;
        world.put(5, &[]).await.unwrap();
        let _earlier = world.server.take_log();
        let tags = world.bucket.object_tags(&path()).await;
        assert_eq!(world.server.take_log().len(), 1, "{status} {body}");
        tags
    };
    let none = "<Error><Code>NoSuchTagSet</Code><Message>m</Message></Error>";
    assert_eq!(tags_of(404, none).await.unwrap(), vec![]);
    let unknown = "<Error><Code>NoSuchKey</Code><Message>m</Message></Error>";
    for body in ["", "a proxy's page", unknown] {
        let error = tags_of(404, body).await.unwrap_err();
        assert!(matches!(error, Error::NotFound { .. }), "{error:?}");
    }
    // The object itself, as of a server that ignores the query.
    let error = tags_of(200, "abcde").await.unwrap_err();
    assert!(matches!(error, Error::NotImplemented { .. }), "{error:?}");
    assert!(error.to_string().contains("s3://data"), "{error}");
}

#[tokio::test]
async fn read_only_bucket_shows_tags_and_refuses_to_change_them() {
    let world = World::new(S3::new(), &[]).await;
    world.put(5, &TAGS).await.unwrap();
    let bucket = mount(Arc::new(ReadOnly::new(origin(&world.server, &[]))));
    assert!(bucket.has_tags());
    assert_eq!(bucket.object_tags(&path()).await.unwrap(), owned(&TAGS));
    let set = bucket
        .set_object_tags(&path(), Vec::new())
        .await
        .unwrap_err();
    let found = OriginError::find(&set);
    assert!(
        matches!(found, Some(OriginError::ReadOnly { .. })),
        "{set:?}"
    );
}
