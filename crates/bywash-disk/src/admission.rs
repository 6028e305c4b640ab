//! Which blocks are written once the disk is full, and how many bytes a day.
//!
//! A disk that still has room takes everything, so a data set that fits is there the second time. A
//! full one takes blocks that are looked up again: ones that were looked up before, with fewer
//! bytes looked up since than the disk holds. Thus a scan does not replace blocks that others use,
//! and a loop larger than the disk keeps a part of itself there instead of none.

use std::time::Duration;

use parking_lot::Mutex;

use crate::format::VersionKey;
use crate::index::spread;

/// Entries of a set, which is a cache line.
const WAYS: usize = 16;
/// Remembered blocks for each block that the index has room for.
const REMEMBERED: usize = 2;
/// Memory of these in bytes.
pub(crate) const REMEMBERED_MEMORY: u64 = (REMEMBERED * size_of::<u32>()) as u64;
/// Epochs in which as many bytes are looked up as the disk holds.
const EPOCHS: u64 = 4;
/// Bits of an entry for its epoch; the others are a fingerprint. Zero is no entry.
const EPOCH_BITS: u32 = 3;
const EPOCH_MASK: u32 = (1 << EPOCH_BITS) - 1;

/// Blocks that were looked up lately and not found: a fingerprint of each, and a coarse time.
#[derive(Debug)]
pub(crate) struct Lookups {
    table: Mutex<Table>,
}

#[derive(Debug)]
struct Table {
    sets: Box<[[u32; WAYS]]>,
    /// Counts modulo 8. Entries of four epochs ago are removed, so none seems younger than it is.
    epoch: u32,
    /// Bytes looked up in this epoch.
    bytes: u64,
}

impl Lookups {
    /// Allocates all memory now.
    pub(crate) fn new(blocks: usize) -> Self {
        let sets = (blocks * REMEMBERED).div_ceil(WAYS).max(1);
        Self {
            table: Mutex::new(Table {
                sets: vec![[0; WAYS]; sets].into(),
                epoch: 0,
                bytes: 0,
            }),
        }
    }

    /// Memory of the table in bytes.
    pub(crate) fn memory(&self) -> u64 {
        size_of_val(&*self.table.lock().sets) as u64
    }

    /// Notes the look-up of a block that was on a disk of `disk` bytes.
    pub(crate) fn hit(&self, bytes: u64, disk: u64) {
        self.table.lock().advance(bytes, disk);
    }

    /// Notes the look-up of a block that was not there, and returns whether it follows an earlier
    /// look-up soon enough.
    pub(crate) fn miss(&self, version: VersionKey, block: u32, bytes: u64, disk: u64) -> bool {
        let mut first = [0; 8];
        first.copy_from_slice(&version.0[..8]);
        let hash = spread(u64::from_le_bytes(first) ^ spread(u64::from(block)));
        let mut table = self.table.lock();
        table.advance(bytes, disk);
        table.note(hash)
    }
}

impl Table {
    fn advance(&mut self, bytes: u64, disk: u64) {
        let epoch_bytes = (disk / EPOCHS).max(1);
        self.bytes += bytes;
        while self.bytes >= epoch_bytes {
            self.bytes -= epoch_bytes;
            self.epoch = (self.epoch + 1) & EPOCH_MASK;
            self.forget();
        }
    }

    /// Number of epochs since an entry was made.
    fn age(&self, entry: u32) -> u64 {
        u64::from(self.epoch.wrapping_sub(entry) & EPOCH_MASK)
    }

    /// Removes the entries after which more bytes may have been looked up than the disk holds.
    fn forget(&mut self) {
        let epoch = self.epoch;
        for entry in self.sets.iter_mut().flatten() {
            let age = u64::from(epoch.wrapping_sub(*entry) & EPOCH_MASK);
            if age >= EPOCHS {
                *entry = 0;
            }
        }
    }

