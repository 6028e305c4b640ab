//! The interface that origins implement, and the errors common to them.

use async_trait::async_trait;
use chrono::{DateTime, TimeDelta, Utc};
use object_store::path::Path;
use object_store::{
    Attributes, ObjectStore, ObjectStoreExt, PutMode, PutResult, Result, TagSet, UpdateVersion,
};

pub use super::capabilities::{Capabilities, Capability, TextHeaders};
pub use super::delete_condition::{DeleteCondition, VersionDeletes};
pub use super::numbered::{
    CompleteOptions, ListedPart, ListedParts, PartBody, UploadedPart, body_length_error,
};
pub(crate) use super::numbered::{invalid_part, lacks};
use super::object_tags::ObjectTags;
use super::omissions::Omissions;
use super::page::{self, Level, ListPage, Objects};
use super::session::{Finished, NewSession, OpenSession, SessionOptions, SessionToken};
use crate::digest::ContentDigest;

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

/// Names of a store, the same in each process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreIdentity {
    /// The address of the store with its endpoint. No two stores have the same address, and a strong ETag always names the same bytes.
    pub address: String,
    /// The name under which blocks of this store are kept: its address, and a digest of the headers, credentials and options by which it
    /// is read. Another client of the same store may see other bytes, or none.
    pub reads: String,
}

impl StoreIdentity {
    /// Identity of a store that all clients read alike.
    #[must_use]
    pub fn of(address: String) -> Self {
        let reads = address.clone();
        Self { address, reads }
    }
}

/// An object store with upload sessions, whose parts may arrive in any order.
///
/// Further requirements: `list` and `list_with_offset` yield keys in ascending byte order. Every response about an
/// existing object carries an ETag unless the origin has no validator. The origin does not retry.
#[async_trait]
pub trait Origin: ObjectStore {
    /// Its capabilities; constant.
    fn capabilities(&self) -> Capabilities;

    /// Names of the store for other processes, if they may use blocks that were read from it. `None` for stores whose ETags end with the
    /// process, and for stores as fast as a disk.
    fn identity(&self) -> Option<StoreIdentity> {
        None
    }

    /// Returns the address of an object, which no other object has; `None` if the store has no address. Two origins may be parts of
    /// one store.
    fn place_of(&self, path: &Path) -> Option<String> {
        place_at(self.identity(), path)
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

    /// Requests the tags of an object; a read. `NotImplemented` by a server without tags.
    async fn object_tags(&self, _path: &Path) -> Result<ObjectTags> {
        Err(lacks(self.capabilities().kind, "tags of objects"))
    }

    /// Replaces the tags of an object, in one step; none deletes them all. A tag that the store refuses is
    /// [`crate::OriginError::InvalidTag`].
    async fn set_object_tags(&self, _path: &Path, _tags: &ObjectTags) -> Result<()> {
        Err(lacks(self.capabilities().kind, "tags of objects"))
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

    /// Opens a session, which another process can take over if [`crate::UploadSession::can_be_continued`].
    async fn open_session(&self, _path: &Path, _options: &SessionOptions) -> Result<NewSession> {
        Err(lacks(self.capabilities().kind, "uploads"))
    }

    /// Takes over the session that [`Self::open_session`] opened with these options, here or in another process.
    /// Sends no request: [`crate::UploadSession::status`] returns its status.
    async fn resume_session(
        &self,
        _path: &Path,
        _options: &SessionOptions,
        _token: &SessionToken,
    ) -> Result<NewSession> {
        Err(lacks(self.capabilities().kind, "uploads"))
    }

    /// Returns the sessions of any process that are neither finished nor aborted; none where the store does not list
    /// them.
    async fn open_sessions(&self) -> Result<Vec<OpenSession>> {
        Ok(Vec::new())
    }
}

/// See [`Origin::place_of`].
pub(super) fn place_at(identity: Option<StoreIdentity>, path: &Path) -> Option<String> {
    Some(format!(
        "{}/{path}",
        identity?.address.trim_end_matches('/')
    ))
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
