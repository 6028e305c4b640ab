//! Random keys and operations: the folder store against a sorted map.

use std::collections::BTreeMap;

use bytes::Bytes;
use bywash::origin::folder::FolderStore;
use bywash::origin::{ObjectRename, Origin};
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, Error, ObjectStore, ObjectStoreExt, PutMode, UpdateVersion,
};
use proptest::prelude::*;

/// Components that collide, nest, sort close to `/`, look like escapes or like the store's names.
fn component() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => prop::sample::select(vec![
            "a", "b", "a-", "a.", "a0", "A", "...", "%2F", "%", "+", "a+", "%2E", " ", "~", "ü",
            "日本", "🙀", ".bywash", ".bywash2", "x.bywash", ".", "..",
        ])
        .prop_map(|name| match name {
            "." | ".." => "%2E".to_owned(),
            name => name.to_owned(),
        }),
        1 => "[a-c%+.]{60,70}x",
        1 => "[é-ö]{120,140}",
    ]
}

fn key() -> impl Strategy<Value = Path> {
    prop::collection::vec(component(), 1..4).prop_map(|parts| Path::parse(parts.join("/")).unwrap())
}

#[derive(Debug, Clone)]
enum Op {
    Put(usize, u8, bool),
    Create(usize, u8),
    Delete(usize),
    Copy(usize, usize),
    Rename(usize, usize),
    Reopen,
}

fn op() -> impl Strategy<Value = Op> {
    let at = 0..12usize;
    prop_oneof![
        4 => (at.clone(), any::<u8>(), any::<bool>()).prop_map(|(k, b, a)| Op::Put(k, b, a)),
        2 => (at.clone(), any::<u8>()).prop_map(|(k, b)| Op::Create(k, b)),
        2 => at.clone().prop_map(Op::Delete),
        1 => (at.clone(), at.clone()).prop_map(|(from, to)| Op::Copy(from, to)),
        2 => (at.clone(), at).prop_map(|(from, to)| Op::Rename(from, to)),
        1 => Just(Op::Reopen),
    ]
}

type Model = BTreeMap<String, (u8, Attributes)>;

fn attributes(kept: bool) -> Attributes {
    let kept = kept.then_some((Attribute::ContentType, "text/x"));
    Attributes::from_iter(kept)
}

async fn apply(store: &FolderStore, model: &mut Model, keys: &[Path], op: Op) {
    let pick = |index: usize| keys[index % keys.len()].clone();
    match op {
        Op::Put(k, byte, kept) => {
            let attributes = attributes(kept);
            let (key, options) = (pick(k), attributes.clone().into());
            store
                .put_opts(&key, vec![byte].into(), options)
                .await
                .unwrap();
            model.insert(pick(k).to_string(), (byte, attributes));
        }
        Op::Create(k, byte) => {
            let mode = PutMode::Create.into();
            let created = store.put_opts(&pick(k), vec![byte].into(), mode).await;
            if model.contains_key(pick(k).as_ref()) {
                assert!(matches!(created, Err(Error::AlreadyExists { .. })));
            } else {
                created.unwrap();
                model.insert(pick(k).to_string(), (byte, Attributes::new()));
            }
        }
        Op::Delete(k) => {
            store.delete(&pick(k)).await.unwrap();
            model.remove(pick(k).as_ref());
        }
        Op::Copy(from, to) => {
            let copied = store.copy(&pick(from), &pick(to)).await;
            match model.get(pick(from).as_ref()).cloned() {
                Some(value) => {
                    copied.unwrap();
                    model.insert(pick(to).to_string(), value);
                }
                None => assert!(matches!(copied, Err(Error::NotFound { .. }))),
            }
        }
        Op::Rename(from, to) if pick(from) != pick(to) => {
            let before = store.head(&pick(from)).await;
            let e_tag = before.ok().and_then(|meta| meta.e_tag);
            let value = model.remove(pick(from).as_ref());
            let rename = ObjectRename {
                version: UpdateVersion {
                    e_tag: Some(e_tag.unwrap_or_default()),
                    version: None,
                },
                attributes: value
                    .as_ref()
                    .map(|(_, own)| own.clone())
                    .unwrap_or_default(),
                mode: PutMode::Overwrite,
            };
            let renamed = store.rename_version(&pick(from), &pick(to), &rename).await;
            match value {
                Some(value) => {
                    renamed.unwrap();
                    model.insert(pick(to).to_string(), value);
                }
                None => assert!(matches!(renamed, Err(Error::NotFound { .. }))),
            }
        }
        Op::Rename(..) | Op::Reopen => {}
    }
}

