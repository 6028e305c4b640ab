//! The write-at buffer: bytes of one object, written at any offset by many threads and read as they arrive.
//!
//! A writer first *claims* a range under a short lock. Its [`WriteClaim`] then shares nothing with other writers, and publishes
//! its progress to readers through one atomic of its own. So the buffer always knows exactly which bytes are written, and
//! reports holes by range. The memory is pool frames that never move: growth adds frames and copies nothing.

mod block_slice;
mod core;
mod error;
mod extents;
mod layout;
mod listener;
mod segments;
mod tail_reader;
mod write_at;
mod write_claim;

pub use block_slice::BlockSlice;
pub use error::{FreezeError, WriteAtError};
pub use segments::Segments;
pub use tail_reader::TailReader;
pub use write_at::{Overlap, WriteAtBuffer, WriteAtOptions};
pub use write_claim::WriteClaim;

pub(crate) use self::core::BufferCore;
