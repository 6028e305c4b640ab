//! The writer's side of a buffer: one claimed range.

use std::fmt;
use std::ops::Range;

use smallvec::SmallVec;

use super::core::BufferCore;
use super::extents::Progress;
use crate::frames::Frame;
use crate::sync::Counted;

/// The part of a claim within one frame.
#[derive(Debug)]
pub(super) struct FramePart {
    pub(super) frame: Counted<Frame>,
    /// Buffer offset of the frame's first byte.
    pub(super) frame_offset: u64,
    /// Buffer offset at which the claim or the frame ends.
    pub(super) end: u64,
}

/// Frame parts of one claim in order; most claims have one.
type FrameParts = smallvec::IntoIter<[FramePart; 1]>;

/// The exclusive right to write one range of a buffer, from its start on. Readers see written bytes at once.
///
/// Writing takes no lock and shares no atomic with other claims. If it is dropped early, the written bytes stay and the rest
/// becomes a hole that can be claimed again. Bytes written after the buffer failed or was cancelled are discarded.
#[must_use = "dropping it gives the range back"]
pub struct WriteClaim {
    core: Counted<BufferCore>,
    progress: Counted<Progress>,
    range: Range<u64>,
    position: u64,
    part: Option<FramePart>,
    later_parts: FrameParts,
}

impl WriteClaim {
    /// Takes over a range that was just entered in the extents, with its frame parts in order.
    pub(super) fn new(
        core: &Counted<BufferCore>,
        progress: Counted<Progress>,
        range: Range<u64>,
        parts: SmallVec<[FramePart; 1]>,
    ) -> Self {
        let mut parts = parts.into_iter();
        Self {
            core: Counted::clone(core),
            progress,
            position: range.start,
            range,
            part: parts.next(),
            later_parts: parts,
        }
    }

    /// Claimed range. May be shorter than the requested one.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Bytes not written yet.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.range.end - self.position
    }

    /// Returns the memory of the next bytes, up to the end of a frame, to be filled from its start. Call [`Self::advance`] after
    /// that. Empty when nothing remains. Holds the bytes of its last use.
    pub fn spare(&mut self) -> &mut [u8] {
        match &self.part {
            Some(part) => {
                let from = self.position - part.frame_offset;
                let to = part.end - part.frame_offset;
                if from == 0 {
                    part.frame.populate(to as usize);
                }
                // SAFETY: claimed, so only this claim accesses these bytes; `&mut self` ends the slice before the next `advance`.
                unsafe { part.frame.slice_mut_unchecked(from as usize..to as usize) }
            }
            None => &mut [],
        }
    }

    /// Marks the first `n` bytes of [`Self::spare`] as written. Readers see them at once.
    ///
    /// # Panics
    /// If `n` exceeds the length of [`Self::spare`].
    pub fn advance(&mut self, n: usize) {
        if n == 0 {
            return;
        }
        let spare = self
            .part
            .as_ref()
            .map_or(0, |part| part.end - self.position);
        assert!(
            n as u64 <= spare,
            "{n} bytes do not fit the {spare} that are spare"
        );
        self.position += n as u64;
        self.progress.raise(self.position - self.range.start);
        if n as u64 == spare {
            // Drops the reference to a full frame, also at the last part.
            self.part = self.later_parts.next();
        }
        if self.position == self.range.end {
            self.core.finish_claim(&self.range, self.position);
        }
        self.core.notify();
    }

    /// Appends as much of `bytes` as fits the range. Returns how much that was.
    pub fn write(&mut self, mut bytes: &[u8]) -> usize {
        let len = bytes.len();
        while !bytes.is_empty() {
            let spare = self.spare();
            let n = bytes.len().min(spare.len());
            if n == 0 {
                break;
            }
            spare[..n].copy_from_slice(&bytes[..n]);
            self.advance(n);
            bytes = &bytes[n..];
        }
        len - bytes.len()
    }
}

impl fmt::Debug for WriteClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteClaim")
            .field("range", &self.range)
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

impl Drop for WriteClaim {
    fn drop(&mut self) {
        // A complete claim was finished by its last `advance`.
        if self.position < self.range.end {
            self.core.finish_claim(&self.range, self.position);
            self.core.notify();
        }
    }
}
