//! Memory reserved from the budget for rows and names.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bywash_mem::{Budget, FrameVec, MIN_FRAME, Reservation, Share, SharedFrame};
use parking_lot::Mutex;

use crate::Point;

/// Bytes reserved from the budget at a time, so that its lock is taken once in some thousand blocks.
const STEP: u64 = 1 << 20;

/// Max bytes of a frame with blocks of rows: the system gives it as one huge page, whose page fault
/// costs less than 512 faults of small ones.
const FRAME_BYTES: u64 = 2 << 20;
/// Fraction of the limit that a frame takes at most.
const FRAME_DIVISOR: u64 = 32;

/// Frames that are being cut at once; further writers take blocks from the heap. Bounds the memory
/// that frames use in addition to their blocks.
const OPEN_FRAMES: usize = 4;

/// Frames that are being cut.
#[derive(Debug, Default)]
struct OpenFrames {
    /// Frames that no writer has out.
    with_room: Vec<SharedFrame>,
    /// Number of all frames that are being cut.
    count: usize,
}

/// Memory of rows, by location.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RowMemory {
    heap: u64,
    frames: u64,
}

impl RowMemory {
    pub(crate) fn heap(bytes: u64) -> Self {
        Self {
            heap: bytes,
            frames: 0,
        }
    }

    /// Memory of a block.
    pub(super) fn of(block: &FrameVec<Point>) -> Self {
        let bytes = (block.capacity() * size_of::<Point>()) as u64;
        if block.is_in_frame() {
            Self {
                heap: 0,
                frames: bytes,
            }
        } else {
            Self::heap(bytes)
        }
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            heap: self.heap + other.heap,
            frames: self.frames + other.frames,
        }
    }
}

/// Charges against the budget: reserved in steps, charged by the block.
#[derive(Debug)]
pub(crate) struct MemoryReservation {
    budget: Budget,
    /// Max bytes charged.
    limit: u64,
    step: u64,
    /// Bytes charged on the heap.
    used: AtomicU64,
    /// Bytes of blocks in frames, which the pool charges.
    framed: AtomicU64,
    /// A writer takes a frame out while it takes a block of it, so that none waits for another's new frame.
    frames: Mutex<OpenFrames>,
    frame_bytes: usize,
    /// Bytes reserved.
    held: AtomicU64,
    reservations: Mutex<Vec<Reservation>>,
    /// Whether the limit does not apply yet.
    replaying: AtomicBool,
}

impl MemoryReservation {
    pub(crate) fn new(budget: Budget, limit: u64) -> Self {
        Self {
            budget,
            limit,
            step: STEP.min((limit / 16).max(1)),
            used: AtomicU64::new(0),
            framed: AtomicU64::new(0),
            frames: Mutex::default(),
            frame_bytes: frame_bytes(limit),
            held: AtomicU64::new(0),
            reservations: Mutex::new(Vec::new()),
            replaying: AtomicBool::new(false),
        }
    }

    /// Charges any bytes until [`Self::end_replay`]: the contents of the log were accepted, perhaps
    /// under a higher limit or a lower charge for a name. Bytes that the budget does not have are
    /// not reserved. At most as much as the process that wrote the log had in memory.
    pub(crate) fn begin_replay(&self) {
        // Relaxed: the threads of the replay start after this.
        self.replaying.store(true, Ordering::Relaxed);
    }

    /// Applies the limit from now on. Returns by how many bytes the replay exceeded it.
    pub(crate) fn end_replay(&self) -> u64 {
        // Relaxed: the threads of the replay have ended.
        self.replaying.store(false, Ordering::Relaxed);
        self.used().saturating_sub(self.limit)
    }

    /// Charges bytes. Returns false, and charges nothing, if the limit or the budget does not allow it.
    pub(crate) fn try_charge(&self, bytes: u64) -> bool {
        // Relaxed: only the count matters.
        let used = self.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        // Relaxed: as above.
        let fits = used + self.framed.load(Ordering::Relaxed) <= self.limit;
        // Relaxed: as above.
        if fits && (used <= self.held.load(Ordering::Relaxed) || self.reserve(used)) {
            return true;
        }
        // Relaxed: as in `begin_replay`.
        if self.replaying.load(Ordering::Relaxed) {
            let _ = self.reserve(used);
            return true;
        }
        // Relaxed: as above.
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        false
    }

