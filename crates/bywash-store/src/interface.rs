//! The interface that origins implement, and the errors common to them.

use std::ops::Range;

use async_trait::async_trait;
use bytes::Bytes;
use chrono::{DateTime, TimeDelta, Utc};
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    Attributes, ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutResult, Result,
    TagSet, UpdateVersion,
};

pub use super::capabilities::{Capabilities, Capability, TextHeaders};
pub use super::delete_condition::{DeleteCondition, VersionDeletes};
use super::object_tags::ObjectTags;
use super::omissions::Omissions;
use super::page::{self, Level, ListPage, Objects};
use super::session::{Finished, NewSession, OpenSession, SessionOptions, SessionToken};
use crate::digest::ContentDigest;

/// Bytes of one part, in order. An error in the stream means that the part must not be stored.
pub type PartBody = BoxStream<'static, Result<Bytes>>;

/// One uploaded part, as named in the request that completes an upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadedPart {
    /// 1 to 10,000, chosen by the client.
    pub number: u16,
    /// The ETag that [`Origin::put_part`] returned for it.
    pub e_tag: String,
}

/// A part of an open upload, as its store lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedPart {
    /// 1 to 10,000, chosen by the client.
    pub number: u16,
    /// The ETag that [`Origin::put_part`] returned for it.
    pub e_tag: String,
    /// Its bytes.
    pub size: u64,
    /// When it was stored, if the store states that.
    pub modified: Option<DateTime<Utc>>,
}

/// One page of the parts of an open upload, by ascending numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListedParts {
    /// The parts. A store that keeps a part next to its replacement lists both.
    pub parts: Vec<ListedPart>,
    /// Whether parts with higher numbers follow.
    pub more: bool,
}

impl ListedParts {
    /// Returns the page of the `max` first numbers above `after`.
    pub(super) fn page(mut parts: Vec<ListedPart>, after: u16, max: usize, more: bool) -> Self {
        parts.retain(|part| part.number > after);
        parts.sort_by_key(|part| part.number);
        let mut numbers = 0;
        let mut last = None;
        let end = parts.iter().position(|part| {
            numbers += usize::from(last != Some(part.number));
            last = Some(part.number);
            numbers > max
        });
        let cut = end.is_some();
        parts.truncate(end.unwrap_or(parts.len()));
        Self {
            parts,
            more: more || cut,
        }
    }
}

/// How an upload in parts is completed.
#[derive(Debug, Clone, Default)]
pub struct CompleteOptions {
    /// Replace, create only, or replace a known version only. Checked when the object becomes visible.
    pub mode: PutMode,
    /// Attributes that are known only now. Stores that take them only when the upload begins ignore them;
    /// [`Capabilities::takes_late_attributes`] returns which.
    pub attributes: Attributes,
}

impl From<PutMode> for CompleteOptions {
    fn from(mode: PutMode) -> Self {
        Self {
            mode,
            ..Self::default()
        }
    }
}

/// Other attributes for a version of an object. Its bytes stay.
#[derive(Debug, Clone)]
pub struct AttributeRewrite {
    /// The version, which has an ETag.
    pub version: UpdateVersion,
    /// Its bytes.
    pub size: u64,
    /// All attributes that it is to have.
    pub attributes: Attributes,
    /// All tags that it is to have, for a store that keeps tags separate from the object.
    pub tags: TagSet,
}

/// Another key for a version of an object. Its bytes stay.
#[derive(Debug, Clone)]
pub struct ObjectRename {
    /// The version, which has an ETag.
    pub version: UpdateVersion,
    /// All attributes that it is to have under the other key.
    pub attributes: Attributes,
    /// Whether an object of the other key is replaced.
    pub mode: PutMode,
}

/// A part of an upload, as the bytes of a version of its object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartCopy {
    /// Its number in the upload.
    pub number: u16,
    /// ETag of the version.
    pub e_tag: String,
    /// Its bytes in the version; not empty.
    pub range: Range<u64>,
}

/// An object store that also accepts the parts of an upload in any order.
///
/// Further requirements: `list` and `list_with_offset` yield keys in ascending byte order. Every response about an
/// existing object carries an ETag unless the origin has no validator. The origin does not retry.
#[async_trait]
pub trait Origin: ObjectStore {
    /// Its capabilities; constant.
    fn capabilities(&self) -> Capabilities;

    /// The address of the store with its endpoint, if another process may use blocks that were read from it. No
    /// two stores have the same address, and a strong ETag always names the same bytes. `None` for stores whose ETags
    /// end with the process, and for stores as fast as a disk.
    fn durable_address(&self) -> Option<String> {
        None
    }

