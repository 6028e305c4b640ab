//! The budget: one exact ledger of committed memory.

use std::sync::Arc;
use std::time::Duration;

use crate::arena::{Arena, CLASSES, Class};
use crate::error::PoolError;
use crate::frame::Frame;
use crate::queue::Turnstile;
use crate::sync::{Mutex, Step, skipped};

/// Whose guarantee a charge counts against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Share {
    /// Blocks, resident or on their way in, and what serves reads.
    Download = 0,
    /// What writes hold until the origin has it.
    Upload = 1,
}

impl Share {
    fn other(self) -> Self {
        match self {
            Self::Download => Self::Upload,
            Self::Upload => Self::Download,
        }
    }
}

/// Sizes of a [`crate::BlockPool`], in bytes, and when its housekeeping is slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolConfig {
    /// The ceiling of all committed memory: frames in use, idle frames, reservations.
    pub limit: u64,
    /// The highest the limit may ever be raised to: addresses are reserved for so much, memory is not.
    pub ceiling: u64,
    /// What uploads always leave to downloads.
    pub download_guarantee: u64,
    /// What downloads always leave to uploads. Resident blocks count as downloads.
    pub upload_guarantee: u64,
    /// An eviction that takes longer than this is reported: a warning, and [`crate::PoolStats::slow_evictions`].
    pub slow_eviction: Duration,
    /// So is one that looks at each slot more often than this, on average.
    pub slow_eviction_rounds: u32,
}

impl PoolConfig {
    /// A quarter of the limit guaranteed to each side.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        Self {
            limit,
            ceiling: limit,
            download_guarantee: limit / 4,
            upload_guarantee: limit / 4,
            // Whoever waits for a read notices a second; a pass that finds nothing takes four looks at a slot.
            slow_eviction: Duration::from_secs(1),
            slow_eviction_rounds: 10,
        }
    }

    pub(crate) fn check(&self) -> Result<(), PoolError> {
        let guaranteed = self.download_guarantee.checked_add(self.upload_guarantee);
        if self.limit >= crate::MIN_FRAME as u64
            && self.limit <= self.ceiling
            && guaranteed.is_some_and(|sum| sum <= self.limit)
        {
            return Ok(());
        }
        Err(PoolError::Config {
            limit: self.limit,
            ceiling: self.ceiling,
            download: self.download_guarantee,
            upload: self.upload_guarantee,
        })
    }

    /// The same with another limit: the guarantees keep their part of it.
    pub(crate) fn with_limit(&self, limit: u64) -> Self {
        let part = |guarantee: u64| {
            let part = u128::from(guarantee) * u128::from(limit) / u128::from(self.limit);
            u64::try_from(part).unwrap_or(u64::MAX)
        };
        Self {
            limit,
            download_guarantee: part(self.download_guarantee),
            upload_guarantee: part(self.upload_guarantee),
            ..*self
        }
    }

    fn guarantee(&self, share: Share) -> u64 {
        match share {
            Share::Download => self.download_guarantee,
            Share::Upload => self.upload_guarantee,
        }
    }

    /// The most a share can ever hold: all that is not the other's guarantee.
    pub(crate) fn ceiling(&self, share: Share) -> u64 {
        self.limit - self.guarantee(share.other())
    }
}

/// Committed memory: what is taken, what lies idle, what the limit is. A cheap handle; clones are the same budget.
///
/// The sum of live reservations (frames' own included) is `used`, and `used` never exceeds `limit`. A taker of one share may
/// bring the shares' total to at most `limit` less what the other's guarantee still lacks. Idle frames count for no share.
#[derive(Debug, Clone)]
pub struct Budget(pub(crate) Arc<Memory>);

impl Budget {
    /// Bytes charged now, idle frames included.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.0.ledger.lock().used()
    }

    /// The limit, in bytes: [`crate::BlockPool::set_limit`] changes it.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.0.limits().limit
    }

    /// Bytes of free frames that keep their pages. Part of [`Self::used`]; any taker may have them.
    #[must_use]
    pub fn idle(&self) -> u64 {
        self.0.ledger.lock().idle
    }

    /// Bytes charged to one share.
    #[must_use]
    pub fn held(&self, share: Share) -> u64 {
        self.0.ledger.lock().held[share as usize]
    }

    /// Takers waiting in line.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.0.turnstile.waiting()
    }

    /// Charges memory that is not a frame. Never waits, never evicts a block, never overtakes a waiter of its share.
    #[must_use]
    pub fn try_reserve(&self, share: Share, bytes: u64) -> Option<Reservation> {
        if self.0.turnstile.in_line(share) || !self.0.charge(share, bytes) {
            return None;
        }
        Some(Reservation {
            memory: Arc::clone(&self.0),
            share,
            bytes,
        })
    }
}

/// A charge for bytes that are not a frame. Released when dropped.
#[must_use = "dropping it releases the charge"]
pub struct Reservation {
    memory: Arc<Memory>,
    share: Share,
    bytes: u64,
}

