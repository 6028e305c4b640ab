//! Segments in memory, whose writes can be torn.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::format::PAGE;
use crate::storage::{SegmentFile, Storage};

#[derive(Debug, Default)]
struct State {
    segments: BTreeMap<u32, Vec<u8>>,
    /// Writes until one is torn, and what draws its pages.
    tear: Option<(u32, u64)>,
    torn: bool,
}

/// The disk. Once a write was torn, all file operations fail until [`Self::heal`].
#[derive(Debug, Clone, Default)]
pub(super) struct MemoryStorage(Arc<Mutex<State>>);

impl MemoryStorage {
    /// Tears the write after so many others: any of its pages reach the disk.
    pub(super) fn tear_after(&self, writes: u32, seed: u64) {
        self.0.lock().tear = Some((writes, seed));
    }

    pub(super) fn heal(&self) {
        let mut state = self.0.lock();
        (state.tear, state.torn) = (None, false);
    }

    pub(super) fn allocated(&self) -> u64 {
        self.0
            .lock()
            .segments
            .values()
            .map(|bytes| bytes.len() as u64)
            .sum()
    }

    /// Returns a disk with the same bytes.
    pub(super) fn copy(&self) -> Self {
        let segments = self.0.lock().segments.clone();
        Self(Arc::new(Mutex::new(State {
            segments,
            ..State::default()
        })))
    }

    /// Flips one bit of one segment.
    pub(super) fn flip(&self, rng: &mut StdRng) {
        let mut state = self.0.lock();
        let count = state.segments.len();
        let bytes = state
            .segments
            .values_mut()
            .nth(rng.random_range(0..count))
            .expect("a segment");
        let at = rng.random_range(0..bytes.len());
        bytes[at] ^= 1 << rng.random_range(0..8);
    }

    pub(super) fn rename(&self, from: u32, to: u32) {
        let mut state = self.0.lock();
        let bytes = state.segments.remove(&from).expect("a segment");
        state.segments.insert(to, bytes);
    }

    fn file(&self, segment: u32) -> Arc<dyn SegmentFile> {
        Arc::new(MemoryFile {
            storage: self.clone(),
            segment,
        })
    }
}

impl Storage for MemoryStorage {
    fn list(&self) -> io::Result<Vec<u32>> {
        Ok(self.0.lock().segments.keys().copied().collect())
    }

    fn create(&self, segment: u32, bytes: u64) -> io::Result<Arc<dyn SegmentFile>> {
        let mut state = self.0.lock();
        if state.torn {
            return Err(io::Error::other("the power is out"));
        }
        let length = usize::try_from(bytes).expect("a small segment");
        assert!(state.segments.insert(segment, vec![0; length]).is_none());
        Ok(self.file(segment))
    }

    fn open(&self, segment: u32) -> io::Result<(Arc<dyn SegmentFile>, u64)> {
        let length = self.0.lock().segments[&segment].len() as u64;
        Ok((self.file(segment), length))
    }

    fn remove(&self, segment: u32) -> io::Result<()> {
        self.0.lock().segments.remove(&segment);
        Ok(())
    }
}

#[derive(Debug)]
struct MemoryFile {
    storage: MemoryStorage,
    segment: u32,
}

impl SegmentFile for MemoryFile {
    fn read(&self, buffer: &mut [u8], page: u32) -> io::Result<()> {
        assert!(buffer.len().is_multiple_of(PAGE) && buffer.as_ptr().align_offset(PAGE) == 0);
        let state = self.storage.0.lock();
        let start = page as usize * PAGE;
        let bytes = &state.segments[&self.segment];
        buffer.copy_from_slice(&bytes[start..start + buffer.len()]);
        Ok(())
    }

    fn write(&self, pieces: &[&[u8]], page: u32) -> io::Result<()> {
        let all = pieces.concat();
        assert!(all.len().is_multiple_of(PAGE));
        let mut state = self.storage.0.lock();
        if state.torn {
            return Err(io::Error::other("the power is out"));
        }
        let mut rng = None;
        match &mut state.tear {
            Some((0, seed)) => rng = Some(StdRng::seed_from_u64(*seed)),
            Some((writes, _)) => *writes -= 1,
            None => {}
        }
        state.torn = rng.is_some();
        let bytes = state
            .segments
            .get_mut(&self.segment)
            .expect("an open segment");
        for (index, content) in all.chunks(PAGE).enumerate() {
            if rng.as_mut().is_none_or(|rng| rng.random()) {
                let start = (page as usize + index) * PAGE;
                bytes[start..start + PAGE].copy_from_slice(content);
            }
        }
        match rng {
            Some(_) => Err(io::Error::other("the power went out")),
            None => Ok(()),
        }
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}
