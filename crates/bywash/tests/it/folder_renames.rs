//! Renames of objects in a folder and in memory.

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use bywash::origin::folder::FolderStore;
use bywash::origin::memory::MemoryStore;
use bywash::origin::{CLIENT_ETAG, ObjectRename, Origin, kept_client_etag};
use bywash::{Consistency, Engine};
use futures::StreamExt;
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, RenameOptions,
    UpdateVersion,
};

use crate::folder_store::{files_below, key, store};

/// The MD5 of "one".
const ONE: &str = "f97c5d29941bfb1b2fdab0874906ab82";

fn text(kind: &str) -> Attributes {
    Attributes::from_iter([(Attribute::ContentType, kind.to_owned())])
}

/// Writes "one" with a type and the client's ETag, and returns its ETag.
async fn put(store: &impl Origin, path: &Path) -> String {
    let mut attributes = text("text/x");
    attributes.insert(CLIENT_ETAG, ONE.into());
    let options = PutOptions::from(attributes);
    let put = store.put_opts(path, "one".into(), options).await.unwrap();
    put.e_tag.unwrap()
}

fn rename(e_tag: &str, mode: PutMode) -> ObjectRename {
    ObjectRename {
        version: UpdateVersion {
            e_tag: Some(e_tag.to_owned()),
            version: None,
        },
        attributes: text("text/y"),
        mode,
    }
}

async fn is_kept_under_another_key(store: &impl Origin) {
    let (from, to) = (key("d/from"), key("e/f/to"));
    let before = put(store, &from).await;
    let replaced = put(store, &to).await;
    let replaced_time = store.head(&to).await.unwrap().last_modified;
    let request = rename(&before, PutMode::Overwrite);
    let renamed = store.rename_version(&from, &to, &request).await.unwrap();
    let found = store.get(&to).await.unwrap();
    let e_tag = found.meta.e_tag.clone().unwrap();
    assert_eq!(renamed.e_tag.as_ref(), Some(&e_tag));
    assert!(e_tag != before && e_tag != replaced);
    assert_eq!(kept_client_etag(&e_tag), Some(ONE));
    assert!(found.meta.last_modified > replaced_time);
    assert_eq!(found.attributes, text("text/y"));
    assert_eq!(found.bytes().await.unwrap(), "one");
    assert!(matches!(
        store.head(&from).await,
        Err(Error::NotFound { .. })
    ));
    // Once more, so that it is a version after a version that was renamed.
    let request = rename(&e_tag, PutMode::Create);
    let back = store.rename_version(&to, &from, &request).await.unwrap();
    assert_eq!(kept_client_etag(&back.e_tag.unwrap()), Some(ONE));
}

#[tokio::test]
async fn renamed_object_keeps_its_bytes_and_is_a_new_version() {
    is_kept_under_another_key(&MemoryStore::new()).await;
    let (dir, folder) = store();
    is_kept_under_another_key(&folder).await;
    // No side file, staged file or empty folder of the other keys is left.
    let left = files_below(dir.path());
    assert_eq!(left.len(), 2, "{left:?}");
    assert!(!dir.path().join("e").exists());
}

#[tokio::test]
async fn rename_in_a_folder_moves_the_file_itself() {
    let (dir, folder) = store();
    let e_tag = put(&folder, &key("a")).await;
    let inode = |name: &str| std::fs::metadata(dir.path().join(name)).unwrap().ino();
    let before = inode("a");
    let request = rename(&e_tag, PutMode::Create);
    folder
        .rename_version(&key("a"), &key("b"), &request)
        .await
        .unwrap();
    assert_eq!(inode("b"), before);
}

async fn is_refused_without_a_change(store: &impl Origin) {
    let (from, to, absent) = (key("from"), key("to"), key("absent"));
    let e_tag = put(store, &from).await;
    let target = put(store, &to).await;
    let request = |mode| rename(&e_tag, mode);
    let sent = store
        .rename_version(&from, &to, &request(PutMode::Create))
        .await;
    assert!(matches!(sent, Err(Error::AlreadyExists { .. })), "{sent:?}");
    let other = PutMode::Update(UpdateVersion {
        e_tag: Some(e_tag.clone()),
        version: None,
    });
    let sent = store.rename_version(&from, &to, &request(other)).await;
    assert!(matches!(sent, Err(Error::Precondition { path, .. }) if path == to.as_ref()));
    let stale = rename(&target, PutMode::Overwrite);
    let sent = store.rename_version(&from, &to, &stale).await;
    assert!(matches!(sent, Err(Error::Precondition { path, .. }) if path == from.as_ref()));
    let sent = store.rename_version(&absent, &to, &stale).await;
    assert!(matches!(sent, Err(Error::NotFound { path, .. }) if path == absent.as_ref()));
    for (path, e_tag) in [(&from, &e_tag), (&to, &target)] {
        assert_eq!(store.head(path).await.unwrap().e_tag.as_ref(), Some(e_tag));
    }
    // The version of the condition is replaced.
    let current = PutMode::Update(UpdateVersion {
        e_tag: Some(target),
        version: None,
    });
    store
        .rename_version(&from, &to, &request(current))
        .await
        .unwrap();
}

