//! ETags that clients compute, kept with the files of a folder.

use std::fs::File;
use std::io::Write;
use std::time::Duration;

use bywash::DeleteCondition;
use bywash::origin::folder::FolderStore;
use bywash::origin::memory::MemoryStore;
use bywash::origin::{CLIENT_ETAG, Origin, client_etag, kept_client_etag};
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, Error, GetOptions, ObjectStore, ObjectStoreExt, PutMode, PutOptions,
    UpdateVersion,
};

use crate::folder_store::{files_below, key, store};

/// The MD5 of "one".
const ONE: &str = "f97c5d29941bfb1b2fdab0874906ab82";
const OTHER: &str = "b8a9f715dbb64fd5c56e7783c6820a61";

fn options(e_tag: &str, mode: PutMode) -> PutOptions {
    PutOptions {
        mode,
        attributes: Attributes::from_iter([(CLIENT_ETAG, e_tag.to_owned())]),
        ..PutOptions::default()
    }
}

async fn put(
    store: &impl Origin,
    path: &Path,
    e_tag: &str,
    mode: PutMode,
) -> Result<String, Error> {
    let put = store
        .put_opts(path, "one".into(), options(e_tag, mode))
        .await?;
    Ok(put.e_tag.unwrap())
}

/// Returns the ETag of reads, which equals the ETag of listings.
async fn e_tag(store: &impl Origin, path: &Path) -> String {
    let found = store.get(path).await.unwrap();
    assert_eq!(found.attributes.get(&CLIENT_ETAG), None);
    let e_tag = found.meta.e_tag.unwrap();
    let listed: Vec<_> = store.list(None).try_collect().await.unwrap();
    let listed = listed.into_iter().find(|meta| meta.location == *path);
    assert_eq!(listed.unwrap().e_tag.as_ref(), Some(&e_tag));
    let level = store.list_with_delimiter(None).await.unwrap().objects;
    let level = level.into_iter().find(|meta| meta.location == *path);
    assert_eq!(level.unwrap().e_tag.as_ref(), Some(&e_tag));
    e_tag
}

fn update(e_tag: &str) -> PutMode {
    PutMode::Update(UpdateVersion {
        e_tag: Some(e_tag.to_owned()),
        version: None,
    })
}

async fn keeps_etags_and_evaluates_them(store: &impl Origin) {
    let path = key("object");
    let put_tag = put(store, &path, ONE, PutMode::Overwrite).await.unwrap();
    assert_eq!(client_etag(&put_tag), ONE);
    assert_eq!(e_tag(store, &path).await, put_tag);
    // Reads of this version, as the cache sends them.
    let same = GetOptions {
        if_match: Some(put_tag.clone()),
        range: Some((1..2).into()),
        ..GetOptions::default()
    };
    let read = store.get_opts(&path, same).await.unwrap();
    assert_eq!(read.bytes().await.unwrap(), "n");
    let refused = put(store, &path, ONE, update(OTHER)).await;
    assert!(
        matches!(refused, Err(Error::Precondition { .. })),
        "{refused:?}"
    );
    // By the client's ETag, and by the version's.
    let put_tag = put(store, &path, ONE, update(ONE)).await.unwrap();
    let version = put_tag.split('+').next().unwrap().to_owned();
    let again = put(store, &path, ONE, update(&version)).await.unwrap();
    assert_ne!(again, put_tag, "another version with the same bytes");
    let stale = put(store, &path, ONE, update(&put_tag)).await;
    assert!(
        matches!(stale, Err(Error::Precondition { .. })),
        "{stale:?}"
    );
    store.copy(&path, &key("copy")).await.unwrap();
    assert_eq!(client_etag(&e_tag(store, &key("copy")).await), ONE);
    store.put(&path, "one".into()).await.unwrap();
    assert_eq!(kept_client_etag(&e_tag(store, &path).await), None);
}

#[tokio::test]
async fn folder_keeps_etags_of_clients_and_evaluates_conditions_with_them() {
    let (dir, store) = store();
    keeps_etags_and_evaluates_them(&store).await;
    // Without a side file, where the file system has extended attributes.
    let side_files = files_below(dir.path());
    let side_files = side_files.iter().filter(|name| name.ends_with(".json"));
    assert!(side_files.count() <= 1);
    let reopened = FolderStore::open(dir.path()).unwrap();
    assert_eq!(client_etag(&e_tag(&reopened, &key("copy")).await), ONE);
}

