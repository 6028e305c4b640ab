//! object_store's own conformance functions, each by name, over a bucket on each kind of origin.
//!
//! Not applicable: `multipart`, `multipart_with_opts`, `multipart_put_part_out_of_order` need a `MultipartStore` (a
//! bucket takes parts through `Bucket::put_part`, tested in `uploads.rs`); `list_paginated` needs a
//! `PaginatedListStore`, which only cloud clients are; `response_extensions` needs an HTTP client underneath.

use std::sync::Arc;

use bywash::origin::folder::FolderStore;
use bywash::origin::memory::MemoryStore;
use bywash::{Bucket, Consistency, Engine, Origin};
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, GetOptions, ObjectStore, ObjectStoreExt, PutMultipartOptions,
    PutOptions, integration,
};

/// A bucket with the memory and block size of a small machine, so that the suite crosses blocks.
fn bucket(origin: Arc<dyn Origin>) -> Bucket {
    let engine = Engine::builder()
        .memory(64 << 20)
        .block_size(64 << 10)
        .build()
        .unwrap();
    engine
        .mount("test", origin, Consistency::default())
        .unwrap()
}

macro_rules! conformance {
    ($kind:ident, $make:expr) => {
        mod $kind {
            use super::*;

            conformance!(@each $make, [
                put_get_delete_list, stream_get, list_uses_directories_correctly, list_with_delimiter,
                rename_and_copy, copy_if_not_exists, copy_rename_nonexistent_object,
                list_with_offset_exclusivity
            ]);

            #[tokio::test]
            async fn get_opts() {
                let (_keep, origin) = $make;
                integration::get_opts(&bucket(origin)).await;
            }

            #[tokio::test]
            async fn put_get_attributes() {
                let (_keep, origin) = $make;
                integration::put_get_attributes(&bucket(origin)).await;
            }

            #[tokio::test]
            async fn put_opts() {
                let (_keep, origin) = $make;
                integration::put_opts(&bucket(origin), true).await;
            }

            #[tokio::test]
            async fn get_nonexistent_object() {
                let (_keep, origin) = $make;
                let bucket = bucket(origin);
                let error = integration::get_nonexistent_object(&bucket, Some(Path::from("absent"))).await;
                assert!(matches!(error, Err(object_store::Error::NotFound { .. })), "{error:?}");
            }

            #[tokio::test]
            async fn multipart_race_condition() {
                let (_keep, origin) = $make;
                integration::multipart_race_condition(&bucket(origin), true).await;
            }

            #[tokio::test]
            async fn multipart_out_of_order() {
                let (_keep, origin) = $make;
                integration::multipart_out_of_order(&bucket(origin)).await;
            }

            /// The suite accepts NotImplemented for attributes; this test does not.
            #[tokio::test]
            async fn attributes_are_stored() {
                let (_keep, origin) = $make;
                super::attributes_are_stored(&bucket(origin)).await;
            }
        }
    };
    (@each $make:expr, [$($name:ident),*]) => {
        $(
            #[tokio::test]
            async fn $name() {
                let (_keep, origin) = $make;
                integration::$name(&bucket(origin)).await;
            }
        )*
    };
}

conformance!(
    memory,
    ((), Arc::new(MemoryStore::new()) as Arc<dyn Origin>)
);
conformance!(file, {
    let folder = tempfile::tempdir().unwrap();
    let origin: Arc<dyn Origin> = Arc::new(FolderStore::open(folder.path()).unwrap());
    (folder, origin)
});

async fn attributes_are_stored(bucket: &Bucket) {
    let attributes = Attributes::from_iter([
        (Attribute::ContentType, "text/plain"),
        (Attribute::ContentEncoding, "identity"),
        (Attribute::ContentLanguage, "en"),
        (Attribute::ContentDisposition, "inline"),
        (Attribute::CacheControl, "max-age=60"),
        (Attribute::Metadata("colour".into()), "green"),
    ]);
    let path = Path::from("put");
    let options = PutOptions {
        attributes: attributes.clone(),
        ..PutOptions::default()
    };
    bucket
        .put_opts(&path, "text".into(), options)
        .await
        .unwrap();
    assert_eq!(
        bucket.get(&path).await.unwrap().attributes,
        attributes,
        "cold"
    );
    assert_eq!(
        bucket.get(&path).await.unwrap().attributes,
        attributes,
        "warm"
    );
    let head = GetOptions {
        head: true,
        ..GetOptions::default()
    };
    assert_eq!(
        bucket.get_opts(&path, head).await.unwrap().attributes,
        attributes,
        "head"
    );

    let path = Path::from("parts");
    let options = PutMultipartOptions {
        attributes: attributes.clone(),
        ..PutMultipartOptions::default()
    };
    let mut upload = bucket.put_multipart_opts(&path, options).await.unwrap();
    upload.put_part("text".into()).await.unwrap();
    upload.complete().await.unwrap();
    assert_eq!(
        bucket.get(&path).await.unwrap().attributes,
        attributes,
        "parts"
    );
}
