//! The bytes of a frozen buffer. Without a caller but programs that embed the engine: `into_contiguous`.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes, BytesMut};

use super::block_slice::BlockSlice;

/// Bytes of a frozen buffer: one [`Bytes`] a frame, not copied. Each keeps its frame and the charge for it.
#[derive(Debug, Clone, Default)]
pub struct Segments {
    parts: VecDeque<Bytes>,
    len: usize,
}

impl Segments {
    pub(super) fn new(slices: Vec<BlockSlice>) -> Self {
        Self {
            len: slices.iter().map(|slice| slice.len()).sum(),
            parts: slices.into_iter().map(Bytes::from_owner).collect(),
        }
    }

    /// Number of bytes left.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no byte is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The parts in order, one a frame.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Bytes> {
        self.parts.iter()
    }

    /// Returns all bytes in one piece: not copied if one frame holds them, else copied to the heap, outside the budget.
    #[must_use]
    pub fn into_contiguous(mut self) -> Bytes {
        if self.parts.len() == 1 {
            return self.parts.pop_front().unwrap_or_default();
        }
        let mut all = BytesMut::with_capacity(self.len);
        for part in &self.parts {
            all.extend_from_slice(part);
        }
        all.freeze()
    }
}

impl IntoIterator for Segments {
    type Item = Bytes;
    type IntoIter = std::collections::vec_deque::IntoIter<Bytes>;

    fn into_iter(self) -> Self::IntoIter {
        self.parts.into_iter()
    }
}

impl Buf for Segments {
    fn remaining(&self) -> usize {
        self.len
    }

    fn chunk(&self) -> &[u8] {
        self.parts.front().map_or(&[], |part| part)
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let parts = slices.iter_mut().zip(&self.parts);
        parts
            .map(|(slice, part)| *slice = IoSlice::new(part))
            .count()
    }

    fn advance(&mut self, n: usize) {
        // Releases the frames that were passed at once.
        self.take_front(n, drop);
    }

    fn copy_to_bytes(&mut self, n: usize) -> Bytes {
        let mut taken = Self::default();
        self.take_front(n, |part| {
            taken.len += part.len();
            taken.parts.push_back(part);
        });
        taken.into_contiguous()
    }
}

impl Segments {
    /// Removes `n` bytes from the front, part by part.
    fn take_front(&mut self, n: usize, mut taken: impl FnMut(Bytes)) {
        assert!(
            n <= self.len,
            "{n} bytes requested of segments that hold {}",
            self.len
        );
        self.len -= n;
        let mut missing = n;
        while missing > 0 {
            let Some(front) = self.parts.front_mut() else {
                break;
            };
            if front.len() > missing {
                taken(front.split_to(missing));
                break;
            }
            missing -= front.len();
            if let Some(part) = self.parts.pop_front() {
                taken(part);
            }
        }
    }
}
