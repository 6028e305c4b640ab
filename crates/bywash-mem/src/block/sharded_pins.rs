//! Stripes: where the pins of a very hot block go, so that its readers do not fight for one cache line.
//!
//! An array has a counter a lane, each on a line of its own; threads are dealt to lanes. Arrays are few, made when first
//! needed and never freed, so a late reader of a block that lost its array touches another block's counter at worst: it adds,
//! looks at its own block's word, sees that it does not count, and takes it back. Whoever would evict probes the block first
//! (new pins then go into the word), and owns it only if all lanes are empty and the word did not change meanwhile.
//!
//! The shape is the kernel's `percpu_ref`; that the rare side pays for looking through all lanes is from BRAVO (Dice and Kogan,
//! USENIX ATC 2019).

use std::cell::Cell;

use crossbeam_utils::CachePadded;

use crate::error::PoolError;
use crate::slab::Slab;
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering, Step, lane, order, store_load_fence};
use crate::word::{StateWord, Word};

/// Lanes of an array: as many threads as pin at once without meeting, on machines of up to 16 cores. 2 KiB an array.
#[cfg(not(any(loom, shuttle)))]
pub(crate) const LANES: usize = 16;
/// What the tools can explore.
#[cfg(any(loom, shuttle))]
pub(crate) const LANES: usize = 2;
/// Arrays of a pool: all that the word's 8 bits can name. More blocks than this are not hot at once on one machine.
#[cfg(not(any(loom, shuttle)))]
const ARRAYS: usize = 255;
#[cfg(any(loom, shuttle))]
const ARRAYS: usize = 1;
/// Collisions of one thread to one that is noted in a block's word: what happens now and then is not heat.
#[cfg(not(any(loom, shuttle, test)))]
pub(crate) const COLLISIONS_A_NOTE: u32 = 16;
#[cfg(any(loom, shuttle, test))]
pub(crate) const COLLISIONS_A_NOTE: u32 = 1;
/// Pins since its array was last looked at, below which a block has cooled: fewer than are worth a line.
const COOL_PINS: u64 = 1024;
/// Arrays looked at for a cooled one before a hot block goes without.
const TRIES: usize = 8;

/// A pin within a lane's counter, and the count of all there were, in its upper half.
const PIN: u64 = 1;
const USE: u64 = 1 << 32;
const PINS_MASK: u64 = USE - 1;

/// Where a pin is counted: in the word (0), or in a lane of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hold(u16);

impl Hold {
    /// Counted in the word.
    pub(crate) const WORD: Self = Self(0);

    #[inline]
    fn lane(array: u8, lane: usize) -> Self {
        Self(u16::from(array) * LANES as u16 + lane as u16)
    }

    #[inline]
    pub(crate) fn in_word(self) -> bool {
        self == Self::WORD
    }
}

#[derive(Debug)]
struct Array {
    /// Pins of each lane, and how many there ever were. Written by readers of the lane, read by whoever probes or cools.
    lanes: [CachePadded<AtomicU64>; LANES],
    /// The slot it was given to. Written by who opens it, read by who looks for a cooled one; only a hint.
    slot: AtomicU32,
    /// The uses when last looked at. Written and read by who looks for a cooled one, and by the policy's hand.
    seen: AtomicU64,
}

/// The arrays of a pool.
#[derive(Debug)]
pub(crate) struct Stripes {
    arrays: Arrays,
    free: Mutex<Free>,
}

#[derive(Debug, Default)]
struct Free {
    /// Given back.
    arrays: Vec<u8>,
    /// How many were ever used.
    used: usize,
    /// Where the next search for a cooled one begins.
    hand: usize,
}

impl Stripes {
    pub(crate) fn new() -> Result<Self, PoolError> {
        Ok(Self {
            arrays: arrays()?,
            free: Mutex::new(Free::default()),
        })
    }

