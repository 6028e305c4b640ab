//! Promises of the folder store beyond object_store's conformance functions.

use std::path::Path as FsPath;
use std::sync::Arc;

use bytes::Bytes;
use bywash::origin::folder::FolderStore;
use futures::{StreamExt, TryStreamExt};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, CopyMode, CopyOptions, Error, GetOptions, ObjectStore, ObjectStoreExt,
    PutMode, PutOptions, UpdateVersion,
};
use tempfile::TempDir;

pub(crate) fn store() -> (TempDir, FolderStore) {
    let dir = tempfile::tempdir().unwrap();
    let store = FolderStore::open(dir.path()).unwrap();
    (dir, store)
}

pub(crate) fn key(raw: &str) -> Path {
    Path::parse(raw).unwrap()
}

async fn read(store: &FolderStore, raw: &str) -> Bytes {
    store.get(&key(raw)).await.unwrap().bytes().await.unwrap()
}

async fn put(store: &FolderStore, raw: &str, body: &'static str) {
    store.put(&key(raw), body.into()).await.unwrap();
}

async fn keys(store: &FolderStore) -> Vec<String> {
    let listed = store.list(None).map_ok(|meta| meta.location.to_string());
    listed.try_collect().await.unwrap()
}

fn attributes() -> Attributes {
    Attributes::from_iter([
        (Attribute::CacheControl, "max-age=1"),
        (Attribute::ContentDisposition, "inline"),
        (Attribute::ContentEncoding, "gzip"),
        (Attribute::ContentLanguage, "en"),
        (Attribute::ContentType, "text/plain"),
        (Attribute::StorageClass, "COLD"),
        (Attribute::Metadata("colour".into()), "grün"),
    ])
}

/// Every file below a folder, relative to it, sorted.
pub(crate) fn files_below(root: &FsPath) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.push(path.strip_prefix(root).unwrap().display().to_string());
            }
        }
    }
    found.sort();
    found
}

#[tokio::test]
async fn attributes_are_stored_copied_replaced_and_removed() {
    let (dir, store) = store();
    store
        .put_opts(&key("d/a"), "1".into(), attributes().into())
        .await
        .unwrap();
    let got = store.get(&key("d/a")).await.unwrap();
    assert_eq!(got.attributes, attributes());
    let head = GetOptions::new().with_head(true);
    let head = store.get_opts(&key("d/a"), head).await.unwrap();
    assert_eq!(head.attributes, attributes());

    store.copy(&key("d/a"), &key("b")).await.unwrap();
    let copied = store.get(&key("b")).await.unwrap();
    assert_eq!(copied.attributes, attributes());

    let mut upload = store
        .put_multipart_opts(&key("c"), attributes().into())
        .await
        .unwrap();
    upload.put_part("x".into()).await.unwrap();
    upload.complete().await.unwrap();
    assert_eq!(store.get(&key("c")).await.unwrap().attributes, attributes());

    put(&store, "d/a", "2").await;
    let got = store.get(&key("d/a")).await.unwrap();
    assert_eq!(got.attributes, Attributes::new());
    for gone in ["b", "c", "d/a"] {
        store.delete(&key(gone)).await.unwrap();
    }
    assert_eq!(files_below(dir.path()), Vec::<String>::new());
}

#[tokio::test]
async fn tags_are_refused_not_dropped() {
    let (_dir, store) = store();
    let mut tags = object_store::TagSet::default();
    tags.push("k", "v");
    let refused = store.put_opts(&key("a"), "1".into(), tags.into()).await;
    assert!(matches!(refused, Err(Error::NotImplemented { .. })));
    assert!(keys(&store).await.is_empty());
}

