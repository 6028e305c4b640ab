//! object_store's own conformance functions over wrapped stores, as `conformance.rs` has them over origins.

use std::sync::Arc;

use bywash::{Bucket, Consistency};
use object_store::integration;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{Error, ObjectStore};

use super::wrap;

fn bucket(store: impl ObjectStore) -> Bucket {
    wrap(&Arc::new(store), Consistency::default()).1
}

fn folder() -> (tempfile::TempDir, Bucket) {
    let folder = tempfile::tempdir().unwrap();
    let store = LocalFileSystem::new_with_prefix(folder.path()).unwrap();
    let store = store.with_automatic_cleanup(true);
    (folder, bucket(store))
}

macro_rules! conformance {
    ($kind:ident, $make:expr, [$($name:ident),*]) => {
        mod $kind {
            use super::*;

            $(
                #[tokio::test]
                async fn $name() {
                    let (_keep, bucket) = $make;
                    integration::$name(&bucket).await;
                }
            )*

            #[tokio::test]
            async fn get_nonexistent_object() {
                let (_keep, bucket) = $make;
                let absent = Some(Path::from("absent"));
                let error = integration::get_nonexistent_object(&bucket, absent).await;
                assert!(matches!(error, Err(Error::NotFound { .. })), "{error:?}");
            }

            #[tokio::test]
            async fn multipart_race_condition() {
                let (_keep, bucket) = $make;
                integration::multipart_race_condition(&bucket, true).await;
            }

            #[tokio::test]
            async fn multipart_out_of_order() {
                let (_keep, bucket) = $make;
                integration::multipart_out_of_order(&bucket).await;
            }
        }
    };
}

conformance!(
    memory,
    ((), bucket(InMemory::new())),
    [
        put_get_delete_list,
        stream_get,
        list_uses_directories_correctly,
        list_with_delimiter,
        rename_and_copy,
        copy_if_not_exists,
        copy_rename_nonexistent_object,
        list_with_offset_exclusivity,
        get_opts,
        put_get_attributes
    ]
);
conformance!(
    local,
    folder(),
    [
        put_get_delete_list,
        stream_get,
        list_uses_directories_correctly,
        list_with_delimiter,
        rename_and_copy,
        copy_if_not_exists,
        copy_rename_nonexistent_object,
        list_with_offset_exclusivity,
        get_opts
    ]
);

#[tokio::test]
async fn conditional_puts_are_those_of_the_store() {
    integration::put_opts(&bucket(InMemory::new()), true).await;
    let (_keep, bucket) = folder();
    integration::put_opts(&bucket, false).await;
}
