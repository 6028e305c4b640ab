//! Eviction: the policy proposes a victim, the block's state word decides.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::cache::BlockCache;
use super::options::{Keep, Priority, StoreStats};
use super::policy::{AgeMode, LOOKS_PER_VICTIM, Policy, ScanState, Usage, Victim};
use super::sharded_pins::OwnOutcome;
use super::slab::{Account, BlockContents};
use super::spill::Spilled;
use super::word::Word;
use crate::frames::{Frame, PoolConfig, Share};
use crate::sync::{Mutex, Ordering, Step, skipped, yield_now};

/// Attempts to evict one block while its word keeps changing. Each change is a pin or an aging, and there are at most three agings
/// between two pins. The end of a pin wakes the waiters, so giving up loses no memory.
const TRIES: u32 = 8;

/// Slots examined for memory that is not needed yet. Enough to pass a run of used blocks, and cheap compared with the request that
/// the memory is for.
const COLD_SCAN: u64 = 1024;

/// Pause between two warnings of slow passes. Each pass counts.
const WARNING_PAUSE: Duration = Duration::from_secs(1);

/// Result of an attempt to evict one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EvictOutcome {
    /// It was evicted, and this many bytes came free.
    Evicted(u64),
    /// It is pinned or in use, or an only copy that the spill hook cannot store.
    Pinned,
    /// Its word changed during the attempt.
    Changed,
}

/// The policy, and counts that change with it.
#[derive(Debug, Default)]
struct EvictorState {
    policy: Policy,
    /// Bytes of blocks of [`Priority::High`].
    high_bytes: u64,
    /// Resident blocks by store; only stores that have any.
    stores: HashMap<u32, StoreStats>,
}

/// The policy behind its lock, which nests inside all other locks but the lock of the sharded counters and is held for a few dozen
/// looks at most.
#[derive(Debug)]
pub(crate) struct Evictor {
    state: Mutex<EvictorState>,
    /// A pass is slow after this time, or after this many fruitless looks at each block on average.
    slow: (Duration, u32),
    /// Time at which the last slow pass was logged.
    last_warning: Mutex<Option<Instant>>,
}

impl Evictor {
    pub(super) fn new(config: &PoolConfig) -> Self {
        Self {
            state: Mutex::new(EvictorState::default()),
            slow: (config.slow_eviction, config.slow_eviction_rounds),
            last_warning: Mutex::new(None),
        }
    }

    /// Enters a block that is about to be published in `slot`.
    pub(super) fn admit(&self, slot: u32, hash: u64, account: Account) {
        let mut state = self.state.lock();
        state.policy.admit(slot, hash, account.priority);
        state.high_bytes += account.high_bytes();
        let of_store = state.stores.entry(account.store).or_default();
        of_store.blocks += 1;
        of_store.bytes += account.bytes;
    }

    /// Removes the block of a slot, before another may enter it. `evicted` is its hash if the policy shall remember it.
    fn forget(&self, slot: u32, evicted: Option<u64>, account: Account) {
        let mut state = self.state.lock();
        state.policy.forget(slot, evicted);
        state.high_bytes -= account.high_bytes();
        if let Some(of_store) = state.stores.get_mut(&account.store) {
            of_store.blocks -= 1;
            of_store.bytes -= account.bytes;
            if of_store.blocks == 0 {
                state.stores.remove(&account.store);
            }
        }
    }

    /// Returns the next victim of a scan. Blocks of [`Priority::High`] come first while they hold more than `high_limit` bytes.
    fn next_victim(
        &self,
        scan: &mut ScanState,
        high_limit: u64,
        usage: impl FnMut(u32, AgeMode) -> Usage,
    ) -> Victim {
        let mut state = self.state.lock();
        scan.set_high_first(state.high_bytes > high_limit);
        state.policy.next_victim(scan, usage)
    }

    /// See [`crate::BlockPool::store_stats`].
    pub(crate) fn store_stats(&self) -> HashMap<u32, StoreStats> {
        self.state.lock().stores.clone()
    }

    /// Whether a slow pass is to be logged now.
    fn may_warn(&self) -> bool {
        let mut last = self.last_warning.lock();
        let due = last.is_none_or(|last| last.elapsed() >= WARNING_PAUSE);
        if due {
            *last = Some(Instant::now());
        }
        due
    }