async fn compare(store: &FolderStore, model: &Model, keys: &[Path]) {
    let expected: Vec<String> = model.keys().cloned().collect();
    let listed = store.list(None).map_ok(|meta| meta.location.to_string());
    assert_eq!(listed.try_collect::<Vec<_>>().await.unwrap(), expected);
    for key in keys {
        match (model.get(key.as_ref()), store.get(key).await) {
            (Some((byte, attributes)), Ok(got)) => {
                assert_eq!(got.attributes, *attributes, "{key}");
                assert_eq!(
                    got.bytes().await.unwrap(),
                    Bytes::from(vec![*byte]),
                    "{key}"
                );
            }
            (None, Err(Error::NotFound { .. })) => {}
            (expected, got) => panic!("{key}: expected {expected:?}, got {got:?}"),
        }
        let expected: Vec<&String> = model.keys().filter(|k| k.as_str() > key.as_ref()).collect();
        let after = store.list_with_offset(None, key);
        let after: Vec<_> = after
            .map_ok(|m| m.location.to_string())
            .try_collect()
            .await
            .unwrap();
        assert_eq!(after.iter().collect::<Vec<_>>(), expected, "after {key}");

        let below = format!("{key}/");
        let expected: Vec<&String> = model.keys().filter(|k| k.starts_with(&below)).collect();
        let listed = store
            .list(Some(key))
            .map_ok(|meta| meta.location.to_string());
        let listed: Vec<_> = listed.try_collect().await.unwrap();
        assert_eq!(listed.iter().collect::<Vec<_>>(), expected, "below {key}");
        let one = store.list_with_delimiter(Some(key)).await.unwrap();
        let direct = |k: &&&String| !k[below.len()..].contains('/');
        let objects: Vec<_> = one.objects.iter().map(|o| o.location.to_string()).collect();
        assert_eq!(
            objects,
            expected
                .iter()
                .filter(direct)
                .map(|k| k.to_string())
                .collect::<Vec<_>>()
        );
        let mut prefixes: Vec<String> = expected
            .iter()
            .filter_map(|k| {
                k[below.len()..]
                    .find('/')
                    .map(|at| k[..below.len() + at].to_owned())
            })
            .collect();
        prefixes.dedup();
        let folded: Vec<_> = one
            .common_prefixes
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(folded, prefixes, "prefixes below {key}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn store_behaves_as_a_sorted_map(
        keys in prop::collection::vec(key(), 1..12),
        ops in prop::collection::vec(op(), 1..40),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            // Thousands of synced writes: in memory where the system offers it.
            let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
            let mut store = FolderStore::open(dir.path()).unwrap();
            let mut model = Model::new();
            for op in ops {
                if matches!(op, Op::Reopen) {
                    store = FolderStore::open(dir.path()).unwrap();
                    compare(&store, &model, &keys).await;
                }
                apply(&store, &mut model, &keys, op).await;
            }
            compare(&store, &model, &keys).await;
            for key in &keys {
                store.delete(key).await.unwrap();
            }
            compare(&store, &Model::new(), &keys).await;
            let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
            prop_assert!(left.iter().all(|name| name == ".bywash"), "left behind: {left:?}");
            Ok(())
        })?;
    }
}