    #[inline]
    fn array(&self, number: u8) -> &Array {
        &self.arrays[usize::from(number) - 1]
    }

    #[inline]
    fn counter(&self, hold: Hold) -> &AtomicU64 {
        let place = usize::from(hold.0);
        &self.array((place / LANES) as u8).lanes[place % LANES]
    }

    /// Pins a block that had `array` a moment ago. `None`: not there any more, pin in the word; then the caller must treat the
    /// lane as one it unpinned if [`Self::unpin`] of the answer's hold says so.
    #[inline]
    pub(crate) fn pin(&self, word: &StateWord, array: u8) -> Result<Hold, Hold> {
        let hold = Hold::lane(array, lane() % LANES);
        // SeqCst: the store of a store-load pair with the word; its other half is `StateWord::try_probe`, then `pins`.
        self.counter(hold)
            .fetch_add(USE + PIN, order(Step::Stripe, Ordering::SeqCst));
        store_load_fence(Step::Stripe);
        let now = word.look();
        if now.open_stripes() == array {
            word.count_use(now);
            return Ok(hold);
        }
        Err(hold)
    }

    /// Gives a lane's pin back. True if it was the lane's last: then it may be the block's.
    #[inline]
    pub(crate) fn unpin(&self, hold: Hold) -> bool {
        // Release: my reads come before the reuse that `pins` acquires. SeqCst: the store of a store-load pair with
        // `Turnstile::waiting`, with the mark of `StateWord::mark_leaving`, and with `slot_of`.
        let before = self
            .counter(hold)
            .fetch_sub(PIN, order(Step::StripeUnpin, Ordering::SeqCst));
        store_load_fence(Step::Wake);
        before & PINS_MASK == PIN
    }

    /// The slot that has the array of `hold` now, or had it last.
    pub(crate) fn slot_of(&self, hold: Hold) -> u32 {
        let array = self.array((usize::from(hold.0) / LANES) as u8);
        // SeqCst: after `unpin`; its partner `heat` stored it before anyone could take that pin for this slot's.
        array.slot.load(Ordering::SeqCst)
    }

    /// Pins counted in an array's lanes, one after another.
    fn pins(&self, array: u8) -> u64 {
        let lanes = self.array(array).lanes.iter();
        // SeqCst: the load after `StateWord::try_probe`'s store, partner of `Stripes::pin`; acquires what `Stripes::unpin` released.
        lanes
            .map(|lane| lane.load(order(Step::StripeUnpin, Ordering::SeqCst)) & PINS_MASK)
            .sum()
    }

    /// Whether its lanes are all empty.
    pub(crate) fn empty(&self, array: u8) -> bool {
        self.pins(array) == 0
    }

    fn uses(&self, array: u8) -> u64 {
        let lanes = self.array(array).lanes.iter();
        // Relaxed: a measure of heat.
        lanes
            .map(|lane| lane.load(Ordering::Relaxed) / USE)
            .fold(0, u64::wrapping_add)
    }

    /// Takes the contents of a block of which `held` pins are left, all the caller's, wherever they are counted: but only if
    /// `allowed`, asked when nobody else can have a pin unseen. One try.
    pub(crate) fn try_own(
        &self,
        word: &StateWord,
        seen: Word,
        held: u64,
        allowed: impl FnOnce() -> bool,
    ) -> Owning {
        let Some(probed) = word.try_probe(seen) else {
            return Owning::Changed;
        };
        let array = seen.stripes();
        let in_lanes = if array == 0 { 0 } else { self.pins(array) };
        if seen.pins() + in_lanes != held || !allowed() {
            word.end_probe();
            return Owning::Held;
        }
        if !word.own_probed(probed) {
            word.end_probe();
            return Owning::Changed;
        }
        if array != 0 {
            self.put_back(array);
        }
        Owning::Owned
    }

