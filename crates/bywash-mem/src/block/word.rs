//! The state word: the state of one block in 64 bits, and one function a transition.
//!
//! ```text
//! bits  0..24  PINS        pin count
//! bits 24..26  FREQ        uses since the policy last aged the block, saturating
//! bit  26      DOOMED      evict at the last unpin, with any FREQ: erased, or kept only while pinned
//! bit  27      USED        used since `evict_unused` last cleared it
//! bits 28..30  PHASE       0 empty, 1 resident, 2 owned, 3 resident and probed
//! bits 30..32  CONTENTION  contended pins noted, saturating
//! bits 32..40  COUNTERS    the sharded counters of further pins (`sharded_pins.rs`), 0 for none
//! bits 40..64  GEN         +1 at each publication
//! ```
//!
//! Rules. A pin is effective only if it found the block resident, probed or not. An ineffective pin is never undone: the slot has
//! an owner then, which leaves it by swapping the whole word (RocksDB's HyperClockCache has the same rule, see its pull request
//! 10768). The owner of an empty slot is the thread that took it off the free list; the owner of an owned slot is the winner of the one
//! CAS. A probe belongs to the thread that set it, and no other thread clears it. So if the word did not change during a probe, no
//! thread pinned the block during it.

use crate::limits::MAX_PINS;
use crate::sync::{AtomicU64, Ordering, Step, order, store_load_fence};

const PIN: u64 = 1;
const PINS_MASK: u64 = (1 << 24) - 1;
const FREQ: u64 = 1 << 24;
const FREQ_MASK: u64 = 0b11 << 24;
const DOOMED: u64 = 1 << 26;
const USED: u64 = 1 << 27;
const PHASE_MASK: u64 = RESIDENT | PROBE;
const EMPTY: u64 = 0;
const RESIDENT: u64 = 1 << 28;
/// With `RESIDENT`: a thread is reading the shards. Alone: the slot's contents have an owner.
const PROBE: u64 = 1 << 29;
const OWNED: u64 = PROBE;
const CONTENTION: u64 = 1 << 30;
const CONTENTION_MASK: u64 = 0b11 << 30;
const COUNTERS: u64 = 1 << 32;
const COUNTERS_MASK: u64 = 0xff << 32;
const GEN: u64 = 1 << 40;
const GEN_MASK: u64 = !(GEN - 1);

/// Maximum of uses that the word counts between two agings.
pub(crate) const MAX_FREQ: u64 = 3;
/// Contended pins noted before a block's pins are sharded.
const MAX_CONTENTION: u64 = 3;
/// Number of ineffective pins above which a failing pin clears them. Only a tight loop of lookups during one long eviction gets
/// here.
const STALE_PINS: u64 = 1 << 22;

/// Bits that decide whether the fast path of a pin applies, and their value then: resident and not doomed, not sharded, uses
/// saturated, far from too many pins.
const FAST_MASK: u64 = PHASE_MASK | DOOMED | COUNTERS_MASK | FREQ_MASK | USED | MAX_PINS;
const FAST: u64 = RESIDENT | FREQ_MASK | USED;

/// A snapshot of the state word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Word(u64);

impl Word {
    #[inline]
    pub(crate) fn pins(self) -> u64 {
        self.0 & PINS_MASK
    }

    pub(crate) fn freq(self) -> u64 {
        (self.0 & FREQ_MASK) / FREQ
    }

    pub(crate) fn generation(self) -> u64 {
        self.0 / GEN
    }

    /// Whether the last unpin evicts the block.
    #[inline]
    pub(crate) fn is_doomed(self) -> bool {
        self.0 & DOOMED != 0
    }

    /// Whether there is exactly one pin and its unpin does not evict.
    #[inline]
    pub(crate) fn is_last_pin_of_kept(self) -> bool {
        self.0 & (PINS_MASK | DOOMED) == PIN
    }

    /// Whether it was used since `StateWord::clear_used`.
    pub(crate) fn is_used(self) -> bool {
        self.0 & USED != 0
    }

    /// Whether a pin that finds this word is effective.
    #[inline]
    pub(crate) fn is_resident(self) -> bool {
        self.0 & RESIDENT != 0
    }

