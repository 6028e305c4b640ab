//! Object stores as Bywash reads and writes them: S3, GCS, Azure, web servers, folders, memory, and any store that a program brings.
//!
//! Each is an [`Origin`]: [`object_store::ObjectStore`] plus uploads that another process can continue, multipart uploads with parts that
//! arrive in any order, conditional deletes, and listings of keys that a path cannot carry. Responses are compared with their requests, and
//! a failed request is not repeated: [`is_transient`] tells the caller whether it may succeed later.

#![forbid(unsafe_code)]

mod access;
pub mod azure;
mod client_etag;
mod cloud;
mod content_digest;
mod delete_condition;
mod error;
mod error_class;
pub mod folder;
mod forward;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod gcs;
mod health;
pub mod http;
mod http_client;
mod interface;
mod limits;
pub mod memory;
mod metered;
mod multipart_xml;
mod network;
mod object_head;
mod object_tags;
pub mod odd_keys;
mod odd_objects;
mod omissions;
mod options;
mod page;
mod part_stream;
mod put_digest;
mod read_only;
mod response;
pub mod s3;
mod session;
pub mod signed;
pub mod staged_file;
mod stated_digest;
mod stated_headers;
mod tag_count;
pub mod time;
mod url;
mod wrapped;
mod write_mark;
mod write_only;

pub use client_etag::{CLIENT_ETAG, client_etag, etag_matches, kept_client_etag};
pub use cloud::Cloud;
pub use content_digest::{ContentDigest, RunningDigest};
pub use error::{OriginError, OriginUrlError, StatusError, source_of, sources};
pub use error_class::{is_lasting_io, is_out_of_range, is_refusal, is_transient};
pub use health::{OriginErrorKind, OriginFailure, OriginHealth, OriginStats};
pub use interface::{
    AttributeRewrite, Capability, CompleteOptions, DeleteCondition, ListedPart, ListedParts,
    ObjectRename, Origin, PartBody, PartCopy, UploadedPart, VersionDeletes, body_length_error,
    unmodified_since,
};
pub use limits::{MAX_FAILURES_NAMED, MAX_OPEN_FOLDERS, MAX_PARTS};
pub use metered::{Metered, NoteRequest, OriginRequest};
pub use multipart_xml::WriteConflict;
pub use network::{Connector, LEFT_OUT, Redirects, client_builder};
pub use object_tags::ObjectTags;
pub use omissions::{LeftOut, Omission, Omissions};
pub use options::{OriginOptions, OriginOptionsError};
pub use page::{Level, ListPage, common_prefix};
pub use read_only::{ReadOnly, Readable};
pub use session::{
    Chunk, ChunkRule, CompleteRequest, DEFAULT_STALL, Finished, OpenSession, SessionOptions,
    SessionStatus, SessionToken, StoredRange, UploadSession,
};
pub use stated_headers::{ENCRYPTION, EXPIRES, WANTED_ENCRYPTION};
pub use tag_count::TagCount;
pub use url::OriginUrl;
pub use wrapped::WrappedStore;
pub use write_mark::WriteMark;
pub use write_only::{Writable, WriteOnly};
