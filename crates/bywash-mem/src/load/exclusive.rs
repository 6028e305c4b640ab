//! Changing a resident block: only its one holder may, and nobody sees it half changed.
//!
//! The holder first makes sure that its pin is the only one (`Stripes::try_own`: pins that come meanwhile count and make it
//! fail, so there is no moment in which another reader could find the block moved). Then the block is taken out and published
//! anew through a [`Load`] of its own, which others may wait for as for any load.

use std::sync::Arc;

use crate::arena::{Class, MAX_FRAME};
use crate::budget::Share;
use crate::flight::Flight;
use crate::frame::Frame;
use crate::load::Load;
use crate::pin::OwnedPin;
use crate::pool::{BlockKey, BlockPool, Claim};
use crate::slab::{Body, Contents};
use crate::stripes::Owning;
use crate::sync::{Counted, yield_now};

/// A block could not be changed; it is as it was, and the pin is given back.
#[derive(Debug, thiserror::Error)]
#[error("block {:?} is unchanged: {reason}", pin.key())]
pub struct Refused {
    /// The caller's pin.
    pub pin: OwnedPin,
    /// Why.
    pub reason: RefusedReason,
}

/// Why a block could not be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RefusedReason {
    /// Others have it pinned or read it as it was loaded. It may work once they let go.
    #[error("others hold it; try again when they have let go")]
    Held,
    /// There is, or will be, another block of the new key.
    #[error("the new key is taken; erase that block first")]
    KeyTaken,
    /// The block was erased; a block of its key now would be another.
    #[error("it was erased; load it anew")]
    Erased,
    /// No frame of the new size is free.
    #[error("no memory is free for its new size; try again later")]
    Memory,
    /// No frame is that large.
    #[error("a block has at most {MAX_FRAME} bytes; use several")]
    TooLarge,
}

impl BlockPool {
    /// Gives a block another key. Its bytes stay where they are; the old key is not found any more, handles to it are stale.
    ///
    /// # Errors
    /// [`Refused`] if others hold the block, or the new key has a block or a load.
    ///
    /// # Panics
    /// If the pin is another pool's.
    pub fn adopt(self: &Arc<Self>, pin: OwnedPin, key: BlockKey) -> Result<OwnedPin, Refused> {
        let taken = RefusedReason::KeyTaken;
        let Claim::Vacant(load) = self.claim(key) else {
            return Err(Refused { pin, reason: taken });
        };
        let contents = self.take_out(pin)?;
        Ok(publish_again(load, contents))
    }

    /// Gives a block another length: cut, or continued with zeros. In place if the frame's class fits, else copied into a frame
    /// that is free now. Those who claim the block meanwhile wait for it. Handles made before find it again if it came back to its
    /// place, as it does unless another block was published meanwhile; the new pin's handle always does.
    ///
    /// # Errors
    /// [`Refused`] if others hold the block, it was erased, or there is no frame.
    ///
    /// # Panics
    /// If the pin is another pool's.
    pub fn resize(self: &Arc<Self>, pin: OwnedPin, len: usize) -> Result<OwnedPin, Refused> {
        let Some(class) = Class::of(len) else {
            let reason = RefusedReason::TooLarge;
            return Err(Refused { pin, reason });
        };
        // SAFETY: this is a pin.
        let charge = unsafe { pin.header().charge() };
        let mut frame = None;
        if class.bytes() != charge {
            frame = self.try_frames(Share::Download, len, 1, 1);
            if frame.is_none() {
                let reason = RefusedReason::Memory;
                return Err(Refused { pin, reason });
            }
        }
        let Some(load) = self.claim_again(&pin) else {
            let reason = RefusedReason::Erased;
            return Err(Refused { pin, reason });
        };
        let mut contents = self.take_out(pin)?;
        let old = contents.len as usize;
        let mut resized = into_frame(contents.body);
        let kept = old.min(len);
        if let Some(mut larger) = frame.and_then(|mut frames| frames.pop()) {
            larger.as_mut_slice()[..kept].copy_from_slice(&resized.as_slice()[..kept]);
            resized = larger;
        }
        resized.as_mut_slice()[kept..len].fill(0);
        contents.start = resized.start();
        contents.len = len as u32;
        contents.body = Body::Own(resized);
        Ok(publish_again(load, contents))
    }

    /// The right to publish a findable, pinned block anew.
    fn claim_again(self: &Arc<Self>, pin: &OwnedPin) -> Option<Load> {
        let key = pin.key();
        let mut flights = self.flights.lock();
        // Erasure is under this lock too.
        if pin.header().word.look().leaves() && !self.leads_to(key, pin.slot()) {
            return None;
        }
        if flights.contains_key(&key) {
            return None;
        }
        let flight = Flight::new(Arc::clone(self), key);
        flights.insert(key, Arc::clone(&flight));
        Some(Load::new(flight))
    }

    /// Takes a block out of the pool, whose only holder the caller is.
    fn take_out(&self, pin: OwnedPin) -> Result<Contents, Refused> {
        assert!(pin.is_of(self), "a pin belongs to one pool");
        let slot = pin.slot();
        let header = self.slab().header(slot);
        // SAFETY: pinned until the last line but one, and by nobody else then.
        let sole = || unsafe { header.sole() };
        loop {
            let seen = header.word.look();
            if seen.probed() {
                // An evicting thread looks through the stripes, and will find the caller's pin.
                yield_now();
                continue;
            }
            match self.stripes().try_own(&header.word, seen, 1, sole) {
                Owning::Owned => break,
                Owning::Changed => {}
                Owning::Held => {
                    let reason = RefusedReason::Held;
                    return Err(Refused { pin, reason });
                }
            }
        }
        // The pin went with the word; one in a lane has still to be taken from there.
        self.forget_pin(pin);
        // SAFETY: the contents are the caller's.
        let contents = unsafe { header.take() };
        self.retire(slot, &contents, false);
        Ok(contents)
    }
}

fn into_frame(body: Body) -> Frame {
    match body {
        Body::Own(frame) => frame,
        Body::Shared(frame) => Counted::try_unwrap(frame)
            .expect("no follower was left when the block was taken out, and none can come"),
    }
}

fn publish_again(mut load: Load, contents: Contents) -> OwnedPin {
    let len = contents.len as usize;
    load.set_options(contents.options);
    load.attach(into_frame(contents.body), len);
    load.advance(len);
    load.publish()
        .expect("every byte of it was published before")
}
