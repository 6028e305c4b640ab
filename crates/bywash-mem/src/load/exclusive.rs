//! Changing the key or the length of a resident block, or taking its frame, by the holder of its only pin.
//!
//! The holder first makes sure that its pin is the only one (`ShardedPins::try_own`). Pins that arrive during this are effective and
//! make that fail, so no reader ever finds a block half changed. Then the block is taken out and published again through a [`Load`]
//! of its own, which other callers can wait for as for any load.

use std::sync::Arc;

use super::flights::{Claim, FlightTable};
use super::leader::Load;
use crate::block::{BlockContents, FrameRef, OwnOutcome, OwnedPin};
use crate::frames::{Frame, MAX_FRAME, Share, SizeClass};
use crate::key::BlockKey;
use crate::sync::{Counted, yield_now};

/// A block was not changed. It is as before, and the pin is given back.
#[derive(Debug, thiserror::Error)]
#[error("block {:?} is unchanged: {reason}", pin.key())]
pub struct Refused {
    /// The caller's pin.
    pub pin: OwnedPin,
    /// The reason.
    pub reason: RefusedReason,
}

/// Reason why a block was not changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RefusedReason {
    /// Other pins exist, or readers of its load hold the frame. It may succeed after they are released.
    #[error("other readers hold it; try again after they have released it")]
    Held,
    /// Another block of the new key is resident or being loaded.
    #[error("the new key is taken; erase that block first")]
    KeyTaken,
    /// The block was erased. A block of its key now would be another one.
    #[error("it was erased; load it again")]
    Erased,
    /// No frame of the new size is free.
    #[error("no memory is free for its new size; try again later")]
    Memory,
    /// The new length exceeds the largest frame.
    #[error("a block has at most {MAX_FRAME} bytes; use several")]
    TooLarge,
}

impl FlightTable {
    /// See [`crate::BlockPool::adopt`].
    pub(crate) fn adopt(
        self: &Arc<Self>,
        pin: OwnedPin,
        key: BlockKey,
    ) -> Result<OwnedPin, Refused> {
        let reason = RefusedReason::KeyTaken;
        let Claim::Vacant(load) = self.claim(key) else {
            return Err(Refused { pin, reason });
        };
        let contents = self.take_out(pin)?;
        Ok(publish_again(load, contents))
    }

    /// See [`crate::BlockPool::take`].
    pub(crate) fn take(&self, pin: OwnedPin) -> Result<Frame, Refused> {
        let contents = self.take_out(pin)?;
        Ok(into_frame(contents.frame))
    }

    /// See [`crate::BlockPool::resize`].
    pub(crate) fn resize(self: &Arc<Self>, pin: OwnedPin, len: usize) -> Result<OwnedPin, Refused> {
        let Some(class) = SizeClass::of(len) else {
            let reason = RefusedReason::TooLarge;
            return Err(Refused { pin, reason });
        };
        // SAFETY: this is a pin.
        let charge = unsafe { pin.header().charge() };
        let mut frame = None;
        if class.bytes() != charge {
            frame = self
                .cache()
                .allocator()
                .try_frames(Share::Download, len, 1, 1);
            if frame.is_none() {
                let reason = RefusedReason::Memory;
                return Err(Refused { pin, reason });
            }
        }
        let is_erased = || {
            let doomed = pin.header().word.load().is_doomed();
            doomed && !self.cache().is_findable(pin.key(), pin.slot())
        };
        let Some(load) = self.claim_resident(pin.key(), is_erased) else {
            let reason = RefusedReason::Erased;
            return Err(Refused { pin, reason });
        };
        let mut contents = self.take_out(pin)?;
        let old_len = contents.len as usize;
        let mut resized = into_frame(contents.frame);
        let kept = old_len.min(len);
        if let Some(mut new_frame) = frame.and_then(|mut frames| frames.pop()) {
            new_frame.as_mut_slice()[..kept].copy_from_slice(&resized.as_slice()[..kept]);
            resized = new_frame;
        }
        resized.as_mut_slice()[kept..len].fill(0);
        contents.start = resized.start();
        contents.len = len as u32;
        contents.frame = FrameRef::Owned(resized);
        Ok(publish_again(load, contents))
    }

    /// Takes the block of the caller's pin out of the cache if it is the only pin.
    fn take_out(&self, pin: OwnedPin) -> Result<BlockContents, Refused> {
        let cache = self.cache();
        assert!(pin.is_of(cache), "a pin belongs to one pool");
        let slot = pin.slot();
        let header = cache.slab().header(slot);
        // SAFETY: the caller holds `pin` until `discard_pin` below, after which this is not called.
        let is_unshared = || unsafe { header.is_frame_unshared() };
        loop {
            let seen = header.word.load();
            if seen.is_probed() {
                // An evicting thread reads the shards and will find the caller's pin.
                yield_now();
                continue;
            }
            match cache
                .sharded_pins()
                .try_own(&header.word, seen, 1, is_unshared)
            {
                OwnOutcome::Owned => break,
                OwnOutcome::Changed => {}
                OwnOutcome::Pinned => {
                    let reason = RefusedReason::Held;
                    return Err(Refused { pin, reason });
                }
            }
        }
        // A pin in the word went with the word; one in a shard is still to be removed from there.
        cache.discard_pin(pin);
        // SAFETY: the caller owns the contents.
        let contents = unsafe { header.take() };
        cache.vacate(slot, &contents, false);
        Ok(contents)
    }
}

fn into_frame(frame: FrameRef) -> Frame {
    match frame {
        FrameRef::Owned(frame) => frame,
        FrameRef::Shared(frame) => Counted::try_unwrap(frame)
            .expect("no reader was left when the block was taken out, and none can be created"),
    }
}

fn publish_again(mut load: Load, contents: BlockContents) -> OwnedPin {
    let len = contents.len as usize;
    load.set_options(contents.options);
    load.attach(into_frame(contents.frame), len);
    load.advance(len);
    load.publish()
        .expect("every byte of it was published before")
}