#[tokio::test]
async fn key_coexists_with_keys_below_it_in_any_order() {
    for order in [["a", "a/b"], ["a/b", "a"]] {
        let (dir, store) = store();
        for raw in order {
            put(&store, raw, raw).await;
        }
        put(&store, "a-b", "a-b").await;
        assert_eq!(keys(&store).await, ["a", "a-b", "a/b"], "{order:?}");
        assert_eq!(read(&store, "a").await, "a");
        assert_eq!(read(&store, "a/b").await, "a/b");
        let top = store.list_with_delimiter(None).await.unwrap();
        let objects: Vec<_> = top.objects.iter().map(|o| o.location.as_ref()).collect();
        assert_eq!(objects, ["a", "a-b"]);
        assert_eq!(top.common_prefixes, [key("a")]);
        let below = store.list_with_delimiter(Some(&key("a"))).await.unwrap();
        assert_eq!(below.objects.len(), 1);

        // The first one deleted leaves the other in place and readable; then it can be written again.
        store.delete(&key(order[0])).await.unwrap();
        assert_eq!(read(&store, order[1]).await, order[1]);
        put(&store, order[0], "again").await;
        put(&store, order[1], "again").await;
        assert_eq!(keys(&store).await, ["a", "a-b", "a/b"], "{order:?}");
        for raw in ["a", "a/b", "a-b"] {
            store.delete(&key(raw)).await.unwrap();
        }
        assert_eq!(files_below(dir.path()), Vec::<String>::new());
        assert!(!dir.path().join("a").exists());
    }
}

#[tokio::test]
async fn every_key_of_1024_bytes_fits_and_reserved_names_are_ordinary_keys() {
    let (_dir, store) = store();
    let mut all = vec![
        "x".repeat(1024),
        "%+.".repeat(341),
        format!("{}/{}", "ü".repeat(400), "z"),
        vec!["a"; 512].join("/"),
        ".bywash/keys/x".to_owned(),
        "d/.bywash".to_owned(),
        "x".repeat(66),
        "x".repeat(67),
        "x".repeat(132),
        "x".repeat(300),
    ];
    for raw in &all {
        let body = Bytes::from(raw.clone());
        store
            .put_opts(&key(raw), body.into(), attributes().into())
            .await
            .unwrap();
    }
    all.sort();
    assert_eq!(keys(&store).await, all);
    for raw in &all {
        assert_eq!(read(&store, raw).await, *raw);
        let got = store.get(&key(raw)).await.unwrap();
        assert_eq!(got.attributes, attributes());
    }
    let (first, second) = (key(&all[3]), key(&all[4]));
    let after: Vec<_> = store
        .list_with_offset(None, &first)
        .map_ok(|meta| meta.location)
        .try_collect()
        .await
        .unwrap();
    assert_eq!(after.first(), Some(&second));
    assert_eq!(after.len(), all.len() - 4);
}

#[tokio::test]
async fn reading_a_plain_folder_creates_no_file() {
    let (dir, store) = store();
    std::fs::create_dir_all(dir.path().join("d/empty")).unwrap();
    std::fs::write(dir.path().join("d/file.csv"), "a,b").unwrap();
    assert_eq!(read(&store, "d/file.csv").await, "a,b");
    assert_eq!(keys(&store).await, ["d/file.csv"]);
    let top = store.list_with_delimiter(None).await.unwrap();
    assert_eq!(top.common_prefixes, [key("d")]);
    let below = store.list_with_delimiter(Some(&key("d"))).await.unwrap();
    assert_eq!(below.common_prefixes, [], "no object is below d/empty");
    for absent in ["d", "nothing", "d/file.csv/x", ".bywash"] {
        let missing = store.get(&key(absent)).await;
        assert!(matches!(missing, Err(Error::NotFound { .. })), "{absent}");
    }
    let root = store.get(&Path::ROOT).await;
    assert!(matches!(root, Err(Error::NotFound { .. })));
    store.delete(&key("nothing")).await.unwrap();
    assert!(!dir.path().join(".bywash").exists());

    let missing = FolderStore::open(dir.path().join("missing"));
    assert!(matches!(missing, Err(Error::NotFound { .. })));
}

#[tokio::test]
async fn change_by_another_program_changes_the_etag_and_drops_the_attributes() {
    let (dir, store) = store();
    store
        .put_opts(&key("a"), "one".into(), attributes().into())
        .await
        .unwrap();
    let before = store.head(&key("a")).await.unwrap();
    assert!(before.e_tag.as_ref().unwrap().contains('-'));
    std::fs::write(dir.path().join("a"), "two").unwrap();
    let after = store.get(&key("a")).await.unwrap();
    assert_ne!(after.meta.e_tag, before.e_tag);
    assert_eq!(after.attributes, Attributes::new());
    let stale = GetOptions::new().with_if_match(before.e_tag);
    let stale = store.get_opts(&key("a"), stale).await;
    assert!(matches!(stale, Err(Error::Precondition { .. })));
}

