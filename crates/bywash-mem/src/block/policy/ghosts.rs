//! Ghost entries: fingerprint and last use of evicted blocks, 8 bytes each, in sets of four.

/// Entries of a set. The one with the oldest use is replaced.
const WAYS: usize = 4;
/// Minimum number of entries: a table of 80 entries is ten cache lines.
const MIN_ENTRIES: u32 = 64;

/// Segment that a block was evicted from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EvictedFrom {
    Probation,
    Protected,
}

#[derive(Debug, Clone, Copy, Default)]
struct Ghost {
    /// Upper half of the hash, but for its lowest bit, which is the segment. 0 is an empty entry.
    fingerprint: u32,
    /// Load count at the last use.
    last_use: u32,
}

#[derive(Debug, Default)]
pub(super) struct GhostTable {
    entries: Vec<Ghost>,
}

impl GhostTable {
    /// Grows to as many entries as there are blocks. Growing forgets all entries: while a pool fills, next to nothing was evicted.
    pub(super) fn grow(&mut self, blocks: u32) {
        if blocks as usize <= self.entries.len() && !self.entries.is_empty() {
            return;
        }
        let entries = (blocks.max(MIN_ENTRIES) as usize * 5 / 4).next_multiple_of(WAYS);
        self.entries = vec![Ghost::default(); entries];
    }

    fn fingerprint(hash: u64) -> u32 {
        ((hash >> 32) as u32 & !1).max(2)
    }

    fn set(&mut self, fingerprint: u32) -> &mut [Ghost] {
        let sets = self.entries.len() / WAYS;
        let set = ((u64::from(fingerprint) * sets as u64) >> 32) as usize;
        &mut self.entries[set * WAYS..(set + 1) * WAYS]
    }

    pub(super) fn insert(&mut self, hash: u64, from: EvictedFrom, last_use: u32, now: u32) {
        let fingerprint = Self::fingerprint(hash);
        let age = |ghost: &Ghost| match ghost.fingerprint {
            0 => u32::MAX,
            _ => now.wrapping_sub(ghost.last_use),
        };
        if let Some(oldest) = self
            .set(fingerprint)
            .iter_mut()
            .max_by_key(|ghost| age(ghost))
        {
            let fingerprint = fingerprint | from as u32;
            *oldest = Ghost {
                fingerprint,
                last_use,
            };
        }
    }

    /// Removes the entry of a block that was loaded again. Returns its segment, and the load count at its last use.
    pub(super) fn remove(&mut self, hash: u64) -> Option<(EvictedFrom, u32)> {
        let fingerprint = Self::fingerprint(hash);
        let mut set = self.set(fingerprint).iter_mut();
        let ghost = std::mem::take(set.find(|ghost| ghost.fingerprint & !1 == fingerprint)?);
        let from = if ghost.fingerprint & 1 == 0 {
            EvictedFrom::Probation
        } else {
            EvictedFrom::Protected
        };
        Some((from, ghost.last_use))
    }
}
