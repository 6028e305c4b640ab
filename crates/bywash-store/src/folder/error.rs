//! Errors of the folder store, as the variants of [`object_store::Error`] that callers distinguish.

use std::io;

use object_store::path::Path;
use object_store::{Error, Result, TagSet};
use rustix::io::Errno;

use crate::omissions::Omission;

/// The name of this store in [`Error::Generic`].
pub(super) const STORE: &str = "Folder";

/// Cause of a failure; always the `source` of an [`object_store::Error`].
#[derive(Debug, thiserror::Error)]
pub(super) enum FolderError {
    #[error("cannot {operation} '{key}': {source}{}", advice(source))]
    Io {
        operation: &'static str,
        key: String,
        source: io::Error,
    },
    #[error("no such object in the folder")]
    NoSuchObject,
    #[error("an object has this key; write without the create-only condition to replace it")]
    Exists,
    #[error("the object's ETag is {found}, not {expected}; read it again, then retry")]
    WrongETag { found: String, expected: String },
    #[error(
        "the object has another size or modification time than the condition; read it again, then retry"
    )]
    OtherSizeOrTime,
    #[error("a conditional update needs the ETag of the version it replaces")]
    NoETag,
    #[error("the file was replaced or changed while it was read; read it again")]
    Changed,
    #[error("the key kept changing place; retry when other writers have finished")]
    Restless,
    #[error(
        "its file is on another mount than the folder; serve that mount as a folder of its own"
    )]
    OtherMount,
    #[error("no upload '{0}' is open for this key; create one first")]
    NoSuchUpload(String),
    #[error("upload '{upload}' has no part {number} with ETag '{e_tag}'; upload the part again")]
    NoSuchPart {
        upload: String,
        number: u16,
        e_tag: String,
    },
    #[error("another process writes to this upload; retry when it has ended")]
    UploadBusy,
    #[error("part number {0} is not between 1 and 10000")]
    PartNumber(u64),
    #[error("part {number} was promised {expected} bytes but got {got}; send it again")]
    PartLength {
        number: u16,
        expected: u64,
        got: u64,
    },
    #[error("the folder keeps no object versions; read without a version")]
    Versions,
    #[error("attribute {0} cannot be kept in a folder; send the object without it")]
    Attribute(String),
    #[error("cannot write the side file '{name}': {source}")]
    SideFile {
        name: String,
        source: serde_json::Error,
    },
}

fn advice(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            " (nothing was changed; free space, then retry)"
        }
        _ => "",
    }
}

impl FolderError {
    /// Returns the variant for a failure that callers need not distinguish.
    pub(super) fn generic(self) -> Error {
        Error::Generic {
            store: STORE,
            source: Box::new(self),
        }
    }

    pub(super) fn not_found(self, key: &Path) -> Error {
        Error::NotFound {
            path: key.to_string(),
            source: Box::new(self),
        }
    }

    pub(super) fn precondition(self, key: &Path) -> Error {
        Error::Precondition {
            path: key.to_string(),
            source: Box::new(self),
        }
    }

    pub(super) fn not_supported(self) -> Error {
        Error::NotSupported {
            source: Box::new(self),
        }
    }
}

/// Describes a failed operation on a key. Callers map `NotFound`, as they know the missing object.
pub(super) fn io_error(
    operation: &'static str,
    key: impl Into<String>,
    source: impl Into<io::Error>,
) -> Error {
    let (key, source) = (key.into(), source.into());
    let kind = source.kind();
    let path = key.clone();
    let error = FolderError::Io {
        operation,
        key,
        source,
    };
    match kind {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            Error::PermissionDenied {
                path,
                source: Box::new(error),
            }
        }
        _ => error.generic(),
    }
}

/// Returns whether the error of opening a path means that there is no object.
pub(super) fn is_absent(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::NXIO) || is_misfit(errno)
}

/// Returns whether the file system rejects the path itself: a parent is a file, the path is a folder, a name is too
/// long or has invalid bytes, a link leaves the folder.
pub(super) fn is_misfit(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::NOTDIR
            | Errno::ISDIR
            | Errno::NAMETOOLONG
            | Errno::INVAL
            | Errno::ILSEQ
            | Errno::LOOP
            | Errno::XDEV
    )
}

/// Returns whether the error of one entry of a folder is of this entry alone, so that a listing leaves it out. Others, as too many
/// open files, are of the process.
pub(super) fn is_unreadable(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::ACCESS | Errno::PERM | Errno::IO | Errno::STALE | Errno::NOTCONN
    )
}

/// Returns why an entry is left out.
pub(super) fn unreadable(errno: Errno) -> Omission {
    Omission::Unreadable(io::Error::from(errno).to_string())
}

/// Runs blocking file work off the async threads.
///
/// Dropping the future does not stop work that has begun.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await?
}

/// Tags are not stored; dropping them silently would be a false success.
pub(super) fn refuse_tags(tags: &TagSet) -> object_store::Result<()> {
    if tags.encoded().is_empty() {
        return Ok(());
    }
    Err(Error::NotImplemented {
        operation: "tags".to_owned(),
        implementer: "FolderStore".to_owned(),
    })
}
