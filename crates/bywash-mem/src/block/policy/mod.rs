//! Which block leaves: a plain data structure, told of loads and departures, that asks for uses only when memory is short.
//!
//! A hit tells it nothing. It counts time in loads, and compares how long ago blocks were used:
//!
//! - **Newcomers** wait in a short ring, one hundredth of the blocks. One that is used there settles.
//! - The rest is **settled**, and a hand goes round it. A look at a block takes its uses off and notes when that was.
//! - **Ghosts** remember when an evicted block was last used. So the interval between the last two uses of a newcomer that was here
//!   before is known.
//! - **The contest.** The oldest newcomer leaves, unless its interval is shorter than the time since the last use of a settled block
//!   that the hand comes to within a few steps: then that one leaves, and the newcomer settles. (LIRS, Jiang and Zhang 2002; the
//!   hand in place of its stack is CLOCK-Pro's, Jiang et al. 2005.) In a loop larger than the memory no settled block has been
//!   unused for longer than the loop is long, so those that are here stay. What is read once never contests, but see below.
//! - **Inertia.** A settled block that was used often counts as used more recently. Frequencies differ for longer than one interval
//!   can show.
//! - **When the times change**, evicted newcomers come back and evicted settled blocks do not. While the former come back
//!   `SHIFT` times as often, newcomers contest without an interval of their own, and inertia counts for nothing. After as many
//!   contests as there are blocks whoever came has settled, and the counts begin anew.
//! - **Dormant memory.** With each newcomer that was never here before, a scout looks at one more settled block, and takes nothing
//!   off it. Where it meets `DORMANT` that nobody used since they settled or were last looked at, and few others, they keep nothing
//!   out: the newcomer settles in the place of the last. So what is read twice in memory full of what was read once is there the
//!   second time; where others are in use, the scout meets one of them soon.
//!
//! The constants were found by simulation (`bywash-bench hit-ratio` measures what came of it).

use super::ghosts::{Ghosts, Origin};
use super::ring::{Node, Place, Ring};
use crate::options::Priority;

/// Newcomers' part of the blocks: large enough to notice a second use at once, small enough to cost a loop nothing.
const NEWCOMERS: u32 = 100;
/// Settled blocks a contest looks at.
const CONTEST: u32 = 8;
/// Uses remembered of a settled block.
const MAX_SCORE: u8 = 7;
/// What each of them adds to the time a block may go unused, in the newcomer's intervals.
const INERTIA: u32 = 4;
/// How much more often evicted newcomers than evicted settled blocks come back when the times have changed.
const SHIFT: f64 = 1.5;
/// Part of evicted newcomers that comes back beyond that at any time: of a Zipf, many are evicted too soon.
const NOISE: f64 = 0.14;
/// Unused settled blocks that show that no others are in use either. Where one of sixteen is in use they never come together.
const DORMANT: u32 = 48;
/// Of these a used one takes back so many.
const WEIGHT: u32 = 16;
/// Slots without a settled block that the scout passes at once. Blocks of another size leave long stretches of them.
const STRETCH: u32 = 1024;
/// Evictions over which returns are counted, as a part of the blocks; then the counts are halved.
const WINDOW: f64 = 0.5;
/// Settled blocks assumed to have come back before any were seen to, as a part of the blocks.
const DOUBT: f64 = 0.001;
/// The weight of one interval in their running mean.
const MEAN: f64 = 0.02;
/// Looks under one lock.
const BATCH: u32 = 64;
/// Part of the outstanding evictions forgotten at each load: memory that went to writes does not come back one by one.
const LEAK: u32 = 64;

/// What becomes of a block's uses when the policy looks at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// They are taken off.
    Ageing,
    /// They stay; a used block is not to be had then.
    Gentle,
}

