//! Origins: object stores below the engine.
//!
//! The engine reads and writes through [`Origin`]: [`object_store::ObjectStore`] plus multipart uploads with parts that arrive in any
//! order, under numbers chosen by the client, as in the S3 protocol.

mod access;
pub mod azure;
pub(crate) mod client_etag;
mod cloud;
mod delete_condition;
pub mod folder;
mod forward;
pub mod gcs;
pub(crate) mod health;
pub mod http;
pub(crate) mod http_client;
pub(crate) mod interface;
pub mod memory;
pub(crate) mod metered;
mod multipart_xml;
pub(crate) mod network;
pub(crate) mod object_head;
pub(crate) mod object_tags;
pub mod odd_keys;
mod odd_objects;
pub(crate) mod omissions;
mod options;
pub(crate) mod page;
mod part_stream;
mod put_digest;
mod read_only;
pub(crate) mod response;
pub mod s3;
pub(crate) mod session;
pub mod signed;
pub(crate) mod stated_digest;
mod stated_headers;
mod url;
pub(crate) mod wrapped;
mod write_mark;
mod write_only;

pub use client_etag::{CLIENT_ETAG, client_etag, etag_matches, kept_client_etag};
pub use cloud::Cloud;
pub use health::{OriginErrorKind, OriginFailure, OriginStats};
pub use interface::{
    AttributeRewrite, Capability, CompleteOptions, DeleteCondition, ListedPart, ListedParts,
    ObjectRename, Origin, PartBody, PartCopy, UploadedPart, VersionDeletes,
};
pub(crate) use multipart_xml::WriteConflict;
pub use network::{Connector, LEFT_OUT, Redirects, client_builder};
pub use object_tags::ObjectTags;
pub use omissions::{LeftOut, Omission, Omissions};
pub use options::{OriginOptions, OriginOptionsError};
pub use page::{Level, ListPage, common_prefix};
pub use read_only::{ReadOnly, Readable};
pub use session::{
    Chunk, ChunkRule, CompleteRequest, Finished, OpenSession, SessionOptions, SessionStatus,
    SessionToken, StoredRange, UploadSession,
};
pub use stated_headers::{ENCRYPTION, EXPIRES, WANTED_ENCRYPTION};
pub use url::OriginUrl;
pub(crate) use write_mark::WriteMark;
pub use write_only::{Writable, WriteOnly};