    /// Slots that the policy knows, in order. Checks the rings.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn slots(&self) -> Vec<u32> {
        self.state.lock().policy.slots()
    }

    /// Number of blocks that the policy knows.
    #[cfg(test)]
    pub(crate) fn len(&self) -> u64 {
        u64::from(self.state.lock().policy.len())
    }
}

/// One call of [`BlockCache::evict`], for the slow-eviction report.
struct EvictionPass {
    started: Instant,
    /// Blocks at its start.
    blocks: u64,
    wanted: u64,
    freed: u64,
    evicted: u64,
    examined: u64,
    pinned: u64,
    used_before: u64,
}

impl EvictionPass {
    fn count(&mut self, outcome: EvictOutcome) {
        if let EvictOutcome::Evicted(bytes) = outcome {
            self.evicted += 1;
            self.freed += bytes;
        }
    }

    fn is_done(&self) -> bool {
        self.freed >= self.wanted
    }

    /// Why it was slow, by its own figures, and the remedy.
    fn cause(&self) -> &'static str {
        if self.pinned * 2 > self.examined {
            "most of the blocks it looked at are pinned by readers; raise the memory limit, or have fewer reads at once"
        } else if self.examined > self.evicted * LOOKS_PER_VICTIM + self.blocks {
            "few of the blocks it looked at are pinned, but they were used or changed since; raise the memory limit"
        } else {
            "it looked at few blocks, but took long; the machine, or the disk that evicted blocks go to, is too slow for the load"
        }
    }

    /// Whether it exceeded the time, or looked without success at each block `rounds` times on average.
    ///
    /// Without pins the first victim is found within one round: all blocks may have been used, and are aged then. Each further
    /// victim takes [`LOOKS_PER_VICTIM`]. A pass that finds all blocks pinned looks two or three times at each: once or
    /// twice by the policy, and once slot by slot.
    fn is_slow(&self, after: Duration, rounds: u32) -> bool {
        let in_vain = self
            .examined
            .saturating_sub(self.evicted * LOOKS_PER_VICTIM);
        let looked = self.blocks > 0 && in_vain >= u64::from(rounds) * self.blocks;
        // A model that depends on the clock is not deterministic: loom ends when a run takes another way than the one before.
        looked || (cfg!(not(any(loom, shuttle))) && self.started.elapsed() > after)
    }
}

impl BlockCache {
    /// Evicts until `wanted` bytes came free or nothing more can be evicted. Returns whether anything was evicted.
    ///
    /// A queued caller may sleep after `false`. At the end this looks at every slot itself, so each remaining block was pinned
    /// then or since, and its unpin wakes the caller.
    pub(crate) fn evict(&self, wanted: u64) -> bool {
        let (used_before, limit) = self.allocator().used_and_limit();
        let high_limit = limit / Priority::HIGH_DIVISOR;
        let mut pass = EvictionPass {
            started: Instant::now(),
            // Relaxed: a threshold.
            blocks: self.resident_blocks.load(Ordering::Relaxed),
            wanted,
            freed: 0,
            evicted: 0,
            examined: 0,
            pinned: 0,
            used_before,
        };
        let mut scan = ScanState::default();
        while !pass.is_done() {
            let usage = |slot, mode| match mode {
                AgeMode::Age => self.usage_aging(slot),
                AgeMode::Observe => self.usage(slot),
            };
            let victim = self.evictor.next_victim(&mut scan, high_limit, usage);
            match victim {
                Victim::Slot(slot) => pass.count(self.try_evict_unused(slot)),
                Victim::Continue => {}
                Victim::None => break,
            }
        }
        pass.examined += scan.examined;
        pass.pinned += scan.pinned;
        if !pass.is_done() {
            self.evict_any_unpinned(&mut pass);
        }
        self.report(&pass);
        pass.evicted > 0
    }

    /// Allocates one frame for readahead: evicts only blocks that were not used since the policy last looked, never waits and never
    /// overtakes a waiter.
    pub(crate) fn try_frame_cold(&self, share: Share, len: usize) -> Option<Frame> {
        self.allocator()
            .try_frame_evicting(share, len, |bytes| self.evict_cold(bytes))
    }