    /// The name under which blocks of this store are kept for other processes: its address, and a digest of the headers,
    /// credentials and options by which it is read. Another client of the same store may see other bytes, or none.
    /// `None` as for [`Self::durable_address`].
    fn cache_identity(&self) -> Option<String> {
        self.durable_address()
    }

    /// Returns the address of an object, which no other object has; `None` if the store has no address. Two origins may be parts of
    /// one store.
    fn place_of(&self, path: &Path) -> Option<String> {
        place_at(self.durable_address(), path)
    }

    /// Returns at most `max` objects with keys that begin with `prefix` and come after `after`, by one request where the store has
    /// pages. Unlike a folder, `prefix` may end within a name. `after` is a key, or another text to begin at: from it on or earlier.
    async fn list_page(&self, prefix: &str, after: Option<&str>, max: usize) -> Result<ListPage> {
        let after = after.and_then(page::offset_of);
        let list = |folder: Option<&Path>, omissions: &Omissions| {
            self.list_noting(folder, after.as_ref(), omissions)
        };
        page::of_stream(list, prefix, max).await
    }

    /// Lists the objects below `prefix`, only those after `after` if given, and notes in `omissions` the entries that it leaves out.
    fn list_noting(
        &self,
        prefix: Option<&Path>,
        after: Option<&Path>,
        omissions: &Omissions,
    ) -> Objects {
        let _ = omissions;
        match after {
            None => self.list(prefix),
            Some(after) => self.list_with_offset(prefix, after),
        }
    }

    /// Returns one level of a listing: objects and common prefixes with names that begin with `prefix` and sort after
    /// `after`. Keys with a `/` after `prefix` are folded into one. Returns at most `max` entries if the store has such
    /// pages, else all.
    async fn list_level(&self, prefix: &str, after: &str, max: usize) -> Result<Level> {
        let _ = max;
        let folder = page::folder_of(prefix)?;
        let entries = self.list_with_delimiter(folder.as_ref()).await?;
        Ok(Level::of_folder(entries, prefix, after))
    }

    /// Begins an upload and returns its id; nothing is visible until it is completed.
    async fn create_upload(&self, _path: &Path, _opts: PutMultipartOptions) -> Result<String> {
        Err(lacks(self.capabilities().kind, "uploads in numbered parts"))
    }

    /// Stores one part, replacing an earlier one of the same number, and returns its ETag.
    ///
    /// `length` is the exact number of bytes that `body` yields. If the body fails or ends early, no part is stored
    /// (an earlier part of that number may stay) and the error is returned.
    async fn put_part(
        &self,
        _path: &Path,
        _upload: &str,
        _number: u16,
        _length: u64,
        _body: PartBody,
    ) -> Result<String> {
        Err(lacks(self.capabilities().kind, "uploads in numbered parts"))
    }

    /// Returns the parts of an open upload with numbers above `after`, at most `max` numbers. An unknown upload is `NotFound` where
    /// [`Capabilities::knows_uploads`].
    async fn uploaded_parts(
        &self,
        _path: &Path,
        _upload: &str,
        _after: u16,
        _max: usize,
    ) -> Result<ListedParts> {
        Err(lacks(self.capabilities().kind, "lists of parts"))
    }

    /// Requests the tags of an object; a read. `NotImplemented` by a server without tags.
    async fn object_tags(&self, _path: &Path) -> Result<ObjectTags> {
        Err(lacks(self.capabilities().kind, "tags of objects"))
    }

    /// Replaces the tags of an object, in one step; none deletes them all. A tag that the store refuses is
    /// [`crate::OriginError::InvalidTag`].
    async fn set_object_tags(&self, _path: &Path, _tags: &ObjectTags) -> Result<()> {
        Err(lacks(self.capabilities().kind, "tags of objects"))
    }

    /// Has the store copy bytes of an object as a part of an upload for the same object; they are not sent. `Precondition` if the
    /// object has another version, `NotImplemented` if the store makes no such copies.
    async fn copy_part(
        &self,
        _path: &Path,
        _upload: &str,
        _part: &PartCopy,
    ) -> Result<UploadedPart> {
        Err(lacks(self.capabilities().kind, "copies of parts"))
    }

    /// Replaces the attributes of an object in one step, if it is still this version, and copies no bytes. `None`, and nothing is
    /// changed, if the bytes have to be written again. `Precondition` if the object has another version.
    async fn rewrite_in_place(
        &self,
        _path: &Path,
        _rewrite: &AttributeRewrite,
    ) -> Result<Option<PutResult>> {
        Ok(None)
    }

    /// Deletes an object if it meets `condition`, in one step. An object that does not exist is `NotFound` if the condition has an
    /// ETag, and else counts as deleted.
    async fn delete_if(&self, path: &Path, condition: &DeleteCondition) -> Result<()> {
        let _ = (path, condition);
        Err(lacks(self.capabilities().kind, "conditional deletes"))
    }

