//! For tests: segments and slot files in memory, on a disk that tears, loses, stalls, fills, fails and flips.
#![cfg_attr(
    not(test),
    allow(dead_code, reason = "tests of other crates need a part of it")
)]

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use rustix::io::Errno;

use crate::format::PAGE;
use crate::slots::{SlotFile, SlotStorage};
use crate::storage::{SegmentFile, Storage};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    Open,
    Allocate,
    Discard,
    Truncate,
    Read,
    Write,
    Sync,
    Remove,
}

/// Calls that fail.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fault {
    pub(crate) operation: Operation,
    /// Of this segment only.
    pub(crate) segment: Option<u32>,
    /// Number of calls that succeed before.
    pub(crate) after: u32,
    /// Number of calls that fail.
    pub(crate) times: u32,
    pub(crate) error: Errno,
}

impl Fault {
    /// All calls of an operation fail.
    pub(crate) fn all(operation: Operation, error: Errno) -> Self {
        Self {
            operation,
            segment: None,
            after: 0,
            times: u32::MAX,
            error,
        }
    }
}

type Content = Arc<Mutex<Vec<u8>>>;

#[derive(Debug, Default)]
struct State {
    segments: BTreeMap<u32, Content>,
    /// Pages of slot files that were discarded.
    holes: BTreeSet<(u32, u64)>,
    faults: Vec<Fault>,
    /// Calls that failed.
    failed: u32,
    /// Max bytes of all segments.
    capacity: Option<u64>,
    /// Writes until one is torn, and the seed that draws its pages.
    tear: Option<(u32, u64)>,
    torn: bool,
    /// Writes until one is lost.
    lose: Option<u32>,
    /// Operation whose calls do not return, after this number of calls that do.
    stalled: Option<(Operation, u32)>,
    /// Number of such calls that wait.
    waiting: usize,
    /// Time that each call of an operation takes.
    delayed: Option<(Operation, Duration)>,
}

impl State {
    fn allocated(&self) -> u64 {
        let contents = self.segments.values();
        let bytes: u64 = contents.map(|content| content.lock().len() as u64).sum();
        bytes - self.holes.len() as u64 * PAGE as u64
    }

    /// Whether `bytes` more bytes do not fit.
    fn is_full(&mut self, bytes: u64) -> bool {
        let full = |capacity| self.allocated() + bytes > capacity;
        let full = self.capacity.is_some_and(full);
        self.failed += u32::from(full);
        full
    }

    fn call(&mut self, operation: Operation, segment: u32) -> io::Result<()> {
        if self.torn && operation != Operation::Read {
            return Err(io::Error::other("the power is out"));
        }
        for fault in &mut self.faults {
            let is_other = fault.segment.is_some_and(|number| number != segment);
            if fault.operation != operation || is_other || fault.times == 0 {
                continue;
            }
            if fault.after > 0 {
                fault.after -= 1;
                continue;
            }
            fault.times -= 1;
            self.failed += 1;
            return Err(fault.error.into());
        }
        Ok(())
    }
}

/// The disk. Once a write was torn, all but reads fails until [`Self::heal`].
#[derive(Debug, Clone, Default)]
pub(crate) struct MemoryStorage(Arc<(Mutex<State>, Condvar)>);

