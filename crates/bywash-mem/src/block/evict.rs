//! Eviction: the policy says who, the block's word has the last say.

#[path = "policy/ghosts.rs"]
mod ghosts;
#[path = "policy/mod.rs"]
mod policy;
#[path = "policy/ring.rs"]
mod ring;
#[cfg(all(test, not(any(loom, shuttle))))]
#[path = "policy/tests.rs"]
mod tests;

use std::time::{Duration, Instant};

use crate::budget::PoolConfig;
use crate::options::Priority;
use crate::pool::{BlockPool, Eviction};
use crate::sync::Mutex;
use policy::{Glance, Look, Pick, Policy, Sweep};

/// Tries at one block that keeps changing. A change is a pin, whose end wakes who waits, or an ageing, and these end: there are
/// at most three between two pins.
const TRIES: u32 = 8;

/// Looks for memory that is needed by nobody yet. Enough to pass a hot stretch, and few beside the request that the memory is for.
const GENTLE_LOOKS: u64 = 1024;

/// The policy behind its lock, which nests inside all others but those of the stripes and is held for a few dozen looks at
/// most.
#[derive(Debug)]
pub(crate) struct Evictor {
    policy: Mutex<Policy>,
    /// A pass is slow after so long, or after so many looks at each slot.
    slow: (Duration, u32),
}

impl Evictor {
    pub(crate) fn new(config: &PoolConfig) -> Self {
        Self {
            policy: Mutex::new(Policy::default()),
            slow: (config.slow_eviction, config.slow_eviction_rounds),
        }
    }

    /// A block enters a slot.
    pub(crate) fn admit(&self, slot: u32, hash: u64, priority: Priority) {
        self.policy.lock().admit(slot, hash, priority);
    }

    /// A block leaves its slot; before another may enter it. With its hash if it was evicted.
    pub(crate) fn forget(&self, slot: u32, evicted: Option<u64>) {
        self.policy.lock().forget(slot, evicted);
    }

    /// The slots it knows of, in order; checks the rings.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn slots(&self) -> Vec<u32> {
        self.policy.lock().slots()
    }

    /// Blocks it knows of.
    #[cfg(test)]
    pub(crate) fn len(&self) -> u64 {
        u64::from(self.policy.lock().len())
    }
}

/// One call of [`BlockPool::evict`], for the record.
struct Pass {
    began: Instant,
    slots: u32,
    wanted: u64,
    freed: u64,
    evicted: u64,
    examined: u64,
    pinned: u64,
    used_before: u64,
}

impl Pass {
    fn note(&mut self, eviction: Eviction) {
        if let Eviction::Done(bytes) = eviction {
            self.evicted += 1;
            self.freed += bytes;
        }
    }

    fn done(&self) -> bool {
        self.freed >= self.wanted
    }

    /// Whether it took longer than it may, in time or in looks.
    fn slow(&self, after: Duration, rounds: u32) -> bool {
        self.examined > u64::from(rounds) * u64::from(self.slots) || self.began.elapsed() > after
    }
}

impl BlockPool {
    /// Evicts until `wanted` bytes came free or nothing more can be had. Answers whether anything came free.
    ///
    /// A caller in line may sleep on a `false`: in the end it looks at every slot itself, and whatever was pinned then will be
    /// unpinned, which wakes it; whatever resisted was pinned meanwhile.
    pub(crate) fn evict(&self, wanted: u64) -> bool {
        let mut pass = Pass {
            began: Instant::now(),
            slots: self.slab().len(),
            wanted,
            freed: 0,
            evicted: 0,
            examined: 0,
            pinned: 0,
            used_before: self.budget().used(),
        };
        let mut sweep = Sweep::default();
        while !pass.done() {
            let mut policy = self.evictor.policy.lock();
            let pick = policy.pick(&mut sweep, |slot, look| match look {
                Look::Ageing => self.glance(slot),
                Look::Gentle => self.glance_gently(slot),
            });
            drop(policy);
            match pick {
                Pick::Try(slot) => pass.note(self.evict_cold_slot(slot)),
                Pick::Again => {}
                Pick::Nothing => break,
            }
        }
        pass.examined += sweep.examined;
        pass.pinned += sweep.pinned;
        if !pass.done() {
            self.evict_any(&mut pass);
        }
        self.report(&pass);
        pass.evicted > 0
    }

    /// Evicts until `wanted` bytes came free, but only blocks that were not used since they were last looked at, the coldest first.
    /// Ages none, and gives up after [`GENTLE_LOOKS`]; the hands stay where they are, so the next call goes on from there. Answers
    /// whether anything came free.
    pub(crate) fn evict_cold(&self, wanted: u64) -> bool {
        let mut sweep = Sweep::default();
        let mut freed = 0;
        while freed < wanted && sweep.examined < GENTLE_LOOKS {
            let mut policy = self.evictor.policy.lock();
            let pick = policy.pick(&mut sweep, |slot, _| self.glance_gently(slot));
            drop(policy);
            match pick {
                Pick::Try(slot) => {
                    if let Eviction::Done(bytes) = self.evict_cold_slot(slot) {
                        freed += bytes;
                    }
                }
                Pick::Again => {}
                Pick::Nothing => break,
            }
        }
        freed > 0
    }

    /// What the policy is told of a slot that it only looks at: a block in use is not to be had, and keeps its uses.
    fn glance_gently(&self, slot: u32) -> Glance {
        let seen = self.slab().header(slot).word.look();
        if seen.resident() && !seen.probed() && seen.pins() == 0 && seen.freq() == 0 {
            Glance::Idle
        } else {
            Glance::Pinned
        }
    }

    /// What the policy is told of a slot. Takes the uses off the block if it could be evicted but for them.
    fn glance(&self, slot: u32) -> Glance {
        let seen = self.slab().header(slot).word.look();
        if !seen.resident() || seen.probed() || seen.pins() != 0 {
            return Glance::Pinned;
        }
        match seen.freq() {
            0 => Glance::Idle,
            uses => {
                self.age(slot, seen);
                Glance::Used(uses as u8)
            }
        }
    }

    /// Takes one block out if its word counts no uses.
    pub(crate) fn evict_cold_slot(&self, slot: u32) -> Eviction {
        let seen = self.settled(slot);
        if seen.freq() != 0 && !seen.leaves() {
            return Eviction::Held;
        }
        self.try_evict(slot, seen)
    }

    /// Evicts whatever is not pinned, slot by slot.
    fn evict_any(&self, pass: &mut Pass) {
        for slot in 0..self.slab().len() {
            for _ in 0..TRIES {
                let seen = self.settled(slot);
                pass.examined += 1;
                if !seen.resident() {
                    break;
                }
                let eviction = self.try_evict(slot, seen);
                pass.note(eviction);
                if eviction != Eviction::Changed {
                    pass.pinned += u64::from(eviction == Eviction::Held);
                    break;
                }
            }
            if pass.done() {
                return;
            }
        }
    }

    /// Says so if a pass was slow.
    fn report(&self, pass: &Pass) {
        let (after, rounds) = self.evictor.slow;
        if !pass.slow(after, rounds) {
            return;
        }
        self.note_slow_eviction();
        tracing::warn!(
            slots_examined = pass.examined,
            blocks_evicted = pass.evicted,
            slots_pinned = pass.pinned,
            bytes_wanted = pass.wanted,
            bytes_freed = pass.freed,
            used_before = pass.used_before,
            used_after = self.budget().used(),
            elapsed_ms = pass.began.elapsed().as_millis() as u64,
            "eviction was slow: most blocks are pinned, or the memory limit is too low for the load"
        );
    }
}