    /// Whether a thread is reading its shards now.
    pub(crate) fn is_probed(self) -> bool {
        self.0 & PHASE_MASK == RESIDENT | PROBE
    }

    /// Number of the sharded counters of further pins, 0 for none.
    #[inline]
    pub(crate) fn counters(self) -> u8 {
        ((self.0 & COUNTERS_MASK) / COUNTERS) as u8
    }

    /// Number of the sharded counters to pin in, 0 for none. A pin in a shard is effective only while the block is not probed.
    #[inline]
    pub(crate) fn open_counters(self) -> u8 {
        if self.0 & PHASE_MASK == RESIDENT {
            self.counters()
        } else {
            0
        }
    }

    /// Whether enough contended pins were noted to shard the block's pins.
    pub(crate) fn is_contended(self) -> bool {
        self.0 & CONTENTION_MASK == MAX_CONTENTION * CONTENTION
    }
}

impl std::fmt::Debug for Word {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let phase = match self.0 & PHASE_MASK {
            EMPTY => "empty",
            RESIDENT => "resident",
            OWNED => "owned",
            _ => "probed",
        };
        f.debug_struct("Word")
            .field("phase", &phase)
            .field("pins", &self.pins())
            .field("freq", &self.freq())
            .field("doomed", &self.is_doomed())
            .field("counters", &self.counters())
            .field("generation", &self.generation())
            .finish()
    }
}

/// Result of `StateWord::try_pin`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PinOutcome {
    /// The pin is effective.
    Pinned,
    /// The pin is effective, and another thread changed the word within the few nanoseconds that it took.
    Contended,
    /// Nothing was pinned: pins of this block go to these sharded counters.
    Sharded(u8),
    /// The block is not resident.
    NotResident,
}

/// Progress of the fast path of a pin before it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FastPinError {
    /// It loaded this word and changed nothing.
    NotTried(Word),
    /// It added a pin to this word, which differs from the one it had loaded.
    Added(Word),
}

/// The state word. Readers add and subtract pins and note contention; the policy ages and evicts; the slot's owner publishes and
/// vacates; the prober of the shards sets and clears the probe.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct StateWord(AtomicU64);

