//! Many ranges of one object in few reads: the columns of a table, the tiles of a picture.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectMeta, Result};

use super::get::get;
use super::ranged::range_error;
use crate::error::EngineError;
use crate::limits::MAX_MERGED_READS;
use crate::shared::BucketShared;

/// Ranges with at most this gap are read as one. At 100 MB/s for one request, these bytes take the 10 ms that another
/// request would take to begin. Blocks of the default size that hold neighbouring ranges touch.
const MERGED_GAP_BYTES: u64 = 1 << 20;
/// A read starts over once when the object changes.
const TRIES: usize = 2;

/// Neighbouring ranges that are read as one.
struct Merged {
    covers: Range<u64>,
    /// Index of each range in the caller's list, and the range.
    ranges: Vec<(usize, Range<u64>)>,
}

/// Returns the bytes of each range, in order, all of one version.
pub(crate) async fn get_ranges(
    bucket: &Arc<BucketShared>,
    path: &Path,
    ranges: &[Range<u64>],
) -> Result<Vec<Bytes>> {
    for _ in 0..TRIES {
        let reads = merge(ranges).into_iter();
        let reads = reads.map(|merged| read(bucket, path, merged));
        let reads: Vec<_> = stream::iter(reads)
            .buffered(MAX_MERGED_READS)
            .try_collect()
            .await?;
        if !reads.windows(2).all(|two| same(&two[0].0, &two[1].0)) {
            continue;
        }
        let mut results = vec![Bytes::new(); ranges.len()];
        for (index, bytes) in reads.into_iter().flat_map(|(_, parts)| parts) {
            results[index] = bytes;
        }
        return Ok(results);
    }
    Err(EngineError::VersionChanged {
        object: path.to_string(),
    }
    .into())
}

fn same(one: &ObjectMeta, other: &ObjectMeta) -> bool {
    one.e_tag == other.e_tag && one.last_modified == other.last_modified && one.size == other.size
}

fn merge(ranges: &[Range<u64>]) -> Vec<Merged> {
    let mut sorted: Vec<_> = ranges.iter().cloned().enumerate().collect();
    sorted.sort_by_key(|(_, range)| range.start);
    let mut reads: Vec<Merged> = Vec::new();
    for (index, range) in sorted {
        match reads.last_mut() {
            Some(read) if range.start <= read.covers.end.saturating_add(MERGED_GAP_BYTES) => {
                read.covers.end = read.covers.end.max(range.end);
                read.ranges.push((index, range));
            }
            _ => reads.push(Merged {
                covers: range.clone(),
                ranges: vec![(index, range)],
            }),
        }
    }
    reads
}

/// Ranges that cover `ranges`, neighbouring ones as one.
pub(super) fn merged_ranges(ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    merge(ranges)
        .into_iter()
        .map(|merged| merged.covers)
        .collect()
}

/// Copies the ranges out of one read. Releases each block as it passes: a caller that held the blocks of many ranges
/// could wait for memory that it holds itself.
async fn read(
    bucket: &Arc<BucketShared>,
    path: &Path,
    merged: Merged,
) -> Result<(ObjectMeta, Vec<(usize, Bytes)>)> {
    let Merged { covers, ranges } = merged;
    let mut at = covers.start;
    let options = GetOptions::new().with_range(Some(GetRange::Bounded(covers)));
    let result = get(bucket, path, options).await?;
    let meta = result.meta.clone();
    let size = meta.size;
    let mut parts = Vec::with_capacity(ranges.len());
    for (index, range) in ranges {
        if range.start >= size || range.is_empty() {
            return Err(range_error(path, size));
        }
        let range = range.start..range.end.min(size);
        let length = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        parts.push((index, range, Vec::with_capacity(length)));
    }
    let mut body = result.into_stream();
    while let Some(piece) = body.try_next().await? {
        let end = at + piece.len() as u64;
        for (_, range, bytes) in &mut parts {
            let (from, to) = (range.start.max(at), range.end.min(end));
            if from < to {
                bytes.extend_from_slice(&piece[(from - at) as usize..(to - at) as usize]);
            }
        }
        at = end;
    }
    let parts = parts.into_iter();
    let parts = parts.map(|(index, _, bytes)| (index, bytes.into()));
    Ok((meta, parts.collect()))
}
