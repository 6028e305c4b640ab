#![allow(clippy::unwrap_used, reason = "tests")]

use object_store::{Attributes, ObjectStoreExt as _};

use super::*;
use crate::origin::memory::MemoryStore;
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
