//! Several nodes that act as one: which node decides the current version of each object, and the
//! steps that a node must take before a read or a write so that no node returns a version that
//! another has replaced.
//!
//! The rules are a state machine without I/O, [`Node`]. Its inputs are [`Event`]s with the time of the node's own clock, its
//! outputs are [`Action`]s; a driver does the actions and returns their results as events. So the code that a process runs is the
//! code that the simulation runs, seed by seed.
//!
//! Around it, [`etcd`] sends its requests to etcd, [`port`] sends its requests to other nodes, and
//! [`ClusterNode`] drives it: clock, etcd, the other nodes, the engine.
//!
//! **Holders.** Bytes need no authority: a block is asked for by validator, and a wrong placement costs a request. Only the
//! question which version is current has one node that decides: keys are hashed to shards, and etcd names the holder of each
//! shard. The revision of that key is the *epoch* of the holder.
//!
//! **Guarantees**, under the assumptions below:
//! - *G1*: a read that begins after a write was acknowledged, at any node, returns that write or a later one.
//! - *G2*: reads and writes of a key are linearizable while its holder does not change under a
//!   write in flight. Otherwise reads during that write may see the new version and then the old
//!   one; after the acknowledgement they never do.
//! - *G3*: a change behind the cluster's back is seen by each read that begins a window after it.
//! - *G4*: a read has one version. This is the engine's: blocks are asked for by validator.
//!
//! **Assumptions.** The origin is strongly consistent for each key. Rates of two clocks differ by less than
//! [`Timing::margin_percent`], and they run while a process is stopped. Transactions of etcd are linearizable. That etcd keeps a lease for its
//! time is *not* assumed: see [`Timing::claim_delay`]. If one fails, staleness is bounded by the bucket's window, as on one node.
//!
//! **Why G1 holds.** Let the `end` of a write be handled at time `h` by a holder in epoch `e`: after the origin has it, before the
//! acknowledgement. A later read gets its version in one of these ways.
//! - From the holder in epoch `e`, or by a lease of it: versions known before `h` were dropped at
//!   `h`, and leases were dropped or had ended before `end` was answered. A version asked for after
//!   `h` has the write.
//! - From an earlier epoch: its authority and its leases had ended before epoch `e` began, by the rules of handover and claim.
//! - From a later epoch: its holder began with nothing known, so it asked after `h`.
//! - From the origin: by a request sent after the read began, so it has the write.
//!
//! Without `end`, the write is acknowledged after the longest window in the records of the members:
//! any version still used was asked for after the origin had the write. A node uses a longer window
//! than each other's only when all other nodes have had the time to list its record.

#![forbid(unsafe_code)]

// Only the rules have planted faults, and only tests leave rules out.
#[cfg(any(test, feature = "rules-left-out"))]
#[macro_use]
mod planted;

mod authority;
mod direct;
mod driver;
pub mod etcd;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod leases;
mod limits;
mod membership;
mod message;
mod names;
mod node;
mod placement;
pub mod port;
mod read;
mod revoke;
mod rules;
mod shards;
#[cfg(test)]
mod simulation;
mod timers;
mod timing;
mod transport;
mod view;
mod write;

pub use driver::{
    BlockSource, BucketSettings, ClusterNode, DriverSettings, JoinError, Left, node_id,
};
pub use limits::{MAX_HANDSHAKES, MAX_PEER_CONNECTIONS, OBJECT_BYTES};
pub use message::{
    Action, Believed, CallId, ClaimGuard, EtcdReply, EtcdRequest, Event, OpId, Outcome,
    PeerRequest, PeerResponse, QuestionId, Source, Token, ViewChange, WriteResult,
};
pub use names::{Boot, Epoch, Key, Member, NodeId, Shard};
pub use node::{Node, Settings, Status};
pub use placement::{Candidate, SHARDS, STRIPE_BYTES, ranked, shard_of, stripe_hash};
pub use port::{
    ClusterKey, ClusterKeys, KeyError, PeerClient, PeerIdentity, PeerMemory, PeerPort, PortSettings,
};
pub use timing::Timing;
pub use transport::{PeerAddress, PeerError, PeerService, PeerTransport};
