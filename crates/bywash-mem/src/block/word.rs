//! The state of a block: one 64-bit word, and one named function a transition.
//!
//! ```text
//! bits  0..24  PINS    counted pins
//! bits 24..26  FREQ    uses seen since the policy last looked, saturating
//! bit  26      LEAVES  evict at the last unpin, whatever FREQ says: erased, or kept only while pinned
//! bit  27      USED    used since `evict_unused` last looked
//! bits 28..30  PHASE   0 empty, 1 resident, 2 owned, 3 resident and probed
//! bits 30..32  HEAT    collisions of pins seen, saturating
//! bits 32..40  STRIPES the array that holds further pins (`stripes.rs`), 0 for none
//! bits 40..64  GEN     +1 at each publication
//! ```
//!
//! Rules. A pin counts only if it found the block resident, probed or not; a pin that did not is never undone, for whoever
//! owns the slot then leaves it by swapping the whole word (RocksDB's HyperClockCache learned this the hard way, its pull
//! request 10768). Owners: an empty slot belongs to whoever took it off the free list, an owned one to the winner of the one
//! CAS. A probe belongs to who set it: nobody else clears it, so a word that did not change under it was nobody's meanwhile.

use crate::limits::MAX_PINS;
use crate::sync::{AtomicU64, Ordering, Step, order, store_load_fence};

const PIN: u64 = 1;
const PINS_MASK: u64 = (1 << 24) - 1;
const FREQ: u64 = 1 << 24;
const FREQ_MASK: u64 = 0b11 << 24;
const LEAVES: u64 = 1 << 26;
const USED: u64 = 1 << 27;
const PHASE_MASK: u64 = RESIDENT | PROBE;
const EMPTY: u64 = 0;
const RESIDENT: u64 = 1 << 28;
/// With `RESIDENT`: someone looks through the stripes. Alone: the slot's contents have an owner.
const PROBE: u64 = 1 << 29;
const OWNED: u64 = PROBE;
const HEAT: u64 = 1 << 30;
const HEAT_MASK: u64 = 0b11 << 30;
const STRIPES: u64 = 1 << 32;
const STRIPES_MASK: u64 = 0xff << 32;
const GEN: u64 = 1 << 40;
const GEN_MASK: u64 = !(GEN - 1);

/// The most uses the word counts between two looks of the policy.
pub(crate) const MAX_FREQ: u64 = 3;
/// Collisions counted before a block's pins are spread over stripes.
const MAX_HEAT: u64 = 3;
/// Failed pins past which a failing pin clears them; only a tight loop of lookups during one long eviction gets here.
const STALE_PINS: u64 = 1 << 22;

/// What a pin of a block in steady use finds in these bits: resident and staying, no stripes, its uses counted, far from too many
/// pins.
const PLAIN_MASK: u64 = PHASE_MASK | LEAVES | STRIPES_MASK | FREQ_MASK | USED | MAX_PINS;
const PLAIN: u64 = RESIDENT | FREQ_MASK | USED;

/// A value of the word, as it was at one moment.
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
    pub(crate) fn leaves(self) -> bool {
        self.0 & LEAVES != 0
    }

    /// Whether there is one pin, and nothing else to do when it is given back than to look for waiters.
    #[inline]
    pub(crate) fn last_of_a_keeper(self) -> bool {
        self.0 & (PINS_MASK | LEAVES) == PIN
    }

    /// Whether it was used since `StateWord::forget_use`.
    pub(crate) fn used(self) -> bool {
        self.0 & USED != 0
    }

    /// Whether pins count.
    #[inline]
    pub(crate) fn resident(self) -> bool {
        self.0 & RESIDENT != 0
    }

    /// Whether someone looks through its stripes now.
    pub(crate) fn probed(self) -> bool {
        self.0 & PHASE_MASK == RESIDENT | PROBE
    }

    /// The array of its further pins, 0 for none.
    #[inline]
    pub(crate) fn stripes(self) -> u8 {
        ((self.0 & STRIPES_MASK) / STRIPES) as u8
    }

    /// The array to pin in, 0 for none: stripes count only while nobody looks through them.
    #[inline]
    pub(crate) fn open_stripes(self) -> u8 {
        if self.0 & PHASE_MASK == RESIDENT {
            self.stripes()
        } else {
            0
        }
    }

    /// Whether collisions justify stripes.
    pub(crate) fn hot(self) -> bool {
        self.0 & HEAT_MASK == MAX_HEAT * HEAT
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
            .field("leaves", &self.leaves())
            .field("stripes", &self.stripes())
            .field("generation", &self.generation())
            .finish()
    }
}

/// What a pin of the word came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pinned {
    /// It counts.
    Yes,
    /// It counts, and another thread changed the word within the few nanoseconds it took.
    Collided,
    /// Nothing was pinned: the block's pins are in this array.
    Striped(u8),
    /// The block is not here.
    No,
}

/// What the short way of a pin did before it gave up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tried {
    /// Nothing: it saw this word.
    Not(Word),
    /// It added a pin to this word, which is not the one it had seen a moment before.
    Added(Word),
}