    /// Gives an object another key in one step. The object there is a new version, with a time and an ETag of its own.
    ///
    /// `NotFound` or `Precondition` with the path `from` if the object is not the version of `rename`; with the path `to`, or
    /// `AlreadyExists`, if the mode does not allow the write. `NotImplemented`, and nothing has changed, if the store has no renames, or
    /// none of this object: it is then copied and deleted.
    async fn rename_version(
        &self,
        _from: &Path,
        _to: &Path,
        _rename: &ObjectRename,
    ) -> Result<PutResult> {
        Err(lacks(self.capabilities().kind, "renames"))
    }

    /// Completes an upload: the object of `parts`, in this order, becomes visible in one step.
    ///
    /// The mode is checked when the object becomes visible. An unknown part or a wrong ETag is
    /// [`crate::OriginError::InvalidPart`], an unknown upload is `NotFound`. Neither leaves a shorter object, and the
    /// upload stays.
    async fn complete_upload(
        &self,
        _path: &Path,
        _upload: &str,
        _parts: &[UploadedPart],
        _options: CompleteOptions,
    ) -> Result<PutResult> {
        Err(lacks(self.capabilities().kind, "uploads in numbered parts"))
    }

    /// Aborts an upload and removes its parts. An unknown upload is `NotFound`.
    async fn abort_upload(&self, _path: &Path, _upload: &str) -> Result<()> {
        Err(lacks(self.capabilities().kind, "uploads in numbered parts"))
    }

    /// Returns an object's length, and its CRC32C if the store keeps one; `None` if there is no object.
    ///
    /// Called when the response to the completion of an upload was lost.
    async fn stat(&self, path: &Path) -> Result<Option<Finished>> {
        match self.head(path).await {
            Ok(meta) => Ok(Some(Finished {
                e_tag: meta.e_tag,
                version: meta.version,
                length: Some(meta.size),
                crc32c: None,
            })),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Requests the digest of an object's content, and returns it with the ETag of its version. `None` if the store
    /// keeps none, or states it in the responses to ranged reads.
    async fn content_digest(&self, _path: &Path) -> Result<Option<(String, ContentDigest)>> {
        Ok(None)
    }

    /// Opens a session that another process can take over. Returns `None` if this kind of origin has none; uploads
    /// then use the parts above.
    async fn open_session(&self, _path: &Path, _options: &SessionOptions) -> Result<NewSession> {
        Ok(None)
    }

    /// Takes over the session that [`Self::open_session`] opened with these options, here or in another process.
    /// Sends no request: [`crate::UploadSession::status`] returns its status.
    async fn resume_session(
        &self,
        _path: &Path,
        _options: &SessionOptions,
        _token: &SessionToken,
    ) -> Result<NewSession> {
        Ok(None)
    }

    /// Returns the sessions of any process that are neither finished nor aborted; none where the store does not list
    /// them.
    async fn open_sessions(&self) -> Result<Vec<OpenSession>> {
        Ok(Vec::new())
    }
}

/// See [`Origin::place_of`].
pub(super) fn place_at(address: Option<String>, path: &Path) -> Option<String> {
    Some(format!("{}/{path}", address?.trim_end_matches('/')))
}

/// Returns the error of an origin without `operation`.
pub(super) fn lacks(kind: &str, operation: &str) -> object_store::Error {
    object_store::Error::NotImplemented {
        operation: operation.to_owned(),
        implementer: kind.to_owned(),
    }
}

/// Returns the error for a body of another length than announced; its part is not stored.
pub fn body_length_error(path: &Path, expected: u64, got: u64) -> object_store::Error {
    crate::error::OriginError::LengthMismatch {
        object: path.to_string(),
        expected,
        got,
    }
    .into()
}

/// Returns the error for a part named at completion that was not uploaded, or was replaced since.
pub(crate) fn invalid_part(path: &Path, part: &UploadedPart) -> object_store::Error {
    crate::error::OriginError::InvalidPart {
        object: path.to_string(),
        number: part.number,
    }
    .into()
}

/// Returns the `If-Unmodified-Since` for an object modified at `date`: the next second, if `date` has no parts of one.
///
/// A `Last-Modified` has whole seconds. Some servers compare its object's own time, with parts of a second, and would never
/// send the object. An object that passes this condition in error has another date in its response, which is compared exactly.
pub fn unmodified_since(date: DateTime<Utc>) -> DateTime<Utc> {
    match date.timestamp_subsec_nanos() {
        0 => date + TimeDelta::seconds(1),
        _ => date,
    }
}
