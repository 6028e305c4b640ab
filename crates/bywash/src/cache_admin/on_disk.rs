//! Objects that only the disk tier knows: it has them from an earlier run, and no read asked for them since.

use std::collections::{BTreeMap, HashMap};

use bywash_disk::VersionRecord;

use super::CachedObject;
use crate::Bucket;
use crate::cost::Cost;
use crate::shared::EngineShared;

/// Returns the first `max` objects on the disk tier that `selects` accepts, by number of their bucket and key. Of several
/// versions of an object it has one.
pub(super) fn first(
    engine: &EngineShared,
    buckets: &[Bucket],
    max: usize,
    selects: impl Fn(usize, &str) -> bool,
) -> BTreeMap<(usize, String), CachedObject> {
    let mut found = BTreeMap::new();
    let Some(disk) = &engine.disk else {
        return found;
    };
    let mut ranks: HashMap<&str, Vec<usize>> = HashMap::new();
    for (rank, bucket) in buckets.iter().enumerate() {
        if let Some((_, identity)) = bucket.shared().disk() {
            ranks.entry(identity).or_default().push(rank);
        }
    }
    disk.for_each_version(|record, blocks| {
        for rank in ranks.get(record.url.as_str()).into_iter().flatten() {
            if selects(*rank, &record.object) {
                let key = (*rank, record.object.clone());
                found.insert(key, describe(record, blocks));
                if found.len() > max {
                    found.pop_last();
                }
            }
        }
    });
    found
}

fn describe(record: &VersionRecord, blocks: u32) -> CachedObject {
    let block_size = u64::from(record.block_size.max(1));
    let all = u32::try_from(record.size.div_ceil(block_size)).unwrap_or(u32::MAX);
    CachedObject {
        key: record.object.clone(),
        size: record.size,
        version: record.validator.clone(),
        validated_ms_ago: None,
        fresh: false,
        blocks: all,
        resident_blocks: 0,
        resident_bytes: 0,
        disk_blocks: blocks,
        disk_bytes: (u64::from(blocks) * block_size).min(record.size),
        cost: Cost::default(),
    }
}