type Change = fn(&FsPath);
const SIZE: usize = 3 << 20;

/// Reads `a`, changes it after the first piece, and returns the whole body.
async fn read_while(
    store: &FolderStore,
    dir: &FsPath,
    change: Change,
) -> Vec<Result<Bytes, Error>> {
    store
        .put(&key("a"), Bytes::from(vec![1; SIZE]).into())
        .await
        .unwrap();
    let mut body = store.get(&key("a")).await.unwrap().into_stream();
    let first = body.next().await.unwrap().unwrap();
    assert!(first.len() <= 1 << 20 && first.iter().all(|b| *b == 1));
    change(dir);
    body.collect().await
}

#[tokio::test]
async fn object_modified_while_read_fails_without_mixing_versions() {
    let (dir, store) = store();
    let in_place: Change = |dir| std::fs::write(dir.join("a"), vec![2; SIZE]).unwrap();
    let shorter: Change = |dir| std::fs::write(dir.join("a"), "short").unwrap();
    for change in [in_place, shorter] {
        let rest = read_while(&store, dir.path(), change).await;
        assert!(
            matches!(rest[..], [Err(Error::Precondition { .. })]),
            "{rest:?}"
        );
    }
}

#[tokio::test]
async fn object_replaced_or_deleted_while_read_is_read_whole() {
    let (dir, store) = store();
    let replaced: Change = |dir| {
        std::fs::write(dir.join("new"), vec![2; SIZE]).unwrap();
        std::fs::rename(dir.join("new"), dir.join("a")).unwrap();
    };
    let gone: Change = |dir| std::fs::remove_file(dir.join("a")).unwrap();
    for change in [replaced, gone] {
        let rest = read_while(&store, dir.path(), change).await;
        let rest: Vec<Bytes> = rest.into_iter().map(Result::unwrap).collect();
        assert_eq!(rest.iter().map(Bytes::len).sum::<usize>(), SIZE - (1 << 20));
        assert!(
            rest.iter().flatten().all(|b| *b == 1),
            "bytes of the new version"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn readers_during_writes_return_whole_versions() {
    let (_dir, store) = store();
    let store = Arc::new(store);
    let versions: u8 = 20;
    let options = |v: u8| {
        let value = v.to_string();
        PutOptions::from(Attributes::from_iter([(Attribute::ContentType, value)]))
    };
    let body = |v: u8| Bytes::from(vec![v; 2 << 20]);
    store
        .put_opts(&key("a"), body(0).into(), options(0))
        .await
        .unwrap();
    let writer = tokio::spawn({
        let store = Arc::clone(&store);
        async move {
            for v in 1..versions {
                store
                    .put_opts(&key("a"), body(v).into(), options(v))
                    .await
                    .unwrap();
            }
        }
    });
    let mut whole = 0;
    while !writer.is_finished() || whole == 0 {
        let got = store.get(&key("a")).await.unwrap();
        let kind = got.attributes.get(&Attribute::ContentType).cloned();
        match got.bytes().await {
            Ok(bytes) => {
                whole += 1;
                assert_eq!(kind.unwrap().as_ref(), bytes[0].to_string());
                assert!(bytes.iter().all(|b| *b == bytes[0]));
            }
            Err(error) => assert!(matches!(error, Error::Precondition { .. }), "{error}"),
        }
    }
    writer.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_conditional_updates_lose_none_across_stores_of_one_folder() {
    const TASKS: usize = 4;
    const EACH: usize = 10;
    let (dir, store) = store();
    put(&store, "n", "0").await;
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let store = FolderStore::open(dir.path()).unwrap();
            tokio::spawn(async move {
                let mut done = 0;
                while done < EACH {
                    let got = store.get(&key("n")).await.unwrap();
                    let e_tag = got.meta.e_tag.clone();
                    let Ok(bytes) = got.bytes().await else {
                        continue;
                    };
                    let next = std::str::from_utf8(&bytes)
                        .unwrap()
                        .parse::<usize>()
                        .unwrap()
                        + 1;
                    let version = None;
                    let mode = PutMode::Update(UpdateVersion { e_tag, version });
                    let body = next.to_string().into();
                    match store.put_opts(&key("n"), body, mode.into()).await {
                        Ok(_) => done += 1,
                        Err(Error::Precondition { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(read(&store, "n").await, (TASKS * EACH).to_string());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_of_many_concurrent_creates_wins_in_tree_and_overflow_area() {
    let (_dir, store) = store();
    put(&store, "d/x", "makes d a folder").await;
    for raw in ["tree", "d"] {
        let creators = (0..16).map(|i| {
            let store = store.clone();
            tokio::spawn(async move {
                let body = format!("creator {i}");
                let (key, mode) = (key(raw), PutMode::Create.into());
                match store.put_opts(&key, body.clone().into(), mode).await {
                    Ok(_) => Some(body),
                    Err(Error::AlreadyExists { .. }) => None,
                    Err(error) => panic!("{error}"),
                }
            })
        });
        let created = futures::future::try_join_all(creators).await.unwrap();
        let winners: Vec<_> = created.into_iter().flatten().collect();
        assert_eq!(winners.len(), 1, "{raw}: {winners:?}");
        assert_eq!(read(&store, raw).await, winners[0]);
    }
    let options = CopyOptions::new().with_mode(CopyMode::Create);
    let copied = store.copy_opts(&key("tree"), &key("d"), options).await;
    assert!(matches!(copied, Err(Error::AlreadyExists { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_writes_and_deletes_of_neighbours_are_independent() {
    let (_dir, store) = store();
    let tasks = ["p", "p/q", "p/q/r", "p/q/s", "p/t"].map(|raw| {
        let store = store.clone();
        tokio::spawn(async move {
            for _ in 0..25 {
                put(&store, raw, raw).await;
                assert_eq!(read(&store, raw).await, raw);
                store.delete(&key(raw)).await.unwrap();
                let gone = store.head(&key(raw)).await;
                assert!(matches!(gone, Err(Error::NotFound { .. })), "{raw}");
            }
        })
    });
    for task in tasks {
        task.await.unwrap();
    }
    assert!(keys(&store).await.is_empty());
}

#[tokio::test]
async fn links_inside_are_objects_and_links_out_are_absent() {
    use std::os::unix::fs::symlink;
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("secret"), "secret").unwrap();
    let (dir, store) = store();
    put(&store, "d/file", "inside").await;
    symlink("d/file", dir.path().join("link")).unwrap();
    symlink("../d", dir.path().join("d/loop")).unwrap();
    symlink(outside.path(), dir.path().join("out")).unwrap();
    symlink(outside.path().join("secret"), dir.path().join("secret")).unwrap();
    symlink("nowhere", dir.path().join("broken")).unwrap();

    assert_eq!(keys(&store).await, ["d/file", "link"]);
    assert_eq!(read(&store, "link").await, "inside");
    for raw in ["out/secret", "secret", "broken", "broken/x", "out/new"] {
        let absent = store.get(&key(raw)).await;
        assert!(matches!(absent, Err(Error::NotFound { .. })), "{raw}");
        let mode = PutMode::Create;
        let create = store.put_opts(&key(raw), "mine".into(), mode.into()).await;
        create.unwrap();
        assert_eq!(read(&store, raw).await, "mine");
        store.delete(&key(raw)).await.unwrap();
    }
    assert_eq!(files_below(outside.path()), ["secret"]);
    let secret = std::fs::read_to_string(outside.path().join("secret"));
    assert_eq!(secret.unwrap(), "secret");

    // Writing to a key that is a link replaces the link, not its target.
    put(&store, "link", "own").await;
    assert_eq!(read(&store, "d/file").await, "inside");
    assert_eq!(read(&store, "link").await, "own");
}

#[tokio::test]
async fn folder_of_links_is_a_prefix_only_if_a_link_leads_inside() {
    use std::os::unix::fs::symlink;
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("secret"), "secret").unwrap();
    let (dir, store) = store();
    put(&store, "d/file", "inside").await;
    for folder in ["in", "out"] {
        std::fs::create_dir(dir.path().join(folder)).unwrap();
    }
    symlink("../d/file", dir.path().join("in/link")).unwrap();
    symlink(outside.path().join("secret"), dir.path().join("out/secret")).unwrap();
    let listed = store.list_with_delimiter(None).await.unwrap();
    assert_eq!(listed.common_prefixes, [key("d"), key("in")]);
}

#[tokio::test]
async fn ranges_of_one_call_are_of_one_version() {
    let (_dir, store) = store();
    put(&store, "a", "0123456789").await;
    let got = store.get_ranges(&key("a"), &[0..2, 8..20, 3..4]).await;
    assert_eq!(got.unwrap(), ["01", "89", "3"]);
    let outside = store.get_ranges(&key("a"), &[0..2, 10..12]).await;
    assert!(outside.is_err());
}

#[tokio::test]
async fn pages_are_ordered_and_complete_under_any_prefix() {
    let (_dir, store) = store();
    let all = ["a", "a-b", "a/1", "a/2/x", "a0", "ab/c", "ab/d", "b", "é"];
    for raw in all {
        put(&store, raw, "x").await;
    }
    for (prefix, delimiter) in [
        ("", None),
        ("", Some("/")),
        ("a", Some("/")),
        ("a/", None),
        ("a", None),
    ] {
        let expected: Vec<String> = {
            let mut names: Vec<String> = all
                .iter()
                .filter_map(|raw| raw.strip_prefix(prefix))
                .map(|rest| match rest.find('/') {
                    Some(at) if delimiter.is_some() => format!("{prefix}{}", &rest[..=at]),
                    _ => format!("{prefix}{rest}"),
                })
                .collect();
            names.sort();
            names.dedup();
            names
        };
        for size in 1..=expected.len() + 1 {
            let mut seen = Vec::new();
            let mut opts = PaginatedListOptions {
                max_keys: Some(size),
                delimiter: delimiter.map(Into::into),
                ..PaginatedListOptions::default()
            };
            loop {
                let page = store
                    .list_paginated(Some(prefix), opts.clone())
                    .await
                    .unwrap();
                let result = page.result;
                assert!(result.objects.len() + result.common_prefixes.len() <= size);
                seen.extend(result.objects.iter().map(|o| o.location.to_string()));
                seen.extend(result.common_prefixes.iter().map(|p| format!("{p}/")));
                opts.page_token = page.page_token;
                if opts.page_token.is_none() {
                    break;
                }
            }
            seen.sort();
            assert_eq!(
                seen, expected,
                "prefix {prefix:?}, {delimiter:?}, {size} a page"
            );
        }
    }
}

/// It was repeated as a failed origin, for a minute.
#[tokio::test]
async fn damaged_side_file_is_an_error_at_once_and_a_write_mends_it() {
    let (dir, folder) = store();
    let attributes = Attributes::from_iter([(Attribute::ContentType, "text/x")]);
    folder
        .put_opts(&key("a"), "one".into(), attributes.into())
        .await
        .unwrap();
    let side_files: Vec<_> = files_below(dir.path())
        .into_iter()
        .filter(|name| name.ends_with(".json"))
        .collect();
    std::fs::write(dir.path().join(&side_files[0]), "{").unwrap();
    let engine = bywash::Engine::builder().memory(64 << 20).build().unwrap();
    let origin = std::sync::Arc::new(folder);
    let bucket = engine
        .mount("damaged", origin, bywash::Consistency::default())
        .unwrap();
    let begun = std::time::Instant::now();
    let error = bucket.get(&key("a")).await.unwrap_err();
    // A retry would pause; a minute is the deadline of all attempts.
    assert!(begun.elapsed() < std::time::Duration::from_secs(20));
    assert!(error.to_string().contains(&side_files[0]), "{error}");
    let listed: Vec<_> = bucket.list(None).try_collect().await.unwrap();
    assert_eq!(listed.len(), 1);
    bucket.put(&key("a"), "two".into()).await.unwrap();
    assert_eq!(
        bucket.get(&key("a")).await.unwrap().bytes().await.unwrap(),
        "two"
    );
}
