//! The memory core of Bywash: an exact budget, frames of memory, and a pool of blocks that threads share.
//!
//! Synchronous at heart and free of I/O: waiting is offered to threads (`*_blocking`) and to tasks (futures) alike, and no
//! runtime is assumed. `docs/memory-model.md` explains the words and the protocols; the loom models check them.
//!
//! - [`Budget`]: what may be taken, and what is. Never above its limit, not for an instant.
//! - [`Frame`]: uniquely owned memory of a power-of-two class together with its charge.
//! - [`BlockPool`]: blocks by [`BlockKey`]. A reader of a resident block pays one atomic add and one subtract.
//! - [`WriteAtBuffer`]: bytes of one object, written at any offset by many threads, read as they arrive.
//! - [`Flight`]: one load of one block, however many wait for it or read along.
//! - [`Gate`]: generations of writers; closing one waits until its writers have left.
//! - [`Names`]: get or create by name; a known name costs a hash and a probe.
#![allow(
    unsafe_code,
    reason = "the one crate that owns raw memory; each block says why it is sound"
)]

#[path = "cpu_prefetch.rs"]
mod ahead;
#[path = "frames/arena.rs"]
mod arena;
#[path = "frames/allocator.rs"]
mod budget;
mod error;
#[path = "block/evict.rs"]
mod evict;
#[path = "load/exclusive.rs"]
mod exclusive;
#[path = "load/flight.rs"]
mod flight;
#[path = "load/reader.rs"]
mod follow;
#[path = "frames/frame.rs"]
mod frame;
mod gate;
#[path = "block/limit.rs"]
mod limit;
mod limits;
#[path = "load/leader.rs"]
mod load;
mod names;
#[path = "block/options.rs"]
mod options;
#[path = "block/pin.rs"]
mod pin;
#[path = "block/cache.rs"]
mod pool;
#[path = "load/readahead.rs"]
mod prefetch;
#[path = "frames/wait_queue.rs"]
mod queue;
#[path = "block/registry.rs"]
mod registry;
#[path = "block/slab.rs"]
mod slab;
#[path = "block/sharded_pins.rs"]
mod stripes;
mod sync;
#[path = "block/table.rs"]
mod table;
#[path = "frames/acquire.rs"]
mod take;
#[path = "block/aging.rs"]
mod unused;
#[path = "block/word.rs"]
mod word;
#[path = "buffer/mod.rs"]
mod write_at;
#[cfg(not(any(loom, shuttle)))]
#[path = "frames/zeroed.rs"]
mod zeroed;

#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom)))]
#[path = "stress/mod.rs"]
mod storm;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

pub use ahead::{fetch_ahead, fetch_value_ahead};
pub use arena::{MAX_FRAME, MIN_FRAME};
pub use budget::{Budget, PoolConfig, Reservation, Share};
pub use error::{FlightError, FrameError, Incomplete, LoadError, PoolError};
pub use exclusive::{Refused, RefusedReason};
pub use flight::{Flight, Waiter};
pub use follow::Follower;
pub use frame::Frame;
pub use gate::{Entered, Gate};
pub use limit::LimitError;
pub use load::Load;
pub use names::{Names, Search};
pub use options::{BlockOptions, Keep, Priority, Spill, Spilled, Tag, TagStats};
pub use pin::{OwnedPin, Pin};
pub use pool::{BlockHandle, BlockKey, BlockPool, Claim, PoolStats};
pub use prefetch::PrefetchRun;
#[doc(hidden)]
pub use registry::Registry;
pub use take::{FrameWait, ReserveWait};
pub use unused::Evicted;
pub use write_at::{
    Followed, FreezeError, Overlap, PrefixReader, Segments, Shard, WriteAtBuffer, WriteAtCursor,
    WriteAtError, WriteAtOptions,
};
