//! Keys that no path of object_store has, at clouds whose other programs write them.

use std::sync::Arc;

use bywash::origin::odd_keys::{key_of, path_of_key};
use bywash::{
    Bucket, BucketOptions, Consistency, Engine, EngineError, Omission, RetryPolicy, Unlistable,
};
use bywash_sim::server::gcs::Gcs;
use bywash_sim::server::objects::Objects;
use bywash_sim::server::s3::S3;
use bywash_sim::server::{Protocol, Server};
use futures::TryStreamExt;
use object_store::{Error, ObjectStore, ObjectStoreExt};

use crate::lying_origin::{Kind, origin};

const ODD: [&str; 6] = ["/", "/lead", "a/\u{1}", "a//b", "b/../c", "d/"];
const PLAIN: [&str; 3] = ["a", "a/b", "e"];

fn put_all(objects: &Objects) {
    for key in ODD.into_iter().chain(PLAIN) {
        let put = objects.put("data", key, key.into(), Default::default(), |_| true);
        assert!(put.is_some());
    }
}

async fn bucket(kind: Kind, unlistable: Unlistable) -> (Server, Bucket) {
    let protocol: Arc<dyn Protocol> = match kind {
        Kind::S3 => {
            let store = S3::new();
            put_all(store.objects());
            store
        }
        _ => {
            let store = Gcs::new();
            put_all(store.objects());
            store
        }
    };
    let server = Server::start(protocol).await.unwrap();
    let builder = Engine::builder().memory(32 << 20);
    let engine = builder.retry(RetryPolicy::default()).build().unwrap();
    let options = BucketOptions {
        consistency: Consistency::Immutable,
        unlistable,
        ..BucketOptions::default()
    };
    let bucket = engine.mount("data", origin(kind, &server.url()), options);
    (server, bucket.unwrap())
}

fn sorted() -> Vec<&'static str> {
    let mut keys: Vec<&str> = ODD.into_iter().chain(PLAIN).collect();
    keys.sort_unstable();
    keys
}

#[tokio::test]
async fn pages_have_all_keys_and_begin_after_any() {
    for kind in [Kind::S3, Kind::Gcs] {
        let (_server, bucket) = bucket(kind, Unlistable::Error).await;
        let (mut found, mut after) = (Vec::new(), None::<String>);
        loop {
            let page = bucket.list_page("", after.as_deref(), 2).await.unwrap();
            let keys = page.objects.iter().map(|meta| key_of(&meta.location));
            found.extend(keys.map(|key| key.into_owned()));
            assert_eq!(page.left_out.count, 0);
            if !page.more {
                break;
            }
            after = found.last().cloned();
        }
        assert_eq!(found, sorted(), "{kind:?}");
    }
}

#[tokio::test]
async fn objects_with_odd_keys_are_read_and_deleted_by_the_paths_of_listings() {
    for kind in [Kind::S3, Kind::Gcs] {
        let (_server, bucket) = bucket(kind, Unlistable::LeaveOut).await;
        assert!(bucket.reads_odd_keys());
        for key in ODD {
            let path = path_of_key(key);
            let found = bucket.get(&path).await;
            if key.contains("..") && kind == Kind::S3 {
                let error = found.map(drop).unwrap_err();
                assert!(matches!(error, Error::NotSupported { .. }), "{error}");
                continue;
            }
            assert_eq!(found.unwrap().bytes().await.unwrap(), key, "{kind:?}");
            bucket.delete(&path).await.unwrap();
            let gone = bucket.head(&path).await.unwrap_err();
            assert!(matches!(gone, Error::NotFound { .. }), "{kind:?}: {gone}");
            let written = bucket.put(&path, "new".into()).await.unwrap_err();
            assert!(matches!(written, Error::NotSupported { .. }), "{written}");
        }
    }
}

#[tokio::test]
async fn listings_by_paths_leave_odd_keys_out_and_name_them() {
    for kind in [Kind::S3, Kind::Gcs] {
        let (_server, bucket) = bucket(kind, Unlistable::LeaveOut).await;
        let (listed, omissions) = bucket.list_with_omissions(None, None);
        let listed: Vec<_> = listed.try_collect().await.unwrap();
        let keys: Vec<&str> = listed.iter().map(|meta| meta.location.as_ref()).collect();
        assert_eq!(keys, PLAIN);
        let left = omissions.left_out();
        assert_eq!(left.count, ODD.len() as u64);
        let named: Vec<&str> = left.named.iter().map(|(name, _)| &**name).collect();
        assert_eq!(named, ODD);
        assert!(left.named.iter().all(|(_, why)| *why == Omission::OddKey));
        let level = bucket.list_with_delimiter(None).await.unwrap();
        let left = level.extensions.get::<bywash::LeftOut>().cloned().unwrap();
        assert_eq!((level.objects.len(), left.count), (2, 1), "{kind:?}");
        assert_eq!(left.named[0].0, "/");
    }
}

#[tokio::test]
async fn listings_of_a_bucket_that_is_to_be_listed_whole_fail() {
    let (_server, bucket) = bucket(Kind::S3, Unlistable::Error).await;
    let listed: Result<Vec<_>, _> = bucket.list(None).try_collect().await;
    for error in [
        listed.map(drop).unwrap_err(),
        bucket
            .list_with_delimiter(None)
            .await
            .map(drop)
            .unwrap_err(),
    ] {
        let found = EngineError::find(&error);
        assert!(
            matches!(found, Some(EngineError::Unlistable { .. })),
            "{error}"
        );
        assert!(
            error.to_string().contains("unlistable = \"leave-out\""),
            "{error}"
        );
    }
}