    /// Notes a collision on a block the caller has pinned in its word, and gives the block an array once it is hot.
    #[cold]
    pub(crate) fn heat(&self, slab: &Slab, slot: u32) {
        let word = &slab.header(slot).word;
        if !noted() {
            return;
        }
        let Some(hot) = word.heat() else {
            return;
        };
        if hot.stripes() != 0 {
            return;
        }
        let Some(number) = self.take(slab) else {
            return;
        };
        let array = self.array(number);
        // SeqCst: before `open` below, for `slot_of`.
        array.slot.store(slot, Ordering::SeqCst);
        // Relaxed: a measure of heat, for `cool`.
        array.seen.store(self.uses(number), Ordering::Relaxed);
        if !word.open(hot, number) {
            self.put_back(number);
        }
    }

    /// An array nobody uses, taken from a cooled block if it must be.
    fn take(&self, slab: &Slab) -> Option<u8> {
        for _ in 0..TRIES {
            let candidate = {
                let mut free = self.free.lock();
                if let Some(number) = free.arrays.pop() {
                    return Some(number);
                }
                if free.used < ARRAYS {
                    free.used += 1;
                    return Some(free.used as u8);
                }
                free.hand = free.hand % ARRAYS + 1;
                free.hand as u8
            };
            // Relaxed: a hint; `cool` looks whether the slot has the array.
            let slot = self.array(candidate).slot.load(Ordering::Relaxed);
            self.cool(&slab.header(slot).word, candidate);
        }
        None
    }

    /// Takes the array from a block that was hardly pinned since the last look, unless pins are left in it.
    pub(crate) fn cool(&self, word: &StateWord, number: u8) {
        let uses = self.uses(number);
        // Relaxed: a measure; two that look at once do no harm.
        let since = uses.wrapping_sub(self.array(number).seen.swap(uses, Ordering::Relaxed));
        let seen = word.look();
        if since >= COOL_PINS || seen.stripes() != number {
            return;
        }
        let Some(probed) = word.try_probe(seen) else {
            return;
        };
        if self.pins(number) == 0 && word.close_stripes(probed) {
            self.put_back(number);
        } else {
            word.end_probe();
        }
    }

    /// Arrays that blocks have now.
    pub(crate) fn in_use(&self) -> u64 {
        let free = self.free.lock();
        (free.used - free.arrays.len()) as u64
    }

    fn put_back(&self, number: u8) {
        self.free.lock().arrays.push(number);
    }
}

/// How an attempt to own a block's contents ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owning {
    /// They are the caller's, until `StateWord::vacate`.
    Owned,
    /// Others have pins; whoever gives the last back will look again.
    Held,
    /// The word changed meanwhile; look again.
    Changed,
}

#[cfg(not(any(loom, shuttle)))]
type Arrays = crate::zeroed::Zeroed<Array>;
/// The tools make every array.
#[cfg(any(loom, shuttle))]
type Arrays = Box<[Array]>;

/// Arrays of zeroes, so that pages are committed only as they are used.
#[cfg(not(any(loom, shuttle)))]
fn arrays() -> Result<Arrays, PoolError> {
    // SAFETY: an array of zeroes is an unused one: atomics at 0.
    unsafe { Arrays::new(ARRAYS) }
}

#[cfg(any(loom, shuttle))]
fn arrays() -> Result<Arrays, PoolError> {
    let unused = || Array {
        lanes: std::array::from_fn(|_| CachePadded::new(AtomicU64::new(0))),
        slot: AtomicU32::new(0),
        seen: AtomicU64::new(0),
    };
    Ok(std::iter::repeat_with(unused).take(ARRAYS).collect())
}

/// Whether this collision is one to note.
fn noted() -> bool {
    thread_local! {
        static COLLISIONS: Cell<u32> = const { Cell::new(0) };
    }
    COLLISIONS.with(|collisions| {
        let now = collisions.get().wrapping_add(1);
        collisions.set(now);
        now.is_multiple_of(COLLISIONS_A_NOTE)
    })
}