/// What a slot's word says to the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Glance {
    /// Not to be had now.
    Pinned,
    /// Uses since the last look.
    Used(u8),
    /// None.
    Idle,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pick {
    /// Evict this one. If that fails it keeps its place, and the hand or the scout has passed it.
    Try(u32),
    /// Ask again: this was enough under one lock.
    Again,
    /// All blocks were looked at.
    Nothing,
}

/// How far one evicting thread has come.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// The class it is in, plus one; 0 before the first.
    class: usize,
    /// Looks left at its newcomers: one each.
    newcomers: u32,
    /// Looks left at its settled blocks: two each, for the first may only take the uses off.
    settled: u32,
    /// Looks taken.
    pub(super) examined: u64,
    /// Of these, at pinned blocks.
    pub(super) pinned: u64,
}

#[derive(Debug, Default)]
struct Class {
    newcomers: Ring,
    settled: Ring,
}

impl Class {
    fn len(&self) -> u32 {
        self.newcomers.len() + self.settled.len()
    }

    /// Newcomers it keeps before one must contest or settle.
    fn room(&self) -> u32 {
        (self.len() / NEWCOMERS).max(1)
    }
}

/// Evicted blocks and those of them that came back, both fading.
#[derive(Debug, Default, Clone, Copy)]
struct Returns {
    evicted: f64,
    back: f64,
}

#[derive(Debug, Default)]
pub(super) struct Policy {
    nodes: Vec<Node>,
    classes: [Class; Priority::COUNT],
    ghosts: Ghosts,
    /// Loads so far, wrapping. The policy's clock.
    now: u32,
    /// Blocks evicted whose memory did not come back as a block yet: newcomers fill their places, and need not settle for it.
    vacant: u32,
    /// By origin.
    returns: [Returns; 2],
    /// Mean interval of newcomers that came back, in loads.
    interval: f64,
    /// Contests since the times began to change.
    changing: u32,
    /// The slot the scout is at.
    scout: u32,
    /// Unused settled blocks it met, less those that used ones took back.
    unused: u32,
}

impl Policy {
    /// Blocks it knows of.
    pub(super) fn len(&self) -> u32 {
        self.classes.iter().map(Class::len).sum()
    }

    /// The slots it knows of, in order; checks that each is in exactly one ring, that of its class and place.
    #[cfg(all(test, not(loom)))]
    pub(super) fn slots(&self) -> Vec<u32> {
        let mut slots = Vec::new();
        for (number, class) in self.classes.iter().enumerate() {
            let rings = [
                (Place::Newcomers, &class.newcomers),
                (Place::Settled, &class.settled),
            ];
            for (place, ring) in rings {
                for slot in ring.slots(&self.nodes) {
                    let node = self.nodes[slot as usize];
                    let found = (node.place, usize::from(node.class));
                    assert_eq!(found, (place, number), "slot {slot} is in its own ring");
                    slots.push(slot);
                }
            }
        }
        slots.sort_unstable();
        let placed = |slot: &u32| self.nodes[*slot as usize].place != Place::Nowhere;
        let all: Vec<u32> = (0..self.nodes.len() as u32).filter(placed).collect();
        assert_eq!(slots, all, "each slot that is somewhere is in one ring");
        slots
    }

    /// A block was published.
    pub(super) fn admit(&mut self, slot: u32, hash: u64, priority: Priority) {
        self.now = self.now.wrapping_add(1);
        self.ghosts.fit(self.len() + 1);
        let mut stamp = 0;
        if let Some((origin, used)) = self.ghosts.take(hash) {
            stamp = self.now.wrapping_sub(used).max(1);
            self.returns[origin as usize].back += 1.0;
            if origin == Origin::Newcomers {
                self.interval += (f64::from(stamp) - self.interval) * MEAN;
            }
        }
        if self.nodes.len() <= slot as usize {
            self.nodes.resize(slot as usize + 1, Node::default());
        }
        let place = self.nodes[slot as usize].place;
        assert!(place == Place::Nowhere, "its last block was forgotten");
        let class = priority as u8;
        self.nodes[slot as usize] = Node::newcomer(stamp, class);
        let ring = &mut self.classes[usize::from(class)].newcomers;
        ring.insert(&mut self.nodes, slot);
        if self.vacant > 0 {
            self.vacant -= 1 + self.vacant / LEAK;
            return;
        }
        // The pool grows: nobody has to leave, so whoever is too many settles.
        let class = &self.classes[usize::from(class)];
        if class.newcomers.len() > class.room()
            && let Some(oldest) = class.newcomers.hand()
        {
            self.settle(oldest, 0);
        }
    }

