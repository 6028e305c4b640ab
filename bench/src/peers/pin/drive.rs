//! Threads that pin and unpin: one alone, two with proven overlap, and more than cores.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

use super::designs::Design;
use crate::Failure;
use crate::peers::Pace;
use crate::peers::crew::Crew;

/// Time between two reads of the clock: long compared with the read, short compared with a time slice.
const STRETCH: Duration = Duration::from_micros(100);
/// Duration from which a stretch counts as interrupted by another process.
const INTERRUPTED: Duration = Duration::from_millis(1);
/// Min stretches with proven overlap for a figure.
const MIN_PROVEN: usize = 40;
/// Max time of a turn, which is prolonged until there are enough.
const MAX_TURN: Duration = Duration::from_secs(2);

/// What a turn measured, in nanoseconds a pair of pin and unpin.
#[derive(Debug, Clone, Copy)]
pub(super) struct Figures {
    /// CPU time of the threads.
    pub(super) cpu: f64,
    /// Wall-clock time. One thread: its own. Two: the median of the stretches with proven overlap. More: that of the turn,
    /// divided by the pairs of all threads.
    pub(super) wall: f64,
    /// Two threads: the 90th percentile of those stretches. Else as `wall`.
    pub(super) wall_p90: f64,
    /// Share of the stretches with proven overlap; 0 unless there are two threads.
    pub(super) proven: f64,
}

/// Random choice of the blocks to pin.
#[derive(Debug, Clone, Copy)]
pub(in crate::peers) struct Picks {
    state: u64,
    mask: u64,
}

impl Picks {
    pub(in crate::peers) const BITS: u32 = 31;

    /// Picks among `blocks`, a power of two. A pick of one costs as much as of many.
    pub(in crate::peers) fn new(blocks: u32, seed: usize) -> Self {
        Self {
            state: seed as u64,
            mask: u64::from(blocks) - 1,
        }
    }

    /// Picks any number of [`Self::BITS`] bits.
    pub(in crate::peers) fn all(seed: usize) -> Self {
        Self::new(1 << Self::BITS, seed)
    }

    #[inline]
    pub(in crate::peers) fn next(&mut self) -> u32 {
        // Knuth's MMIX generator; its high bits are the random ones.
        self.state = self
            .state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.state >> 33) & self.mask) as u32
    }
}

pub(in crate::peers) fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

#[inline]
pub(super) fn pairs<D: Design>(design: &D, picks: &mut Picks, thread: u32, count: usize) {
    for _ in 0..count {
        design.pair(picks.next(), thread);
    }
}

/// Runs one thread.
pub(super) fn alone<D: Design>(
    design: &D,
    blocks: u32,
    pace: &mut Pace,
) -> Result<Figures, Failure> {
    let mut picks = Picks::new(blocks, 0);
    let mut elapsed = (Duration::ZERO, 0);
    let cpu = pace.ns(|count| {
        let (begun, cpu) = (Instant::now(), cpu_time());
        // The first two calls are for one operation, which is below the resolution of the clock.
        let count = if count == 1 { 1000 } else { count };
        pairs(design, &mut picks, 0, count);
        elapsed = (begun.elapsed(), count);
        Ok(cpu_time() - cpu)
    })?;
    let wall = elapsed.0.as_nanos() as f64 / elapsed.1 as f64;
    Ok(Figures {
        cpu,
        wall,
        wall_p90: wall,
        proven: 0.0,
    })
}

