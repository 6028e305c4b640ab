#![allow(clippy::unwrap_used, reason = "tests")]

use bywash_store::memory::MemoryStore;
use object_store::{Attributes, ObjectStoreExt as _};

use super::*;
use crate::{Consistency, Engine};

const MIB: u64 = 1 << 20;

/// Bytes that the budget of an engine without blocks must have in use.
fn due(engine: &Engine) -> u64 {
    let objects = engine.stats().objects;
    (objects.known_limit_bytes + objects.absent_limit_bytes).saturating_sub(12 * MIB)
}

#[test]
fn table_bounds_above_the_floor_are_charged_and_follow_the_ceiling() {
    let ceiling = 512 * MIB;
    let engine = Engine::builder().memory(ceiling).build().unwrap();
    assert_eq!(engine.budget().used(), 8 * MIB);
    for (memory, charged) in [(256, 0), (32, 0), (384, 4), (512, 8), (448, 6)] {
        engine.set_memory(memory * MIB).unwrap();
        assert_eq!(engine.budget().used(), charged * MIB, "at {memory} MiB");
        assert_eq!(due(&engine), charged * MIB, "at {memory} MiB");
    }
}

#[test]
fn rejected_ceiling_leaves_tables_and_charge_unchanged() {
    let engine = Engine::builder().memory(512 * MIB).build().unwrap();
    let held = engine.try_reserve(Share::Download, 100 * MIB).unwrap();
    assert!(engine.set_memory(64 * MIB).is_err());
    assert_eq!(engine.budget().limit(), 512 * MIB);
    assert_eq!((engine.budget().used(), due(&engine)), (108 * MIB, 8 * MIB));
    drop(held);
    engine.set_memory(64 * MIB).unwrap();
    assert_eq!(engine.budget().used(), 0);
}

#[test]
fn tables_keep_their_bounds_without_memory_for_a_higher_charge() {
    let small = BlockPool::new(bywash_mem::PoolConfig::new(256 * MIB)).unwrap();
    let objects = KnownObjects::new(&small);
    assert_eq!(small.budget().used(), 0);
    let full = BlockPool::new(bywash_mem::PoolConfig::new(512 * MIB)).unwrap();
    let mut held = Vec::new();
    while let Some(taken) = full.try_reserve(Share::Download, MIB) {
        held.push(taken);
    }
    objects.resize(&full, u64::MAX);
    assert_eq!(objects.stats().known_limit_bytes, 8 * MIB);
    drop(held);
    objects.resize(&full, u64::MAX);
    assert_eq!(objects.stats().known_limit_bytes, 16 * MIB);
    assert_eq!(full.budget().used(), 8 * MIB);
}

#[tokio::test]
async fn forgetting_a_large_version_erases_boundedly_and_dropping_it_erases_all() {
    let engine = Engine::builder()
        .memory(64 * MIB)
        .block_size(4096)
        .build()
        .unwrap();
    let origin = Arc::new(MemoryStore::new());
    let bucket = engine
        .mount("test", origin, Consistency::Immutable)
        .unwrap();
    let path = Path::from("large");
    let blocks = u64::from(ERASED_SINGLY_BLOCKS) + 256;
    let body = vec![7; (blocks * 4096) as usize];
    bucket.put(&path, body.into()).await.unwrap();
    bucket.get(&path).await.unwrap().bytes().await.unwrap();
    let resident = || engine.stats().pool.resident_blocks;
    let before = resident();
    assert!(before >= blocks);
    let versions = &bucket.shared().versions;
    let (version, _) = versions.get(&path, None).unwrap();
    versions.forget(&version);
    assert_eq!(before - resident(), u64::from(ERASED_SINGLY_BLOCKS));
    assert!(
        versions.get(&path, None).is_none(),
        "no new read finds the others"
    );
    versions.drop_blocks(&version);
    assert_eq!(before - resident(), blocks);
    drop(version);
    let again = bucket.get(&path).await.unwrap().bytes().await.unwrap();
    assert_eq!(again.len() as u64, blocks * 4096);
}

/// Versions of a bucket with a window of a minute.
fn versions() -> Versions {
    let pool = BlockPool::new(bywash_mem::PoolConfig::new(64 * MIB)).unwrap();
    let objects = Arc::new(KnownObjects::new(&pool));
    Versions::new(pool, objects, 0, MIB, Some(Duration::from_secs(60)))
}

fn meta(path: &Path, tag: &str) -> ObjectMeta {
    ObjectMeta {
        location: path.clone(),
        last_modified: chrono::DateTime::UNIX_EPOCH,
        size: 9,
        e_tag: Some(format!("\"{tag}\"")),
        version: None,
    }
}

