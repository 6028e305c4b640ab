//! Multipart uploads that every node of a cluster can continue: ids that carry their state, and common records of the nodes.
//!
//! The parts are at the origin, which lists them. The id that a client gets contains all other state that a node needs, so a part needs no
//! record. Records are for lists of uploads, and for the proof that a completion has succeeded whose response was lost.

use std::fmt::Debug;

use async_trait::async_trait;
use chrono::{DateTime, Utc};

/// Seals the state of an upload into the id that its client gets.
pub trait UploadSeal: Debug + Send + Sync {
    /// Returns an id with this state, for an upload of this object: printable ASCII that needs no encoding in a URL.
    fn seal(&self, bucket: &str, key: &str, state: &[u8]) -> String;

    /// Returns the state in an id. `None` if another key sealed it, or for another object.
    fn open(&self, bucket: &str, key: &str, id: &str) -> Option<Vec<u8>>;
}

/// An open upload, as lists show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedUpload {
    /// Bucket of the object.
    pub bucket: String,
    /// Key of the object.
    pub key: String,
    /// The client's id.
    pub id: String,
    /// When it began.
    pub initiated: DateTime<Utc>,
    /// Name of the checksum algorithm that was announced at the start.
    pub algorithm: Option<String>,
    /// Digest of the store that has it ([`crate::Bucket::origin_digest`]): nodes may have different stores under one name. `None` in
    /// records of earlier versions.
    pub origin: Option<String>,
}

/// The record of an open upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedUpload {
    /// The upload.
    pub upload: SharedUpload,
    /// When it began, or when completion was last about to be sent.
    pub changed: DateTime<Utc>,
    /// Changes with the record.
    pub revision: u64,
}

/// Names an upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedUploadName<'a> {
    /// Bucket of the object.
    pub bucket: &'a str,
    /// Key of the object.
    pub key: &'a str,
    /// The client's id.
    pub id: &'a str,
}

impl SharedUpload {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> SharedUploadName<'_> {
        SharedUploadName {
            bucket: &self.bucket,
            key: &self.key,
            id: &self.id,
        }
    }
}

/// Record of an upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordedState {
    /// It is open.
    Open {
        /// Digests of the lists of parts for which completion was sent to the origin, in any order.
        attempts: Vec<String>,
        /// Whether the record was made when the upload began, so that no recorded attempt is missing.
        since_begin: bool,
    },
    /// It became the object from the list of parts with this digest. Kept for [`COMPLETED_FOR`].
    Completed(String),
    /// Nothing is recorded: it has ended, or was never recorded.
    Unknown,
}

/// Time for which a completion is remembered: clients that miss a response repeat the request within minutes.
pub const COMPLETED_FOR: std::time::Duration = std::time::Duration::from_secs(3600);

/// Error of reading or writing a record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SharedUploadsError {
    /// The store of the records does not respond. A change may have been done.
    #[error("the records of multipart uploads are not available: {0}")]
    Unavailable(String),
    /// One more exceeds a limit.
    #[error("{0}")]
    Full(String),
}

/// Where a page of open uploads begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SharedPosition<'a> {
    /// At the first upload of this key, or of the next one.
    Key(&'a str),
    /// After the upload with this key and id.
    After(&'a str, &'a str),
}

/// The records that all nodes of a cluster share.
#[async_trait]
pub trait SharedUploads: Debug + Send + Sync {
    /// Records an upload that the origin has begun, unless something is recorded of it.
    async fn begun(&self, upload: &SharedUpload) -> Result<(), SharedUploadsError>;

    /// Records the digest of a list of parts for which completion is about to be sent to the origin; durable when it returns. Returns
    /// the state after that. An upload that was completed stays so; of one without a record, a record is made.
    async fn attempt(
        &self,
        upload: &SharedUpload,
        parts: &str,
    ) -> Result<RecordedState, SharedUploadsError>;

    /// The record.
    async fn state(
        &self,
        upload: SharedUploadName<'_>,
    ) -> Result<RecordedState, SharedUploadsError>;

    /// Records that it became the object from the list of parts with this digest. It is open no more.
    async fn completed(
        &self,
        upload: SharedUploadName<'_>,
        parts: &str,
    ) -> Result<(), SharedUploadsError>;

    /// Removes the record of an upload that has ended without an object. Returns whether it was open.
    async fn ended(&self, upload: SharedUploadName<'_>) -> Result<bool, SharedUploadsError>;

    /// Returns at most `max` open uploads of a bucket in ascending order of keys, uploads of one key in an order that does not change.
    async fn list(
        &self,
        bucket: &str,
        from: SharedPosition<'_>,
        max: usize,
    ) -> Result<Vec<RecordedUpload>, SharedUploadsError>;

    /// Removes the record of an upload that the origin has forgotten, unless it has changed since it was listed. Returns whether it was
    /// removed.
    async fn forget(&self, listed: &RecordedUpload) -> Result<bool, SharedUploadsError>;
}