    /// Evicts until `wanted` bytes came free, but only blocks that were not used since the policy last looked, coldest first. Ages no
    /// block, and gives up after [`COLD_SCAN`] slots; the next call continues there. Returns whether anything came free.
    fn evict_cold(&self, wanted: u64) -> bool {
        let high_limit = self.allocator().used_and_limit().1 / Priority::HIGH_DIVISOR;
        let mut scan = ScanState::default();
        let mut freed = 0;
        while freed < wanted && scan.examined < COLD_SCAN {
            let usage = |slot, _| self.usage(slot);
            let victim = self.evictor.next_victim(&mut scan, high_limit, usage);
            match victim {
                Victim::Slot(slot) => {
                    if let EvictOutcome::Evicted(bytes) = self.try_evict_unused(slot) {
                        freed += bytes;
                    }
                }
                Victim::Continue => {}
                Victim::None => break,
            }
        }
        freed > 0
    }

    /// Usage of a slot without aging it. A used block counts as unavailable and keeps its use count.
    fn usage(&self, slot: u32) -> Usage {
        let seen = self.slab().header(slot).word.load();
        if seen.is_resident() && !seen.is_probed() && seen.pins() == 0 && seen.freq() == 0 {
            Usage::Unused
        } else {
            Usage::Unavailable
        }
    }

    /// Usage of a slot. Ages an unpinned block.
    fn usage_aging(&self, slot: u32) -> Usage {
        let seen = self.slab().header(slot).word.load();
        if !seen.is_resident() || seen.is_probed() || seen.pins() != 0 {
            return Usage::Unavailable;
        }
        match seen.freq() {
            0 => Usage::Unused,
            uses => {
                self.age(slot, seen);
                Usage::Used(uses as u8)
            }
        }
    }

    /// Evicts one block if its word counts no use.
    pub(crate) fn try_evict_unused(&self, slot: u32) -> EvictOutcome {
        let seen = self.load_unprobed(slot);
        if seen.freq() != 0 && !seen.is_doomed() {
            return EvictOutcome::Pinned;
        }
        self.try_evict(slot, seen)
    }

    /// Evicts unpinned blocks slot by slot, used or not.
    fn evict_any_unpinned(&self, pass: &mut EvictionPass) {
        for slot in 0..self.slab().len() {
            for _ in 0..TRIES {
                let seen = self.load_unprobed(slot);
                if !seen.is_resident() {
                    break;
                }
                pass.examined += 1;
                let outcome = self.try_evict(slot, seen);
                pass.count(outcome);
                if outcome != EvictOutcome::Changed {
                    pass.pinned += u64::from(outcome == EvictOutcome::Pinned);
                    break;
                }
            }
            if pass.is_done() {
                return;
            }
        }
    }

    /// Counts a slow pass, and logs one a second at most.
    fn report(&self, pass: &EvictionPass) {
        let (after, rounds) = self.evictor.slow;
        if !pass.is_slow(after, rounds) {
            return;
        }
        self.count_slow_eviction();
        if !self.evictor.may_warn() {
            return;
        }
        tracing::warn!(
            blocks = pass.blocks,
            looks = pass.examined,
            blocks_evicted = pass.evicted,
            looks_at_pinned = pass.pinned,
            bytes_wanted = pass.wanted,
            bytes_freed = pass.freed,
            used_before = pass.used_before,
            used_after = self.budget().used(),
            elapsed_ms = pass.started.elapsed().as_millis() as u64,
            "eviction was slow: {}",
            pass.cause()
        );
    }

    /// Evicts the block in `slot` if it is doomed and unpinned. If it is pinned, the end of that pin calls this again.
    #[cold]
    pub(super) fn evict_doomed(&self, slot: u32) {
        loop {
            let seen = self.load_unprobed(slot);
            if !seen.is_resident() || !seen.is_doomed() || seen.pins() != 0 {
                return;
            }
            if self.try_evict(slot, seen) != EvictOutcome::Changed {
                return;
            }
        }
    }

    /// Loads a slot's word, waiting while it is probed. Probes are short, and skipping a probed slot could miss a block that is not
    /// pinned.
    pub(crate) fn load_unprobed(&self, slot: u32) -> Word {
        loop {
            let seen = self.slab.header(slot).word.load();
            if !seen.is_probed() {
                return seen;
            }
            yield_now();
        }
    }

