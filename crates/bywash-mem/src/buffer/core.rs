//! The shared state of a buffer: frames, extents, phase, listeners. Loads of blocks use the same state.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use smallvec::SmallVec;

use super::block_slice::BlockSlice;
use super::error::{FreezeError, WriteAtError};
use super::extents::{Extents, Found};
use super::layout::BufferLayout;
use super::write_claim::{FramePart, WriteClaim};
use crate::frames::{Frame, FrameAllocator, Share};
use crate::sync::{AtomicU64, Counted, Event, Mutex, Ordering, Step, skipped, store_load_fence};

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

/// Shared state of one buffer.
#[derive(Debug)]
pub(crate) struct BufferCore {
    allocator: Arc<FrameAllocator>,
    share: Share,
    layout: BufferLayout,
    /// Locked briefly: to claim, to finish a claim, to find bytes. Never while bytes are copied or frames are allocated.
    state: Mutex<BufferState>,
    /// Number of [`super::listener::ChangeListener`]s, which may sleep on `changed`. Written by them, read by every thread that notifies.
    pub(super) listeners: CachePadded<AtomicU64>,
    /// Notified when more can be read, a claim ends, or the buffer ends.
    pub(super) changed: Event,
}

#[derive(Debug)]
struct BufferState {
    extents: Extents,
    /// Frames by the offset of their first byte. A frame stays until the buffer ends and never moves.
    frames: BTreeMap<u64, Counted<Frame>>,
    phase: BufferPhase,
}

#[derive(Debug)]
enum BufferPhase {
    Open,
    /// Complete: readable, no longer writable.
    Closed,
    /// Failed or cancelled.
    Aborted(WriteAtError),
}

/// Part of a range to claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClaimScope {
    /// The first unclaimed part.
    First,
    /// All unclaimed parts.
    All,
    /// All unclaimed parts, if no byte of the range is in flight.
    AllUnlessInFlight,
}

/// New claims, and a range that another claim holds.
#[derive(Debug)]
pub(super) struct Claimed {
    pub(super) claims: SmallVec<[WriteClaim; 1]>,
    pub(super) in_flight: Option<Range<u64>>,
}

impl BufferState {
    fn check_open(&self) -> Result<(), WriteAtError> {
        match &self.phase {
            BufferPhase::Open => Ok(()),
            BufferPhase::Closed => Err(WriteAtError::Closed),
            BufferPhase::Aborted(error) => Err(error.clone()),
        }
    }

    /// Returns the written bytes at `offset` up to the end of their frame. Fails with the end of the hole if there is one.
    fn slice(
        &self,
        layout: &BufferLayout,
        offset: u64,
        max: usize,
    ) -> Result<Option<BlockSlice>, u64> {
        let end = match self.extents.find(offset) {
            Found::Bytes(end) => end,
            Found::Hole(end) => return Err(end),
            Found::End => return Ok(None),
        };
        let span = layout.span(offset);
        // Written bytes have a frame until the buffer is aborted.
        let frame = &self.frames[&span.start];
        let len = usize::try_from(end.min(span.end) - offset).map_or(max, |len| len.min(max));
        // SAFETY: written bytes within this frame.
        Ok(Some(unsafe {
            BlockSlice::new(frame, (offset - span.start) as usize, len)
        }))
    }
}

impl BufferCore {
    /// Creates a buffer with `frames` for its first spans.
    pub(super) fn new(
        allocator: &Arc<FrameAllocator>,
        share: Share,
        layout: BufferLayout,
        frames: Vec<Frame>,
    ) -> Counted<Self> {
        let spans = layout.spans(0..layout.limit());
        let state = BufferState {
            extents: Extents::default(),
            frames: spans
                .zip(frames)
                .map(|(span, frame)| (span.start, check_fits(&span, frame)))
                .collect(),
            phase: BufferPhase::Open,
        };
        Self::with_state(allocator, share, layout, state)
    }

    fn with_state(
        allocator: &Arc<FrameAllocator>,
        share: Share,
        layout: BufferLayout,
        state: BufferState,
    ) -> Counted<Self> {
        Counted::new(Self {
            allocator: Arc::clone(allocator),
            share,
            layout,
            state: Mutex::new(state),
            listeners: CachePadded::new(AtomicU64::new(0)),
            changed: Event::new(),
        })
    }

