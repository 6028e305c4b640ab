//! Inputs and outputs of the state machine.

use std::sync::Arc;
use std::time::Duration;

use crate::names::{Boot, Epoch, Key, Member, NodeId, Shard};

/// A read or a write of this node, numbered by its caller. Never used twice by one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

/// A request of this node to etcd or to another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// A request of this node to the origin for the version of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QuestionId(pub u64);

/// Name of a write in the whole cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token {
    /// The writing node.
    pub node: NodeId,
    /// Random number of its process.
    pub process: u64,
    /// The write.
    pub op: OpId,
}

/// A request to etcd. The driver sends it to one endpoint at a time with a limit below a second, and reports
/// [`EtcdReply::Unknown`] if the result is not certain. It may put several transactions into one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EtcdRequest {
    /// Grants a lease and puts `nodes/ID/BOOT` under it, with a new boot.
    Register,
    /// Keeps the lease of the registration alive.
    Keepalive(Boot),
    /// Revokes the lease of a registration of this node: an earlier process, or a registration
    /// whose response was lost. Never deletes the key alone: keepalives of its lease would
    /// continue.
    Revoke(Member),
    /// Gives a shard on, if its key has this revision and the key of the new holder exists.
    Hand {
        /// The shard.
        shard: Shard,
        /// Revision that its key must have.
        epoch: Epoch,
        /// The new holder.
        to: Member,
    },
    /// Takes a shard, if all of `guard` holds and the key of the new holder exists.
    Claim {
        /// The shard.
        shard: Shard,
        /// Condition of the claim.
        guard: ClaimGuard,
        /// The new holder: this node.
        to: Member,
    },
}

/// Condition at etcd for a claim.
///
/// The revision is not optional, though the second guard looks enough: a claimer with a slow watch would take the shard from a
/// holder that has got it since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimGuard {
    /// The shard has no key.
    NoKey,
    /// The shard's key has this revision, and its holder's key is gone.
    Gone(Member, Epoch),
}

/// Result of a request to etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EtcdReply {
    /// The node is registered under this boot.
    Registered(Boot),
    /// The lease was kept alive.
    Alive,
    /// There is no such lease.
    Gone,
    /// The transaction was done; the shard has this epoch.
    Done(Epoch),
    /// The transaction's conditions did not hold; the shard has this holder, if it has a key.
    Refused(Option<(Member, Epoch)>),
    /// The request failed, or its result is not known: it may have been done, or be done later.
    Unknown,
}

/// A change that etcd's watch or a list of its keys showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ViewChange {
    /// All keys, as they were at a revision: after the start, after a compaction, and from time to time, for a dead connection
    /// is silent.
    Listed {
        /// Members that are registered, with weight and state.
        members: Vec<(Member, u32, bool)>,
        /// Shards that have a key.
        shards: Vec<(Shard, Member, Epoch)>,
    },
    /// A member registered or changed; `up` if it takes shards.
    Up(Member, u32, bool),
    /// A member's key is gone.
    Down(Member),
    /// A shard has this holder.
    Shard(Shard, Member, Epoch),
}

/// A request to another node. None is passed on. The driver may send several that [may be](Self::is_batched) in one message; the
/// recipient handles them one after another, each as if it had come alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerRequest {
    /// Asks the holder for the current version. While the holder waits for the origin, it sends frames that it is alive.
    Open {
        /// The object.
        key: Key,
        /// Window of its bucket.
        window: Duration,
    },
    /// A write begins.
    Begin {
        /// The write.
        token: Token,
        /// The object.
        key: Key,
    },
    /// The origin has the write, or may have it.
    End {
        /// The write.
        token: Token,
        /// The object.
        key: Key,
    },
    /// Asks a reader to use its lease no more.
    Drop {
        /// The object.
        key: Key,
    },
    /// Asks a node whose key is gone whether its authority and the read leases it gave under this boot have ended.
    Released(Boot),
}

impl PeerRequest {
    /// Whether the response may wait for the origin.
    #[must_use]
    pub fn waits_for_origin(&self) -> bool {
        matches!(self, Self::Open { .. })
    }

