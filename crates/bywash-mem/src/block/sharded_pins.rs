//! Sharded pin counters: where the pins of a contended block go, so that its readers do not share one cache line.
//!
//! [`Counters`] have one counter a shard, each on a line of its own; threads are distributed over the shards. They are few, created
//! when first needed and never freed. So a late reader of a block that lost its counters at worst touches the counters of another block:
//! it adds, loads its own block's word, sees that the pin is not effective, and takes it back. An evictor first probes the block,
//! which sends new pins to the word. It owns the block only if all shards are zero and the word did not change during the probe.
//!
//! The shape is the kernel's `percpu_ref`. That the rare side pays for reading all shards is from BRAVO (Dice and Kogan,
//! USENIX ATC 2019).

use std::cell::Cell;

use crossbeam_utils::CachePadded;

use super::slab::Slab;
use super::word::{StateWord, Word};
use crate::error::PoolError;
use crate::sync::{
    AtomicU32, AtomicU64, Mutex, Ordering, Step, order, store_load_fence, thread_number,
};

/// Shards of one set of counters: enough for the threads of machines with up to 16 cores to pin without sharing a line. 2 KiB a set.
#[cfg(not(any(loom, shuttle)))]
pub(crate) const SHARDS: usize = 16;
/// Few shards: the tools explore every order of their accesses.
#[cfg(any(loom, shuttle))]
pub(crate) const SHARDS: usize = 2;
/// Sets of counters in a pool: all that the word's 8 bits can name. More blocks are not contended at once on one machine.
#[cfg(not(any(loom, shuttle)))]
const SETS: usize = 255;
#[cfg(any(loom, shuttle))]
const SETS: usize = 1;
/// Interval between the contended pins of a thread that are noted in the block's word: occasional ones do not shard it.
#[cfg(not(any(loom, shuttle, test)))]
const CONTENTION_SAMPLE: u32 = 16;
#[cfg(any(loom, shuttle, test))]
const CONTENTION_SAMPLE: u32 = 1;
/// Minimum pins between two checks of a block's counters for it to keep them. Below, a contended block may take them over.
const MIN_PINS: u64 = 1024;
/// Sets examined for one to take over before a contended block stays without one.
const TRIES: usize = 8;

/// One pin in the lower half of a shard; the upper half counts all pins ever made.
const PIN: u64 = 1;
const USE: u64 = 1 << 32;
const PINS_MASK: u64 = USE - 1;

/// Place in which a pin is counted: the word (0), or a shard of some counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PinSlot(u16);

impl PinSlot {
    /// Counted in the word.
    pub(crate) const WORD: Self = Self(0);

    #[inline]
    fn shard(counters: u8, shard: usize) -> Self {
        Self(u16::from(counters) * SHARDS as u16 + shard as u16)
    }

    #[inline]
    pub(crate) fn in_word(self) -> bool {
        self == Self::WORD
    }

    /// Number of the counters of a pin in a shard.
    #[inline]
    fn counters(self) -> u8 {
        (usize::from(self.0) / SHARDS) as u8
    }
}

#[derive(Debug)]
struct Counters {
    /// Pins of each shard, and how many there ever were. Written by readers in the shard, read by probers and collapsers.
    shards: [CachePadded<AtomicU64>; SHARDS],
    /// Slot that the counters were last attached to. Written before they are attached, read to find the block again; a hint.
    slot: AtomicU32,
    /// Uses at the last look. Written and read by threads that look for counters to collapse, and by the policy.
    uses_seen: AtomicU64,
}

/// All sharded counters of a pool.
#[derive(Debug)]
pub(crate) struct ShardedPins {
    sets: Sets,
    free: Mutex<FreeSets>,
}

#[derive(Debug, Default)]
struct FreeSets {
    /// Sets given back.
    released: Vec<u8>,
    /// Number of sets ever used.
    used: usize,
    /// Set at which the next search for one to collapse starts.
    hand: usize,
}

impl ShardedPins {
    pub(crate) fn new() -> Result<Self, PoolError> {
        Ok(Self {
            sets: new_sets()?,
            free: Mutex::new(FreeSets::default()),
        })
    }

