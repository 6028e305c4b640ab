//! A folder of the local file system as an origin.
//!
//! Existing files are objects: the key is the path relative to the folder. Everything else is stored in a hidden
//! folder, `.bywash`, created when first needed; reads create nothing.
//!
//! ```text
//! a/b.parquet                                the object a/b.parquet
//! .bywash/keys/a                             the object `a`, since `a` is a folder in the tree
//! .bywash/attributes/a%2Fb%2Eparquet/<mtime>-<size>.json
//! .bywash/uploads/<id>/{manifest.json, 00001.<etag>, ..}   an upload in parts
//! .bywash/uploads/<id>/{manifest.json, data, ranges}       an upload session
//! .bywash/staging/                           files being written, and sessions that end with their process
//! ```
//!
//! # Keys
//!
//! A key with a path that the file system rejects is stored in the *overflow area*, percent-encoded in chunks of 66
//! bytes of the key. That is the case if a parent is a file, the path is a folder, or a component is longer than 255
//! bytes, begins with `.bywash` or is the name of an unfinished download (`.NAME.bywash-part`). So `a` can exist
//! next to `a/b`. A key is in one place: where it is already, or else where it fits; the tree is looked up first.
//!
//! Names that are not keys (not UTF-8, control characters) are left out of listings, and so are folders, links and files that the
//! process may not read or that the disk fails to read; the listing states how many. Relative symbolic links that stay in the
//! folder are followed; links that leave it, and absolute ones, are treated as absent. Where the kernel has no
//! `openat2`, no link is followed. Writing to a key that is a link replaces the link; deleting it removes the link.
//! Folders emptied by a delete are removed.
//!
//! # Versions
//!
//! The ETag consists of inode, mtime, size and ctime. The store gives each file it writes a unique mtime, so no
//! version repeats another. The ctime distinguishes versions of other programs with the same mtime and, since file
//! systems reuse inodes, the same inode. A changed mode, owner or number of names changes the ETag, too: caches read
//! the object again. The S3 endpoint adds the ETag that clients compute (see `etag.rs`); it is appended to the version's. A body is read from one descriptor, so it is one version even when the key is replaced or
//! deleted during it; the engine's reads keep that descriptor for their later requests. Before each piece is yielded,
//! the file is checked to be unmodified since it was opened; otherwise the body ends with
//! [`Precondition`](object_store::Error::Precondition).
//!
//! A write is staged, synced and renamed, so it is atomic; when it fails, the old object is untouched. Create-only
//! writes hold between processes. Conditional updates hold between all stores of one process; another process may
//! write between check and rename.
//!
//! A change of attributes alone keeps the file and gives it another mtime (see `rewrite.rs`).
//!
//! Blocking work runs on tokio's blocking threads. Work that has begun continues when its future is dropped, so a
//! cancelled write may still appear, complete.

mod attributes;
mod conditions;
mod delete;
mod error;
mod etag;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod handle;
mod held;
mod identity;
mod known_etags;
mod list;
mod multipart;
mod names;
mod objects;
mod origin;
mod ranges;
mod rename;
mod restamped;
mod rewrite;
mod root;
mod session;
mod stage;
mod sweep;
mod uploads;

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use object_store::list::{PaginatedListOptions, PaginatedListResult, PaginatedListStore};
use object_store::path::Path;
use object_store::{
    CopyMode, CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectStore,
    PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

pub use self::attributes::Stored as StoredAttributes;
pub use self::held::HeldFile;
pub use self::identity::Identity as FileIdentity;

use self::error::{FolderError, blocking, refuse_tags};
use self::list::{Filter, FolderListing};
use self::multipart::FolderUpload;
pub use self::root::Root;
use super::interface::DeleteCondition;
use super::omissions::Omissions;
use crate::limits::MAX_FOLDER_DELETES;
use crate::page::{Keys, Objects};

/// An object store over one folder. Clones are handles to the same store.
#[derive(Debug, Clone)]
pub struct FolderStore {
    root: Arc<Root>,
}

impl FolderStore {
    /// Name of the hidden folder with the store's own files. A folder with nothing else in it can still contain
    /// objects and uploads.
    pub const OWN_FOLDER: &str = names::OWN;

    /// Returns whether a name is reserved for Bywash: the hidden folder, temporary files and unfinished downloads of
    /// copies. No object is written to a file of such a name; in a folder store such keys are encoded.
    #[must_use]
    pub fn is_own_name(component: &str) -> bool {
        names::is_reserved(component)
    }

    /// Opens a folder, which must exist. While it is open, a thread of the process removes staged files of dead
    /// writers, of this process or others.
    ///
    /// The store stays at the folder that was opened, even if it is renamed. Blocks on the file system.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is no folder of that name, `PermissionDenied` if it may not be read.
    pub fn open(dir: impl Into<PathBuf>) -> Result<Self, Error> {
        let dir = dir.into();
        let name = dir.display().to_string();
        let root = Root::open(dir).map_err(|errno| {
            let error = error::io_error("open the folder", &name, errno);
            match errno {
                rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR => Error::NotFound {
                    path: name,
                    source: Box::new(error),
                },
                _ => error,
            }
        })?;
        let root = Arc::new(root);
        sweep::register(&root);
        Ok(Self { root })
    }

    /// Lists the objects below `prefix`, those after `after` if given.
    fn listed(&self, prefix: Option<&Path>, after: Option<&Path>, omissions: Omissions) -> Objects {
        let filter = Filter {
            after: after.map(Path::to_string),
            ..Filter::below(prefix)
        };
        FolderListing::new(&self.root, filter).stream(omissions)
    }

    /// Runs blocking work on the store.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Arc<Root>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let root = Arc::clone(&self.root);
        blocking(move || work(&root)).await
    }
}

