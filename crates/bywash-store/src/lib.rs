//! Object stores as Bywash reads and writes them: S3, GCS, Azure, web servers, folders, memory, and any store that a program brings.
//!
//! Each is an [`Origin`]: [`object_store::ObjectStore`] plus uploads that another process can continue, multipart uploads with parts that
//! arrive in any order, conditional deletes, and listings of keys that a path cannot carry. Responses are compared with their requests, and
//! a failed request is not repeated: [`is_transient`] tells the caller whether it may succeed later.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(all(feature = "s3", feature = "gcs", feature = "azure", feature = "http")),
    allow(
        dead_code,
        unused_imports,
        reason = "helpers of stores that are not built"
    )
)]

#[macro_use]
mod planted;

#[cfg(feature = "network")]
mod access;
#[cfg(feature = "azure")]
pub mod azure;
mod capabilities;
mod client_etag;
#[cfg(feature = "network")]
mod cloud;
mod delete_condition;
mod digest;
mod error;
mod error_class;
pub mod folder;
#[cfg(all(
    any(test, fuzzing),
    feature = "s3",
    feature = "gcs",
    feature = "azure",
    feature = "http"
))]
pub mod fuzzing;
#[cfg(feature = "gcs")]
pub mod gcs;
mod health;
#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "network")]
mod http_client;
mod interface;
mod layer;
mod limits;
pub mod memory;
mod metered;
#[cfg(feature = "network")]
mod multipart_xml;
#[cfg(feature = "network")]
mod network;
mod numbered;
#[cfg(feature = "network")]
mod object_head;
mod object_tags;
pub mod odd_keys;
#[cfg(feature = "network")]
mod odd_objects;
#[cfg(feature = "network")]
mod odd_pages;
mod omissions;
mod options;
mod page;
mod part_stream;
mod parts;
mod read_only;
#[cfg(feature = "network")]
mod response;
#[cfg(feature = "s3")]
pub mod s3;
mod session;
#[cfg(all(feature = "s3", feature = "gcs", feature = "azure"))]
pub mod signed;
pub mod staged_file;
mod stated_headers;
#[cfg(feature = "network")]
mod tag_document;
pub mod time;
mod url;
mod web_url;
#[cfg(feature = "network")]
mod whole_put;
mod wrapped;
mod write_mark;
#[cfg(feature = "network")]
mod xml_uploads;

pub use client_etag::{CLIENT_ETAG, client_etag, etag_matches, kept_client_etag};
#[cfg(feature = "network")]
pub use cloud::Cloud;
pub use digest::{ContentDigest, RunningDigest, read_range};
pub use error::{OriginError, OriginUrlError, StatusError, WriteConflict, source_of, sources};
pub use error_class::{is_lasting_io, is_out_of_range, is_refusal, is_transient};
pub use health::{OriginErrorKind, OriginFailure, OriginHealth, OriginStats};
pub use interface::{
    AttributeRewrite, Capabilities, Capability, CompleteOptions, DeleteCondition, ListedPart,
    ListedParts, ObjectRename, Origin, PartBody, StoreIdentity, TextHeaders, UploadedPart,
    VersionDeletes, body_length_error, unmodified_since,
};
pub use layer::OriginRequest;
pub use limits::{MAX_FAILURES_NAMED, MAX_OPEN_FOLDERS, MAX_PARTS};
pub use metered::{Metered, NoteRequest};
#[cfg(feature = "network")]
pub use network::{Connector, LEFT_OUT, client_builder};
pub use object_tags::{ObjectTags, TagCount};
pub use omissions::{LeftOut, Omission, Omissions};
pub use options::{OriginOptions, OriginOptionsError, Redirects};
pub use page::{Keys, Level, ListPage, Objects, common_prefix};
pub use parts::{
    PartStore, PartsSession, RememberedPart, RememberedParts, parts_of_token, parts_token,
};
pub use read_only::ReadOnly;
pub use session::{
    Chunk, ChunkRule, CompleteRequest, DEFAULT_STALL, Finished, NewSession, OpenSession, PartPlace,
    PartReceipt, PartSource, SessionOptions, SessionPart, SessionStatus, SessionToken, StoredRange,
    UploadSession,
};
#[cfg(all(feature = "s3", feature = "gcs", feature = "azure"))]
pub use signed::is_one_session;
pub use stated_headers::{ENCRYPTION, EXPIRES, WANTED_ENCRYPTION};
pub use url::OriginUrl;
pub use web_url::HttpUrl;
pub use wrapped::WrappedStore;
pub use write_mark::WriteMark;

/// Returns whether two tokens of one store identify one session. A token made by [`Origin::open_sessions`] may contain less than the
/// original one; the id of an upload of numbered parts is a token too.
#[must_use]
pub fn is_same_session(one: &SessionToken, other: &SessionToken) -> bool {
    #[cfg(feature = "s3")]
    return s3::same_upload(&one.0, &other.0);
    #[cfg(not(feature = "s3"))]
    return one == other;
}

/// As `signed::is_one_session`: this program was built without addresses that are signed for writing.
#[cfg(not(all(feature = "s3", feature = "gcs", feature = "azure")))]
pub fn is_one_session(_one: &SessionToken, _other: &SessionToken) -> bool {
    false
}