/// Runs more threads than cores.
pub(super) fn crowd<D: Design>(
    design: &Arc<D>,
    blocks: u32,
    threads: usize,
    crew: &Crew,
    pairs_a_thread: usize,
) -> Result<Figures, Failure> {
    let barrier = Arc::new(Barrier::new(threads));
    let begun = Instant::now();
    let cpu: Duration = crew
        .run((0..threads).map(|thread| {
            let (design, barrier) = (Arc::clone(design), Arc::clone(&barrier));
            move || {
                let mut picks = Picks::new(blocks, thread);
                barrier.wait();
                let cpu = cpu_time();
                pairs(&*design, &mut picks, thread as u32, pairs_a_thread);
                cpu_time() - cpu
            }
        }))?
        .into_iter()
        .sum();
    let all = (threads * pairs_a_thread) as f64;
    let wall = begun.elapsed().as_nanos() as f64 / all;
    Ok(Figures {
        cpu: cpu.as_nanos() as f64 / all,
        wall,
        wall_p90: wall,
        proven: 0.0,
    })
}

/// Start and end of a stretch of work, since a moment common to both threads.
type Stretch = (Duration, Duration);

/// Result of one of two threads.
#[derive(Debug)]
struct Lap {
    stretches: Vec<Stretch>,
    cpu: Duration,
}

/// Runs two threads, each bound to its own core. Counts only stretches during all of which the other thread worked too. The
/// result is not a number if other processes leave too few of them. `pairs_a_stretch` is adapted to the measured contention.
pub(super) fn overlapped<D: Design>(
    design: &Arc<D>,
    blocks: u32,
    crew: &Crew,
    turn: Duration,
    pairs_a_stretch: &mut usize,
) -> Result<Figures, Failure> {
    let cores = two_cores()?;
    let origin = Instant::now();
    let mut seen = Seen::default();
    while seen.proven.len() < MIN_PROVEN && origin.elapsed() < MAX_TURN {
        let (barrier, count) = (Arc::new(Barrier::new(2)), *pairs_a_stretch);
        let laps: Result<Vec<Lap>, Failure> = crew
            .run((0..2).map(|thread| {
                let (design, barrier) = (Arc::clone(design), Arc::clone(&barrier));
                let core = cores[thread];
                move || {
                    bound_to(core, || {
                        barrier.wait();
                        let mut picks = Picks::new(blocks, thread);
                        lap(origin, turn, || {
                            pairs(&*design, &mut picks, thread as u32, count);
                        })
                    })
                }
            }))?
            .into_iter()
            .collect();
        let typical = seen.add(&laps?, count);
        if !(STRETCH / 2..=STRETCH * 2).contains(&typical) {
            *pairs_a_stretch = self::pairs_a_stretch(typical.as_nanos() as f64 / count as f64);
        }
    }
    Ok(seen.figures())
}

/// Returns the number of pairs that fill a stretch, given the time of a pair of one thread alone.
pub(super) fn pairs_a_stretch(ns: f64) -> usize {
    ((STRETCH.as_nanos() as f64 / ns) as usize).max(1)
}

fn lap(origin: Instant, turn: Duration, mut stretch: impl FnMut()) -> Lap {
    let mut stretches = Vec::with_capacity(1 << 14);
    let cpu = cpu_time();
    let begun = origin.elapsed();
    let mut from = begun;
    while from - begun < turn {
        stretch();
        let to = origin.elapsed();
        stretches.push((from, to));
        from = to;
    }
    Lap {
        stretches,
        cpu: cpu_time() - cpu,
    }
}

/// The laps of a turn.
#[derive(Debug, Default)]
struct Seen {
    /// Nanoseconds a pair of each stretch with proven overlap.
    proven: Vec<f64>,
    stretches: usize,
    pairs: usize,
    cpu: Duration,
}

impl Seen {
    /// Adds these laps. Returns the median time of their stretches.
    fn add(&mut self, laps: &[Lap], pairs_a_stretch: usize) -> Duration {
        for (mine, theirs) in laps.iter().zip(laps.iter().rev()) {
            let proven = proven(&mine.stretches, &theirs.stretches).into_iter();
            self.proven
                .extend(proven.map(|took| took.as_nanos() as f64 / pairs_a_stretch as f64));
            self.stretches += mine.stretches.len();
            self.pairs += mine.stretches.len() * pairs_a_stretch;
            self.cpu += mine.cpu;
        }
        let all = laps.iter().flat_map(|lap| &lap.stretches);
        let mut took: Vec<Duration> = all.map(|stretch| stretch.1 - stretch.0).collect();
        took.sort_unstable();
        took.get(took.len() / 2).copied().unwrap_or(STRETCH)
    }