    /// A block left its slot. With its hash if it was evicted: then its return will be noticed.
    pub(super) fn forget(&mut self, slot: u32, evicted: Option<u64>) {
        let node = self.nodes[slot as usize];
        let class = &mut self.classes[usize::from(node.class)];
        let (ring, origin, used) = match node.place {
            Place::Nowhere => return,
            Place::Newcomers => {
                // One came with each load since this one did.
                let used = self.now.wrapping_sub(class.newcomers.len());
                (&mut class.newcomers, Origin::Newcomers, used)
            }
            Place::Settled => (&mut class.settled, Origin::Settled, node.stamp),
        };
        ring.remove(&mut self.nodes, slot);
        self.nodes[slot as usize].place = Place::Nowhere;
        let Some(hash) = evicted else {
            return;
        };
        self.vacant = self.vacant.saturating_add(1);
        self.ghosts.put(hash, origin, used, self.now);
        self.returns[origin as usize].evicted += 1.0;
        let all: f64 = self.returns.iter().map(|returns| returns.evicted).sum();
        if all > WINDOW * f64::from(self.len()) {
            for returns in &mut self.returns {
                returns.evicted /= 2.0;
                returns.back /= 2.0;
            }
        }
    }

    /// A newcomer, used `score` times as far as is known, settles.
    fn settle(&mut self, slot: u32, score: u8) {
        let class = &mut self.classes[usize::from(self.nodes[slot as usize].class)];
        class.newcomers.remove(&mut self.nodes, slot);
        let node = &mut self.nodes[slot as usize];
        (node.place, node.stamp, node.score) = (Place::Settled, self.now, score);
        class.settled.insert(&mut self.nodes, slot);
    }

    /// Whether evicted newcomers come back so much more often than evicted settled blocks that these are the past. Asked once a
    /// contest.
    fn times_change(&mut self) -> bool {
        let doubt = (f64::from(self.len()) * DOUBT).max(1.0);
        let [newcomers, settled] = self.returns;
        let new = newcomers.back / (newcomers.evicted + 1.0);
        let old = (settled.back + doubt) / (settled.evicted + doubt);
        self.changing = if new > SHIFT * old + NOISE {
            self.changing + 1
        } else {
            0
        };
        if self.changing > self.len() {
            // Hot blocks that it threw out by mistake would prolong it for ever.
            (self.changing, self.returns) = (0, Default::default());
        }
        self.changing > 0
    }

    /// The scout's next settled block, if it and those before it show that the class is dormant. It goes by slots: along the ring
    /// those that the hand has just passed lie side by side, all without uses.
    fn scout(&mut self, class: usize, unused: impl FnOnce(u32) -> bool) -> Option<u32> {
        let slots = self.nodes.len() as u32;
        let mut next = (1..=STRETCH.min(slots)).map(|step| (self.scout + step) % slots);
        let slot = next.find(|slot| {
            let node = self.nodes[*slot as usize];
            node.place == Place::Settled && usize::from(node.class) == class
        });
        self.scout = slot.unwrap_or((self.scout + STRETCH) % slots);
        self.unused = if unused(slot?) {
            (self.unused + 1).min(DORMANT)
        } else {
            self.unused.saturating_sub(WEIGHT)
        };
        (self.unused == DORMANT).then_some(self.scout)
    }

