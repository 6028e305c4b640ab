//! Capabilities of origins. They are constant while the origin is open.

use super::delete_condition::VersionDeletes;
use super::session::ChunkRule;

/// Capability that some origins lack; requests that need it are refused before they are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capability {
    /// Changes objects or uploads.
    Write,
    /// Lists objects.
    List,
}

/// Writes whose content headers (Content-Disposition, Cache-Control and so on) may have text that is not ASCII.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextHeaders {
    /// None: the store, or its client, takes ASCII alone.
    Nowhere,
    /// Whole objects and sessions, not uploads of numbered parts.
    WholeObjects,
    /// All.
    Everywhere,
}

/// Capabilities and rules of an origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Short name of its kind, for metrics and messages: `s3`, `gcs`, `azure`, `http`, `file`, `memory`, `wrapped`.
    pub kind: &'static str,
    /// Changes objects; a read-only origin refuses writes itself.
    pub writes: bool,
    /// Lists objects.
    pub lists: bool,
    /// Rule for the chunks of a session.
    pub chunk_rule: ChunkRule,
    /// Opens sessions that are new at the store, so that an upload whose session has ended can be sent from its first byte.
    pub begins_sessions: bool,
    /// The smallest object too needs a session, because nothing can be put by one request.
    pub needs_session: bool,
    /// Writes are costly, so that a part's body should come in few, large pieces.
    pub wants_joined_pieces: bool,
    /// The whole body of a part is in memory while it is sent. The caller of [`crate::UploadSession::put`] has charged it.
    pub gathers_parts: bool,
    /// The bytes of numbered parts are compared with a digest before their object exists.
    pub compares_parts: bool,
    /// The store itself knows an upload, and so refuses one that has ended. Others know only its parts.
    pub knows_uploads: bool,
    /// Attributes that are known only when an upload ends are kept.
    pub takes_late_attributes: bool,
    /// The store keeps tags of its objects: [`crate::Origin::object_tags`], and the tags that writes carry.
    /// Of other stores an endpoint may keep tags as an attribute, or refuse them.
    pub has_tags: bool,
    /// Bytes above which other attributes for an object are an upload of parts that the store copies
    /// ([`crate::PartSource::Copy`]); `None` if the bytes of all objects have to be sent for it.
    pub min_rewritten_bytes: Option<u64>,
    /// [`crate::Origin::rewrite_in_place`] may change an object.
    pub rewrites_in_place: bool,
    /// How a version is deleted, and no other.
    pub version_deletes: VersionDeletes,
    /// Objects with odd keys ([`crate::odd_keys`]) are read and deleted by the paths that listings have for them.
    pub reads_odd_keys: bool,
    /// The metadata of objects is kept behind a network, which loses responses: conditional writes then get a mark.
    pub keeps_marks: bool,
    /// Content headers that are not ASCII are stored by these writes.
    pub text_headers: TextHeaders,
}

impl Capabilities {
    /// A store of this kind with object_store's operations and numbered parts, and nothing else.
    #[must_use]
    pub const fn of(kind: &'static str) -> Self {
        Self {
            kind,
            writes: true,
            lists: true,
            chunk_rule: ChunkRule::PARTS,
            begins_sessions: true,
            needs_session: false,
            wants_joined_pieces: false,
            gathers_parts: false,
            compares_parts: false,
            knows_uploads: true,
            takes_late_attributes: false,
            has_tags: false,
            min_rewritten_bytes: None,
            rewrites_in_place: false,
            version_deletes: VersionDeletes::ByLook,
            reads_odd_keys: false,
            keeps_marks: false,
            text_headers: TextHeaders::Nowhere,
        }
    }

    /// The same store when it refuses writes.
    #[must_use]
    pub const fn read_only(self) -> Self {
        Self {
            writes: false,
            lists: self.lists,
            has_tags: self.has_tags,
            reads_odd_keys: self.reads_odd_keys,
            keeps_marks: self.keeps_marks,
            ..Self::of(self.kind)
        }
    }

    /// Whether requests that need `capability` are sent.
    #[must_use]
    pub const fn can(&self, capability: Capability) -> bool {
        match capability {
            Capability::Write => self.writes,
            Capability::List => self.lists,
        }
    }
}
