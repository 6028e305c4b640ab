//! Leases: blocks that a program of this machine reads in shared memory, without a copy.
//!
//! A lease pins the blocks of one version. Its frames are a loan ([`super::loans`]) until the lease is dropped, so all leases together
//! leave memory for loads: from before the first block is loaded, or, if all are resident, from the moment they are pinned. A range that cannot
//! be leased is read by a body, whose reader needs little memory ([`super::pieces`]).

use std::ops::Range;
use std::sync::Arc;

use bywash_mem::{BlockKey, Claim, OwnedPin};
use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, GetResult, ObjectMeta, Result};
use tokio::time::Instant;

use super::get::{WantsVersion, get, get_result, get_uncounted, second_start, try_get};
use super::loans::{Frame, LeasedFrames, Loan};
use super::ownership;
use super::pieces::PieceByPiece;
use super::ranged::checked_range;
use super::ranges::merged_ranges;
use super::resident::is_to_be_compared;
use crate::limits::{MAX_LEASE_BLOCKS, MAX_MERGED_READS};
use crate::outcome::{CacheOutcome, ReadInfo};
use crate::shared::BucketShared;
use crate::versions::Version;

/// A read as a lease, or as a body if its blocks are not in shared memory or may not be lent.
#[derive(Debug)]
pub enum LeasedRead {
    /// Pinned blocks.
    Lease(Lease),
    /// A body for a reader that reads it [`PieceByPiece`].
    Body(GetResult),
}

/// Pinned blocks of one version of an object. Their bytes do not change until it is dropped.
#[derive(Debug)]
pub struct Lease {
    version: Arc<Version>,
    outcome: CacheOutcome,
    ranges: Vec<Range<u64>>,
    /// By number, without duplicates.
    blocks: Vec<(u32, OwnedPin)>,
    /// Bytes of a block.
    block_size: u64,
    _frames: LeasedFrames,
}

/// Bytes in shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedBytes {
    /// Offset of the first byte in [`crate::Engine::shared_memory`].
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

impl Lease {
    /// Size, ETag and date of the object.
    #[must_use]
    pub fn meta(&self) -> &ObjectMeta {
        &self.version.meta
    }

    /// Content headers and metadata of the object, and how the read was served.
    #[must_use]
    pub fn head(&self) -> GetResult {
        let whole = 0..self.version.meta.size;
        get_result(&self.version, whole, self.outcome)
    }

    /// How the read was served.
    #[must_use]
    pub fn info(&self) -> ReadInfo {
        ReadInfo {
            outcome: self.outcome,
            version: self.version.display(),
            tags: self.version.tags.0,
            stale: false,
        }
    }

    /// Ranges of the object, in the order of the request, cut at the object's end.
    #[must_use]
    pub fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }

    /// Number of blocks.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Bytes of `range`, one of [`Self::ranges`], in order: one part a block.
    pub fn parts(&self, range: &Range<u64>) -> impl Iterator<Item = SharedBytes> + '_ {
        let Range { start, end } = *range;
        let numbers = block_numbers(range, self.block_size);
        let first = self
            .blocks
            .partition_point(|(block, _)| *block < numbers.start);
        self.blocks[first..]
            .iter()
            .take(numbers.len())
            .map(move |(block, pin)| {
                let begin = u64::from(*block) * self.block_size;
                let from = start.saturating_sub(begin);
                let to = (end - begin).min(self.block_size);
                let offset = pin.shared_offset().expect("checked when it was pinned");
                SharedBytes {
                    offset: offset + from,
                    len: to - from,
                }
            })
    }
}

/// Reads a range as a lease, or as a body.
pub(crate) async fn lease(
    bucket: &Arc<BucketShared>,
    path: &Path,
    mut options: GetOptions,
) -> Result<LeasedRead> {
    options.extensions.insert(PieceByPiece);
    bucket.counters.request();
    let not_shared = bucket.engine.pool.shared_memory().is_none();
    if not_shared || options.version.is_some() || options.head {
        let read = get_uncounted(bucket, path, options);
        return read.await.map(LeasedRead::Body);
    }
    let range = [options.range.clone()];
    if let Some(lease) = resident(bucket, path, &options, &range, true)? {
        return Ok(LeasedRead::Lease(lease));
    }
    options.extensions.insert(WantsVersion);
    let loaded = match load_lease(bucket, path, &options, None).await {
        Err(error) => {
            let now = second_start(bucket, path, error).await?;
            load_lease(bucket, path, &options, Some(now)).await?
        }
        Ok(loaded) => loaded,
    };
    if let Some(read) = loaded {
        return Ok(read);
    }
    let read = get_uncounted(bucket, path, options);
    read.await.map(LeasedRead::Body)
}

