//! What a buffer is: frames, extents, how it ended, and who listens. Loads are made of the same.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use smallvec::SmallVec;

use super::error::{FreezeError, WriteAtError};
use super::extents::{Extents, Found};
use super::layout::Layout;
use super::shard::{Part, Shard};
use super::slice::Followed;
use crate::budget::Share;
use crate::frame::Frame;
use crate::pool::BlockPool;
use crate::sync::{
    AtomicU64, Counted, Event, EventListener, Listener, Mutex, Ordering, Step, skipped,
    store_load_fence,
};

/// The shared part of a buffer.
#[derive(Debug)]
pub(crate) struct Core {
    pool: Arc<BlockPool>,
    share: Share,
    layout: Layout,
    /// Locked for moments: to claim, to settle, to find bytes. Never while bytes are copied or frames are taken.
    state: Mutex<State>,
    /// Those who may be asleep on `moved`. Written by `Audience`, read by whoever rings.
    listeners: CachePadded<AtomicU64>,
    /// Rings when more can be read, a claim ends, or the buffer does.
    moved: Event,
}

#[derive(Debug)]
struct State {
    extents: Extents,
    /// By the offset of their first byte. A frame stays until the buffer ends; nothing in it moves.
    frames: BTreeMap<u64, Counted<Frame>>,
    end: End,
}

#[derive(Debug)]
enum End {
    Open,
    /// Complete: to be read, not to be written.
    Closed,
    /// Failed or cancelled.
    Ended(WriteAtError),
}

/// How much of a range to claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Parts {
    /// The first part that is free.
    First,
    /// All that are free.
    Free,
    /// All that are free, if none of the range is in flight.
    FreeUnlessInFlight,
}

/// What was claimed, and what another holds of the same range.
#[derive(Debug)]
pub(super) struct Claimed {
    pub(super) shards: SmallVec<[Shard; 1]>,
    pub(super) in_flight: Option<Range<u64>>,
}

impl State {
    fn open(&self) -> Result<(), WriteAtError> {
        match &self.end {
            End::Open => Ok(()),
            End::Closed => Err(WriteAtError::Closed),
            End::Ended(error) => Err(error.clone()),
        }
    }

    /// The bytes at `offset`, as far as they are written and of one frame.
    fn slice(&self, layout: &Layout, offset: u64, max: usize) -> Result<Option<Followed>, u64> {
        let end = match self.extents.find(offset) {
            Found::Bytes(end) => end,
            Found::Hole(end) => return Err(end),
            Found::End => return Ok(None),
        };
        let span = layout.span(offset);
        // What is written has a frame, for as long as the buffer has not ended.
        let frame = &self.frames[&span.start];
        let len = usize::try_from(end.min(span.end) - offset).map_or(max, |len| len.min(max));
        // SAFETY: written, and of this frame.
        Ok(Some(unsafe {
            Followed::new(frame, (offset - span.start) as usize, len)
        }))
    }
}

impl Core {
    /// A buffer that holds `frames`, which fill its first spans.
    pub(super) fn new(
        pool: &Arc<BlockPool>,
        share: Share,
        layout: Layout,
        frames: Vec<Frame>,
    ) -> Counted<Self> {
        let spans = layout.spans(0..layout.limit());
        let state = State {
            extents: Extents::default(),
            frames: spans
                .zip(frames)
                .map(|(span, frame)| (span.start, fitting(&span, frame)))
                .collect(),
            end: End::Open,
        };
        Self::of(pool, share, layout, state)
    }

    fn of(pool: &Arc<BlockPool>, share: Share, layout: Layout, state: State) -> Counted<Self> {
        Counted::new(Self {
            pool: Arc::clone(pool),
            share,
            layout,
            state: Mutex::new(state),
            listeners: CachePadded::new(AtomicU64::new(0)),
            moved: Event::new(),
        })
    }

    /// A buffer of one frame, of which `len` bytes are to be written, and all of it claimed; no shard if that is nothing.
    ///
    /// # Panics
    /// If they do not fit.
    pub(crate) fn of_frame(
        pool: &Arc<BlockPool>,
        frame: Frame,
        len: usize,
    ) -> (Counted<Self>, Option<Shard>) {
        assert!(
            len <= frame.capacity(),
            "a block of {len} bytes does not fit a frame of {}",
            frame.capacity()
        );
        let range = 0..len as u64;
        let layout = Layout::one(frame.capacity(), range.end);
        let frame = Counted::new(frame);
        let part = Part {
            frame: Counted::clone(&frame),
            first: 0,
            end: range.end,
        };
        let mut state = State {
            extents: Extents::default(),
            frames: BTreeMap::from([(0, frame)]),
            end: End::Open,
        };
        let progress = (len > 0).then(|| state.extents.claim(range.clone()));
        let core = Self::of(pool, Share::Download, layout, state);
        let parts = SmallVec::from_buf([part]);
        let shard = progress.map(|progress| Shard::new(&core, progress, range, parts));
        (core, shard)
    }

