//! Errors of the journal.

use std::io;
use std::path::{Path as FsPath, PathBuf};

use super::kinds::FORMAT;

/// An error of the journal, grouped by the remedies that the caller has.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The file system failed.
    #[error("cannot {operation} the journal {}: {source}", path.display())]
    Io {
        /// The operation.
        operation: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// Bytes of a file that no crash leaves behind. Nothing was removed; the upload can only be started again.
    #[error(
        "the journal {} is damaged at byte {offset}: {detail}; nothing was removed; upload the object again, then delete the file",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Offset of the damage.
        offset: usize,
        /// The mismatch.
        detail: &'static str,
    },
    /// Another version of this program wrote the file.
    #[error(
        "the journal {} has format {version}, and this program reads {}; continue with the version that wrote it",
        path.display(),
        FORMAT.version
    )]
    OtherVersion {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// No upload has this id.
    #[error("no upload {id:?} is in the journal; see which are: bywash uploads list")]
    Unknown {
        /// The id.
        id: String,
    },
    /// Another process works on the upload.
    #[error("upload {id} is still being worked on{}; let it end, or end it first", by(*process))]
    Busy {
        /// The id.
        id: String,
        /// The process, if recorded.
        process: Option<u32>,
    },
    /// The upload cannot be journaled.
    #[error("the upload of {url} cannot be journaled: {detail}")]
    Unfit {
        /// The object.
        url: String,
        /// The reason.
        detail: String,
    },
}

fn by(process: Option<u32>) -> String {
    process.map_or_else(String::new, |process| format!(" by process {process}"))
}

pub(super) fn io_error(
    operation: &'static str,
    path: &FsPath,
) -> impl Fn(io::Error) -> JournalError + use<> {
    let path = path.to_owned();
    move |source| JournalError::Io {
        operation,
        path: path.clone(),
        source,
    }
}
