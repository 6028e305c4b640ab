//! What is remembered of evicted blocks: a fingerprint and the last use, 8 bytes each, in sets of four.

/// Entries of a set; the one of the oldest use gives way.
const WAYS: usize = 4;
/// Entries of the smallest table: one cache line in each direction of any hash is not worth less.
const FEWEST: u32 = 64;

/// From where a block was evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    Newcomers,
    Settled,
}

#[derive(Debug, Clone, Copy, Default)]
struct Ghost {
    /// The hash's upper half, but for the lowest bit: that is the origin. 0 is nobody.
    print: u32,
    /// The load at which it was last used.
    used: u32,
}

#[derive(Debug, Default)]
pub(super) struct Ghosts {
    entries: Vec<Ghost>,
}

impl Ghosts {
    /// Makes room for as many ghosts as there are blocks. A table that grows forgets: while a pool fills, next to nothing was
    /// evicted from it.
    pub(super) fn fit(&mut self, blocks: u32) {
        if blocks as usize <= self.entries.len() && !self.entries.is_empty() {
            return;
        }
        let entries = (blocks.max(FEWEST) as usize * 5 / 4).next_multiple_of(WAYS);
        self.entries = vec![Ghost::default(); entries];
    }

    fn print(hash: u64) -> u32 {
        ((hash >> 32) as u32 & !1).max(2)
    }

    fn set(&mut self, print: u32) -> &mut [Ghost] {
        let sets = self.entries.len() / WAYS;
        let set = ((u64::from(print) * sets as u64) >> 32) as usize;
        &mut self.entries[set * WAYS..(set + 1) * WAYS]
    }

    pub(super) fn put(&mut self, hash: u64, origin: Origin, used: u32, now: u32) {
        let print = Self::print(hash);
        let age = |ghost: &Ghost| match ghost.print {
            0 => u32::MAX,
            _ => now.wrapping_sub(ghost.used),
        };
        if let Some(oldest) = self.set(print).iter_mut().max_by_key(|ghost| age(ghost)) {
            let print = print | origin as u32;
            *oldest = Ghost { print, used };
        }
    }

    /// Takes the ghost of a block that is back: where it was evicted from, and the load at which it was last used.
    pub(super) fn take(&mut self, hash: u64) -> Option<(Origin, u32)> {
        let print = Self::print(hash);
        let mut set = self.set(print).iter_mut();
        let ghost = std::mem::take(set.find(|ghost| ghost.print & !1 == print)?);
        let origin = if ghost.print & 1 == 0 {
            Origin::Newcomers
        } else {
            Origin::Settled
        };
        Some((origin, ghost.used))
    }
}
