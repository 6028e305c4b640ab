//! The judge of each read: it knows when the origin had each version, and when each was
//! acknowledged.

/// Versions of one key are numbered as the origin gets them.
#[derive(Debug, Default)]
pub(super) struct Oracle {
    /// The current version.
    pub(super) current: u64,
    /// When each version came, in order.
    commits: Vec<(u64, u64)>,
    acknowledged: u64,
    /// The newest version that a read has returned.
    returned: u64,
    /// Time from which reads that go back are counted.
    back_from: u64,
    /// Reads that returned less than was acknowledged before they began (G1).
    pub(super) stale: u64,
    /// Reads that returned a version replaced more than a window before they began (G3).
    pub(super) old: u64,
    /// Reads that returned less than a read that ended before they began (G2).
    pub(super) back: u64,
    /// The first wrong read, for a person.
    pub(super) first: Option<String>,
}

/// Oldest versions that a read may return, taken when it begins.
#[derive(Debug, Clone, Copy)]
pub(super) struct Floor {
    began: u64,
    acknowledged: u64,
    window: u64,
    returned: u64,
}

impl Oracle {
    pub(super) fn new(back_from: u64) -> Self {
        Self {
            back_from,
            ..Self::default()
        }
    }

    /// The origin has a write, or a change by another program.
    pub(super) fn commit(&mut self, now: u64) -> u64 {
        self.current += 1;
        self.commits.push((now, self.current));
        self.current
    }

    pub(super) fn acknowledge(&mut self, version: u64) {
        self.acknowledged = self.acknowledged.max(version);
    }

    /// A read begins at `now`; a version that came before `window_start` must be seen.
    pub(super) fn floor(&self, now: u64, window_start: u64) -> Floor {
        let older = self.commits.partition_point(|(at, _)| *at < window_start);
        let window = older.checked_sub(1).map_or(0, |last| self.commits[last].1);
        Floor {
            began: now,
            acknowledged: self.acknowledged,
            window,
            returned: self.returned,
        }
    }

    /// A read ends with `version`.
    pub(super) fn read(&mut self, floor: Floor, version: u64, now: u64, what: &str) {
        let wrong = if version < floor.acknowledged {
            self.stale += 1;
            Some(("stale", floor.acknowledged))
        } else if version < floor.window {
            self.old += 1;
            Some(("old", floor.window))
        } else {
            None
        };
        if let Some((kind, least)) = wrong {
            let began = floor.began;
            self.first.get_or_insert_with(|| {
                format!("{kind}: {version} instead of {least}, {began}..{now} us, {what}")
            });
        }
        if version < floor.returned && floor.began >= self.back_from {
            self.back += 1;
        }
        self.returned = self.returned.max(version);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The judge finds each kind of wrong read, and none in right ones.
    #[test]
    fn wrong_reads_are_found() {
        let mut oracle = Oracle::default();
        let (first, second) = (oracle.commit(100), oracle.commit(200));
        oracle.acknowledge(first);
        let floor = oracle.floor(300, 150);
        oracle.read(floor, first, 310, "");
        oracle.read(floor, second, 320, "");
        assert_eq!((oracle.stale, oracle.old, oracle.back), (0, 0, 0));
        oracle.read(oracle.floor(330, 150), first, 340, "");
        assert_eq!((oracle.stale, oracle.old, oracle.back), (0, 0, 1));
        oracle.read(oracle.floor(330, 250), first, 340, "");
        assert_eq!((oracle.stale, oracle.old), (0, 1));
        oracle.acknowledge(second);
        oracle.read(oracle.floor(350, 150), first, 360, "");
        assert_eq!((oracle.stale, oracle.old, oracle.back), (1, 1, 3));
        assert!(oracle.first.is_some());
    }
}
