//! Other attributes for objects of folders and of memory, whose bytes stay where they are.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use bytes::Bytes;
use bywash::origin::folder::FolderStore;
use bywash::origin::memory::MemoryStore;
use bywash::origin::{AttributeRewrite, CLIENT_ETAG, Origin, client_etag};
use bywash::{Consistency, Engine};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, Error, ObjectMeta, ObjectStore, ObjectStoreExt, PutOptions, TagSet,
    UpdateVersion,
};

use crate::folder_store::{key, store};

const ONE: &str = "f97c5d29941bfb1b2fdab0874906ab82";

fn attributes(language: &str) -> Attributes {
    Attributes::from_iter([
        (CLIENT_ETAG, ONE.to_owned()),
        (Attribute::ContentLanguage, language.to_owned()),
    ])
}

fn rewrite(version: &ObjectMeta, language: &str) -> AttributeRewrite {
    AttributeRewrite {
        version: UpdateVersion {
            e_tag: version.e_tag.clone(),
            version: version.version.clone(),
        },
        size: version.size,
        attributes: attributes(language),
        tags: TagSet::default(),
    }
}

async fn put(store: &impl ObjectStore, path: &Path, body: Bytes) -> ObjectMeta {
    let options = PutOptions::from(attributes("de"));
    store.put_opts(path, body.into(), options).await.unwrap();
    store.head(path).await.unwrap()
}

async fn language(store: &impl ObjectStore, path: &Path) -> String {
    let found = store.get(path).await.unwrap();
    found
        .attributes
        .get(&Attribute::ContentLanguage)
        .unwrap()
        .to_string()
}

async fn listed(store: &impl ObjectStore, path: &Path) -> ObjectMeta {
    let all: Vec<_> = store.list(None).try_collect().await.unwrap();
    all.into_iter().find(|meta| meta.location == *path).unwrap()
}

async fn attributes_change_and_bytes_stay(store: &impl Origin, path: &Path) {
    let first = put(store, path, Bytes::from_static(b"one")).await;
    let put = store.rewrite_in_place(path, &rewrite(&first, "fr")).await;
    let put = put.unwrap().expect("in place");
    let found = store.get(path).await.unwrap();
    let second = found.meta.clone();
    assert_eq!(
        found.attributes.len(),
        1,
        "the client's ETag is none of them"
    );
    assert_eq!(found.bytes().await.unwrap(), "one");
    assert_eq!(language(store, path).await, "fr");
    assert_eq!(put.e_tag, second.e_tag);
    assert_ne!(first.e_tag, second.e_tag);
    assert_eq!(client_etag(second.e_tag.as_deref().unwrap()), ONE);
    assert!(second.last_modified > first.last_modified);
    assert_eq!(listed(store, path).await, second);
    let stale = store.rewrite_in_place(path, &rewrite(&first, "it")).await;
    assert!(
        matches!(stale, Err(Error::Precondition { .. })),
        "{stale:?}"
    );
    assert_eq!(language(store, path).await, "fr");
    let absent = Path::from("absent");
    let absent = store
        .rewrite_in_place(&absent, &rewrite(&second, "it"))
        .await;
    assert!(absent.is_err());
}

#[tokio::test]
async fn attributes_of_folders_and_memory_change_in_place() {
    attributes_change_and_bytes_stay(&MemoryStore::new(), &key("dir/one")).await;
    let (folder, store) = store();
    let inode = || std::fs::metadata(folder.path().join("dir/one")).map(|meta| meta.ino());
    attributes_change_and_bytes_stay(&store, &key("dir/one")).await;
    let before = inode().unwrap();
    let meta = store.head(&key("dir/one")).await.unwrap();
    let changed = store
        .rewrite_in_place(&key("dir/one"), &rewrite(&meta, "es"))
        .await;
    assert!(changed.unwrap().is_some());
    assert_eq!(inode().unwrap(), before);
    // A key that does not fit the tree.
    attributes_change_and_bytes_stay(&store, &key("dir")).await;
    // Another store over the folder, as after a restart.
    let again = FolderStore::open(folder.path()).unwrap();
    assert_eq!(language(&again, &key("dir/one")).await, "es");
    assert_eq!(
        listed(&again, &key("dir/one")).await,
        again.head(&key("dir/one")).await.unwrap()
    );
    let side_files = folder.path().join(".bywash/attributes/dir%2Fone");
    assert_eq!(
        std::fs::read_dir(side_files).unwrap().count(),
        1,
        "of one version"
    );
}

