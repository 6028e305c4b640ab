//! Copies of any number of files and objects: their sources and destinations, and their execution.

pub(crate) mod byte_range;
pub(crate) mod claims;
pub(crate) mod confinement;
pub(crate) mod copy;
pub(crate) mod doubt;
pub(crate) mod download;
pub(crate) mod file;
pub(crate) mod jobs;
pub(crate) mod left_out;
pub(crate) mod listing;
pub(crate) mod object;
pub(crate) mod part;
pub(crate) mod place;
pub(crate) mod plan;
pub(crate) mod removal;
pub(crate) mod run;
pub(crate) mod source;
pub(crate) mod tree;
pub(crate) mod upload;
pub(crate) mod version;

use std::path::Path as FsPath;
use std::sync::Arc;

use bywash::OriginUrl;
use bywash::origin::folder::FolderStore;
use bywash::origin::signed::SignedTarget;

use crate::endpoint::Endpoint;
use crate::failure::Failure;
use crate::url::Url;

use confinement::Tree;
use copy::Listed;
use tree::Item;

/// Whether a copied source is kept or deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    Keep,
    Remove,
}

impl After {
    pub(crate) fn verb(self) -> &'static str {
        match self {
            Self::Keep => "copied",
            Self::Remove => "moved",
        }
    }
}

/// One copy to be made.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) source: Url,
    pub(crate) destination: Url,
    pub(crate) listed: Option<Listed>,
    /// Tree of files that contains the destination.
    pub(crate) tree: Option<Arc<Tree>>,
    /// Signed URLs of the destination, if it is written by them.
    pub(crate) signed: Option<SignedTarget>,
}

/// Returns the location of a name below a destination.
pub(crate) fn below(destination: &Url, name: &str) -> Result<Url, Failure> {
    match destination {
        Url::Stdio => Err(Failure::usage(
            "- is no folder; write a folder or s3://bucket/prefix",
        )),
        folder => Ok(folder.join(name)),
    }
}

/// The tree of files at a destination, if that is a folder of files.
pub(crate) fn tree_of(
    destination: &Url,
    sources: &[Url],
    data_dir: &FsPath,
    keep_dirlinks: bool,
) -> Option<Arc<Tree>> {
    let Url::File(folder) = destination else {
        return None;
    };
    let tree = Tree::new(folder, data_dir, keep_dirlinks);
    Some(Arc::new(tree.apart_from(sources)))
}

/// Returns whether an item is a folder marker of an S3 endpoint: an empty object with a reserved name. Copies omit it.
pub(crate) fn is_own_marker(item: &Item) -> bool {
    let name = item.name.rsplit('/').next().unwrap_or_default();
    item.bytes == 0 && FolderStore::is_own_name(name)
}

/// Makes the destination of a tree one folder store, instead of one store for each folder below it.
pub(crate) fn root_store(destination: &Url, endpoint: &Endpoint) -> Result<(), Failure> {
    let Url::Folder(folder) = destination else {
        return Ok(());
    };
    std::fs::create_dir_all(folder)
        .map_err(|error| Failure::io(format!("cannot write {destination}"), &error))?;
    let (origin, _): (OriginUrl, _) = Url::Folder(folder.join("any")).split()?;
    endpoint.bucket(&origin).map(drop)
}