    #[cold]
    fn reserve(&self, used: u64) -> bool {
        let mut reservations = self.reservations.lock();
        // Relaxed: written under the lock.
        let held = self.held.load(Ordering::Relaxed);
        if used <= held {
            return true;
        }
        let missing = (used - held).div_ceil(self.step) * self.step;
        let Some(reservation) = self.budget.try_reserve(Share::Upload, missing) else {
            return false;
        };
        reservations.push(reservation);
        // Relaxed: as above.
        self.held.store(held + missing, Ordering::Relaxed);
        true
    }

    /// Charges and returns an empty block: in a frame, or on the heap if the pool has no frame. `None` if the limit or the budget
    /// does not allow it.
    pub(super) fn try_block(&self, points: usize) -> Option<FrameVec<Point>> {
        let bytes = (points * size_of::<Point>()) as u64;
        // Relaxed: only the count matters.
        let framed = self.framed.fetch_add(bytes, Ordering::Relaxed) + bytes;
        // Relaxed: as above.
        if framed + self.used.load(Ordering::Relaxed) <= self.limit
            && let Some(block) = self.block_in_frame(points)
        {
            return Some(block);
        }
        // Relaxed: as above.
        self.framed.fetch_sub(bytes, Ordering::Relaxed);
        self.try_charge(bytes)
            .then(|| FrameVec::with_capacity(points))
    }

    fn block_in_frame(&self, points: usize) -> Option<FrameVec<Point>> {
        let mut taken = {
            let mut open = self.frames.lock();
            let taken = open.with_room.pop();
            if taken.is_none() {
                if open.count == OPEN_FRAMES {
                    return None;
                }
                open.count += 1;
            }
            taken
        };
        let mut block = taken.as_mut().and_then(|frame| frame.vec(points));
        if block.is_none() {
            // The frame is full, or there was none.
            let frame = self.budget.try_frame(Share::Upload, self.frame_bytes);
            taken = frame.map(SharedFrame::new);
            block = taken.as_mut().and_then(|frame| frame.vec(points));
        }
        let mut open = self.frames.lock();
        match taken {
            Some(frame) => open.with_room.push(frame),
            None => open.count -= 1,
        }
        block
    }

    /// Releases charged memory.
    pub(crate) fn release(&self, memory: RowMemory) {
        // Relaxed: only the count matters.
        let framed = self.framed.fetch_sub(memory.frames, Ordering::Relaxed);
        if framed == memory.frames {
            // The used parts of a frame are free only when the whole frame is.
            let mut open = self.frames.lock();
            open.count -= open.with_room.len();
            open.with_room.clear();
        }
        // Relaxed: only the count matters.
        self.used.fetch_sub(memory.heap, Ordering::Relaxed);
        let mut reservations = self.reservations.lock();
        // Keep one step for concurrent charges.
        // Relaxed: `held` is written under the lock; of `used` only the count matters.
        while let Some(last) = reservations.last()
            && self.used.load(Ordering::Relaxed) + self.step + last.bytes()
                <= self.held.load(Ordering::Relaxed)
        {
            // Relaxed: as above.
            self.held.fetch_sub(last.bytes(), Ordering::Relaxed);
            reservations.pop();
        }
    }

    /// Reserves bytes for a temporary copy, outside of the limit.
    pub(crate) fn reserve_copy(&self, bytes: u64) -> Option<Reservation> {
        self.budget.try_reserve(Share::Upload, bytes)
    }

    /// Bytes charged.
    pub(crate) fn used(&self) -> u64 {
        // Relaxed: only the counts matter.
        self.used.load(Ordering::Relaxed) + self.framed.load(Ordering::Relaxed)
    }

    /// Max bytes charged.
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }
}

/// Bytes of a frame for rows under this limit: a power of two.
fn frame_bytes(limit: u64) -> usize {
    let largest = (limit / FRAME_DIVISOR).clamp(MIN_FRAME as u64, FRAME_BYTES);
    1 << largest.ilog2()
}