    /// Creates a buffer of one frame, with a claim of all `len` bytes; no claim if `len` is 0.
    ///
    /// # Panics
    /// If `len` exceeds the frame's capacity.
    pub(crate) fn of_frame(
        allocator: &Arc<FrameAllocator>,
        frame: Frame,
        len: usize,
    ) -> (Counted<Self>, Option<WriteClaim>) {
        assert!(
            len <= frame.capacity(),
            "a block of {len} bytes does not fit a frame of {}",
            frame.capacity()
        );
        let range = 0..len as u64;
        let layout = BufferLayout::single_frame(frame.capacity(), range.end);
        let frame = Counted::new(frame);
        let part = FramePart {
            frame: Counted::clone(&frame),
            frame_offset: 0,
            end: range.end,
        };
        let mut state = BufferState {
            extents: Extents::default(),
            frames: BTreeMap::from([(0, frame)]),
            phase: BufferPhase::Open,
        };
        let progress = (len > 0).then(|| state.extents.claim(range.clone()));
        let core = Self::with_state(allocator, Share::Download, layout, state);
        let parts = SmallVec::from_buf([part]);
        let claim = progress.map(|progress| WriteClaim::new(&core, progress, range, parts));
        (core, claim)
    }

    /// Returns the frame of a buffer made by [`Self::of_frame`] that was not aborted.
    pub(crate) fn frame(&self) -> Counted<Frame> {
        Counted::clone(&self.state.lock().frames[&0])
    }

    pub(super) fn layout(&self) -> &BufferLayout {
        &self.layout
    }

    /// Claims parts of a range in one step, once all parts have frames.
    pub(super) fn claim(
        core: &Counted<Self>,
        range: Range<u64>,
        scope: ClaimScope,
    ) -> Result<Claimed, WriteAtError> {
        loop {
            let mut state = core.state.lock();
            state.check_open()?;
            let in_flight = state.extents.in_flight(&range);
            if let Some(range) = in_flight
                .clone()
                .filter(|_| scope == ClaimScope::AllUnlessInFlight)
            {
                return Err(WriteAtError::InFlight { range });
            }
            let max = if scope == ClaimScope::First {
                1
            } else {
                usize::MAX
            };
            let unclaimed: SmallVec<[_; 1]> =
                state.extents.unclaimed(range.clone()).take(max).collect();
            let missing = core.spans_without_frame(&state, &unclaimed)?;
            if missing.is_empty() {
                let claims = unclaimed
                    .into_iter()
                    .map(|part| Self::claim_part(core, &mut state, part))
                    .collect();
                return Ok(Claimed { claims, in_flight });
            }
            drop(state);
            core.add_frames(&missing)?;
        }
    }

    /// Spans of these ranges that have no frame. Fails if the budget could never hold them.
    fn spans_without_frame(
        &self,
        state: &BufferState,
        ranges: &[Range<u64>],
    ) -> Result<Vec<Range<u64>>, WriteAtError> {
        let bytes = ranges.iter().map(|range| range.end - range.start).sum();
        // Checked before the spans are listed: for a huge range the list itself would take memory.
        let many = bytes > self.layout.frame_len();
        if many && bytes > self.allocator.limits().max_of_share(self.share) {
            return Err(WriteAtError::Memory { bytes });
        }
        let mut missing: Vec<_> = ranges
            .iter()
            .flat_map(|range| self.layout.spans(range.clone()))
            .filter(|span| !state.frames.contains_key(&span.start))
            .collect();
        // Two holes may lie in one span.
        missing.dedup();
        Ok(missing)
    }

    fn claim_part(core: &Counted<Self>, state: &mut BufferState, range: Range<u64>) -> WriteClaim {
        let parts: SmallVec<[_; 1]> = core
            .layout
            .spans(range.clone())
            .map(|span| FramePart {
                frame: Counted::clone(&state.frames[&span.start]),
                frame_offset: span.start,
                end: span.end.min(range.end),
            })
            .collect();
        let progress = state.extents.claim(range.clone());
        WriteClaim::new(core, progress, range, parts)
    }

    /// Allocates frames for these spans, outside the lock. If two threads bring a frame for one span, the first one stays.
    fn add_frames(&self, missing: &[Range<u64>]) -> Result<(), WriteAtError> {
        let mut frames = Vec::new();
        for alike in missing.chunk_by(|a, b| a.end - a.start == b.end - b.start) {
            let len = alike[0].end - alike[0].start;
            let more = self
                .allocator
                .try_frames(self.share, len as usize, alike.len(), alike.len())
                .ok_or(WriteAtError::Memory {
                    bytes: len.saturating_mul(alike.len() as u64),
                })?;
            frames.extend(most_recently_used_first(more));
        }
        let mut surplus = Vec::new();
        let mut state = self.state.lock();
        state.check_open()?;
        for (span, frame) in missing.iter().zip(frames) {
            let frame = check_fits(span, frame);
            if skipped(Step::FirstFrame) || !state.frames.contains_key(&span.start) {
                surplus.extend(state.frames.insert(span.start, frame));
            } else {
                surplus.push(frame);
            }
        }
        drop(state);
        // Released outside the lock.
        drop(surplus);
        Ok(())
    }