    /// Whether the request may be one of several in a message. One that waits for the origin may
    /// not: the others would wait with it.
    #[must_use]
    pub fn is_batched(&self) -> bool {
        matches!(
            self,
            Self::Begin { .. } | Self::End { .. } | Self::Drop { .. }
        )
    }
}

/// Response of another node. Every one but a version leads to the origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerResponse<V> {
    /// The current version, for the read that asked. It may be used for other reads for `lease`, counted from the sending of the
    /// request; never, if that is zero.
    Version {
        /// The version.
        version: V,
        /// Time for which it may be used.
        lease: Duration,
    },
    /// The origin is to be asked: the key is being written, or its version could not be confirmed.
    AskOrigin,
    /// The node does not hold the shard.
    NotMine,
    /// The begin or the end was done by the holder.
    Done,
    /// The key was dropped.
    Dropped,
    /// Authority and leases of the boot have ended (`true`), or not yet.
    Released(bool),
}

/// Result of a write at the origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteResult {
    /// The origin has acknowledged it.
    Written,
    /// The origin has refused it.
    Failed,
    /// The response was lost: the origin may have it, or get it later.
    InDoubt,
}

/// Time for which nodes may believe a version that a write has replaced.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Believed {
    /// Longest window of a member, counted from the origin's response.
    pub window: Duration,
    /// Time by which the authority has ended of nodes that are gone, or were before the members were known. Until then a longer window
    /// may count.
    pub until: Duration,
}

/// An input of the state machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event<V> {
    /// A timer is due, see [`crate::Node::next_timer`].
    Tick,
    /// Result of a request to etcd.
    Etcd(CallId, EtcdReply),
    /// A change of etcd's keys, in the order of revisions.
    View(u64, ViewChange),
    /// etcd has another `cluster_id`, or its revision went back: it was restored, or is another. Also at the start, if the data
    /// folder names another than the first response.
    ClusterChanged,
    /// A read begins. `window`: the bucket's.
    Read(OpId, Key, Duration),
    /// A write begins. `window` is the longest that a member has for the bucket.
    Write(OpId, Key, Duration),
    /// Response of the origin to a question; `None` if it failed.
    Version(QuestionId, Option<V>),
    /// Response of the origin to a write.
    Written(OpId, WriteResult, Believed),
    /// A request of another node.
    Request(NodeId, CallId, PeerRequest),
    /// Response to a request of this node; `None` if it failed or reached its limit.
    Response(CallId, Option<PeerResponse<V>>),
    /// Response that counts neither as a success nor as a failure of its node: the request is a
    /// further one of a message that has one reported already, or was refused for lack of memory,
    /// here or there.
    Further(CallId, Option<PeerResponse<V>>),
    /// There was no frame for [`crate::Timing::patience`]. The request continues.
    Silent(CallId),
    /// A bucket was detached, or another origin is attached under its name: nothing known of its objects is used any more.
    Forget(Arc<str>),
    /// The process is to end: hands its shards over at once.
    Leave,
}

/// An output of the state machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action<V> {
    /// Send a request to etcd.
    Etcd(CallId, EtcdRequest),
    /// Send a request to another node, with this limit.
    Send(NodeId, CallId, PeerRequest, Duration),
    /// Send a response to another node.
    Reply(NodeId, CallId, PeerResponse<V>),
    /// Ask the origin for the version of a key.
    AskOrigin(QuestionId, Key),
    /// Send the write to the origin.
    WriteOrigin(OpId),
    /// A read or a write has ended.
    Finish(OpId, Outcome<V>),
}

/// Where a read's version came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A read lease of this node.
    Lease,
    /// This node holds the shard: its table, or the origin's response to its question.
    Holder,
    /// The holder.
    Peer,
    /// The origin, asked by this node without authority.
    Origin,
}

/// End of a read or a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome<V> {
    /// The version to read.
    Version(V, Source),
    /// The origin could not be asked.
    ReadFailed,
    /// The write may be acknowledged.
    Acknowledged {
        /// The holder did not confirm it: its window was waited out.
        waited: bool,
    },
    /// The write is stored, but other nodes may return the replaced version for longer than a
    /// client is kept waiting: the client is to slow down and to retry.
    SlowDown,
    /// The origin has refused the write, or its response was lost.
    WriteFailed(WriteResult),
}