#[tokio::test]
async fn rename_whose_condition_fails_changes_nothing() {
    is_refused_without_a_change(&MemoryStore::new()).await;
    is_refused_without_a_change(&store().1).await;
}

#[tokio::test]
async fn links_and_files_with_several_names_are_not_renamed_in_place() {
    let (dir, folder) = store();
    std::fs::create_dir(dir.path().join("d")).unwrap();
    std::fs::write(dir.path().join("d/file"), "one").unwrap();
    std::os::unix::fs::symlink("file", dir.path().join("d/link")).unwrap();
    std::fs::write(dir.path().join("two"), "one").unwrap();
    std::fs::hard_link(dir.path().join("two"), dir.path().join("names")).unwrap();
    let engine = Engine::builder().memory(64 << 20).build().unwrap();
    let origin = Arc::new(folder.clone());
    let bucket = engine
        .mount("linked", origin, Consistency::default())
        .unwrap();
    for from in ["d/link", "two"] {
        let e_tag = folder.head(&key(from)).await.unwrap().e_tag.unwrap();
        let request = rename(&e_tag, PutMode::Overwrite);
        let to = key("target");
        let sent = folder.rename_version(&key(from), &to, &request).await;
        assert!(
            matches!(sent, Err(Error::NotImplemented { .. })),
            "{sent:?}"
        );
        // The bucket copies and deletes them.
        let options = RenameOptions::default();
        bucket.rename_opts(&key(from), &to, options).await.unwrap();
        assert_eq!(bucket.get(&to).await.unwrap().bytes().await.unwrap(), "one");
        assert!(!dir.path().join(from).exists());
    }
    for kept in ["d/file", "names"] {
        assert_eq!(
            std::fs::read_to_string(dir.path().join(kept)).unwrap(),
            "one"
        );
    }
    let same = bucket.rename(&key("names"), &key("names")).await;
    assert!(same.is_err());
    assert!(dir.path().join("names").exists());
}

#[tokio::test]
async fn reader_of_an_object_that_is_renamed_gets_all_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let folder = FolderStore::open(dir.path()).unwrap();
    let bytes: Vec<u8> = (0..5_u32 << 20).map(|at| (at / 977) as u8).collect();
    folder.put(&key("a"), bytes.clone().into()).await.unwrap();
    let read = folder.get(&key("a")).await.unwrap();
    let mut e_tag = read.meta.e_tag.clone().unwrap();
    let mut body = read.into_stream();
    let mut got = body.next().await.unwrap().unwrap().to_vec();
    for (from, to) in [("a", "b"), ("b", "c"), ("c", "b")] {
        let request = rename(&e_tag, PutMode::Create);
        let sent = folder.rename_version(&key(from), &key(to), &request).await;
        e_tag = sent.unwrap().e_tag.unwrap();
        got.extend(body.next().await.unwrap().unwrap());
    }
    while let Some(piece) = body.next().await {
        got.extend(piece.unwrap());
    }
    assert!(got == bytes);
    // A change of the bytes ends the read of the version before.
    let mut body = folder.get(&key("b")).await.unwrap().into_stream();
    body.next().await.unwrap().unwrap();
    std::fs::write(dir.path().join("b"), vec![0; bytes.len()]).unwrap();
    assert!(body.next().await.unwrap().is_err());
}

/// A writer replaces the object while another renames it: each version is under one of both keys.
#[tokio::test(flavor = "multi_thread")]
async fn write_during_a_rename_is_never_lost() {
    let (_dir, folder) = store();
    let origins: [(&str, Arc<dyn Origin>); 2] = [
        ("memory", Arc::new(MemoryStore::new())),
        ("folder", Arc::new(folder)),
    ];
    let engine = Engine::builder().memory(64 << 20).build().unwrap();
    for (name, origin) in origins {
        let bucket = engine.mount(name, origin, Consistency::default()).unwrap();
        let (from, to) = (key("from"), key("to"));
        for round in 0..40 {
            let text = format!("{round}");
            bucket.put(&from, "before".into()).await.unwrap();
            let write = bucket.put(&from, text.clone().into());
            let (written, renamed) = tokio::join!(write, bucket.rename(&from, &to));
            written.unwrap();
            let renamed = renamed.is_ok();
            let read = async |path: &Path| {
                let found = bucket.get(path).await.ok()?;
                Some(found.bytes().await.unwrap())
            };
            let (source, target) = (read(&from).await, read(&to).await);
            let is_there = [&source, &target]
                .into_iter()
                .flatten()
                .any(|found| *found == text);
            assert!(is_there, "{name} {round} {renamed}: {source:?} {target:?}");
        }
    }
}
