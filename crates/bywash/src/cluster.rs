//! State that several nodes over the same origins share: the current version of each object, and the blocks in each other's memory.
//!
//! The engine knows a cluster only by the traits [`VersionAuthority`] and [`Peers`]. Without them a node decides by itself how long
//! it trusts a version, and loads every block from the origin.
//!
//! Where the engine calls them: `current.rs` before a read uses a version, `turn.rs` around each write, `source.rs` for requests of
//! the authority to a bucket, `read/peer_fetch.rs` for bytes. Requests of other nodes are served by [`crate::Bucket::serve_peer`].

mod current;
mod source;
mod status;
mod turn;
mod waits;

use std::fmt::{self, Debug};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use bywash_store::ContentDigest;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{Attributes, ObjectMeta, Result};

pub(crate) use source::BucketSource;
pub use status::{ClusterMember, ClusterStatus, MemberFault};
pub(crate) use waits::{PeerWait, PeerWaits};

/// One version of an object, as the origin's response to a HEAD states it.
#[derive(Debug, Clone, PartialEq)]
pub struct ObjectVersion {
    /// Path, length, time and validators.
    pub meta: ObjectMeta,
    /// Content headers and metadata.
    pub attributes: Attributes,
    /// Number of the tags that the store keeps of the object.
    pub tag_count: u32,
    /// Digest of its content, if the store states one.
    pub digest: Option<ContentDigest>,
}

/// The current version of an object; `None`: there is no such object.
pub type CurrentVersion = Option<Arc<ObjectVersion>>;

/// A bucket of this node, as the authority sees it.
#[async_trait]
pub trait VersionSource: Debug + Send + Sync {
    /// Requests the current version from the origin, with the retries of the bucket.
    async fn request(&self, path: &Path) -> Result<CurrentVersion>;

    /// Drops this node's knowledge of an object, so that its next read requests the version.
    fn forget(&self, path: &Path);
}

/// How a write ended at the origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteEnd {
    /// The origin has acknowledged it.
    Written,
    /// The origin has refused it, so nothing has changed.
    Refused,
    /// The origin may have it, or get it later: the response was lost.
    InDoubt,
}

/// A write in progress that the other nodes respect. Dropping it is an end in doubt.
#[async_trait]
pub trait WriteTurn: Debug + Send {
    /// Ends it. After `Ok` no node returns the replaced version.
    ///
    /// # Errors
    /// [`crate::EngineError::WriteUnconfirmed`] if other nodes may return the replaced version for longer than a client is kept waiting.
    async fn end(self: Box<Self>, end: WriteEnd) -> Result<()>;
}

/// Decides which version of an object is current, for all nodes together.
#[async_trait]
pub trait VersionAuthority: Debug + Send + Sync {
    /// Adds a bucket. `window`: the time for which one node alone would trust a version, `None` if objects never change.
    fn attach(&self, bucket: &str, window: Option<Duration>, source: Arc<dyn VersionSource>);

    /// Removes a bucket.
    fn detach(&self, bucket: &str);

    /// Returns the current version if this node may serve it now without asking: it holds a read lease, or decides itself. `None`
    /// if it must ask. Called for each read; waits for nothing but a short lock.
    fn current(&self, bucket: &str, path: &str) -> Option<CurrentVersion>;

    /// Returns the current version: by lease, from its holder, or from the origin.
    async fn read(&self, bucket: &str, path: &Path) -> Result<CurrentVersion>;

    /// Begins a write of these objects, which is then sent to the origin.
    async fn begin_write(&self, bucket: &str, paths: Vec<Path>) -> Box<dyn WriteTurn>;

    /// The state of this node for its operator, if there is one to show.
    fn status(&self) -> Option<ClusterStatus> {
        None
    }
}

/// Bytes of one version of an object, wanted from another node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerRead {
    /// Name of the bucket.
    pub bucket: String,
    /// Path of the object.
    pub path: Path,
    /// Its ETag; only strong ones are asked for.
    pub e_tag: String,
    /// Length of the whole object.
    pub size: u64,
    /// The bytes, within one stripe.
    pub range: Range<u64>,
    /// Time since the reading node last knew this version as the current one; `None` if it knows another one by now.
    pub age: Option<Duration>,
}

/// Bytes of another node.
pub struct PeerBody {
    /// Requests of other nodes for these bytes at that node in the last second: the fewest that one of their blocks had.
    pub rate: u32,
    /// The bytes, in order.
    pub bytes: BoxStream<'static, Result<Bytes>>,
}

impl Debug for PeerBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerBody")
            .field("rate", &self.rate)
            .finish_non_exhaustive()
    }
}

/// The other nodes, as places to load blocks from.
#[async_trait]
pub trait Peers: Debug + Send + Sync {
    /// Returns where the stripe with the byte `at` of an object ends. A [`PeerRead`] does not cross it.
    fn stripe_end(&self, at: u64) -> u64;

    /// Requests bytes from the node that owns their stripe, or had it before. `None` if this node owns it, or no other node
    /// responds in time: the origin is then asked. A stream that fails or ends early is continued at the origin.
    async fn read(&self, wanted: PeerRead) -> Option<PeerBody>;

    /// Returns whether this node owns the stripe with the byte `at`. Blocks of other nodes' stripes take an eighth of the memory.
    fn is_own(&self, bucket: &str, path: &Path, at: u64) -> bool;
}

/// Reason why bytes are not served to another node, which then requests them from the origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PeerReadError {
    /// The bytes are not in memory, or the version is not the current one.
    #[error("this node does not have the bytes of that version")]
    Absent,
    /// The bytes are on their way from another node, or there is no memory for them.
    #[error("this node cannot load the bytes now")]
    Busy,
}

/// The cluster that an engine belongs to.
#[derive(Debug, Clone)]
pub struct Cluster {
    /// Which version is current.
    pub versions: Arc<dyn VersionAuthority>,
    /// Blocks of other nodes.
    pub peers: Arc<dyn Peers>,
}
