//! The local door: it serves an engine's buckets to other processes of the machine, over a unix socket.
//!
//! A read is a lease: the blocks stay pinned in memory that the client has mapped, until it releases them or its connection ends.
//! Clients are processes of the server's own user, which `bywash-client` is the library of. [`Listener::bind`] takes a place,
//! [`LocalDoor::serve`] serves it until shutdown.

#![forbid(unsafe_code)]

#[macro_use]
mod planted;

mod attach;
mod connection;
mod door;
mod failure;
mod frames;
mod leases;
pub mod limits;
mod listen;
mod operations;
mod reads;
mod record;
mod stats;
mod writes;

pub use attach::{AttachError, Attacher};
pub use door::{LocalConfig, LocalDoor, LocalTimes};
pub use listen::{ListenError, Listener};