    /// Clears the use count of an unpinned block, and detaches its sharded counters if it is no longer contended.
    pub(crate) fn age(&self, slot: u32, seen: Word) {
        let word = &self.slab.header(slot).word;
        word.age(seen);
        if seen.counters() != 0 {
            self.sharded_pins.collapse(word, seen.counters());
        }
    }

    /// Evicts a block if its word is still `seen`, however often it was used. Returns the bytes that came free: 0 while readers of its
    /// load or the spill hook hold the frame.
    pub(super) fn evict_even_if_used(&self, slot: u32, seen: Word) -> Option<u64> {
        match self.try_evict(slot, seen) {
            EvictOutcome::Evicted(freed) => Some(freed),
            EvictOutcome::Pinned | EvictOutcome::Changed => None,
        }
    }

    fn try_evict(&self, slot: u32, seen: Word) -> EvictOutcome {
        if !seen.is_resident() || seen.pins() != 0 {
            return EvictOutcome::Pinned;
        }
        let header = self.slab.header(slot);
        if seen.counters() == 0 {
            if !header.word.try_own(seen, 0) {
                return EvictOutcome::Changed;
            }
        } else {
            match self.sharded_pins.try_own(&header.word, seen, 0, || true) {
                OwnOutcome::Owned => {}
                OwnOutcome::Pinned => return EvictOutcome::Pinned,
                OwnOutcome::Changed => return EvictOutcome::Changed,
            }
        }
        // SAFETY: this thread owns the contents.
        let contents = unsafe { header.take() };
        let contents = match self.store_only_copy(contents, seen.is_doomed()) {
            Ok(contents) => contents,
            Err(contents) => {
                // SAFETY: this thread owns the slot, and took its contents out above.
                unsafe { header.fill(contents) };
                header.word.publish(0, false);
                return EvictOutcome::Pinned;
            }
        };
        // The return of a doomed block would not reflect on the policy's choice.
        self.vacate(slot, &contents, !seen.is_doomed());
        // Relaxed: counters.
        self.evictions.fetch_add(1, Ordering::Relaxed);
        self.tag(contents.options.tag)
            .count_eviction(contents.charge());
        EvictOutcome::Evicted(self.release_or_spill(contents, seen.is_doomed()))
    }

    /// Has the spill hook store a block of [`Keep::OnlyCopy`].
    ///
    /// # Errors
    /// The contents, if they are not stored and must stay.
    fn store_only_copy(
        &self,
        contents: BlockContents,
        doomed: bool,
    ) -> Result<BlockContents, BlockContents> {
        if contents.options.keep != Keep::OnlyCopy || doomed {
            return Ok(contents);
        }
        let block = Spilled(contents);
        if !self.spill.get().is_some_and(|hook| hook.store(&block)) {
            return Err(block.0);
        }
        // Relaxed: a counter.
        self.spilled.fetch_add(1, Ordering::Relaxed);
        Ok(block.0)
    }

    /// Releases an evicted block's memory or gives it to the spill hook. Returns the bytes that came free.
    fn release_or_spill(&self, contents: BlockContents, doomed: bool) -> u64 {
        let hook = self.spill.get();
        match hook.filter(|_| contents.options.keep == Keep::Spill && !doomed) {
            None => contents.release(),
            Some(hook) => match hook.spill(Spilled(contents)) {
                Ok(()) => {
                    // Relaxed: a counter.
                    self.spilled.fetch_add(1, Ordering::Relaxed);
                    0
                }
                Err(declined) => declined.0.release(),
            },
        }
    }

    /// Frees a slot after its contents were taken. `evicted` has the policy remember the block.
    pub(crate) fn vacate(&self, slot: u32, contents: &BlockContents, evicted: bool) {
        let hash = self.registry.hash(contents.key);
        // The key is removed before the slot can be used again, so that it never leads to another block of the same key.
        self.registry.remove(hash, slot);
        let forget = || {
            self.evictor
                .forget(slot, evicted.then_some(hash), contents.account());
        };
        // The block also leaves the policy first, or the next block's entry would be removed instead.
        if !skipped(Step::Unlink) {
            forget();
        }
        self.slab.header(slot).word.vacate();
        self.slab.release(slot);
        if skipped(Step::Unlink) {
            forget();
        }
        let bytes = contents.charge();
        // Relaxed: counters.
        self.resident_blocks.fetch_sub(1, Ordering::Relaxed);
        self.resident_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.tag(contents.options.tag).remove(bytes);
    }
}