/// Loads the blocks of a range, and leases them. Returns the body of an object whose blocks may not be lent. `None` if a block was evicted at
/// once, or has a frame that is not shared.
async fn load_lease(
    bucket: &Arc<BucketShared>,
    path: &Path,
    options: &GetOptions,
    not_before: Option<Instant>,
) -> Result<Option<LeasedRead>> {
    let mut read = match not_before {
        None => get_uncounted(bucket, path, options.clone()).await?,
        Some(_) => Box::pin(try_get(bucket, path, options, not_before)).await?,
    };
    // None: an object that is never cached.
    let version = read.extensions.remove::<Arc<Version>>();
    let info = read.extensions.get::<ReadInfo>();
    let outcome = info.map_or(CacheOutcome::Miss, |info| info.outcome);
    let range = || vec![read.range.clone()];
    if let Some(version) = version.as_ref().filter(|_| outcome != CacheOutcome::Miss)
        && let Some(lease) = pinned(bucket, version, range(), true)
    {
        // Only the version had to be asked for: blocks that others have leased are no further loan.
        return Ok(Some(LeasedRead::Lease(Lease { outcome, ..lease })));
    }
    let blocks = version.and_then(|version| Blocks::new(bucket, version, range()));
    let Some(mut blocks) = blocks.and_then(Blocks::lent) else {
        return Ok(Some(LeasedRead::Body(read)));
    };
    let mut at = read.range.start;
    let mut body = read.into_stream();
    while let Some(bytes) = body.try_next().await? {
        at += bytes.len() as u64;
        drop(bytes);
        if !blocks.pin_until(at).await {
            return Ok(None);
        }
    }
    let lease = blocks.into_lease(outcome);
    Ok(lease.map(LeasedRead::Lease))
}

/// Reads many ranges of one version as one lease. `None` if they cannot be leased: read them one by one.
pub(crate) async fn lease_ranges(
    bucket: &Arc<BucketShared>,
    path: &Path,
    ranges: &[Range<u64>],
    options: &GetOptions,
) -> Result<Option<Lease>> {
    if bucket.engine.pool.shared_memory().is_none() || options.version.is_some() {
        return Ok(None);
    }
    let wanted: Vec<_> = ranges
        .iter()
        .cloned()
        .map(GetRange::Bounded)
        .map(Some)
        .collect();
    let read = resident(bucket, path, options, &wanted, true);
    if !matches!(read, Ok(None)) {
        bucket.counters.request();
        return read;
    }
    if let Err(error) = load_all(bucket, path, ranges, options, None).await {
        let now = second_start(bucket, path, error).await?;
        load_all(bucket, path, ranges, options, Some(now)).await?;
    }
    let mut lease = resident(bucket, path, options, &wanted, false)?;
    if let Some(lease) = &mut lease {
        lease.outcome = CacheOutcome::Miss;
    }
    Ok(lease)
}

/// Loads the blocks of ranges, and keeps none.
async fn load_all(
    bucket: &Arc<BucketShared>,
    path: &Path,
    ranges: &[Range<u64>],
    options: &GetOptions,
    not_before: Option<Instant>,
) -> Result<()> {
    let loads = merged_ranges(ranges).into_iter().map(|range| {
        let mut options = options.clone();
        options.range = Some(GetRange::Bounded(range));
        options.extensions.insert(PieceByPiece);
        load(bucket, path, options, not_before)
    });
    stream::iter(loads)
        .buffered(MAX_MERGED_READS)
        .try_collect()
        .await
}

async fn load(
    bucket: &Arc<BucketShared>,
    path: &Path,
    options: GetOptions,
    not_before: Option<Instant>,
) -> Result<()> {
    let read = match not_before {
        None => get(bucket, path, options).await?,
        Some(_) => Box::pin(try_get(bucket, path, &options, not_before)).await?,
    };
    let mut body = read.into_stream();
    while body.try_next().await?.is_some() {}
    Ok(())
}

/// Leases ranges whose blocks are all in memory, of a version that is known and fresh. `count` whether their bytes were not counted yet.
fn resident(
    bucket: &Arc<BucketShared>,
    path: &Path,
    options: &GetOptions,
    ranges: &[Option<GetRange>],
    count: bool,
) -> Result<Option<Lease>> {
    let version = bucket.fresh(path.as_ref());
    let Some(version) = version.filter(|version| version.cacheable()) else {
        return Ok(None);
    };
    options.check_preconditions(&version.meta)?;
    let ranges = ranges
        .iter()
        .map(|range| checked_range(&version, range.as_ref()));
    let ranges: Vec<Range<u64>> = ranges.collect::<Result<_>>()?;
    Ok(pinned(bucket, &version, ranges, count))
}

/// Leases ranges of a version whose blocks are all in memory.
fn pinned(
    bucket: &Arc<BucketShared>,
    version: &Arc<Version>,
    ranges: Vec<Range<u64>>,
    count: bool,
) -> Option<Lease> {
    let is_compared = |range: &Range<u64>| is_to_be_compared(bucket, version, range);
    if ranges.iter().any(is_compared) {
        return None;
    }
    let mut blocks = Blocks::new(bucket, Arc::clone(version), ranges)?;
    // Again: a block that was compared may have been evicted since, and loaded again.
    if !blocks.pin_resident() || blocks.ranges.iter().any(is_compared) {
        return None;
    }
    let lease = blocks.into_lease(CacheOutcome::Hit)?;
    if count {
        let bytes = lease.ranges.iter().map(|range| range.end - range.start);
        bucket.counters.body(lease.blocks.len() as u64, bytes.sum());
    }
    Some(lease)
}

