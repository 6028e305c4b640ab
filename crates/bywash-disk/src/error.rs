//! Errors, by the action that a caller can take.

use std::io;
use std::path::{Path, PathBuf};

/// Error of a tier that cannot be opened. Errors of single blocks are misses.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiskError {
    /// Another process uses the folder.
    #[error("{} is used by another process: give each server a folder of its own", path.display())]
    Locked {
        /// The folder.
        path: PathBuf,
    },
    /// The folder belongs to another user.
    #[error("{} belongs to user {owner}: name a folder of the server's own user", path.display())]
    OtherOwner {
        /// The folder.
        path: PathBuf,
        /// Its owner's number.
        owner: u32,
    },
    /// The folder has a file that no tier wrote.
    #[error("{} has a file {name:?} that is not of a disk tier: name an empty folder", path.display())]
    ForeignFile {
        /// The folder.
        path: PathBuf,
        /// The file.
        name: String,
    },
    /// The file that names the folder's format was cut or overwritten. Its blocks cannot be told
    /// from another folder's.
    #[error("{} is damaged: remove the folder, and it is created again", path.display())]
    DamagedFormat {
        /// The file.
        path: PathBuf,
    },
    /// The folder was written by another version of Bywash.
    #[error("{} begins with {found:?}, which this version cannot read: name another folder, or remove this one", path.display())]
    UnknownFormat {
        /// The file.
        path: PathBuf,
        /// Its first line.
        found: String,
    },
    /// The size leaves no room for a segment.
    #[error("a disk tier needs at least {min} bytes, {size} were given")]
    TooSmall {
        /// Bytes given.
        size: u64,
        /// Min bytes.
        min: u64,
    },
    /// The index does not fit into the memory it may have.
    #[error(
        "the index of {size} bytes in blocks of {block_size} takes {needed} bytes of memory; at most {allowed} are allowed: give the tier less disk, larger blocks or more memory"
    )]
    IndexTooLarge {
        /// Bytes of the tier.
        size: u64,
        /// Bytes of a block.
        block_size: u32,
        /// Bytes the index takes.
        needed: u64,
        /// Bytes it may take.
        allowed: u64,
    },
    /// A file operation failed.
    #[error("cannot {operation} {}: {source}", path.display())]
    File {
        /// The operation.
        operation: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
}

/// Maps an I/O error to a [`DiskError`] that names operation and path.
pub(crate) fn disk_error(
    operation: &'static str,
    path: &Path,
) -> impl FnOnce(io::Error) -> DiskError {
    let path = path.to_owned();
    move |source| DiskError::File {
        operation,
        path,
        source,
    }
}