    /// Enters a block, and returns whether it was there.
    fn note(&mut self, hash: u64) -> bool {
        #[allow(clippy::cast_possible_truncation, reason = "a part of the hash")]
        let fingerprint = (hash as u32 | 1 << EPOCH_BITS) & !EPOCH_MASK;
        let count = self.sets.len() as u64;
        let set = usize::try_from(((hash >> 32) * count) >> 32).expect("less than the sets");
        let same = |entry: &u32| entry & !EPOCH_MASK == fingerprint;
        let found = self.sets[set].iter().position(same);
        let way = found.unwrap_or_else(|| {
            let age = |way: &usize| match self.sets[set][*way] {
                0 => u64::MAX,
                entry => self.age(entry),
            };
            (0..WAYS).max_by_key(age).expect("a set has entries")
        });
        self.sets[set][way] = fingerprint | self.epoch;
        found.is_some()
    }
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// The part of a day's bytes that may be written at once.
const BURST_DIVISOR: f64 = 24.0;

/// Bytes that may be written a day, without limit by default. At most one batch more is written in any day.
#[derive(Debug, Default)]
pub(crate) struct WriteBudget(Mutex<Option<Bucket>>);

#[derive(Debug)]
struct Bucket {
    /// Max tokens, in bytes.
    burst: f64,
    /// Tokens of a day.
    refill: f64,
    tokens: f64,
    updated: Duration,
}

impl Bucket {
    fn update(&mut self, now: Duration) {
        // Another thread may have come later and been first.
        let passed = now.saturating_sub(self.updated).as_secs_f64() / DAY.as_secs_f64();
        self.tokens = (self.tokens + passed * self.refill).min(self.burst);
        self.updated = self.updated.max(now);
    }
}

impl WriteBudget {
    pub(crate) fn set(&self, daily: Option<u64>, now: Duration) {
        #[allow(clippy::cast_precision_loss, reason = "bytes of a day")]
        let bucket = daily.map(|bytes| {
            let burst = bytes as f64 / BURST_DIVISOR;
            Bucket {
                burst,
                refill: bytes as f64 - burst,
                tokens: burst,
                updated: now,
            }
        });
        *self.0.lock() = bucket;
    }

    /// Whether another batch may be written.
    pub(crate) fn allows(&self, now: Duration) -> bool {
        let mut bucket = self.0.lock();
        bucket.as_mut().is_none_or(|bucket| {
            bucket.update(now);
            bucket.tokens > 0.0
        })
    }

    /// Counts bytes that were written.
    pub(crate) fn charge(&self, bytes: u64, now: Duration) {
        if let Some(bucket) = self.0.lock().as_mut() {
            bucket.update(now);
            #[allow(clippy::cast_precision_loss, reason = "bytes of a batch")]
            {
                bucket.tokens -= bytes as f64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: u64 = 1 << 20;

    /// Looks up `blocks` of 4 KiB twice; returns the number of blocks that were looked up again
    /// soon enough.
    fn looped(blocks: u32) -> u32 {
        let lookups = Lookups::new(256);
        let pass = || (0..blocks).filter(|&block| miss(&lookups, block)).count() as u32;
        assert_eq!(pass(), 0);
        pass()
    }

    fn miss(lookups: &Lookups, block: u32) -> bool {
        lookups.miss(VersionKey([7; 16]), block, 4096, DISK)
    }

    #[test]
    fn blocks_come_back_within_the_bytes_of_the_disk() {
        // The disk holds 256. The time is coarse: the last quarter may be one way or the other.
        assert!(looped(190) >= 185, "{}", looped(190));
        for blocks in [257, 300, 400, 1000, 2048, 10_000] {
            assert_eq!(looped(blocks), 0, "{blocks}");
        }
    }

    #[test]
    fn blocks_found_on_the_disk_count_as_looked_up() {
        let lookups = Lookups::new(256);
        assert!(!miss(&lookups, 1));
        lookups.hit(DISK / 4, DISK);
        assert!(miss(&lookups, 1));
        lookups.hit(DISK, DISK);
        assert!(!miss(&lookups, 1));
    }

    #[test]
    fn threads_may_come_in_another_order_than_they_read_the_clock() {
        let budget = WriteBudget::default();
        budget.set(Some(1000), Duration::from_secs(2));
        assert!(budget.allows(Duration::from_secs(1)));
        budget.charge(10, Duration::ZERO);
    }

    #[test]
    fn bytes_of_any_day_stay_below_the_budget_and_a_batch() {
        let (budget, batch, daily) = (WriteBudget::default(), 1000, 1_000_000);
        assert!(budget.allows(Duration::ZERO));
        budget.set(Some(daily), Duration::ZERO);
        let mut written = Vec::new();
        for minute in 0..5 * 24 * 60_u64 {
            let now = Duration::from_secs(minute * 60);
            // Nothing in the first day, so that all that may be kept is.
            let mut batches = 0;
            while minute > 24 * 60 && budget.allows(now) {
                budget.charge(batch, now);
                batches += batch;
            }
            written.push(batches);
        }
        let days = written.windows(24 * 60).map(|day| day.iter().sum::<u64>());
        let max = days.max().unwrap_or_default();
        assert!((daily * 9 / 10..=daily + batch).contains(&max), "{max}");
    }
}