impl fmt::Display for FolderStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FolderStore({})", self.root.path().display())
    }
}

#[async_trait]
impl ObjectStore for FolderStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        refuse_tags(&opts.tags)?;
        let key = location.clone();
        self.run(move |root| {
            names::places(&key)?;
            let mut staged = root.stage(&key)?;
            staged
                .write(payload)
                .map_err(|source| error::io_error("write", key.as_ref(), source))?;
            root.commit(&key, &mut staged, &opts.attributes, &opts.mode)
        })
        .await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let upload = FolderUpload::create(&self.root, location, opts).await?;
        Ok(Box::new(upload))
    }

    /// Reads the first piece, at most 1 MiB, before it returns; the body holds it until polled.
    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if options.version.is_some() {
            return Err(FolderError::Versions.not_supported());
        }
        let key = location.clone();
        self.run(move |root| root.get(&key, &options)).await
    }

    /// Reads all ranges from one version of the object.
    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let (key, ranges) = (location.clone(), ranges.to_vec());
        self.run(move |root| root.read_ranges(&key, &ranges)).await
    }

    /// Yields the keys in the order given. An absent key counts as deleted.
    fn delete_stream(&self, locations: Keys) -> Keys {
        let store = self.clone();
        locations
            .map(move |location| {
                let store = store.clone();
                async move {
                    let key = location?;
                    store
                        .run(move |root| {
                            root.delete(&key, &DeleteCondition::default())?;
                            Ok(key)
                        })
                        .await
                }
            })
            .buffered(MAX_FOLDER_DELETES)
            .boxed()
    }

    /// In ascending byte order. Objects that appear or disappear during the listing may or may not be included.
    fn list(&self, prefix: Option<&Path>) -> Objects {
        self.listed(prefix, None, Omissions::default())
    }

    /// In ascending byte order; keys before `offset` are not looked up.
    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> Objects {
        self.listed(prefix, Some(offset), Omissions::default())
    }

    /// Folders without any object below them are not common prefixes.
    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let filter = Filter {
            delimited: true,
            ..Filter::below(prefix)
        };
        self.run(move |root| Ok(FolderListing::new(root, filter).page(None, usize::MAX)?.0))
            .await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let mode = match options.mode {
            CopyMode::Overwrite => PutMode::Overwrite,
            CopyMode::Create => PutMode::Create,
        };
        let (from, to) = (from.clone(), to.clone());
        self.run(move |root| root.copy(&from, &to, &mode)).await
    }
}

/// Pages in ascending byte order, under any prefix of bytes. `/` is the only delimiter.
#[async_trait]
impl PaginatedListStore for FolderStore {
    async fn list_paginated(
        &self,
        prefix: Option<&str>,
        opts: PaginatedListOptions,
    ) -> Result<PaginatedListResult> {
        if let Some(delimiter) = &opts.delimiter
            && delimiter != "/"
        {
            return Err(Error::NotImplemented {
                operation: format!("list with delimiter '{delimiter}'"),
                implementer: "FolderStore".to_owned(),
            });
        }
        let filter = Filter {
            prefix: prefix.unwrap_or_default().to_owned(),
            after: opts.offset.max(opts.page_token.clone()),
            delimited: opts.delimiter.is_some(),
        };
        let limit = opts.max_keys.unwrap_or(usize::MAX);
        let token = opts.page_token;
        let listed =
            self.run(move |root| FolderListing::new(root, filter).page(token.as_deref(), limit));
        let (result, page_token) = listed.await?;
        Ok(PaginatedListResult { result, page_token })
    }
}
