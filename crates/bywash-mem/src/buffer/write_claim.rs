//! The writer's side: one claim.

use std::ops::Range;

use smallvec::SmallVec;

use super::core::Core;
use super::extents::Progress;
use crate::frame::Frame;
use crate::sync::Counted;

/// A claimed part of a frame.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) frame: Counted<Frame>,
    /// The buffer's offset of the frame's first byte.
    pub(super) first: u64,
    /// Where the claim or the frame ends.
    pub(super) end: u64,
}

/// Those of one claim, in order; most have one.
type Parts = smallvec::IntoIter<[Part; 1]>;

/// The exclusive right to write one range of a buffer, from its start on. Readers see what is written at once.
///
/// Writing takes no lock and shares no word with other shards. Dropped early, what was written stays and the rest becomes a
/// hole that can be claimed again. If the buffer fails or is cancelled meanwhile, what a shard writes is lost without a word.
#[must_use = "dropping it gives the range back"]
pub struct Shard {
    core: Counted<Core>,
    progress: Counted<Progress>,
    range: Range<u64>,
    at: u64,
    part: Option<Part>,
    later: Parts,
}

impl Shard {
    /// Takes over a claim just entered, with the parts of its frames in order.
    pub(super) fn new(
        core: &Counted<Core>,
        progress: Counted<Progress>,
        range: Range<u64>,
        parts: SmallVec<[Part; 1]>,
    ) -> Self {
        let mut parts = parts.into_iter();
        Self {
            core: Counted::clone(core),
            progress,
            at: range.start,
            range,
            part: parts.next(),
            later: parts,
        }
    }

    /// What was claimed. May be less than was asked for.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Bytes still to be written.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.range.end - self.at
    }

    /// The place of the next bytes, up to the end of a frame, to be filled from its start; then [`Self::advance`]. Empty when
    /// nothing remains. Holds whatever was last in that memory.
    pub fn spare(&mut self) -> &mut [u8] {
        match &self.part {
            Some(part) => {
                let (from, to) = (self.at - part.first, part.end - part.first);
                if from == 0 {
                    part.frame.commit(to as usize);
                }
                // SAFETY: claimed, so this shard alone uses these bytes; `&mut self` ends the slice before the next `advance`.
                unsafe { part.frame.unwritten(from as usize..to as usize) }
            }
            None => &mut [],
        }
    }

    /// Says that the first `n` bytes of [`Self::spare`] are written. Readers see them at once.
    ///
    /// # Panics
    /// If `n` exceeds what [`Self::spare`] answers.
    pub fn advance(&mut self, n: usize) {
        if n == 0 {
            return;
        }
        let spare = self.part.as_ref().map_or(0, |part| part.end - self.at);
        assert!(
            n as u64 <= spare,
            "{n} bytes do not fit the {spare} that are spare"
        );
        self.at += n as u64;
        self.progress.raise(self.at - self.range.start);
        if n as u64 == spare {
            // Its frame is let go of with the last part, too.
            self.part = self.later.next();
        }
        if self.at == self.range.end {
            self.core.settle(&self.range, self.at);
        }
        self.core.ring();
    }

    /// Appends as much of `bytes` as fits the range, and answers how much that was.
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

impl std::fmt::Debug for Shard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shard")
            .field("range", &self.range)
            .field("at", &self.at)
            .finish_non_exhaustive()
    }
}

impl Drop for Shard {
    fn drop(&mut self) {
        // A whole one was settled by its last advance.
        if self.at < self.range.end {
            self.core.settle(&self.range, self.at);
            self.core.ring();
        }
    }
}