#[tokio::test]
async fn memory_keeps_etags_of_clients_and_evaluates_conditions_with_them() {
    keeps_etags_and_evaluates_them(&MemoryStore::new()).await;
}

#[tokio::test]
async fn changed_file_has_no_client_etag() {
    let (dir, store) = store();
    let path = key("object");
    let file = dir.path().join("object");
    for change in [
        |file: &mut File| file.write_all(b"two").unwrap(),
        |file: &mut File| file.write_all(b"longer than it was").unwrap(),
    ] {
        put(&store, &path, ONE, PutMode::Overwrite).await.unwrap();
        change(&mut File::options().write(true).open(&file).unwrap());
        assert_eq!(kept_client_etag(&e_tag(&store, &path).await), None);
        let refused = put(&store, &path, ONE, update(ONE)).await;
        assert!(
            matches!(refused, Err(Error::Precondition { .. })),
            "{refused:?}"
        );
    }
    // A file of another program.
    std::fs::write(&file, "one").unwrap();
    assert_eq!(kept_client_etag(&e_tag(&store, &path).await), None);
}

#[tokio::test]
async fn metadata_beside_a_client_etag_is_kept() {
    let (_dir, store) = store();
    let path = key("object");
    let mut given = options(ONE, PutMode::Overwrite);
    given
        .attributes
        .insert(Attribute::ContentType, "text/x".into());
    store.put_opts(&path, "one".into(), given).await.unwrap();
    let found = store.get(&path).await.unwrap();
    let expected = Attributes::from_iter([(Attribute::ContentType, "text/x")]);
    assert_eq!(found.attributes, expected);
    assert_eq!(client_etag(&found.meta.e_tag.unwrap()), ONE);
}

async fn deletes_if_the_condition_holds(store: &impl Origin) {
    let path = key("object");
    let by_e_tag = |e_tag: &str| DeleteCondition {
        e_tag: Some(e_tag.to_owned()),
        ..DeleteCondition::default()
    };
    let absent = store.delete_if(&path, &by_e_tag("*")).await;
    assert!(matches!(absent, Err(Error::NotFound { .. })), "{absent:?}");
    let size = |size| DeleteCondition {
        size: Some(size),
        ..DeleteCondition::default()
    };
    store.delete_if(&path, &size(3)).await.unwrap();
    put(store, &path, ONE, PutMode::Overwrite).await.unwrap();
    let modified = store.head(&path).await.unwrap().last_modified;
    let time = |seconds| DeleteCondition {
        modified: Some(modified + Duration::from_secs(seconds)),
        ..size(3)
    };
    for wrong in [by_e_tag(OTHER), size(4), time(5)] {
        let refused = store.delete_if(&path, &wrong).await;
        assert!(
            matches!(refused, Err(Error::Precondition { .. })),
            "{refused:?}"
        );
        store.head(&path).await.unwrap();
    }
    for right in [time(0), by_e_tag(ONE), by_e_tag("*"), size(3)] {
        store.delete_if(&path, &right).await.unwrap();
        assert!(matches!(
            store.head(&path).await,
            Err(Error::NotFound { .. })
        ));
        put(store, &path, ONE, PutMode::Overwrite).await.unwrap();
    }
}

#[tokio::test]
async fn conditional_deletes_of_a_folder_and_of_memory() {
    let (_dir, folder) = store();
    deletes_if_the_condition_holds(&folder).await;
    deletes_if_the_condition_holds(&MemoryStore::new()).await;
}

/// One writer replaces the object, others delete the version that they saw: none deletes a version that it did not see.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conditional_delete_never_removes_another_version() {
    let (_dir, store) = store();
    let path = key("object");
    for round in 0..50 {
        let first = put(&store, &path, ONE, PutMode::Overwrite).await.unwrap();
        let condition = DeleteCondition {
            e_tag: Some(first.clone()),
            ..DeleteCondition::default()
        };
        let (delete, replace) = tokio::join!(
            store.delete_if(&path, &condition),
            put(&store, &path, OTHER, update(&first)),
        );
        // Exactly one of both came first.
        assert_ne!(
            delete.is_ok(),
            replace.is_ok(),
            "{round}: {delete:?} {replace:?}"
        );
        let left = store.head(&path).await;
        assert_eq!(left.is_ok(), replace.is_ok(), "{round}");
    }
}