impl Reservation {
    /// Bytes charged.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn share(&self) -> Share {
        self.share
    }

    /// Releases what exceeds `bytes`. A larger size changes nothing.
    pub fn shrink_to(&mut self, bytes: u64) {
        let released = self.bytes.saturating_sub(bytes);
        if released == 0 {
            return;
        }
        self.bytes = bytes;
        self.memory.release(self.share, released);
    }

    /// Adds the charge of `other` to this one.
    ///
    /// # Panics
    /// If the two are of different budgets or shares.
    pub fn merge(&mut self, mut other: Self) {
        assert!(
            Arc::ptr_eq(&self.memory, &other.memory) && self.share == other.share,
            "charges of one budget and share can be merged"
        );
        self.bytes += std::mem::take(&mut other.bytes);
    }
}

impl std::fmt::Debug for Reservation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reservation")
            .field("share", &self.share)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.memory.release(self.share, self.bytes);
    }
}

/// Result of [`Memory::take`] and [`Memory::take_bytes`].
#[derive(Debug)]
pub(crate) enum Supply<T> {
    /// At least the minimum.
    Taken(T),
    /// Evicting this many bytes would give more.
    Short(u64),
    /// Less than the minimum, and evicting would not help.
    Nothing,
}

/// The ledger, the frames it speaks of, and the line of those who wait for them. Outlived by no frame and no reservation.
#[derive(Debug)]
pub(crate) struct Memory {
    /// As the pool was made. The limits in force are the ledger's.
    config: PoolConfig,
    ledger: Mutex<Ledger>,
    turnstile: Turnstile,
    arena: Arena,
}

#[derive(Debug)]
struct Ledger {
    limits: PoolConfig,
    /// Bytes charged to each share.
    held: [u64; 2],
    /// Bytes of the idle frames of all classes.
    idle: u64,
    classes: [ClassFrames; CLASSES],
}

/// The frames of one class nobody owns, by number.
#[derive(Debug, Default)]
struct ClassFrames {
    /// Committed and charged as idle.
    idle: Vec<u32>,
    /// Decommitted: addresses to use again.
    vacant: Vec<u32>,
    /// Numbers from here on were never used.
    unused: u32,
}

impl Ledger {
    fn spoken_for(&self) -> u64 {
        self.held[0] + self.held[1]
    }

    fn used(&self) -> u64 {
        self.spoken_for() + self.idle
    }

    /// What a taker of `share` finds gone from the limit: what both hold, and what the other's guarantee still lacks.
    fn gone(&self, share: Share) -> u64 {
        let other = share.other();
        self.held[share as usize] + self.held[other as usize].max(self.limits.guarantee(other))
    }

    /// Bytes that `share` gains from evicting `evictable` bytes of blocks. Blocks are the downloads': below the downloads'
    /// guarantee an upload gains nothing.
    fn gain(&self, share: Share, evictable: u64) -> u64 {
        match share {
            Share::Download => evictable,
            Share::Upload => evictable.min(
                self.held[Share::Download as usize].saturating_sub(self.limits.download_guarantee),
            ),
        }
    }

    /// Makes physical room for `bytes` by decommitting idle frames. `spoken_for + bytes` is within the limit.
    ///
    /// The system call is made under the lock: it costs microseconds, happens only when the mix of classes changes, and keeps
    /// the charge and the pages in step.
    fn make_room(&mut self, bytes: u64, arena: &Arena) {
        for class in Class::all().rev() {
            while self.used() + bytes > self.limits.limit {
                let Some(index) = self.classes[class.index()].idle.pop() else {
                    break;
                };
                // SAFETY: an idle frame belongs to the ledger.
                unsafe { arena.decommit(class, index) };
                self.classes[class.index()].vacant.push(index);
                self.idle -= class.bytes();
            }
        }
        debug_assert!(
            self.used() + bytes <= self.limits.limit,
            "all that no share holds is idle, and was given back"
        );
    }

    /// One frame for `share`, whose room was checked: idle ones first. Answers its number, and whether it has no pages yet.
    fn frame(&mut self, share: Share, class: Class, arena: &Arena) -> (u32, bool) {
        let idle = self.classes[class.index()].idle.pop();
        let index = if let Some(index) = idle {
            self.idle -= class.bytes();
            index
        } else {
            self.make_room(class.bytes(), arena);
            let frames = &mut self.classes[class.index()];
            frames.vacant.pop().unwrap_or_else(|| {
                frames.unused += 1;
                frames.unused - 1
            })
        };
        self.held[share as usize] += class.bytes();
        (index, idle.is_none())
    }
}