impl MemoryStorage {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.0.lock()
    }

    /// Tears the write after `writes` others: any of its pages reach the disk.
    pub(crate) fn tear_after(&self, writes: u32, seed: u64) {
        self.state().tear = Some((writes, seed));
    }

    /// Loses the write after `writes` others: it succeeds, and no page reaches the disk.
    pub(crate) fn lose_after(&self, writes: u32) {
        self.state().lose = Some(writes);
    }

    pub(crate) fn fail(&self, fault: Fault) {
        self.state().faults.push(fault);
    }

    /// Number of calls that failed.
    pub(crate) fn failed(&self) -> u32 {
        self.state().failed
    }

    /// Sets the number of bytes that other files leave.
    pub(crate) fn set_capacity(&self, bytes: u64) {
        self.state().capacity = Some(bytes);
    }

    /// Reads, or writes, do not return until the disk is healed.
    pub(crate) fn stall(&self, operation: Operation) {
        self.stall_after(operation, 0);
    }

    /// As [`Self::stall`], after `calls` calls that return.
    pub(crate) fn stall_after(&self, operation: Operation, calls: u32) {
        self.state().stalled = Some((operation, calls));
    }

    /// Each read, or write, takes so long until the disk is healed.
    #[cfg(feature = "testing")]
    pub(crate) fn delay(&self, operation: Operation, time: Duration) {
        self.state().delayed = Some((operation, time));
    }

    /// Waits until `calls` calls do not return.
    pub(crate) fn wait_for_stalled(&self, calls: usize) {
        let mut state = self.state();
        while state.waiting < calls {
            self.0.1.wait(&mut state);
        }
    }

    /// Begins a call, when it is not stalled.
    fn begin(&self, operation: Operation) -> MutexGuard<'_, State> {
        let mut state = self.state();
        if let Some((stalled, after @ 1..)) = &mut state.stalled
            && *stalled == operation
        {
            *after -= 1;
            return state;
        }
        if state.stalled == Some((operation, 0)) {
            state.waiting += 1;
            self.0.1.notify_all();
            while state.stalled == Some((operation, 0)) {
                self.0.1.wait(&mut state);
            }
            state.waiting -= 1;
        }
        if let Some((_, time)) = state.delayed.filter(|delayed| delayed.0 == operation) {
            let end = Instant::now() + time;
            while state.delayed.is_some() && !self.0.1.wait_until(&mut state, end).timed_out() {}
        }
        state
    }

    pub(crate) fn heal(&self) {
        let mut state = self.state();
        (state.tear, state.torn, state.lose) = (None, false, None);
        (state.capacity, state.stalled, state.delayed) = (None, None, None);
        state.faults.clear();
        drop(state);
        self.0.1.notify_all();
    }

    pub(crate) fn allocated(&self) -> u64 {
        self.state().allocated()
    }

    /// Returns a disk with the same bytes.
    pub(crate) fn copy(&self) -> Self {
        let state = self.state();
        let segments = state.segments.iter().map(|(number, content)| {
            let bytes = content.lock().clone();
            (*number, Arc::new(Mutex::new(bytes)))
        });
        let copy = State {
            segments: segments.collect(),
            holes: state.holes.clone(),
            ..State::default()
        };
        Self(Arc::new((Mutex::new(copy), Condvar::new())))
    }

    pub(crate) fn segments(&self) -> Vec<u32> {
        self.state().segments.keys().copied().collect()
    }

    /// Changes the bytes of a segment.
    pub(crate) fn change(&self, segment: u32, change: impl FnOnce(&mut Vec<u8>)) {
        change(&mut self.state().segments[&segment].lock());
    }

    /// Flips one bit of one segment.
    pub(crate) fn flip(&self, rng: &mut StdRng) {
        let segments = self.segments();
        let segment = segments[rng.random_range(0..segments.len())];
        self.change(segment, |bytes| {
            let at = rng.random_range(0..bytes.len());
            bytes[at] ^= 1 << rng.random_range(0..8);
        });
    }

    pub(crate) fn rename(&self, from: u32, to: u32) {
        let mut state = self.state();
        let content = state.segments.remove(&from).expect("a segment");
        state.segments.insert(to, content);
    }

    fn file(&self, segment: u32, content: Content) -> Arc<MemoryFile> {
        Arc::new(MemoryFile {
            storage: self.clone(),
            segment,
            content,
        })
    }
}

impl Storage for MemoryStorage {
    fn list(&self) -> io::Result<Vec<u32>> {
        Ok(self.segments())
    }

    fn create(&self, segment: u32, bytes: u64) -> io::Result<Arc<dyn SegmentFile>> {
        let mut state = self.state();
        state.call(Operation::Create, segment)?;
        if state.is_full(bytes) {
            return Err(Errno::NOSPC.into());
        }
        let length = usize::try_from(bytes).expect("a small segment");
        let content = Content::new(Mutex::new(vec![0; length]));
        state.segments.insert(segment, Arc::clone(&content));
        Ok(self.file(segment, content))
    }

    fn open(&self, segment: u32) -> io::Result<(Arc<dyn SegmentFile>, u64)> {
        let mut state = self.state();
        state.call(Operation::Open, segment)?;
        let content = Arc::clone(&state.segments[&segment]);
        let length = content.lock().len() as u64;
        Ok((self.file(segment, content), length))
    }

    fn remove(&self, segment: u32) -> io::Result<()> {
        let mut state = self.state();
        state.call(Operation::Remove, segment)?;
        state.segments.remove(&segment);
        Ok(())
    }
}

#[derive(Debug)]
struct MemoryFile {
    storage: MemoryStorage,
    segment: u32,
    content: Content,
}

impl SegmentFile for MemoryFile {
    fn read(&self, buffer: &mut [u8], page: u32) -> io::Result<()> {
        assert!(buffer.len().is_multiple_of(PAGE) && buffer.as_ptr().align_offset(PAGE) == 0);
        let mut state = self.storage.begin(Operation::Read);
        state.call(Operation::Read, self.segment)?;
        let start = page as usize * PAGE;
        let content = self.content.lock();
        let Some(bytes) = content.get(start..start + buffer.len()) else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        buffer.copy_from_slice(bytes);
        Ok(())
    }

