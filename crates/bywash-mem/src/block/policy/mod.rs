//! The eviction policy: a plain data structure that is called on each load and departure, and reads use counts only when memory is
//! short.
//!
//! Hits do not reach it. It measures time in loads, and compares how long ago blocks were last used:
//!
//! - **Probation.** A new block enters the probation segment, a ring of one hundredth of the blocks. If it is used there, it is
//!   promoted.
//! - **Protected.** All other blocks. A clock hand rotates over this segment. A look at a block clears its use count and notes the
//!   time.
//! - **Ghosts** remember when an evicted block was last used. So the interval between the last two uses of a new block that was
//!   evicted before is known.
//! - **The duel.** The oldest block on probation is the victim, unless its interval is shorter than the idle time of one of the next
//!   few protected blocks at the hand. Then the protected block is the victim, and the other is promoted. (LIRS, Jiang and Zhang
//!   2002; the hand in place of its stack is CLOCK-Pro's, Jiang et al. 2005.) In a loop larger than the memory no protected block
//!   was idle for longer than one round, so the resident part of the loop stays. A block read once has no interval and no duel,
//!   but for the two cases below.
//! - **Frequency bonus.** A protected block that was used often counts as used more recently, because frequencies differ over more
//!   than one interval.
//! - **Phase change.** Evicted probation blocks are loaded again, and evicted protected blocks are not. While the former happens
//!   `RETURN_RATIO` times as often, blocks without an interval duel too, and the frequency bonus is 0. After as many duels as
//!   there are blocks the segment has been renewed, and the counts restart.
//! - **Dormant memory.** With each new block that has no ghost, a sampler looks at one more protected block without aging it. Once
//!   it has found `DORMANT_SAMPLES` unused since their promotion or last look, and few used ones, the protected segment keeps
//!   nothing useful: the last sample is the victim, and the new block is promoted. So a block that is read twice in memory full of
//!   once-read blocks is resident the second time. Where blocks are in use, the sampler soon finds one. A block that
//!   became protected or was seen used recently is no sample: it had too little time to be used again. Nor is one with known
//!   uses, which only a duel evicts. So blocks read twice outlast a scan of any length.
//!
//! The constants were found by simulation (`bywash-bench hit-ratio` measures the result).

mod ghosts;
mod ring;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use self::ghosts::{EvictedFrom, GhostTable};
use self::ring::{Node, Ring, Segment};
use super::options::Priority;

/// One in this many blocks is on probation: enough to notice an early second use, too few to matter to a loop.
const PROBATION_PART: u32 = 100;
/// Protected blocks that a duel looks at.
const DUEL_CANDIDATES: u32 = 8;
/// Looks after which a victim is found at most, if the oldest block on probation is neither pinned nor used.
pub(super) const LOOKS_PER_VICTIM: u64 = 1 + DUEL_CANDIDATES as u64;
/// Maximum of uses remembered of a protected block.
const MAX_SCORE: u8 = 7;
/// Intervals of its opponent that each remembered use adds to the time a block may be idle.
const FREQUENCY_BONUS: u32 = 4;
/// Ratio of the return rates of evicted probation and protected blocks above which a phase change is assumed.
const RETURN_RATIO: f64 = 1.5;
/// Return rate of probation blocks that is normal beyond that: under a Zipf distribution many are evicted too early.
const RETURN_NOISE: f64 = 0.14;
/// Unused samples that show dormant memory. Where one block of sixteen is in use they never come together.
const DORMANT_SAMPLES: u32 = 48;
/// A protected block is no sample while it is idle for fewer loads than this fraction of the blocks. Fewer, and a scan takes the
/// place of blocks just loaded; more, and memory full of blocks read once keeps new ones out.
const RECENT_DIVISOR: u32 = 2;
/// Unused samples that one used sample cancels.
const USED_SAMPLE_WEIGHT: u32 = 16;
/// Slots without a protected block that the sampler skips at once. Blocks of another size leave long runs of them.
const SAMPLER_STRIDE: u32 = 1024;
/// Evictions over which returns are counted, as a fraction of the blocks; then the counts are halved.
const RETURN_WINDOW: f64 = 0.5;
/// Returns of protected blocks assumed before any were observed, as a fraction of the blocks.
const RETURN_PRIOR: f64 = 0.001;
/// Weight of one interval in the running mean.
const INTERVAL_WEIGHT: f64 = 0.02;
/// Looks under one lock.
const BATCH: u32 = 64;
/// Fraction of the vacancies forgotten at each load: memory that went to writes does not return block by block.
const VACANCY_DECAY: u32 = 64;