impl Memory {
    pub(crate) fn new(config: PoolConfig) -> Result<Arc<Self>, PoolError> {
        config.check()?;
        let arena = Arena::new(config.ceiling)?;
        Ok(Arc::new(Self {
            config,
            ledger: Mutex::new(Ledger {
                limits: config,
                held: [0; 2],
                idle: 0,
                classes: Default::default(),
            }),
            turnstile: Turnstile::new(),
            arena,
        }))
    }

    /// As the pool was made.
    pub(crate) fn config(&self) -> &PoolConfig {
        &self.config
    }

    /// The limits in force.
    pub(crate) fn limits(&self) -> PoolConfig {
        self.ledger.lock().limits
    }

    /// Sets the limit if what is held fits it; idle frames give way. Answers what is held too much otherwise, in bytes.
    pub(crate) fn try_limit(&self, limits: PoolConfig) -> Result<(), u64> {
        let mut ledger = self.ledger.lock();
        let over = ledger.spoken_for().saturating_sub(limits.limit);
        if over > 0 {
            return Err(over);
        }
        ledger.limits = limits;
        ledger.make_room(0, &self.arena);
        Ok(())
    }

    #[inline]
    pub(crate) fn turnstile(&self) -> &Turnstile {
        &self.turnstile
    }

    pub(crate) fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Takes up to `max` frames and at least `min`, all at once or none.
    ///
    /// `evictable` bounds what evicting blocks could free, in bytes; while more frames could be had that way, the answer is
    /// how much to evict. With 0, what can be had now is taken.
    pub(crate) fn take(
        self: &Arc<Self>,
        share: Share,
        class: Class,
        (min, max): (usize, usize),
        evictable: u64,
    ) -> Supply<Vec<Frame>> {
        let size = class.bytes();
        let mut ledger = self.ledger.lock();
        let limits = ledger.limits;
        let gone = ledger.gone(share);
        let fits = |bytes: u64| usize::try_from(bytes / size).unwrap_or(usize::MAX).min(max);
        let now = fits(limits.limit.saturating_sub(gone));
        if now < max {
            let gain = ledger.gain(share, evictable);
            let after = fits((limits.limit + gain).saturating_sub(gone));
            if after > now && after >= min {
                return Supply::Short(gone + after as u64 * size - limits.limit);
            }
            if now < min {
                return Supply::Nothing;
            }
        }
        if skipped(Step::Charge) {
            drop(ledger);
            ledger = self.ledger.lock();
        }
        let indices: Vec<(u32, bool)> = (0..now)
            .map(|_| ledger.frame(share, class, &self.arena))
            .collect();
        drop(ledger);
        Supply::Taken(
            indices
                .into_iter()
                .map(|(index, fresh)| Frame::new(self, class, index, share, fresh))
                .collect(),
        )
    }

    /// Charges `bytes` that are not a frame. `evictable` as in [`Self::take`]: with 0, only what is free counts.
    pub(crate) fn take_bytes(
        self: &Arc<Self>,
        share: Share,
        bytes: u64,
        evictable: u64,
    ) -> Supply<Reservation> {
        let over = {
            let mut ledger = self.ledger.lock();
            let limit = ledger.limits.limit;
            let over = ledger
                .gone(share)
                .saturating_add(bytes)
                .saturating_sub(limit);
            if over > ledger.gain(share, evictable) {
                return Supply::Nothing;
            }
            if over == 0 {
                ledger.make_room(bytes, &self.arena);
                ledger.held[share as usize] += bytes;
            }
            over
        };
        if over > 0 {
            return Supply::Short(over);
        }
        Supply::Taken(Reservation {
            memory: Arc::clone(self),
            share,
            bytes,
        })
    }

    /// Releases the charge of bytes that were not a frame.
    fn release(&self, share: Share, bytes: u64) {
        self.ledger.lock().held[share as usize] -= bytes;
        self.turnstile.wake();
    }

    /// Charges `bytes` that are no frame, if there is room.
    fn charge(&self, share: Share, bytes: u64) -> bool {
        let mut ledger = self.ledger.lock();
        let fits = ledger
            .gone(share)
            .checked_add(bytes)
            .is_some_and(|all| all <= ledger.limits.limit);
        if fits {
            ledger.make_room(bytes, &self.arena);
            ledger.held[share as usize] += bytes;
        }
        fits
    }

    /// Takes a frame back as idle.
    pub(crate) fn put_back(&self, share: Share, class: Class, index: u32) {
        {
            let mut ledger = self.ledger.lock();
            ledger.held[share as usize] -= class.bytes();
            ledger.idle += class.bytes();
            ledger.classes[class.index()].idle.push(index);
        }
        self.turnstile.wake();
    }

    /// Moves a charge between shares. The total stays; the other's guarantee may be cut into until memory is next given back.
    pub(crate) fn transfer(&self, from: Share, to: Share, bytes: u64) {
        {
            let mut ledger = self.ledger.lock();
            ledger.held[from as usize] -= bytes;
            ledger.held[to as usize] += bytes;
        }
        self.turnstile.wake();
    }
}