#[tokio::test]
async fn read_goes_on_through_changes_of_attributes() {
    let (_folder, store) = store();
    let body = Bytes::from(vec![7; 5 << 20]);
    let mut version = put(&store, &key("one"), body.clone()).await;
    let mut read = store.get(&key("one")).await.unwrap().into_stream();
    let mut got = read.next().await.unwrap().unwrap().to_vec();
    while let Some(piece) = read.next().await {
        got.extend_from_slice(&piece.unwrap());
        let changed = store
            .rewrite_in_place(&key("one"), &rewrite(&version, "fr"))
            .await;
        assert!(changed.unwrap().is_some());
        version = store.head(&key("one")).await.unwrap();
    }
    assert!(got == body);
    // A change of bytes next to them ends a read.
    let mut read = store.get(&key("one")).await.unwrap().into_stream();
    assert!(read.next().await.unwrap().is_ok());
    let changed = store
        .rewrite_in_place(&key("one"), &rewrite(&version, "it"))
        .await;
    assert!(changed.unwrap().is_some());
    let file = std::fs::File::options()
        .write(true)
        .open(_folder.path().join("one"));
    std::os::unix::fs::FileExt::write_at(&file.unwrap(), b"x", 4 << 20).unwrap();
    assert!(matches!(
        read.try_collect::<Vec<_>>().await,
        Err(Error::Precondition { .. })
    ));
}

#[tokio::test]
async fn file_with_two_names_or_behind_a_link_is_not_changed_in_place() {
    let (folder, store) = store();
    let one = put(&store, &key("one"), Bytes::from_static(b"one")).await;
    symlink("one", folder.path().join("link")).unwrap();
    let link = store.head(&key("link")).await.unwrap();
    let changed = store
        .rewrite_in_place(&key("link"), &rewrite(&link, "fr"))
        .await;
    assert!(changed.unwrap().is_none());
    assert_eq!(store.head(&key("one")).await.unwrap(), one);
    std::fs::hard_link(folder.path().join("one"), folder.path().join("two")).unwrap();
    let one = store.head(&key("one")).await.unwrap();
    let changed = store
        .rewrite_in_place(&key("one"), &rewrite(&one, "fr"))
        .await;
    assert!(changed.unwrap().is_none());
    // Through the engine their bytes are written again.
    let engine = Engine::builder().memory(16 << 20).build().unwrap();
    let origin = std::sync::Arc::new(store);
    let bucket = engine
        .mount("data", origin, Consistency::default())
        .unwrap();
    for name in ["link", "one"] {
        let version = bucket.head(&key(name)).await.unwrap();
        let changed = bucket
            .replace_attributes(&key(name), rewrite(&version, "fr"))
            .await;
        changed.unwrap();
        assert_eq!(language(&bucket, &key(name)).await, "fr");
        assert_eq!(
            bucket.get(&key(name)).await.unwrap().bytes().await.unwrap(),
            "one"
        );
    }
    assert_eq!(std::fs::read(folder.path().join("two")).unwrap(), b"one");
}

#[tokio::test]
async fn unreadable_and_read_only_files_lose_nothing() {
    let (folder, store) = store();
    let version = put(&store, &key("one"), Bytes::from_static(b"one")).await;
    let path = folder.path().join("one");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o444)).unwrap();
    let version = store.head(&version.location).await.unwrap();
    let changed = store
        .rewrite_in_place(&key("one"), &rewrite(&version, "fr"))
        .await;
    assert!(changed.unwrap().is_some());
    let now = store.head(&key("one")).await.unwrap();
    assert_eq!(listed(&store, &key("one")).await, now);
    assert_eq!(client_etag(now.e_tag.as_deref().unwrap()), ONE);
    assert_eq!(language(&store, &key("one")).await, "fr");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_many_changes_of_a_version_wins() {
    let (_folder, store) = store();
    let version = put(&store, &key("one"), Bytes::from_static(b"one")).await;
    for _ in 0..20 {
        let version = store.head(&version.location).await.unwrap();
        let changes = (0..4).map(|number| {
            let (store, version) = (store.clone(), version.clone());
            tokio::spawn(async move {
                let rewrite = rewrite(&version, &format!("l{number}"));
                store.rewrite_in_place(&version.location, &rewrite).await
            })
        });
        let changes = futures::future::join_all(changes).await;
        let won = changes
            .iter()
            .filter(|change| matches!(change, Ok(Ok(Some(_)))));
        assert_eq!(won.count(), 1);
    }
}