/// Effect of a scan on the use count of a block that it passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AgeMode {
    /// Clears it.
    Age,
    /// Keeps it. A used block is unavailable then.
    Observe,
}

/// Usage of a block, read from its state word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Usage {
    /// Pinned or not resident: it cannot be evicted now.
    Unavailable,
    /// Number of uses since the last look.
    Used(u8),
    /// Not used since the last look.
    Unused,
}

/// Proposal of the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Victim {
    /// Evict the block in this slot. If that fails it keeps its place, and the hand or the sampler has passed it.
    Slot(u32),
    /// No victim yet: release the lock and call again.
    Continue,
    /// Every block was looked at.
    None,
}

/// Priority classes in the order in which they are scanned: the lowest first, or [`Priority::High`] before the others.
const CLASS_ORDERS: [[usize; Priority::COUNT]; 2] = [[0, 1, 2], [2, 0, 1]];

/// Progress of one evicting thread.
#[derive(Debug, Default)]
pub(super) struct ScanState {
    /// Index in [`CLASS_ORDERS`].
    order: usize,
    /// Number of classes of that order scanned so far, with the current one.
    class: usize,
    /// Steps left on probation: one a block.
    probation: u32,
    /// Steps left in the protected segment: two a block, because the first may only age it.
    protected: u32,
    /// Steps taken.
    pub(super) examined: u64,
    /// Of these, looks at pinned blocks.
    pub(super) pinned: u64,
}

impl ScanState {
    /// Sets whether blocks of [`Priority::High`] are scanned first. A change starts the scan over.
    pub(super) fn set_high_first(&mut self, high_first: bool) {
        let order = usize::from(high_first);
        if self.order != order {
            (self.order, self.class, self.probation, self.protected) = (order, 0, 0, 0);
        }
    }
}

#[derive(Debug, Default)]
struct PriorityClass {
    probation: Ring,
    protected: Ring,
}

impl PriorityClass {
    fn len(&self) -> u32 {
        self.probation.len() + self.protected.len()
    }

    /// Blocks on probation above which one must duel or be promoted.
    fn probation_target(&self) -> u32 {
        (self.len() / PROBATION_PART).max(1)
    }
}

/// Decaying counts of evicted blocks, and of evicted blocks loaded again.
#[derive(Debug, Default, Clone, Copy)]
struct Returns {
    evicted: f64,
    returned: f64,
}

#[derive(Debug, Default)]
pub(super) struct Policy {
    nodes: Vec<Node>,
    classes: [PriorityClass; Priority::COUNT],
    ghosts: GhostTable,
    /// Number of loads, wrapping: the policy's clock.
    now: u32,
    /// Evicted blocks with memory that holds no new block yet. New blocks take their places without promoting others.
    vacant: u32,
    /// By the segment evicted from.
    returns: [Returns; 2],
    /// Mean interval of blocks that returned to probation, in loads.
    interval: f64,
    /// Duels since the current phase change began.
    changing: u32,
    /// Slot of the sampler.
    sampler: u32,
    /// Unused protected blocks sampled, minus the samples that used ones cancelled.
    unused_samples: u32,
}

impl Policy {
    /// Number of blocks.
    pub(super) fn len(&self) -> u32 {
        self.classes.iter().map(PriorityClass::len).sum()
    }

    /// Its slots in order. Checks that each is in one ring only, the ring of its class and segment.
    #[cfg(all(test, not(loom)))]
    pub(super) fn slots(&self) -> Vec<u32> {
        let mut slots = Vec::new();
        for (number, class) in self.classes.iter().enumerate() {
            let rings = [
                (Segment::Probation, &class.probation),
                (Segment::Protected, &class.protected),
            ];
            for (segment, ring) in rings {
                for slot in ring.slots(&self.nodes) {
                    let node = self.nodes[slot as usize];
                    let found = (node.segment, usize::from(node.class));
                    assert_eq!(found, (segment, number), "slot {slot} is in its own ring");
                    slots.push(slot);
                }
            }
        }
        slots.sort_unstable();
        let placed = |slot: &u32| self.nodes[*slot as usize].segment != Segment::None;
        let all: Vec<u32> = (0..self.nodes.len() as u32).filter(placed).collect();
        assert_eq!(slots, all, "each slot with a segment is in one ring");
        slots
    }