fn record(versions: &Versions, stamp: RequestStamp, meta: ObjectMeta) {
    versions.record_version(stamp, meta, Attributes::new(), TagCount::default());
}

fn known(versions: &Versions, path: &Path) -> Option<String> {
    let (version, _) = versions.get(path, None)?;
    version.meta.e_tag.clone()
}

#[tokio::test(start_paused = true)]
async fn response_that_a_write_overtook_is_not_recorded() {
    let (versions, path) = (versions(), Path::from("k"));
    let before = versions.stamp(&path);
    tokio::time::advance(Duration::from_secs(1)).await;
    versions.invalidate(&path);
    record(&versions, before, meta(&path, "replaced"));
    assert_eq!(known(&versions, &path), None);
    record(&versions, versions.stamp(&path), meta(&path, "written"));
    assert_eq!(known(&versions, &path), meta(&path, "written").e_tag);
}

#[tokio::test(start_paused = true)]
async fn response_to_an_older_request_replaces_no_newer_one() {
    let (versions, path) = (versions(), Path::from("k"));
    let older = versions.stamp(&path);
    tokio::time::advance(Duration::from_secs(1)).await;
    record(&versions, versions.stamp(&path), meta(&path, "new"));
    record(&versions, older, meta(&path, "old"));
    assert_eq!(known(&versions, &path), meta(&path, "new").e_tag);
    // Nor does it make an object known that a later request did not find.
    tokio::time::advance(Duration::from_secs(1)).await;
    versions.record_absent(versions.stamp(&path), &path);
    record(&versions, older, meta(&path, "old"));
    assert_eq!(known(&versions, &path), None);
    assert!(versions.is_absent(&path));
}

#[tokio::test(start_paused = true)]
async fn version_that_another_node_names_replaces_none_that_was_confirmed_later() {
    let (versions, path) = (versions(), Path::from("k"));
    let meta = |tag: &str| meta(&path, tag);
    let known = || known(&versions, &path);
    let second = |seconds| Some(Duration::from_secs(seconds));
    // Older than the engine, and the first that is known.
    let first = versions.record_partial(meta("a"), second(1 << 40)).unwrap();
    tokio::time::advance(Duration::from_secs(10)).await;
    let stamp = versions.stamp(&path);
    versions.record_version(stamp, meta("b"), Attributes::new(), TagCount::default());
    tokio::time::advance(Duration::from_secs(10)).await;
    for age in [None, second(11), second(1 << 40)] {
        assert!(versions.record_partial(meta("a"), age).is_none(), "{age:?}");
        assert_eq!(known(), meta("b").e_tag, "{age:?}");
        let same = versions.record_partial(meta("b"), age).unwrap();
        assert!(!same.is_partial(), "the known one, whatever the age");
    }
    let newer = versions.record_partial(meta("a"), second(9)).unwrap();
    assert!(newer.is_partial() && newer.id() != first.id());
    assert_eq!(known(), meta("a").e_tag);
    // A response to a request that was sent later than the other node's replaces it.
    let stamp = RequestStamp {
        at: Instant::now() - Duration::from_secs(8),
        ..versions.stamp(&path)
    };
    versions.record_version(stamp, meta("c"), Attributes::new(), TagCount::default());
    assert_eq!(known(), meta("c").e_tag);
    // And keys known as absent since then are so.
    versions.record_absent(versions.stamp(&path), &path);
    assert!(versions.record_partial(meta("a"), second(1)).is_none());
    assert!(versions.is_absent(&path));
    assert!(versions.record_partial(meta("a"), second(0)).is_some());
}

#[test]
fn version_is_verified_until_a_block_of_it_is_loaded_again() {
    let meta = ObjectMeta {
        location: Path::from("k"),
        last_modified: chrono::DateTime::UNIX_EPOCH,
        size: 3 * MIB,
        e_tag: Some("\"v\"".to_owned()),
        version: None,
    };
    let version = Version::new(0, meta.clone(), Attributes::new(), TagCount::default());
    assert!(!version.is_verified());
    (0..3).for_each(|_| version.cost.block());
    // A cold read, which loaded each block once.
    version.record_verified(0, MIB);
    assert!(version.is_verified());
    let same = version.with_headers(meta, Attributes::new(), TagCount::default());
    assert!(same.is_verified(), "its blocks are the same");
    version.cost.block();
    assert!(!version.is_verified() && !same.is_verified());
    // Loaded again while it was read, perhaps after it was read.
    version.record_verified(3, MIB);
    assert!(!version.is_verified());
    version.record_verified(4, MIB);
    assert!(version.is_verified(), "all blocks were resident");
}