    /// The frame of such a buffer, while it has not ended.
    pub(crate) fn frame(&self) -> Counted<Frame> {
        Counted::clone(&self.state.lock().frames[&0])
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Claims parts of a range in one step, once there are frames for all of them.
    pub(super) fn claim(
        core: &Counted<Self>,
        range: Range<u64>,
        parts: Parts,
    ) -> Result<Claimed, WriteAtError> {
        loop {
            let mut state = core.state.lock();
            state.open()?;
            let in_flight = state.extents.in_flight(&range);
            if let Some(range) = in_flight
                .clone()
                .filter(|_| parts == Parts::FreeUnlessInFlight)
            {
                return Err(WriteAtError::InFlight { range });
            }
            let most = if parts == Parts::First { 1 } else { usize::MAX };
            let free: SmallVec<[_; 1]> = state.extents.free(range.clone()).take(most).collect();
            let missing = core.missing(&state, &free)?;
            if missing.is_empty() {
                let shards = free
                    .into_iter()
                    .map(|part| Self::hold(core, &mut state, part))
                    .collect();
                return Ok(Claimed { shards, in_flight });
            }
            drop(state);
            core.grow(&missing)?;
        }
    }

    /// The spans of these ranges that have no frame, if the budget could ever hold all of them.
    fn missing(
        &self,
        state: &State,
        ranges: &[Range<u64>],
    ) -> Result<Vec<Range<u64>>, WriteAtError> {
        let bytes = ranges.iter().map(|range| range.end - range.start).sum();
        // Before they are counted one by one, which for a wild range would itself take memory.
        let many = bytes > self.layout.frame_len();
        if many && bytes > self.pool.memory().limits().ceiling(self.share) {
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

    fn hold(core: &Counted<Self>, state: &mut State, range: Range<u64>) -> Shard {
        let parts: SmallVec<[_; 1]> = core
            .layout
            .spans(range.clone())
            .map(|span| Part {
                frame: Counted::clone(&state.frames[&span.start]),
                first: span.start,
                end: span.end.min(range.end),
            })
            .collect();
        let progress = state.extents.claim(range.clone());
        Shard::new(core, progress, range, parts)
    }

    /// Gives these spans frames. Taken outside the lock, so two may bring one for the same span: the first stays.
    fn grow(&self, missing: &[Range<u64>]) -> Result<(), WriteAtError> {
        let mut frames = Vec::new();
        for alike in missing.chunk_by(|a, b| a.end - a.start == b.end - b.start) {
            let len = alike[0].end - alike[0].start;
            let more = self
                .pool
                .try_frames(self.share, len as usize, alike.len(), alike.len())
                .ok_or(WriteAtError::Memory {
                    bytes: len.saturating_mul(alike.len() as u64),
                })?;
            frames.extend(in_order_of_use(more));
        }
        let mut late = Vec::new();
        let mut state = self.state.lock();
        state.open()?;
        for (span, frame) in missing.iter().zip(frames) {
            let frame = fitting(span, frame);
            if skipped(Step::FirstFrame) || !state.frames.contains_key(&span.start) {
                late.extend(state.frames.insert(span.start, frame));
            } else {
                late.push(frame);
            }
        }
        drop(state);
        // Given back outside the lock.
        drop(late);
        Ok(())
    }

    /// Ends a claim that came as far as `written`.
    pub(super) fn settle(&self, claim: &Range<u64>, written: u64) {
        self.state.lock().extents.settle(claim.start, written);
    }

    /// Something changed: whoever sleeps on it looks again.
    #[inline]
    pub(super) fn ring(&self) {
        store_load_fence(Step::Ring);
        // SeqCst: the load after the store of `Progress::raise`; the other half is `Audience::new`, then `Progress::written`.
        if self.listeners.load(Ordering::SeqCst) != 0 {
            self.moved.notify(usize::MAX);
        }
    }

    /// Bytes at `offset`; `None` at or past the last byte written.
    pub(super) fn slice(&self, offset: u64, max: usize) -> Result<Option<Followed>, WriteAtError> {
        let state = self.state.lock();
        if let End::Ended(error) = &state.end {
            return Err(error.clone());
        }
        state
            .slice(&self.layout, offset, max)
            .map_err(|end| WriteAtError::Hole { hole: offset..end })
    }

    /// As `slice`, for a follower: nothing where there may be bytes later.
    pub(super) fn follow(
        &self,
        offset: u64,
        max: usize,
    ) -> Option<Result<Option<Followed>, WriteAtError>> {
        let state = self.state.lock();
        if let End::Ended(error) = &state.end {
            return Some(Err(error.clone()));
        }
        let found = state.slice(&self.layout, offset, max).ok().flatten();
        let closed = matches!(state.end, End::Closed);
        (found.is_some() || closed).then_some(Ok(found))
    }

    /// A look at the extents.
    pub(super) fn extents<R>(&self, look: impl FnOnce(&Extents) -> R) -> R {
        look(&self.state.lock().extents)
    }

    /// Closes the buffer if exactly its first `len` bytes are written (all that were, if no length is given), and answers
    /// them. Frames past them are given back.
    pub(super) fn close(&self, len: Option<u64>) -> Result<Vec<Followed>, FreezeError> {
        let mut state = self.state.lock();
        if let End::Ended(error) = &state.end {
            return Err(error.clone().into());
        }
        let len = len.unwrap_or_else(|| state.extents.size());
        state.extents.complete(len)?;
        state.end = End::Closed;
        let surplus = state.frames.split_off(&len);
        let slices = state
            .frames
            .iter()
            .map(|(&start, frame)| {
                let end = self.layout.span(start).end.min(len);
                // SAFETY: all below `len` is written, as was just checked.
                unsafe { Followed::new(frame, 0, (end - start) as usize) }
            })
            .collect();
        drop(state);
        drop(surplus);
        self.moved.notify(usize::MAX);
        Ok(slices)
    }

    /// Ends an open buffer without its being complete. Its frames go back, but for those that shards or slices still hold.
    pub(crate) fn end(&self, error: WriteAtError) {
        let mut state = self.state.lock();
        if !matches!(state.end, End::Open) {
            return;
        }
        state.end = End::Ended(error);
        let frames = std::mem::take(&mut state.frames);
        drop(state);
        if skipped(Step::Hold) {
            // What a negative control does in place of letting go: the frames are used again while slices may be read.
            for frame in frames.values() {
                frame.touch_mut(0..frame.capacity());
            }
        }
        drop(frames);
        self.moved.notify(usize::MAX);
    }

    /// Closes a load's buffer, which its leader filled.
    pub(crate) fn publish(&self) {
        self.state.lock().end = End::Closed;
        self.moved.notify(usize::MAX);
    }
}

/// Frames that were just taken, in the order in which they were last returned: a buffer of the same size as one before gives
/// each thread the frames that are in its cache.
pub(super) fn in_order_of_use(taken: Vec<Frame>) -> impl Iterator<Item = Frame> {
    taken.into_iter().rev()
}

/// A frame for a span. What shards do without looking rests on its being long enough.
fn fitting(span: &Range<u64>, frame: Frame) -> Counted<Frame> {
    assert!(
        frame.capacity() as u64 >= span.end - span.start,
        "a frame of {} bytes for {span:?}",
        frame.capacity()
    );
    Counted::new(frame)
}

/// Someone who may sleep until the buffer changes. Counted for as long as it lives, so that writers need not ring for nobody.
#[derive(Debug)]
pub(super) struct Audience(Counted<Core>);

impl Audience {
    pub(crate) fn new(core: &Counted<Core>) -> Self {
        // SeqCst: the store before the loads of `Progress::written`; the other half is `Progress::raise`, then `Core::ring`.
        core.listeners.fetch_add(1, Ordering::SeqCst);
        store_load_fence(Step::Ring);
        Self(Counted::clone(core))
    }

    pub(crate) fn core(&self) -> &Counted<Core> {
        &self.0
    }

    /// Listens for a change. Listen first, then look, then wait: a change between is kept.
    pub(crate) fn listen(&self) -> EventListener {
        self.0.moved.listen()
    }

    /// Looks until it finds, and sleeps in between.
    pub(crate) async fn until<T>(&self, mut look: impl FnMut() -> Option<T>) -> T {
        loop {
            let listener = self.listen();
            if let Some(found) = look() {
                return found;
            }
            listener.await;
        }
    }

    /// [`Self::until`], blocking the thread.
    pub(crate) fn until_blocking<T>(&self, mut look: impl FnMut() -> Option<T>) -> T {
        loop {
            let listener = self.listen();
            if let Some(found) = look() {
                return found;
            }
            listener.wait();
        }
    }
}

impl Drop for Audience {
    fn drop(&mut self) {
        // Relaxed: who still reads the old count in `ring` rings for nobody.
        self.0.listeners.fetch_sub(1, Ordering::Relaxed);
    }
}