    /// Enters a new block on probation.
    pub(super) fn admit(&mut self, slot: u32, hash: u64, priority: Priority) {
        self.now = self.now.wrapping_add(1);
        self.ghosts.grow(self.len() + 1);
        let mut stamp = 0;
        if let Some((from, last_use)) = self.ghosts.remove(hash) {
            stamp = self.now.wrapping_sub(last_use).max(1);
            self.returns[from as usize].returned += 1.0;
            if from == EvictedFrom::Probation {
                self.interval += (f64::from(stamp) - self.interval) * INTERVAL_WEIGHT;
            }
        }
        if self.nodes.len() <= slot as usize {
            self.nodes.resize(slot as usize + 1, Node::default());
        }
        let segment = self.nodes[slot as usize].segment;
        assert!(
            segment == Segment::None,
            "the slot's last block was forgotten"
        );
        let class = priority as u8;
        self.nodes[slot as usize] = Node::on_probation(stamp, class);
        let ring = &mut self.classes[usize::from(class)].probation;
        ring.insert(&mut self.nodes, slot);
        if self.vacant > 0 {
            self.vacant -= 1 + self.vacant / VACANCY_DECAY;
            return;
        }
        // The pool grows, so no block has to leave, and a surplus block on probation is promoted.
        let class = &self.classes[usize::from(class)];
        if class.probation.len() > class.probation_target()
            && let Some(oldest) = class.probation.hand()
        {
            self.promote(oldest, 0);
        }
    }

    /// Removes the block of a slot. `evicted`: its hash if it was evicted, for a ghost entry that notices its return.
    pub(super) fn forget(&mut self, slot: u32, evicted: Option<u64>) {
        let node = self.nodes[slot as usize];
        let class = &mut self.classes[usize::from(node.class)];
        let (ring, from, last_use) = match node.segment {
            Segment::None => return,
            Segment::Probation => {
                // One block was inserted with each load since this one.
                let last_use = self.now.wrapping_sub(class.probation.len());
                (&mut class.probation, EvictedFrom::Probation, last_use)
            }
            Segment::Protected => (&mut class.protected, EvictedFrom::Protected, node.stamp),
        };
        ring.remove(&mut self.nodes, slot);
        self.nodes[slot as usize].segment = Segment::None;
        let Some(hash) = evicted else {
            return;
        };
        self.vacant = self.vacant.saturating_add(1);
        self.ghosts.insert(hash, from, last_use, self.now);
        self.returns[from as usize].evicted += 1.0;
        let all: f64 = self.returns.iter().map(|returns| returns.evicted).sum();
        if all > RETURN_WINDOW * f64::from(self.len()) {
            for returns in &mut self.returns {
                returns.evicted /= 2.0;
                returns.returned /= 2.0;
            }
        }
    }

    /// Moves a block from probation to the protected segment. `score` is the number of its known uses.
    fn promote(&mut self, slot: u32, score: u8) {
        let class = &mut self.classes[usize::from(self.nodes[slot as usize].class)];
        class.probation.remove(&mut self.nodes, slot);
        let node = &mut self.nodes[slot as usize];
        (node.segment, node.stamp, node.score) = (Segment::Protected, self.now, score);
        class.protected.insert(&mut self.nodes, slot);
    }

    /// Whether evicted probation blocks return so much more often than evicted protected blocks that the protected ones are outdated.
    /// Called once a duel.
    fn phase_change(&mut self) -> bool {
        let prior = (f64::from(self.len()) * RETURN_PRIOR).max(1.0);
        let [probation, protected] = self.returns;
        let new = probation.returned / (probation.evicted + 1.0);
        let old = (protected.returned + prior) / (protected.evicted + prior);
        self.changing = if new > RETURN_RATIO * old + RETURN_NOISE {
            self.changing + 1
        } else {
            0
        };
        if self.changing > self.len() {
            // Hot blocks that the phase change evicted by mistake would prolong it forever.
            (self.changing, self.returns) = (0, Default::default());
        }
        self.changing > 0
    }

    /// Takes one sample. Returns its slot if it and those before it show that the class is dormant. The sampler steps through slots: in the
    /// ring, the blocks that the hand has just aged are neighbours.
    fn sample(&mut self, class: usize, is_unused: impl FnOnce(u32) -> bool) -> Option<u32> {
        let slots = self.nodes.len() as u32;
        let mut next = (1..=SAMPLER_STRIDE.min(slots)).map(|step| (self.sampler + step) % slots);
        let slot = next.find(|slot| {
            let node = self.nodes[*slot as usize];
            node.segment == Segment::Protected && usize::from(node.class) == class
        });
        self.sampler = slot.unwrap_or((self.sampler + SAMPLER_STRIDE) % slots);
        let node = self.nodes[slot? as usize];
        let recent = self.now.wrapping_sub(node.stamp) < self.len() / RECENT_DIVISOR;
        self.unused_samples = match is_unused(slot?) {
            true if recent || node.score > 0 => return None,
            true => (self.unused_samples + 1).min(DORMANT_SAMPLES),
            false => self.unused_samples.saturating_sub(USED_SAMPLE_WEIGHT),
        };
        (self.unused_samples == DORMANT_SAMPLES).then_some(self.sampler)
    }