/// Numbers of the blocks that have bytes of `range`.
fn block_numbers(range: &Range<u64>, block_size: u64) -> Range<u32> {
    if range.is_empty() {
        return 0..0;
    }
    // Objects have at most `u32::MAX` blocks.
    (range.start / block_size) as u32..((range.end - 1) / block_size) as u32 + 1
}

/// Blocks of ranges while they are pinned, in order.
struct Blocks {
    bucket: Arc<BucketShared>,
    version: Arc<Version>,
    ranges: Vec<Range<u64>>,
    /// By number, without duplicates.
    numbers: Vec<u32>,
    /// Pins of the first blocks.
    pins: Vec<OwnedPin>,
    /// The loan of all blocks, if it was taken before they are pinned.
    loan: Option<Loan>,
}

impl Blocks {
    /// `None` if the blocks of `ranges` are more than may be lent at all.
    fn new(
        bucket: &Arc<BucketShared>,
        version: Arc<Version>,
        ranges: Vec<Range<u64>>,
    ) -> Option<Self> {
        let size = bucket.block_size;
        let covered = ranges.iter().map(|range| range.end - range.start);
        // Before the numbers are listed: a list of blocks that cannot be lent is not worth its memory.
        let blocks = covered.fold(0, u64::saturating_add) / size;
        if blocks > bucket.engine.loans.max_blocks(size).min(MAX_LEASE_BLOCKS) {
            return None;
        }
        let numbers = ranges.iter().flat_map(|range| block_numbers(range, size));
        let mut numbers: Vec<u32> = numbers.collect();
        numbers.sort_unstable();
        numbers.dedup();
        Some(Self {
            bucket: Arc::clone(bucket),
            version,
            ranges,
            pins: Vec::with_capacity(numbers.len()),
            numbers,
            loan: None,
        })
    }

    /// Takes the loan of all blocks, if that is within the bound of loans.
    fn lent(mut self) -> Option<Self> {
        let (version, size) = (&self.version, self.bucket.block_size);
        let lengths = self.numbers.iter();
        let lengths = lengths.map(|block| version.block_len(*block, size));
        self.loan = Some(self.bucket.engine.loans.lend_all(lengths)?);
        Some(self)
    }

    /// Pins the blocks that have no further byte of the one range from `at` on, a position in the object. Returns whether they are
    /// in shared memory.
    async fn pin_until(&mut self, at: u64) -> bool {
        let size = self.bucket.block_size;
        let end = self.ranges.first().map_or(0, |range| range.end);
        while let Some(block) = self.next() {
            if (u64::from(block + 1) * size).min(end) > at {
                break;
            }
            let pin = self.loaded(self.version.key(block)).await;
            if !self.keep(pin) {
                return false;
            }
        }
        true
    }

    /// Pins a block that was read. Waits for the rest of it if the range ends inside.
    async fn loaded(&self, key: BlockKey) -> Option<OwnedPin> {
        let pool = &self.bucket.engine.pool;
        if let Some(pin) = pool.peek(key) {
            return Some(pin.into_owned());
        }
        match pool.claim(key) {
            Claim::Resident(pin) => Some(pin.into_owned()),
            Claim::Loading(flight) => flight.join().wait().await.ok(),
            Claim::Vacant(_) => None,
        }
    }

    /// Pins all blocks, as a use of each. Returns whether all are resident and in shared memory.
    fn pin_resident(&mut self) -> bool {
        let scope = self.bucket.engine.pool.pin_scope();
        while let Some(block) = self.next() {
            let pin = self.bucket.engine.pool.get(self.version.key(block));
            let mut pin = pin.map(|pin| scope.own(pin));
            if self.bucket.cluster.is_some() {
                pin = pin.and_then(|pin| ownership::read_again(&self.bucket, &self.version, pin));
            }
            if !self.keep(pin) {
                return false;
            }
        }
        true
    }

    fn next(&self) -> Option<u32> {
        self.numbers.get(self.pins.len()).copied()
    }

    fn keep(&mut self, pin: Option<OwnedPin>) -> bool {
        let shared = pin.filter(|pin| pin.shared_offset().is_some());
        let kept = shared.is_some();
        self.pins.extend(shared);
        kept
    }

    /// Returns the lease of the blocks, which are all pinned. `None` if they are more than the bound of loans allows.
    fn into_lease(self, outcome: CacheOutcome) -> Option<Lease> {
        let block_size = self.bucket.block_size;
        let frame = |(block, pin): (&u32, &OwnedPin)| {
            let length = self.version.block_len(*block, block_size);
            pin.shared_offset().map(|offset| Frame::new(offset, length))
        };
        let frames = self.numbers.iter().zip(&self.pins).map(frame);
        let frames = frames.collect::<Option<_>>()?;
        Some(Lease {
            _frames: self.bucket.engine.loans.lease(frames, self.loan)?,
            version: self.version,
            outcome,
            ranges: self.ranges,
            blocks: self.numbers.into_iter().zip(self.pins).collect(),
            block_size,
        })
    }
}
