//! The port by which nodes of a cluster speak to each other: HTTP/1.1 over mutual TLS, of its own address.
//!
//! A request is small, and read whole. A response is a sequence of frames (`frame.rs`): the node
//! sends at once that it is alive, and again after each [`PortSettings::alive`] without another
//! frame, so a slow origin and a dead node look different. Then follows the response, or bytes with
//! their checksum.
//!
//! **Memory.** Each end charges memory outside the pool before it takes it (`memory.rs`): for
//! connections, calls and reads, and for messages that are longer than a message of one object. For
//! a block stream the server holds one item of the engine, which is a pin of the pool, and the
//! client one frame and the bytes of its last read. Nothing is read ahead at either end: the reader
//! sets the pace. Connections, handshakes and streams have limits, too. A request that does not fit
//! is refused at once, and its node uses the origin.

mod body;
mod client;
mod frame;
mod handler;
mod identity;
mod idle;
mod key;
mod memory;
mod server;
mod settings;
mod tls;
mod version;
mod wire;
mod write_limit;

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
#[cfg(test)]
mod tests;

pub use client::PeerClient;
pub use identity::{PEER_PROTOCOL, PeerIdentity};
pub use key::{ClusterKey, ClusterKeys, KeyError};
pub use memory::PeerMemory;
pub use server::PeerPort;
pub use settings::PortSettings;
#[cfg(test)]
pub(crate) use wire::encoded_len;
pub(crate) use wire::max_added_len;