    /// Returns the next victim: the loser of a duel in the first class of the scan's order that has an evictable block.
    pub(super) fn next_victim(
        &mut self,
        scan: &mut ScanState,
        mut usage: impl FnMut(u32, AgeMode) -> Usage,
    ) -> Victim {
        let mut look = |scan: &mut ScanState, slot, mode| {
            let usage = usage(slot, mode);
            scan.examined += 1;
            scan.pinned += u64::from((usage, mode) == (Usage::Unavailable, AgeMode::Age));
            usage
        };
        for _ in 0..BATCH {
            while scan.probation == 0 && scan.protected == 0 {
                let Some(number) = CLASS_ORDERS[scan.order].get(scan.class) else {
                    return Victim::None;
                };
                let class = &self.classes[*number];
                scan.class += 1;
                scan.probation = class.probation.len();
                scan.protected = class.protected.len() * 2;
            }
            let number = CLASS_ORDERS[scan.order][scan.class - 1];
            let class = &mut self.classes[number];
            let crowded = class.probation.len() + self.vacant >= class.probation_target();
            if scan.probation > 0 && (crowded || scan.protected == 0) {
                scan.probation -= 1;
                let Some(slot) = class.probation.hand() else {
                    continue;
                };
                match look(scan, slot, AgeMode::Age) {
                    Usage::Unavailable => class.probation.advance(&self.nodes),
                    Usage::Used(uses) => {
                        self.promote(slot, uses);
                        scan.protected += 2;
                    }
                    Usage::Unused => {
                        return Victim::Slot(self.duel(slot, |slot, mode| look(scan, slot, mode)));
                    }
                }
            } else {
                scan.protected = scan.protected.saturating_sub(1);
                if let Some((slot, _)) =
                    self.step_protected(number, |slot| look(scan, slot, AgeMode::Age))
                {
                    return Victim::Slot(slot);
                }
            }
        }
        Victim::Continue
    }

    /// Looks at the protected block at the hand and advances the hand. Returns the slot and its score if it was not used since the
    /// last look.
    fn step_protected(
        &mut self,
        class: usize,
        usage: impl FnOnce(u32) -> Usage,
    ) -> Option<(u32, u8)> {
        let ring = &mut self.classes[class].protected;
        let slot = ring.hand()?;
        ring.advance(&self.nodes);
        let node = &mut self.nodes[slot as usize];
        match usage(slot) {
            Usage::Unavailable => None,
            Usage::Used(uses) => {
                node.stamp = self.now;
                node.score = (node.score + uses).min(MAX_SCORE);
                None
            }
            Usage::Unused => {
                let score = node.score;
                node.score /= 2;
                Some((slot, score))
            }
        }
    }

    /// Returns the victim: the oldest block on probation, or a protected block that it displaces; then the former is promoted.
    fn duel(&mut self, oldest: u32, mut usage: impl FnMut(u32, AgeMode) -> Usage) -> u32 {
        let Node { stamp, class, .. } = self.nodes[oldest as usize];
        let class = usize::from(class);
        let change = self.phase_change();
        let interval = match stamp {
            0 if change => self.interval as u32,
            stamp => stamp,
        };
        let candidates = if interval == 0 {
            let is_unused = |slot| usage(slot, AgeMode::Observe) == Usage::Unused;
            if let Some(slot) = self.sample(class, is_unused) {
                self.promote(oldest, 0);
                return slot;
            }
            0
        } else {
            DUEL_CANDIDATES.min(self.classes[class].protected.len())
        };
        for _ in 0..candidates {
            let Some((slot, score)) = self.step_protected(class, |slot| usage(slot, AgeMode::Age))
            else {
                continue;
            };
            let idle = self.now.wrapping_sub(self.nodes[slot as usize].stamp);
            let bonus = if change {
                0
            } else {
                FREQUENCY_BONUS * u32::from(score)
            };
            if idle > interval.saturating_mul(1 + bonus) {
                self.promote(oldest, 0);
                return slot;
            }
        }
        self.classes[class].probation.advance(&self.nodes);
        oldest
    }
}