    fn write(&self, pieces: &[&[u8]], page: u32) -> io::Result<()> {
        let mut state = self.storage.begin(Operation::Write);
        state.call(Operation::Write, self.segment)?;
        match &mut state.lose {
            Some(0) => {
                state.lose = None;
                return Ok(());
            }
            Some(writes) => *writes -= 1,
            None => {}
        }
        let mut rng = None;
        match &mut state.tear {
            Some((0, seed)) => rng = Some(StdRng::seed_from_u64(*seed)),
            Some((writes, _)) => *writes -= 1,
            None => {}
        }
        state.torn = rng.is_some();
        let mut content = self.content.lock();
        let mut start = page as usize * PAGE;
        for piece in pieces {
            assert!(piece.len().is_multiple_of(PAGE));
            for page in piece.chunks(PAGE) {
                if rng.as_mut().is_none_or(|rng| rng.random()) {
                    content[start..start + PAGE].copy_from_slice(page);
                }
                start += PAGE;
            }
        }
        match rng {
            Some(_) => Err(io::Error::other("the power went out")),
            None => Ok(()),
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.storage.state().call(Operation::Sync, self.segment)
    }

    fn is_whole(&self, bytes: u64) -> io::Result<bool> {
        let state = self.storage.state();
        let current = state.segments.get(&self.segment);
        Ok(
            current.is_some_and(|current| Arc::ptr_eq(current, &self.content))
                && self.content.lock().len() as u64 == bytes,
        )
    }
}

impl SlotStorage for MemoryStorage {
    fn create(&self, number: u32) -> io::Result<Arc<dyn SlotFile>> {
        let mut state = self.state();
        state.call(Operation::Create, number)?;
        let content = Content::default();
        let taken = state.segments.insert(number, Arc::clone(&content));
        assert!(taken.is_none(), "a number is used once");
        Ok(self.file(number, content))
    }

    fn remove(&self, number: u32) -> io::Result<()> {
        Storage::remove(self, number)?;
        self.state().holes.retain(|(file, _)| *file != number);
        Ok(())
    }

    fn path(&self, number: u32) -> PathBuf {
        PathBuf::from(format!("/scratch/{number}"))
    }
}

fn pages(offset: u64, bytes: u64) -> impl Iterator<Item = u64> {
    offset / PAGE as u64..(offset + bytes).div_ceil(PAGE as u64)
}

impl SlotFile for MemoryFile {
    fn allocate(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let mut state = self.storage.state();
        state.call(Operation::Allocate, self.segment)?;
        let mut content = self.content.lock();
        let end = usize::try_from(offset + bytes).expect("a small file");
        let longer = end.saturating_sub(content.len()) as u64;
        let of_file = pages(offset, bytes).map(|page| (self.segment, page));
        let holes: Vec<_> = of_file.filter(|page| state.holes.contains(page)).collect();
        // Its length is read by `allocated`.
        drop(content);
        if state.is_full(longer + holes.len() as u64 * PAGE as u64) {
            return Err(Errno::NOSPC.into());
        }
        content = self.content.lock();
        let length = content.len().max(end);
        content.resize(length, 0);
        holes.iter().for_each(|page| {
            state.holes.remove(page);
        });
        Ok(())
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let mut state = self.storage.begin(Operation::Read);
        state.call(Operation::Read, self.segment)?;
        let start = usize::try_from(offset).expect("a small file");
        let content = self.content.lock();
        let Some(bytes) = content.get(start..start + buffer.len()) else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        buffer.copy_from_slice(bytes);
        Ok(())
    }

    fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut state = self.storage.begin(Operation::Write);
        state.call(Operation::Write, self.segment)?;
        for page in pages(offset, bytes.len() as u64) {
            assert!(
                !state.holes.contains(&(self.segment, page)),
                "allocated before"
            );
        }
        let start = usize::try_from(offset).expect("a small file");
        self.content.lock()[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn discard(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let mut state = self.storage.state();
        state.call(Operation::Discard, self.segment)?;
        let holes = pages(offset, bytes).map(|page| (self.segment, page));
        state.holes.extend(holes);
        let start = usize::try_from(offset).expect("a small file");
        self.content.lock()[start..][..bytes as usize].fill(0);
        Ok(())
    }

    fn truncate(&self, bytes: u64) -> io::Result<()> {
        let mut state = self.storage.state();
        state.call(Operation::Truncate, self.segment)?;
        let kept = bytes / PAGE as u64;
        state
            .holes
            .retain(|(file, page)| *file != self.segment || *page < kept);
        self.content.lock().truncate(bytes as usize);
        Ok(())
    }
}
