//! Loads: at most one in progress a block, shared by its leader, waiters and readers.

mod exclusive;
mod flight;
mod flights;
mod leader;
mod readahead;
mod reader;

pub use exclusive::{Refused, RefusedReason};
pub use flight::{Flight, Waiter};
pub use flights::Claim;
pub use leader::Load;
pub use readahead::LoadRun;
pub use reader::BlockReader;

pub(crate) use flights::FlightTable;
