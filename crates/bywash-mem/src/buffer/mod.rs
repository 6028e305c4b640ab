//! The write-at buffer: bytes of one object, written at any offset by many threads, read as they arrive.
//!
//! Who writes first *claims*: under a short lock the range becomes one [`Shard`]'s, which from then on shares nothing with
//! other writers and tells readers how far it came by one word of its own. Which bytes are written is therefore always known
//! exactly, and holes are named. Memory is pool frames that are never moved: growing adds frames and copies nothing.

#[path = "write_at.rs"]
mod buffer;
mod core;
mod cursor;
mod error;
mod extents;
mod layout;
#[path = "tail_reader.rs"]
mod prefix;
mod segments;
#[path = "write_claim.rs"]
mod shard;
#[path = "block_slice.rs"]
mod slice;

pub use buffer::{Overlap, WriteAtBuffer, WriteAtOptions};
pub use cursor::WriteAtCursor;
pub use error::{FreezeError, WriteAtError};
pub use prefix::PrefixReader;
pub use segments::Segments;
pub use shard::Shard;
pub use slice::Followed;

pub(crate) use self::core::Core;
