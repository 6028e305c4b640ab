//! The state of a block: one 64-bit word, and one named function a transition.
//!
//! ```text
//! bits  0..24  PINS    counted pins
//! bits 24..26  FREQ    uses seen since the hand last passed, saturating
//! bit  26      ERASED  evict at the last unpin, whatever FREQ says
//! bits 28..30  PHASE   0 empty, 1 resident, 2 evicting
//! bits 40..64  GEN     +1 at each publication
//! ```
//!
//! Rules. A pin counts only if it found the block resident; a pin that did not is never undone, for whoever owns the slot
//! then leaves it by swapping the whole word (RocksDB's HyperClockCache learned this the hard way, its pull request 10768).
//! Owners: an empty slot belongs to whoever took it off the free list, an evicting one to the winner of the one CAS.

use crate::sync::{AtomicU64, Ordering, Step, order, store_load_fence};

const PIN: u64 = 1;
const PINS_MASK: u64 = (1 << 24) - 1;
const FREQ: u64 = 1 << 24;
const FREQ_MASK: u64 = 0b11 << 24;
const ERASED: u64 = 1 << 26;
const PHASE_MASK: u64 = 0b11 << 28;
const EMPTY: u64 = 0;
const RESIDENT: u64 = 1 << 28;
const EVICTING: u64 = 2 << 28;
const GEN: u64 = 1 << 40;
const GEN_MASK: u64 = !(GEN - 1);

/// The most uses the clock remembers of a block: so many passes of the hand it survives unread.
pub(crate) const MAX_FREQ: u64 = 3;
/// Pins past which the process aborts, as `Arc` does: half the field, so that no number of racing threads reaches its end.
const MAX_PINS: u64 = 1 << 23;
/// Failed pins past which a failing pin clears them; only a tight loop of lookups during one long eviction gets here.
const STALE_PINS: u64 = 1 << 22;

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

    #[inline]
    pub(crate) fn erased(self) -> bool {
        self.0 & ERASED != 0
    }

    #[inline]
    pub(crate) fn resident(self) -> bool {
        self.0 & PHASE_MASK == RESIDENT
    }
}

impl std::fmt::Debug for Word {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let phase = match self.0 & PHASE_MASK {
            EMPTY => "empty",
            RESIDENT => "resident",
            _ => "evicting",
        };
        f.debug_struct("Word")
            .field("phase", &phase)
            .field("pins", &self.pins())
            .field("freq", &self.freq())
            .field("erased", &self.erased())
            .field("generation", &self.generation())
            .finish()
    }
}

/// The word itself. Readers add and subtract pins, the clock ages and evicts, the slot's owner publishes and vacates.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct StateWord(AtomicU64);

impl StateWord {
    /// An empty slot's word. Slots of zeroed memory hold the same.
    #[cfg(any(test, loom, shuttle))]
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(EMPTY))
    }

    /// Pins the block if it is resident; then the slot's contents stay put until [`Self::unpin`].
    #[inline]
    pub(crate) fn try_pin(&self) -> bool {
        // Acquire: sees what `publish` released, itself or through the pins and unpins since (a release sequence).
        let old = Word(self.0.fetch_add(PIN, Ordering::Acquire));
        if !old.resident() {
            self.scrub(old);
            return false;
        }
        if old.pins() >= MAX_PINS {
            std::process::abort();
        }
        if old.freq() < MAX_FREQ {
            let now = old.0 + PIN;
            // One try, for a lost use does no harm; not an add, which could carry out of the field. Relaxed: it says nothing more.
            let _ = self
                .0
                .compare_exchange(now, now + FREQ, Ordering::Relaxed, Ordering::Relaxed);
        }
        true
    }

    /// Keeps failed pins from running out of their field. `PINS` means nothing unless the phase is resident, so anyone may clear it.
    #[cold]
    fn scrub(&self, old: Word) {
        if old.pins() >= STALE_PINS {
            let now = old.0.wrapping_add(PIN);
            let _ = self.0.compare_exchange(
                now,
                now & !PINS_MASK,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        }
    }

    /// Gives a pin back; answers the word before. At one pin before, the caller must look whether someone waits for memory.
    #[inline]
    pub(crate) fn unpin(&self) -> Word {
        // Release: my reads come before the reuse that `try_evict` acquires. SeqCst: the store of a store-load pair with
        // `Turnstile::waiting`; its other half is `Ticket::enter` followed by `look`.
        let old = self.0.fetch_sub(PIN, order(Step::Unpin, Ordering::SeqCst));
        store_load_fence(Step::Wake);
        Word(old)
    }

    /// What the clock sees. SeqCst: pairs with `unpin`, so that either this sees the pin gone or `unpin` sees the taker waiting.
    pub(crate) fn look(&self) -> Word {
        Word(self.0.load(order(Step::Evict, Ordering::SeqCst)))
    }

    /// Takes a cold, unpinned block out of the pool. True: the slot and its contents are the caller's until `vacate`.
    pub(crate) fn try_evict(&self, seen: Word) -> bool {
        let cold = seen.freq() == 0 || seen.erased();
        if !seen.resident() || seen.pins() != 0 || !cold {
            return false;
        }
        let evicting = (seen.0 & GEN_MASK) | EVICTING;
        // Acquire: the readers' last use, released by `unpin`, comes before the reuse of the frame. One try: a change means a pin,
        // or another hand.
        self.0
            .compare_exchange(
                seen.0,
                evicting,
                order(Step::Evict, Ordering::Acquire),
                Ordering::Relaxed,
            )
            .is_ok()
    }

    /// Takes one use off an unpinned block. One try, Relaxed: nothing but the count is said.
    pub(crate) fn age(&self, seen: Word) {
        if seen.resident() && seen.pins() == 0 && seen.freq() > 0 {
            let _ = self.0.compare_exchange(
                seen.0,
                seen.0 - FREQ,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        }
    }

    /// Marks a block for eviction at its last unpin. The caller holds a pin, so the phase cannot change meanwhile.
    pub(crate) fn mark_erased(&self) {
        // Relaxed: read by the `unpin` that finds the last pin, after this in the word's own order.
        self.0.fetch_or(ERASED, Ordering::Relaxed);
    }

    /// The owner of an empty slot, its contents written, lets readers in. `pins` are handed off with it.
    pub(crate) fn publish(&self, pins: u64, erased: bool) {
        let generation = (self.0.load(Ordering::Relaxed) & GEN_MASK).wrapping_add(GEN);
        let erased = if erased { ERASED } else { 0 };
        // Release: the contents, for `try_pin`. Swap: failed pins that landed on the empty slot are gone with it.
        self.0.swap(
            generation | RESIDENT | erased | pins,
            order(Step::Publish, Ordering::Release),
        );
    }

    /// The winner of `try_evict`, done with the contents, leaves the slot empty. Release, swap: as `publish`.
    pub(crate) fn vacate(&self) {
        let generation = self.0.load(Ordering::Relaxed) & GEN_MASK;
        self.0.swap(generation | EMPTY, Ordering::Release);
    }
}