    #[inline]
    fn set(&self, number: u8) -> &Counters {
        &self.sets[usize::from(number) - 1]
    }

    #[inline]
    fn counter(&self, pin_slot: PinSlot) -> &AtomicU64 {
        &self.set(pin_slot.counters()).shards[usize::from(pin_slot.0) % SHARDS]
    }

    /// Pins a block that had `counters` a moment ago. `Err`: the pin is not effective. The caller must take it back with
    /// [`Self::unpin`] and pin in the word.
    #[inline]
    pub(crate) fn pin(&self, word: &StateWord, counters: u8) -> Result<PinSlot, PinSlot> {
        let pin_slot = PinSlot::shard(counters, thread_number() % SHARDS);
        // SeqCst: the store of a store-load pair with the word. The other side is `StateWord::try_probe`, then `pins`.
        self.counter(pin_slot)
            .fetch_add(USE + PIN, order(Step::ShardPin, Ordering::SeqCst));
        store_load_fence(Step::ShardPin);
        let now = word.load();
        if now.open_counters() == counters {
            word.count_use(now);
            return Ok(pin_slot);
        }
        Err(pin_slot)
    }

    /// Releases a pin in a shard. Returns whether it was the shard's last one, and so possibly the block's.
    #[inline]
    pub(crate) fn unpin(&self, pin_slot: PinSlot) -> bool {
        // Release: this reader's accesses come before the reuse that `pins` acquires. SeqCst: the store of a store-load pair with
        // `WaitQueue::waiting`, with the mark of `StateWord::evict_on_last_unpin`, and with `slot_of`.
        let before = self
            .counter(pin_slot)
            .fetch_sub(PIN, order(Step::ShardUnpin, Ordering::SeqCst));
        store_load_fence(Step::Wake);
        before & PINS_MASK == PIN
    }

    /// Slot that the counters of `pin_slot` are attached to, or were last.
    pub(crate) fn slot_of(&self, pin_slot: PinSlot) -> u32 {
        let counters = self.set(pin_slot.counters());
        // SeqCst: after `unpin`. Its partner `note_contention` stores it before a prober could count that pin for this slot.
        counters.slot.load(Ordering::SeqCst)
    }

    /// Sum of the pins in all shards, read one after another.
    fn pins(&self, counters: u8) -> u64 {
        let shards = self.set(counters).shards.iter();
        // SeqCst: the load after the store of `StateWord::try_probe`, partner of `ShardedPins::pin`; acquires the
        // accesses that `ShardedPins::unpin` released.
        shards
            .map(|shard| shard.load(order(Step::ShardUnpin, Ordering::SeqCst)) & PINS_MASK)
            .sum()
    }

    /// Whether no shard counts a pin.
    pub(crate) fn is_empty(&self, counters: u8) -> bool {
        self.pins(counters) == 0
    }

    fn uses(&self, counters: u8) -> u64 {
        let shards = self.set(counters).shards.iter();
        // Relaxed: a statistic.
        shards
            .map(|shard| shard.load(Ordering::Relaxed) / USE)
            .fold(0, u64::wrapping_add)
    }

    /// Takes ownership of the contents of a block that has exactly `held` pins, all the caller's, wherever they are counted. `allowed`
    /// is called when no other thread can hold an unseen pin. One attempt.
    pub(crate) fn try_own(
        &self,
        word: &StateWord,
        seen: Word,
        held: u64,
        allowed: impl FnOnce() -> bool,
    ) -> OwnOutcome {
        let Some(probed) = word.try_probe(seen) else {
            return OwnOutcome::Changed;
        };
        let counters = seen.counters();
        let in_shards = if counters == 0 {
            0
        } else {
            self.pins(counters)
        };
        if seen.pins() + in_shards != held || !allowed() {
            word.end_probe();
            return OwnOutcome::Pinned;
        }
        if !word.own_probed(probed) {
            word.end_probe();
            return OwnOutcome::Changed;
        }
        if counters != 0 {
            self.release(counters);
        }
        OwnOutcome::Owned
    }