impl StateWord {
    /// Returns the word of an empty slot. Zeroed memory holds the same.
    #[cfg(any(test, loom, shuttle))]
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(EMPTY))
    }

    /// Fast path of [`Self::try_pin`] for an uncontended block without sharded pins. On `Err(e)`, call `try_pin(e)`.
    #[inline(always)]
    pub(crate) fn try_pin_fast(&self) -> Result<(), FastPinError> {
        // Relaxed: a guess. The add reads the word that decides.
        let before = Word(self.0.load(Ordering::Relaxed));
        if before.0 & FAST_MASK != FAST {
            return Err(FastPinError::NotTried(before));
        }
        // Acquire: as in `pin_in_word`.
        let old = Word(self.0.fetch_add(PIN, Ordering::Acquire));
        if old.0 == before.0 {
            Ok(())
        } else {
            Err(FastPinError::Added(old))
        }
    }

    /// Pins the block if it is resident and its pins are not sharded. The slot's contents then stay until [`Self::unpin`].
    pub(crate) fn try_pin(&self, fast: FastPinError) -> PinOutcome {
        let before = match fast {
            FastPinError::NotTried(before) => before,
            FastPinError::Added(old) => return self.classify_pin(old, false),
        };
        let counters = before.open_counters();
        if counters != 0 {
            return PinOutcome::Sharded(counters);
        }
        // Acquire: as in `pin_in_word`.
        let old = Word(self.0.fetch_add(PIN, Ordering::Acquire));
        self.classify_pin(old, old.0 == before.0)
    }

    /// Outcome of an add that found `old`.
    fn classify_pin(&self, old: Word, undisturbed: bool) -> PinOutcome {
        if !self.is_effective(old) {
            return PinOutcome::NotResident;
        }
        self.count_use(Word(old.0 + PIN));
        if undisturbed {
            PinOutcome::Pinned
        } else {
            PinOutcome::Contended
        }
    }

    /// Whether an add that found `old` is an effective pin.
    fn is_effective(&self, old: Word) -> bool {
        if !old.is_resident() {
            self.clear_stale_pins(old);
            return false;
        }
        if old.pins() >= MAX_PINS {
            std::process::abort();
        }
        true
    }

    /// Pins in the word itself, whether or not pins are sharded, without counting a use. Returns the word before; `None` if the block
    /// is not resident.
    #[inline]
    pub(crate) fn pin_in_word(&self) -> Option<Word> {
        // Acquire: the contents that `publish` released, directly or through the pins and unpins since (a release sequence).
        let old = Word(self.0.fetch_add(PIN, Ordering::Acquire));
        self.is_effective(old).then_some(old)
    }

    /// Counts a use of a pinned block; its word was just `now`.
    #[inline]
    pub(crate) fn count_use(&self, now: Word) {
        if now.freq() == MAX_FREQ && now.is_used() {
            return;
        }
        let more = if now.freq() < MAX_FREQ { FREQ } else { 0 };
        let then = (now.0 + more) | USED;
        // One attempt: a lost use is harmless. Not an add, which could overflow the field. Relaxed: the count orders nothing.
        let _ = self
            .0
            .compare_exchange(now.0, then, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Keeps ineffective pins from overflowing their field. `PINS` has no meaning unless the block is resident, so any thread may
    /// clear it.
    #[cold]
    fn clear_stale_pins(&self, old: Word) {
        if old.pins() >= STALE_PINS {
            let now = old.0.wrapping_add(PIN);
            // Relaxed: no other memory depends on it.
            let _ = self.0.compare_exchange(
                now,
                now & !PINS_MASK,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        }
    }

    /// Releases a pin counted in the word and returns the word before. If that had one pin, the caller must wake waiters for memory.
    #[inline]
    pub(crate) fn unpin(&self) -> Word {
        // Release: this reader's accesses come before the reuse that `try_own` acquires. SeqCst: the store of a store-load pair with
        // `WaitQueue::waiting`. The other side is `QueueEntry::join` followed by `load`.
        let old = self.0.fetch_sub(PIN, order(Step::Unpin, Ordering::SeqCst));
        store_load_fence(Step::Wake);
        Word(old)
    }

    /// Loads the word. SeqCst: pairs with `unpin`, so that either this load sees the pin gone or `unpin` sees the queued waiter; and
    /// with `ShardedPins::pin`, which loads the word after pinning in a shard.
    #[inline]
    pub(crate) fn load(&self) -> Word {
        // SeqCst: see above; partner of `unpin` and of `try_probe`.
        Word(self.0.load(order(Step::Evict, Ordering::SeqCst)))
    }

    /// Takes ownership of the contents of a block without sharded counters that has exactly `held` pins, all the caller's. On success
    /// the contents are the caller's until `vacate`, and no other thread reads them.
    pub(crate) fn try_own(&self, seen: Word, held: u64) -> bool {
        if seen.0 & PHASE_MASK != RESIDENT || seen.counters() != 0 || seen.pins() != held {
            return false;
        }
        self.own(seen)
    }

    fn own(&self, seen: Word) -> bool {
        // Acquire: the readers' last accesses, released by `unpin`, come before the reuse of the frame. One attempt: a change means a
        // pin or another evictor.
        self.0
            .compare_exchange(
                seen.0,
                (seen.0 & GEN_MASK) | OWNED,
                order(Step::Evict, Ordering::Acquire),
                Ordering::Relaxed,
            )
            .is_ok()
    }

    /// Starts a probe of the sharded counters: from now on pins go to the word. Only the caller may end it, by
    /// [`Self::own_probed`], [`Self::detach_counters`] or [`Self::end_probe`].
    pub(crate) fn try_probe(&self, seen: Word) -> Option<Word> {
        if seen.0 & PHASE_MASK != RESIDENT {
            return None;
        }
        let probed = Word(seen.0 | PROBE);
        // SeqCst: the store of a store-load pair with the shards. The other side is `ShardedPins::pin`, which adds and then loads.
        let won = self.0.compare_exchange(
            seen.0,
            probed.0,
            order(Step::Probe, Ordering::SeqCst),
            Ordering::Relaxed,
        );
        store_load_fence(Step::Probe);
        won.is_ok().then_some(probed)
    }

    /// Takes ownership of the contents if no thread pinned in the word since `try_probe` returned `probed`.
    pub(crate) fn own_probed(&self, probed: Word) -> bool {
        self.own(probed)
    }

    /// Detaches the sharded counters, which are all zero, if no thread pinned in the word since `try_probe` returned `probed`. Ends the
    /// probe in that case.
    pub(crate) fn detach_counters(&self, probed: Word) -> bool {
        let detached = probed.0 & !(PROBE | COUNTERS_MASK | CONTENTION_MASK);
        // Relaxed: no contents change owner.
        self.0
            .compare_exchange(probed.0, detached, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }

    /// Ends a probe without taking ownership.
    pub(crate) fn end_probe(&self) {
        // SeqCst: before the prober's second load in `BlockCache::evict_doomed`; `ShardedPins::unpin` is followed by a load too.
        self.0.fetch_and(!PROBE, Ordering::SeqCst);
        store_load_fence(Step::Probe);
    }

    /// Notes a contended pin of a block that the caller has pinned. Returns the word once the block counts as contended.
    #[cold]
    pub(crate) fn note_contention(&self) -> Option<Word> {
        // Relaxed: a count that orders nothing; a lost one is harmless.
        let now = Word(self.0.load(Ordering::Relaxed));
        if now.is_contended() || now.counters() != 0 {
            return Some(now);
        }
        // Relaxed: as above.
        let _ = self.0.compare_exchange(
            now.0,
            now.0 + CONTENTION,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        None
    }

    /// Attaches sharded counters to a block that the caller has pinned. One attempt.
    pub(crate) fn attach_counters(&self, seen: Word, counters: u8) -> bool {
        if seen.0 & PHASE_MASK != RESIDENT || seen.counters() != 0 {
            return false;
        }
        // Relaxed: a pin in a shard loads this word again, `ShardedPins::pin`. An RMW, so `publish` is still acquired through it.
        self.0
            .compare_exchange(
                seen.0,
                seen.0 | (u64::from(counters) * COUNTERS),
                Ordering::Relaxed,
                Ordering::Relaxed,
            )
            .is_ok()
    }

    /// Clears the use count of an unpinned block. One attempt.
    pub(crate) fn age(&self, seen: Word) {
        if seen.is_resident() && !seen.is_probed() && seen.pins() == 0 && seen.freq() > 0 {
            // Relaxed: the count orders nothing.
            let _ = self.0.compare_exchange(
                seen.0,
                seen.0 & !FREQ_MASK,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        }
    }

    /// Clears the used bit. One attempt: a failure means that the block was just used.
    pub(crate) fn clear_used(&self, seen: Word) {
        if seen.is_resident() {
            // Relaxed: the bit orders nothing.
            let _ = self.0.compare_exchange(
                seen.0,
                seen.0 & !USED,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        }
    }

    /// Marks a block for eviction at its last unpin. The caller holds a pin, so the block stays until then.
    pub(crate) fn evict_on_last_unpin(&self) {
        // SeqCst: before the caller's own unpin and probe. Its partner is `ShardedPins::unpin`, which is followed by a load.
        self.0.fetch_or(DOOMED, Ordering::SeqCst);
    }

    /// Makes the contents that the owner of a slot wrote visible to readers, with `pins` handed off.
    pub(crate) fn publish(&self, pins: u64, doomed: bool) {
        // Relaxed: only the owner changes the generation.
        let generation = (self.0.load(Ordering::Relaxed) & GEN_MASK).wrapping_add(GEN);
        let doomed = if doomed { DOOMED } else { 0 };
        // Release: the contents, for `try_pin`. A swap discards ineffective pins that were added to the slot before.
        self.0.swap(
            generation | RESIDENT | USED | doomed | pins,
            order(Step::Publish, Ordering::Release),
        );
    }

    /// Empties the slot. Called by the winner of `try_own` after it took the contents.
    pub(crate) fn vacate(&self) {
        // Relaxed: only the owner changes the generation.
        let generation = self.0.load(Ordering::Relaxed) & GEN_MASK;
        // Release, swap: as in `publish`.
        self.0.swap(generation | EMPTY, Ordering::Release);
    }
}
