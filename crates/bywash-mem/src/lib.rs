//! The memory core of Bywash: an exact budget, frames of memory, and a pool of blocks that threads share.
//!
//! Synchronous and free of I/O. Waiting is offered as futures, and no runtime is assumed. `docs/glossary.md` defines the terms,
//! `docs/memory-model.md` the protocols, which loom models check.
//!
//! - [`Budget`]: the limit and the charges to it. Never exceeded, not even for an instant.
//! - [`Frame`]: uniquely owned memory of a power-of-two size class together with its charge.
//! - [`FrameVec`]: a vector in a part of a frame that others share, or on the heap.
//! - [`BlockPool`]: blocks by [`BlockKey`]. A reader of a resident block pays one atomic add and one subtract.
//! - [`WriteAtBuffer`]: bytes of one object, written at any offset by many threads and read as they arrive.
//! - [`Flight`]: one load of one block, for any number of waiters and readers.
//! - [`Gate`]: generations of writers; closing one waits until its writers have left.
//! - [`Gated`]: a value that writers of a gate read, replaced as a whole with a generation.
//! - [`Names`]: an insert-only map; a known name costs a hash and a probe.
//!
//! Modules import only from those before them: `sync`, `limits`, `error` and `key`; `frames`; `buffer`; `block`; `load`; `pool`.
//! `cpu_prefetch`, `gate` and `names` serve the series engine.
#![allow(
    unsafe_code,
    reason = "the one crate that owns raw memory; each block states why it is sound"
)]

#[macro_use]
mod planted;

mod block;
mod buffer;
mod cpu_prefetch;
mod error;
mod frames;
mod gate;
mod key;
mod limits;
mod load;
mod names;
mod pool;
mod sync;

#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom)))]
mod stress;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

#[doc(hidden)]
pub use block::Registry;
pub use block::{
    BlockOptions, Evicted, Keep, LimitError, OwnedPin, Pin, PinScope, PoolStats, Priority, Spill,
    Spilled, StoreStats, Tag, TagStats,
};
pub use buffer::{
    BlockSlice, FreezeError, Overlap, Segments, TailReader, WriteAtBuffer, WriteAtError,
    WriteAtOptions, WriteClaim,
};
pub use cpu_prefetch::{prefetch_line_for_write, prefetch_written_first};
pub use error::{FlightError, FrameError, Incomplete, LoadError, PoolError};
pub use frames::{
    Budget, Frame, FrameVec, FrameWait, MAX_FRAME, MIN_FRAME, PoolConfig, Reservation, ReserveWait,
    Share, SharedFrame, SharedMemory,
};
pub use gate::{Gate, GateGuard, Gated, GatedGuard};
pub use key::{BlockHandle, BlockKey};
pub use load::{BlockReader, Claim, Flight, Load, LoadRun, Refused, RefusedReason, Waiter};
pub use names::{NameLookup, Names};
pub use pool::BlockPool;