    /// Notes a contended pin of a block that the caller has pinned in its word. Attaches counters once the block is contended enough.
    #[cold]
    pub(crate) fn note_contention(&self, slab: &Slab, slot: u32) {
        let word = &slab.header(slot).word;
        if !is_sampled() {
            return;
        }
        let Some(contended) = word.note_contention() else {
            return;
        };
        if contended.counters() != 0 {
            return;
        }
        let Some(number) = self.allocate(slab) else {
            return;
        };
        let counters = self.set(number);
        // SeqCst: before `attach_counters` below, for `slot_of`.
        counters.slot.store(slot, Ordering::SeqCst);
        // Relaxed: a statistic, for `collapse`.
        counters
            .uses_seen
            .store(self.uses(number), Ordering::Relaxed);
        if !word.attach_counters(contended, number) {
            self.release(number);
        }
    }

    /// Returns an unused set, taken over from a block that is no longer contended if necessary.
    fn allocate(&self, slab: &Slab) -> Option<u8> {
        for _ in 0..TRIES {
            let candidate = {
                let mut free = self.free.lock();
                if let Some(number) = free.released.pop() {
                    return Some(number);
                }
                if free.used < SETS {
                    free.used += 1;
                    return Some(free.used as u8);
                }
                free.hand = free.hand % SETS + 1;
                free.hand as u8
            };
            // Relaxed: a hint; `collapse` checks that the slot has these counters.
            let slot = self.set(candidate).slot.load(Ordering::Relaxed);
            self.collapse(&slab.header(slot).word, candidate);
        }
        None
    }

    /// Detaches counters from a block that was hardly pinned since the last look, unless pins are left in them.
    pub(crate) fn collapse(&self, word: &StateWord, number: u8) {
        let uses = self.uses(number);
        // Relaxed: a statistic; two threads that look at once are harmless.
        let since = uses.wrapping_sub(self.set(number).uses_seen.swap(uses, Ordering::Relaxed));
        let seen = word.load();
        if since >= MIN_PINS || seen.counters() != number {
            return;
        }
        let Some(probed) = word.try_probe(seen) else {
            return;
        };
        if self.is_empty(number) && word.detach_counters(probed) {
            self.release(number);
        } else {
            word.end_probe();
        }
    }

    /// Number of sets attached to blocks now.
    pub(crate) fn in_use(&self) -> u64 {
        let free = self.free.lock();
        (free.used - free.released.len()) as u64
    }

    fn release(&self, number: u8) {
        self.free.lock().released.push(number);
    }
}

/// Result of an attempt to take ownership of a block's contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OwnOutcome {
    /// They are the caller's until `StateWord::vacate`.
    Owned,
    /// Other threads hold pins; the one that releases the last pin tries again.
    Pinned,
    /// The word changed; read it again.
    Changed,
}

#[cfg(not(any(loom, shuttle)))]
type Sets = crate::frames::ZeroedSlice<Counters>;
/// The tools construct every set.
#[cfg(any(loom, shuttle))]
type Sets = Box<[Counters]>;

/// Returns zeroed sets, in pages that are committed only as they are used.
#[cfg(not(any(loom, shuttle)))]
fn new_sets() -> Result<Sets, PoolError> {
    // SAFETY: zeroed counters are unused ones: atomics at 0.
    unsafe { Sets::new(SETS) }
}

#[cfg(any(loom, shuttle))]
fn new_sets() -> Result<Sets, PoolError> {
    let unused = || Counters {
        shards: std::array::from_fn(|_| CachePadded::new(AtomicU64::new(0))),
        slot: AtomicU32::new(0),
        uses_seen: AtomicU64::new(0),
    };
    Ok(std::iter::repeat_with(unused).take(SETS).collect())
}

/// Whether this contended pin of the thread is one to note.
fn is_sampled() -> bool {
    thread_local! {
        static CONTENDED: Cell<u32> = const { Cell::new(0) };
    }
    CONTENDED.with(|contended| {
        let now = contended.get().wrapping_add(1);
        contended.set(now);
        now.is_multiple_of(CONTENTION_SAMPLE)
    })
}
