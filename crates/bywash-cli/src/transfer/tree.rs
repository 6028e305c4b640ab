//! Enumeration of folders and prefixes.

mod walk;

use std::path::Path as FsPath;

use bywash::{Bucket, Omissions};
use chrono::{DateTime, Utc};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::ObjectMeta;
use object_store::path::Path;

use crate::endpoint::Endpoint;
use crate::failure::{Failure, Kind};
use crate::transfer::left_out::LeftOut;
use crate::transfer::listing::Named;
use crate::transfer::version::{ObjectVersion, Version};
use crate::url::Url;

use walk::Walk;

/// A file or an object of a tree.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    /// Relative to the root, with slashes.
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) modified: DateTime<Utc>,
    pub(crate) version: Version,
}

impl From<(String, ObjectMeta)> for Item {
    fn from((name, meta): (String, ObjectMeta)) -> Self {
        Self {
            name,
            bytes: meta.size,
            modified: meta.last_modified,
            version: Version::Object(ObjectVersion::from(&meta)),
        }
    }
}

/// Action of a walk on a file that an interrupted move set aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asides {
    /// Gives it its name again.
    PutBack,
    /// Leaves it out.
    LeaveOut,
}

/// Streams the items below a folder or prefix, by name. `NotFound` if the folder does not exist or no key has the
/// prefix. The first error ends the stream, which is then incomplete.
///
/// Memory does not grow with the number of items, except by the names of one folder of files.
///
/// Links to files count as their targets; links to folders are not followed. Omits files of
/// unfinished downloads and of folder stores. Names that are no files or cannot be read are added
/// to `left_out`.
pub(crate) fn items(
    root: &Url,
    endpoint: &Endpoint,
    left_out: &LeftOut,
    asides: Asides,
) -> Result<BoxStream<'static, Result<Item, Failure>>, Failure> {
    match root {
        Url::Stdio => Err(Failure::usage(
            "- has nothing below it; write a folder or s3://bucket/prefix",
        )),
        Url::File(folder) | Url::Folder(folder) => {
            Ok(files(Walk::new(folder.clone(), left_out.clone(), asides)))
        }
        Url::Object(address) => {
            let (store, prefix) = (endpoint.reader(address)?, address.path()?);
            let objects = objects(store, prefix, root.to_string());
            Ok(objects.map_ok(Item::from).boxed())
        }
    }
}

/// Objects below a prefix, with relative names.
pub(crate) type NamedObjects = BoxStream<'static, Result<(String, ObjectMeta), Failure>>;

/// Lists the objects of a store below a prefix.
pub(crate) fn objects(store: Bucket, prefix: Path, what: String) -> NamedObjects {
    objects_noting(&store, prefix, what).0
}

/// The same as [`objects`]; the second value has the omitted keys, once the stream has ended.
pub(crate) fn objects_noting(
    store: &Bucket,
    prefix: Path,
    what: String,
) -> (NamedObjects, Omissions) {
    let mut not_found = (!prefix.is_root()).then(|| {
        Failure::new(
            Kind::NotFound,
            format!("cannot list {what}: no key begins with it"),
        )
    });
    let (listing, omissions) = store.list_with_omissions(Some(&prefix), None);
    let found = listing.map(move |found| match found {
        Ok(meta) => Ok((name_below(&meta.location, &prefix), meta)),
        Err(error) => Err(Failure::store(format!("cannot list {what}"), &error)),
    });
    // After the last one: detects an empty listing.
    let all = found.map(Some).chain(stream::once(async { None }));
    let items = all.filter_map(move |found| {
        if found.is_some() {
            not_found = None;
        }
        let item = found.or_else(|| not_found.take().map(Err));
        async { item }
    });
    // The marker of the prefix itself is not below it.
    let items = items.try_filter(|(name, _)| std::future::ready(!name.is_empty()));
    (items.boxed(), omissions)
}

/// The name of a key relative to its prefix.
pub(crate) fn name_below(key: &Path, prefix: &Path) -> String {
    match key.prefix_match(prefix) {
        Some(parts) => Path::from_iter(parts).to_string(),
        None => key.to_string(),
    }
}

/// Files looked up in one visit to a blocking thread.
const BATCH: usize = 256;

/// Streams the files of a walk in the order of names. Holds the names of one folder a level, and one batch.
fn files(walk: Walk) -> BoxStream<'static, Result<Item, Failure>> {
    stream::try_unfold(walk, |mut walk| async move {
        let visit = tokio::task::spawn_blocking(move || {
            let batch: Result<Vec<_>, _> = walk.by_ref().take(BATCH).collect();
            batch.map(|batch| (!batch.is_empty()).then_some((batch, walk)))
        });
        let batch = visit.await;
        batch.map_err(|error| Failure::failed(format!("cannot list: {error}")))?
    })
    .map_ok(|batch| stream::iter(batch.into_iter().map(Ok)))
    .try_flatten()
    .boxed()
}

/// Removes a folder and all folders below it that have no file. Links are not followed. Passes on each failure.
pub(crate) fn remove_empty_folders(folder: &FsPath, failed: &mut impl FnMut(Failure)) {
    let folders = std::fs::read_dir(folder).and_then(|entries| {
        let mut folders = Vec::new();
        for entry in entries {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                folders.push(entry.file_name());
            }
        }
        Ok(folders)
    });
    let removed = folders.and_then(|folders| {
        for name in folders {
            remove_empty_folders(&folder.join(name), failed);
        }
        std::fs::remove_dir(folder)
    });
    if let Err(error) = removed
        && error.kind() != std::io::ErrorKind::DirectoryNotEmpty
    {
        let what = format!("cannot delete {}", folder.display());
        failed(Failure::io(what, &error));
    }
}

impl Named for Item {
    fn name(&self) -> &str {
        &self.name
    }

    fn is_empty(&self) -> bool {
        self.bytes == 0
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[tokio::test]
    async fn files_come_in_the_order_of_keys() {
        let home = tempfile::tempdir().unwrap();
        // More than one batch in one of the folders.
        let mut names: Vec<_> = (0..2 * BATCH).map(|n| format!("many/{n:04}")).collect();
        names.extend(["a", "dir-x", "dir/b", "dir/sub/c", "dir0"].map(str::to_owned));
        for name in &names {
            let path = home.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, name).unwrap();
        }
        let walk = Walk::new(home.path().to_owned(), LeftOut::default(), Asides::LeaveOut);
        let found = files(walk).map_ok(|item| item.name);
        let found: Vec<_> = found.try_collect().await.unwrap();
        names.sort();
        assert_eq!(found, names);
    }
}