    fn figures(mut self) -> Figures {
        let enough = self.proven.len() >= MIN_PROVEN;
        self.proven.sort_unstable_by(f64::total_cmp);
        let at = |part: f64| {
            let index = (self.proven.len() as f64 * part) as usize;
            let found = self.proven.get(index).filter(|_| enough);
            found.copied().unwrap_or(f64::NAN)
        };
        Figures {
            cpu: self.cpu.as_nanos() as f64 / self.pairs as f64,
            wall: at(0.5),
            wall_p90: at(0.9),
            proven: self.proven.len() as f64 / self.stretches as f64,
        }
    }
}

/// Returns the durations of the uninterrupted stretches of `mine` during all of which the other thread was uninterrupted too.
fn proven(mine: &[Stretch], theirs: &[Stretch]) -> Vec<Duration> {
    let whole = |stretch: &Stretch| stretch.1 - stretch.0 < INTERRUPTED;
    let (Some(first), Some(last)) = (theirs.first(), theirs.last()) else {
        return Vec::new();
    };
    let mut begin = 0;
    let mut found = Vec::new();
    for stretch in mine.iter().filter(|mine| whole(mine)) {
        if stretch.0 < first.0 || stretch.1 > last.1 {
            continue;
        }
        // The stretches of a thread follow one another without a gap.
        while theirs[begin].1 <= stretch.0 {
            begin += 1;
        }
        let beside = theirs[begin..]
            .iter()
            .take_while(|theirs| theirs.0 < stretch.1);
        if beside.into_iter().all(whole) {
            found.push(stretch.1 - stretch.0);
        }
    }
    found
}

fn two_cores() -> Result<[usize; 2], Failure> {
    let allowed = sched_getaffinity(None)?;
    let mut cores = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core));
    match (cores.next(), cores.next()) {
        (Some(one), Some(other)) => Ok([one, other]),
        _ => Err("two threads cannot overlap on one core; allow the benchmark two".into()),
    }
}

/// Runs `work` bound to one core, then restores the affinity of the thread.
fn bound_to<T>(core: usize, work: impl FnOnce() -> T) -> Result<T, Failure> {
    let before = sched_getaffinity(None)?;
    let mut only = CpuSet::new();
    only.set(core);
    sched_setaffinity(None, &only)?;
    let result = work();
    sched_setaffinity(None, &before)?;
    Ok(result)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn stretches(ends_us: &[u64]) -> Vec<Stretch> {
        let at = Duration::from_micros;
        ends_us.windows(2).map(|w| (at(w[0]), at(w[1]))).collect()
    }

    #[test]
    fn only_stretches_beside_uninterrupted_ones_prove_overlap() {
        let mine = stretches(&[0, 100, 200, 300, 400, 500]);
        // Begins late, is interrupted from 250 to 2250.
        let theirs = stretches(&[50, 150, 250, 2250]);
        let found = proven(&mine, &theirs);
        assert_eq!(
            found,
            [Duration::from_micros(100)],
            "only 100 to 200 had company throughout"
        );
        assert!(proven(&mine, &[]).is_empty());
    }

    #[test]
    fn interrupted_stretch_proves_no_overlap() {
        let mine = stretches(&[0, 2000]);
        let theirs = stretches(&[0, 500, 1000, 1500, 2000, 2500]);
        assert!(proven(&mine, &theirs).is_empty());
    }

    #[test]
    fn picks_reach_every_block() {
        let mut picks = Picks::new(64, 1);
        let seen: std::collections::HashSet<u32> = (0..10_000).map(|_| picks.next()).collect();
        assert_eq!(seen.len(), 64);
        let mut one = Picks::new(1, 1);
        assert!((0..100).all(|_| one.next() == 0));
    }
}
