//! Memory: frames of power-of-two size classes, the budget they are charged to, and the queue of callers that wait for either.
//!
//! [`FrameAllocator`] is the shared state; [`Budget`] is its public handle. When memory is short it gets more from the layer above
//! through [`Reclaim`], so nothing here depends on blocks.

mod acquire;
mod allocator;
mod arena;
mod budget;
mod config;
mod frame;
mod frame_vec;
mod ledger;
mod wait_queue;
#[cfg(not(any(loom, shuttle)))]
mod zeroed;

pub use acquire::{FrameWait, ReserveWait};
pub use arena::{MAX_FRAME, MIN_FRAME, SharedMemory};
pub use budget::{Budget, Reservation};
pub use config::{PoolConfig, Share};
pub use frame::Frame;
pub use frame_vec::{FrameVec, SharedFrame};

#[cfg(all(test, loom))]
pub(crate) use allocator::AllocOutcome;
pub(crate) use allocator::{FrameAllocator, Reclaim};
pub(crate) use arena::SizeClass;
#[cfg(not(any(loom, shuttle)))]
pub(crate) use zeroed::ZeroedSlice;