    /// The next block to evict: of the lowest class that has any to be had, the loser of a contest.
    pub(super) fn pick(
        &mut self,
        sweep: &mut Sweep,
        mut look: impl FnMut(u32, Look) -> Glance,
    ) -> Pick {
        let mut look = |sweep: &mut Sweep, slot, how| {
            let glance = look(slot, how);
            sweep.examined += 1;
            sweep.pinned += u64::from((glance, how) == (Glance::Pinned, Look::Ageing));
            glance
        };
        for _ in 0..BATCH {
            while sweep.newcomers == 0 && sweep.settled == 0 {
                let Some(class) = self.classes.get(sweep.class) else {
                    return Pick::Nothing;
                };
                sweep.class += 1;
                sweep.newcomers = class.newcomers.len();
                sweep.settled = class.settled.len() * 2;
            }
            let number = sweep.class - 1;
            let class = &mut self.classes[number];
            let crowded = class.newcomers.len() + self.vacant >= class.room();
            if sweep.newcomers > 0 && (crowded || sweep.settled == 0) {
                sweep.newcomers -= 1;
                let Some(slot) = class.newcomers.hand() else {
                    continue;
                };
                match look(sweep, slot, Look::Ageing) {
                    Glance::Pinned => class.newcomers.advance(&self.nodes),
                    Glance::Used(uses) => {
                        self.settle(slot, uses);
                        sweep.settled += 2;
                    }
                    Glance::Idle => {
                        return Pick::Try(self.contest(slot, |slot, how| look(sweep, slot, how)));
                    }
                }
            } else {
                sweep.settled = sweep.settled.saturating_sub(1);
                if let Some((slot, _)) = self.step(number, |slot| look(sweep, slot, Look::Ageing)) {
                    return Pick::Try(slot);
                }
            }
        }
        Pick::Again
    }

    /// Looks at the settled block the hand is at, and goes on. Answers it and its score if it was not used since the last look.
    fn step(&mut self, class: usize, look: impl FnOnce(u32) -> Glance) -> Option<(u32, u8)> {
        let ring = &mut self.classes[class].settled;
        let slot = ring.hand()?;
        ring.advance(&self.nodes);
        let node = &mut self.nodes[slot as usize];
        match look(slot) {
            Glance::Pinned => None,
            Glance::Used(uses) => {
                node.stamp = self.now;
                node.score = (node.score + uses).min(MAX_SCORE);
                None
            }
            Glance::Idle => {
                let score = node.score;
                node.score /= 2;
                Some((slot, score))
            }
        }
    }

    /// Who leaves: the newcomer that has waited longest, or a settled block that it outdoes, and then the newcomer settles.
    fn contest(&mut self, newcomer: u32, mut look: impl FnMut(u32, Look) -> Glance) -> u32 {
        let Node { stamp, class, .. } = self.nodes[newcomer as usize];
        let class = usize::from(class);
        let change = self.times_change();
        let interval = match stamp {
            0 if change => self.interval as u32,
            stamp => stamp,
        };
        let contestants = if interval == 0 {
            let unused = |slot| look(slot, Look::Gentle) == Glance::Idle;
            if let Some(slot) = self.scout(class, unused) {
                self.settle(newcomer, 0);
                return slot;
            }
            0
        } else {
            CONTEST.min(self.classes[class].settled.len())
        };
        for _ in 0..contestants {
            let Some((slot, score)) = self.step(class, |slot| look(slot, Look::Ageing)) else {
                continue;
            };
            let unused = self.now.wrapping_sub(self.nodes[slot as usize].stamp);
            let inertia = if change {
                0
            } else {
                INERTIA * u32::from(score)
            };
            if unused > interval.saturating_mul(1 + inertia) {
                self.settle(newcomer, 0);
                return slot;
            }
        }
        self.classes[class].newcomers.advance(&self.nodes);
        newcomer
    }
}
