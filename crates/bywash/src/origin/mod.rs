//! Origins: where objects live.
//!
//! The engine reads and writes through [`Origin`], which is the ecosystem's [`ObjectStore`] plus
//! the one thing that trait does not offer: multipart uploads whose parts arrive in any order,
//! under numbers the client chose, as the S3 protocol allows.

pub mod azure;
mod cloud;
pub mod folder;
mod forward;
pub mod gcs;
pub mod http;
pub mod memory;
mod multipart_xml;
pub(crate) mod network;
mod options;
mod page;
mod read_only;
mod requests;
mod response;
pub mod s3;
mod url;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutResult, Result};

use crate::upload::{Finished, OpenSession, SessionOptions, SessionToken, UploadSession};

pub use cloud::Cloud;
pub use network::{Connector, Redirects, client_builder};
pub use options::{OriginOptions, OriginOptionsError};
pub use page::{Level, ListPage};
pub use read_only::{ReadOnly, Readable};
pub use url::{OriginUrl, OriginUrlError};

/// Bytes of one part, in order. An error in the stream means the part must not be stored.
pub type PartBody = BoxStream<'static, Result<Bytes>>;

/// One uploaded part, as named in the request that completes an upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadedPart {
    /// 1 to 10,000, chosen by the client.
    pub number: u16,
    /// What [`Origin::put_part`] returned for it.
    pub e_tag: String,
}

/// What some origins cannot do, and refuse before anything is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ability {
    /// Change objects or uploads.
    Write,
    /// Say which objects there are.
    List,
}

/// An object store that also takes the parts of an upload in any order.
///
/// Further promises to the engine: `list` and `list_with_offset` yield keys in ascending byte
/// order; every answer about an existing object carries an ETag unless the origin truly has no
/// validator; the origin does not retry by itself.
#[async_trait]
pub trait Origin: ObjectStore {
    /// Short name of the kind of origin, for metrics and messages: `s3`, `gcs`, `azure`, `http`, `file`, `memory`.
    fn kind(&self) -> &'static str;

    /// Whether requests that need this are sent at all; an origin that is only read refuses writes by itself.
    fn can(&self, _ability: Ability) -> bool {
        true
    }

    /// The first `most` objects after `after` whose keys begin with `prefix`, by one request where the store has pages.
    /// Unlike a folder, `prefix` may end within a name.
    async fn list_page(&self, prefix: &str, after: Option<&Path>, most: usize) -> Result<ListPage> {
        let list = |folder: Option<&Path>| match after {
            None => self.list(folder),
            Some(after) => self.list_with_offset(folder, after),
        };
        page::of_stream(list, prefix, most).await
    }

    /// One level of a listing: objects and common prefixes whose names begin with `prefix` and follow `after`, keys with a `/` after
    /// `prefix` folded into one. At most `max` of them, if the store has such pages; else all.
    async fn list_level(&self, prefix: &str, after: &str, max: usize) -> Result<Level> {
        let _ = max;
        let folder = page::folder_of(prefix)?;
        let entries = self.list_with_delimiter(folder.as_ref()).await?;
        Ok(Level::of_folder(entries, prefix, after))
    }

    /// Opens an upload; nothing is visible until it is completed.
    async fn create_upload(&self, path: &Path, opts: PutMultipartOptions) -> Result<String>;

    /// Whether each piece of a part's body costs the store a step of its own, so that it should get few and large ones.
    fn wants_joined_pieces(&self) -> bool {
        false
    }

    /// Stores one part, replacing an earlier one of the same number, and returns its ETag.
    ///
    /// `length` is the exact number of bytes `body` will yield. If the body errs or ends early, no
    /// part is stored (an earlier part of that number may stay) and the error is returned.
    async fn put_part(
        &self,
        path: &Path,
        upload: &str,
        number: u16,
        length: u64,
        body: PartBody,
    ) -> Result<String>;

    /// Makes the object of `parts`, in the order given, visible in one step.
    ///
    /// `mode` is checked when the object becomes visible. An unknown part or a wrong ETag is
    /// [`crate::EngineError::InvalidPart`], an unknown upload is `NotFound`; neither leaves a
    /// shorter object, and the upload stays.
    async fn complete_upload(
        &self,
        path: &Path,
        upload: &str,
        parts: &[UploadedPart],
        mode: PutMode,
    ) -> Result<PutResult>;

    /// Drops the upload and its parts. An unknown upload is `NotFound`.
    async fn abort_upload(&self, path: &Path, upload: &str) -> Result<()>;

    /// What the store says of an object: its length, and its CRC32C if the store keeps one. `None` if there is no object.
    ///
    /// Asked when the answer to the end of an upload was lost.
    async fn stored(&self, path: &Path) -> Result<Option<Finished>> {
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

    /// Opens a session that another process can take over; `None` if this kind of origin has none, and uploads go by the
    /// parts above.
    async fn open_session(
        &self,
        _path: &Path,
        _options: &SessionOptions,
    ) -> Result<Option<Box<dyn UploadSession>>> {
        Ok(None)
    }

    /// Takes over the session that [`Self::open_session`] opened with these options, here or in another process. Sends no
    /// request: [`UploadSession::status`] tells what became of it.
    async fn resume_session(
        &self,
        _path: &Path,
        _options: &SessionOptions,
        _token: &SessionToken,
    ) -> Result<Option<Box<dyn UploadSession>>> {
        Ok(None)
    }

    /// Sessions that neither finished nor were aborted, whoever opened them; none where the store does not list them.
    async fn open_sessions(&self) -> Result<Vec<OpenSession>> {
        Ok(Vec::new())
    }

    /// Whether two tokens are of one session. A token that [`Self::open_sessions`] made up may say less than the one its
    /// session was opened with. The id of an upload that [`Self::create_upload`] returned may stand for a token here.
    fn same_session(&self, one: &SessionToken, other: &SessionToken) -> bool {
        one == other
    }
}

/// The error for a body that is not as long as announced; its part is not stored.
pub(crate) fn body_length_error(path: &Path, expected: u64, got: u64) -> object_store::Error {
    crate::EngineError::LengthMismatch {
        object: path.to_string(),
        expected,
        got,
    }
    .into()
}

/// The error for a part named at completion that was not uploaded, or was replaced since.
pub(crate) fn invalid_part(path: &Path, part: &UploadedPart) -> object_store::Error {
    crate::EngineError::InvalidPart {
        object: path.to_string(),
        number: part.number,
    }
    .into()
}