    /// Ends a claim with its bytes up to `written` written.
    pub(super) fn finish_claim(&self, claim: &Range<u64>, written: u64) {
        self.state.lock().extents.finish_claim(claim.start, written);
    }

    /// Wakes the listeners, which re-read the state.
    #[inline]
    pub(super) fn notify(&self) {
        store_load_fence(Step::Notify);
        // SeqCst: the load after the store of `Progress::raise`. The other side is `ChangeListener::new`, then `Progress::written`.
        if self.listeners.load(Ordering::SeqCst) != 0 {
            self.changed.notify(usize::MAX);
        }
    }

    /// Returns bytes at `offset`; `None` at or past the last written byte.
    pub(super) fn slice(
        &self,
        offset: u64,
        max: usize,
    ) -> Result<Option<BlockSlice>, WriteAtError> {
        let state = self.state.lock();
        if let BufferPhase::Aborted(error) = &state.phase {
            return Err(error.clone());
        }
        state
            .slice(&self.layout, offset, max)
            .map_err(|end| WriteAtError::Hole { hole: offset..end })
    }

    /// As [`Self::slice`], for a tail reader: `None` outside the result while bytes may still arrive at `offset`.
    pub(super) fn read_tail(
        &self,
        offset: u64,
        max: usize,
    ) -> Option<Result<Option<BlockSlice>, WriteAtError>> {
        let state = self.state.lock();
        if let BufferPhase::Aborted(error) = &state.phase {
            return Some(Err(error.clone()));
        }
        let found = state.slice(&self.layout, offset, max).ok().flatten();
        let closed = matches!(state.phase, BufferPhase::Closed);
        (found.is_some() || closed).then_some(Ok(found))
    }

    /// Calls `read` with the extents, under the lock.
    pub(super) fn with_extents<R>(&self, read: impl FnOnce(&Extents) -> R) -> R {
        read(&self.state.lock().extents)
    }

    /// Closes the buffer if exactly its first `len` bytes are written (all that are written, without a length), and returns them.
    /// Releases the frames after them.
    pub(super) fn close(&self, len: Option<u64>) -> Result<Vec<BlockSlice>, FreezeError> {
        let mut state = self.state.lock();
        if let BufferPhase::Aborted(error) = &state.phase {
            return Err(error.clone().into());
        }
        let len = len.unwrap_or_else(|| state.extents.size());
        state.extents.check_complete(len)?;
        state.phase = BufferPhase::Closed;
        let surplus = state.frames.split_off(&len);
        let slices = state
            .frames
            .iter()
            .map(|(&start, frame)| {
                let end = self.layout.span(start).end.min(len);
                // SAFETY: everything below `len` is written, as just checked.
                unsafe { BlockSlice::new(frame, 0, (end - start) as usize) }
            })
            .collect();
        drop(state);
        drop(surplus);
        self.changed.notify(usize::MAX);
        Ok(slices)
    }

    /// Ends an open buffer that is not complete. Releases its frames, except frames that claims or slices still hold.
    pub(crate) fn abort(&self, error: WriteAtError) {
        let mut state = self.state.lock();
        if !matches!(state.phase, BufferPhase::Open) {
            return;
        }
        state.phase = BufferPhase::Aborted(error);
        let frames = std::mem::take(&mut state.frames);
        drop(state);
        if skipped(Step::SliceHold) {
            // The negative control: frames are reused while slices can still be read.
            for frame in frames.values() {
                // Loom sees the write itself, other tests the bytes.
                #[cfg(loom)]
                frame.note_write(0..frame.capacity());
                // SAFETY: none, which is the fault: the next owner of the frame writes it like this.
                #[cfg(not(loom))]
                unsafe { frame.slice_mut_unchecked(0..frame.capacity()) }.fill(0xDD);
            }
        }
        drop(frames);
        self.changed.notify(usize::MAX);
    }

    /// Closes the buffer of a load after its leader wrote every byte.
    pub(crate) fn close_complete(&self) {
        self.state.lock().phase = BufferPhase::Closed;
        self.changed.notify(usize::MAX);
    }
}

/// Returns newly allocated frames, the last released first. A buffer of the same size as an earlier one then gives each thread
/// frames that are still in its CPU cache.
pub(super) fn most_recently_used_first(allocated: Vec<Frame>) -> impl Iterator<Item = Frame> {
    allocated.into_iter().rev()
}

/// Wraps a frame for a span. Claims rely on its length without a check.
fn check_fits(span: &Range<u64>, frame: Frame) -> Counted<Frame> {
    assert!(
        frame.capacity() as u64 >= span.end - span.start,
        "a frame of {} bytes for {span:?}",
        frame.capacity()
    );
    Counted::new(frame)
}