/// The word itself. Readers add and subtract pins and note collisions, the policy ages and evicts, the slot's owner publishes
/// and vacates, whoever probes stripes sets and clears the probe.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct StateWord(AtomicU64);

impl StateWord {
    /// An empty slot's word. Slots of zeroed memory hold the same.
    #[cfg(any(test, loom, shuttle))]
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(EMPTY))
    }

    /// The short way of [`Self::try_pin`], for a block in steady use that nobody else is just pinning. Whoever is told otherwise
    /// goes the long way with what the answer says.
    #[inline(always)]
    pub(crate) fn try_pin_plainly(&self) -> Result<(), Tried> {
        // Relaxed: a guess. What counts is read by the add.
        let before = Word(self.0.load(Ordering::Relaxed));
        if before.0 & PLAIN_MASK != PLAIN {
            return Err(Tried::Not(before));
        }
        // Acquire: as `pin_here`.
        let old = Word(self.0.fetch_add(PIN, Ordering::Acquire));
        if old.0 == before.0 {
            Ok(())
        } else {
            Err(Tried::Added(old))
        }
    }

    /// Pins the block if it is resident and has no stripes; then the slot's contents stay put until [`Self::unpin`].
    pub(crate) fn try_pin(&self, tried: Tried) -> Pinned {
        let before = match tried {
            Tried::Not(before) => before,
            Tried::Added(old) => return self.pinned(old, false),
        };
        let stripes = before.open_stripes();
        if stripes != 0 {
            return Pinned::Striped(stripes);
        }
        // Acquire: as `pin_here`.
        let old = Word(self.0.fetch_add(PIN, Ordering::Acquire));
        self.pinned(old, old.0 == before.0)
    }

    /// What an add came to that found `old`.
    fn pinned(&self, old: Word, undisturbed: bool) -> Pinned {
        if !self.counts(old) {
            return Pinned::No;
        }
        self.count_use(Word(old.0 + PIN));
        if undisturbed {
            Pinned::Yes
        } else {
            Pinned::Collided
        }
    }

    /// Whether an add that found `old` is a pin.
    fn counts(&self, old: Word) -> bool {
        if !old.resident() {
            self.scrub(old);
            return false;
        }
        if old.pins() >= MAX_PINS {
            std::process::abort();
        }
        true
    }

    /// Pins in the word itself, stripes or not, without counting a use. Answers the word before; `None` if the block is not here.
    #[inline]
    pub(crate) fn pin_here(&self) -> Option<Word> {
        // Acquire: sees what `publish` released, itself or through the pins and unpins since (a release sequence).
        let old = Word(self.0.fetch_add(PIN, Ordering::Acquire));
        self.counts(old).then_some(old)
    }

    /// Counts a use of a pinned block whose word was just seen as `now`.
    #[inline]
    pub(crate) fn count_use(&self, now: Word) {
        if now.freq() == MAX_FREQ && now.used() {
            return;
        }
        let more = if now.freq() < MAX_FREQ { FREQ } else { 0 };
        let then = (now.0 + more) | USED;
        // One try, for a lost use does no harm; not an add, which could carry out of the field. Relaxed: it says nothing more.
        let _ = self
            .0
            .compare_exchange(now.0, then, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Keeps failed pins from running out of their field. `PINS` means nothing unless the phase is resident, so anyone may clear it.
    #[cold]
    fn scrub(&self, old: Word) {
        if old.pins() >= STALE_PINS {
            let now = old.0.wrapping_add(PIN);
            // Relaxed: nothing is read or written on the strength of it.
            let _ = self.0.compare_exchange(
                now,
                now & !PINS_MASK,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        }
    }

    /// Gives a pin of the word back; answers the word before. At one pin before, the caller must look whether someone waits for
    /// memory.
    #[inline]
    pub(crate) fn unpin(&self) -> Word {
        // Release: my reads come before the reuse that `try_own` acquires. SeqCst: the store of a store-load pair with
        // `Turnstile::waiting`; its other half is `Ticket::enter` followed by `look`.
        let old = self.0.fetch_sub(PIN, order(Step::Unpin, Ordering::SeqCst));
        store_load_fence(Step::Wake);
        Word(old)
    }

    /// The word as it is. SeqCst: pairs with `unpin`, so that either this sees the pin gone or `unpin` sees the taker waiting;
    /// and with `Stripes::pin`, which looks after it pinned.
    #[inline]
    pub(crate) fn look(&self) -> Word {
        // SeqCst: as said, partner of `unpin` and of `try_probe`.
        Word(self.0.load(order(Step::Evict, Ordering::SeqCst)))
    }

    /// Takes the contents of a block without stripes of which `held` pins are left, all the caller's. True: they are the
    /// caller's until `vacate`, and nobody else reads them.
    pub(crate) fn try_own(&self, seen: Word, held: u64) -> bool {
        if seen.0 & PHASE_MASK != RESIDENT || seen.stripes() != 0 || seen.pins() != held {
            return false;
        }
        self.own(seen)
    }

    fn own(&self, seen: Word) -> bool {
        // Acquire: the readers' last use, released by `unpin`, comes before the reuse of the frame. One try: a change means a pin,
        // or another hand.
        self.0
            .compare_exchange(
                seen.0,
                (seen.0 & GEN_MASK) | OWNED,
                order(Step::Evict, Ordering::Acquire),
                Ordering::Relaxed,
            )
            .is_ok()
    }

    /// Begins to look through the stripes: from now on pins come into the word. The caller alone may end it, by
    /// [`Self::own_probed`], [`Self::close_stripes`] or [`Self::end_probe`].
    pub(crate) fn try_probe(&self, seen: Word) -> Option<Word> {
        if seen.0 & PHASE_MASK != RESIDENT {
            return None;
        }
        let probed = Word(seen.0 | PROBE);
        // SeqCst: the store of a store-load pair with the stripes; its other half is `Stripes::pin`, which adds and then looks.
        let won = self.0.compare_exchange(
            seen.0,
            probed.0,
            order(Step::Probe, Ordering::SeqCst),
            Ordering::Relaxed,
        );
        store_load_fence(Step::Probe);
        won.is_ok().then_some(probed)
    }

    /// Takes the contents if nobody pinned in the word since `try_probe` answered `probed`.
    pub(crate) fn own_probed(&self, probed: Word) -> bool {
        self.own(probed)
    }

    /// Leaves the stripes, empty as they are, if nobody pinned in the word meanwhile; ends the probe if so.
    pub(crate) fn close_stripes(&self, probed: Word) -> bool {
        let closed = probed.0 & !(PROBE | STRIPES_MASK | HEAT_MASK);
        // Relaxed: no contents change hands.
        self.0
            .compare_exchange(probed.0, closed, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }

    /// Ends a probe that came to nothing.
    pub(crate) fn end_probe(&self) {
        // SeqCst: before the second look of who ends it, `BlockPool::evict_leaving`; pins in `Stripes::unpin` look after it.
        self.0.fetch_and(!PROBE, Ordering::SeqCst);
        store_load_fence(Step::Probe);
    }

    /// Notes a collision on a block the caller has pinned; answers the word if the block is hot by now.
    #[cold]
    pub(crate) fn heat(&self) -> Option<Word> {
        // Relaxed: a count that orders nothing; a lost one does no harm.
        let now = Word(self.0.load(Ordering::Relaxed));
        if now.hot() || now.stripes() != 0 {
            return Some(now);
        }
        // Relaxed: as above.
        let _ = self
            .0
            .compare_exchange(now.0, now.0 + HEAT, Ordering::Relaxed, Ordering::Relaxed);
        None
    }

    /// Gives a block that the caller has pinned an array of stripes. One try.
    pub(crate) fn open(&self, seen: Word, stripes: u8) -> bool {
        if seen.0 & PHASE_MASK != RESIDENT || seen.stripes() != 0 {
            return false;
        }
        // Relaxed: who pins in the stripes looks at this word again, `Stripes::pin`; an RMW, so `publish` is still acquired through it.
        self.0
            .compare_exchange(
                seen.0,
                seen.0 | (u64::from(stripes) * STRIPES),
                Ordering::Relaxed,
                Ordering::Relaxed,
            )
            .is_ok()
    }

    /// Takes the uses off an unpinned block. One try.
    pub(crate) fn age(&self, seen: Word) {
        if seen.resident() && !seen.probed() && seen.pins() == 0 && seen.freq() > 0 {
            // Relaxed: nothing but the count is said.
            let _ = self.0.compare_exchange(
                seen.0,
                seen.0 & !FREQ_MASK,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        }
    }

    /// Begins to look for the next use. One try: who fails was just used.
    pub(crate) fn forget_use(&self, seen: Word) {
        if seen.resident() {
            // Relaxed: nothing but the use is said.
            let _ = self.0.compare_exchange(
                seen.0,
                seen.0 & !USED,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        }
    }

    /// Marks a block for eviction at its last unpin. The caller holds a pin, so it stays till then.
    pub(crate) fn mark_leaving(&self) {
        // SeqCst: before the marker's own unpin and probe; its partner is `Stripes::unpin`, which looks after it gave its pin back.
        self.0.fetch_or(LEAVES, Ordering::SeqCst);
    }

    /// The owner of an empty slot, its contents written, lets readers in. `pins` are handed off with it.
    pub(crate) fn publish(&self, pins: u64, leaves: bool) {
        // Relaxed: the owner alone changes the generation.
        let generation = (self.0.load(Ordering::Relaxed) & GEN_MASK).wrapping_add(GEN);
        let leaves = if leaves { LEAVES } else { 0 };
        // Release: the contents, for `try_pin`. Swap: failed pins that landed on the empty slot are gone with it.
        self.0.swap(
            generation | RESIDENT | USED | leaves | pins,
            order(Step::Publish, Ordering::Release),
        );
    }

    /// The winner of `try_own`, done with the contents, leaves the slot empty.
    pub(crate) fn vacate(&self) {
        // Relaxed: the owner alone changes the generation.
        let generation = self.0.load(Ordering::Relaxed) & GEN_MASK;
        // Release, swap: as `publish`.
        self.0.swap(generation | EMPTY, Ordering::Release);
    }
}
