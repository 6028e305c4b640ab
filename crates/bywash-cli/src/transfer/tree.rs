//! Enumeration of folders and prefixes.

use std::path::{Path as FsPath, PathBuf};
use std::vec;

use bywash::Bucket;
use bywash::origin::folder::FolderStore;
use chrono::{DateTime, Utc};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};

use crate::endpoint::Endpoint;
use crate::failure::{Failure, Kind};
use crate::transfer::copy::Listed;
use crate::transfer::listing::Named;
use crate::url::Url;

/// A file or an object of a tree.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    /// Relative to the root, with slashes.
    pub(crate) name: String,
    pub(crate) modified: DateTime<Utc>,
    pub(crate) listed: Listed,
}

/// Streams the items below a folder or prefix, by name. `NotFound` if the folder does not exist or no key has the
/// prefix. The first error ends the stream, which is then incomplete.
///
/// Memory does not grow with the number of items, except by the names of one folder of files.
///
/// Links to files count as their targets; links to folders are not followed. Omits files of unfinished downloads and
/// of folder stores.
pub(crate) fn items(
    root: &Url,
    endpoint: &Endpoint,
) -> Result<BoxStream<'static, Result<Item, Failure>>, Failure> {
    match root {
        Url::Stdio => Err(Failure::usage(
            "- has nothing below it; write a folder or s3://bucket/prefix",
        )),
        Url::File(folder) | Url::Folder(folder) => Ok(files(folder.clone())),
        Url::Object(address) => {
            let (store, prefix) = (endpoint.of(address)?, address.path()?);
            let item = |(name, meta): (String, ObjectMeta)| Item {
                name,
                modified: meta.last_modified,
                listed: Listed {
                    bytes: meta.size,
                    e_tag: meta.e_tag,
                },
            };
            Ok(objects(store, prefix, root.to_string())
                .map_ok(item)
                .boxed())
        }
    }
}

/// Lists the objects of a store below a prefix, with relative names.
pub(crate) fn objects(
    store: Bucket,
    prefix: Path,
    what: String,
) -> BoxStream<'static, Result<(String, ObjectMeta), Failure>> {
    let mut not_found = (!prefix.is_root()).then(|| {
        Failure::new(
            Kind::NotFound,
            format!("cannot list {what}: no key begins with it"),
        )
    });
    let listing = store.list(Some(&prefix));
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
    items
        .try_filter(|(name, _)| std::future::ready(!name.is_empty()))
        .boxed()
}

/// Returns the name of a key relative to its prefix.
pub(crate) fn name_below(key: &Path, prefix: &Path) -> String {
    match key.prefix_match(prefix) {
        Some(parts) => Path::from_iter(parts).to_string(),
        None => key.to_string(),
    }
}

/// Files looked up in one visit to a blocking thread.
const BATCH: usize = 256;

/// Streams the files below `root` in the order of names. Holds the names of one folder a level, and one batch.
fn files(root: PathBuf) -> BoxStream<'static, Result<Item, Failure>> {
    stream::try_unfold(Walk::new(root), |mut walk| async move {
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

/// Depth-first walk of a folder. A folder `d` sorts as `d/`, so whole names come in order.
#[derive(Debug)]
struct Walk {
    root: PathBuf,
    /// Name of the folder to enter next, with its slash; the root's is empty.
    enter: Option<String>,
    levels: Vec<Level>,
}

#[derive(Debug)]
struct Level {
    folder: String,
    /// Names still to come; those of folders end with a slash.
    names: vec::IntoIter<String>,
}

impl Walk {
    fn new(root: PathBuf) -> Self {
        Self {
            root,
            enter: Some(String::new()),
            levels: Vec::new(),
        }
    }

    fn enter(&mut self, folder: String) -> Result<(), Failure> {
        let failed =
            |path: &FsPath, error| Failure::io(format!("cannot list {}", path.display()), &error);
        let (here, mut names) = (self.root.join(&folder), Vec::new());
        for entry in std::fs::read_dir(&here).map_err(|error| failed(&here, error))? {
            let entry = entry.map_err(|error| failed(&here, error))?;
            let name = entry.file_name();
            if FolderStore::is_own_name(&name.to_string_lossy()) {
                continue;
            }
            let path = entry.path();
            let kind = entry.file_type().map_err(|error| failed(&path, error))?;
            let name = name.to_str().ok_or_else(|| {
                Failure::failed(format!(
                    "cannot list {}: a key is text, and this name is not UTF-8; rename it or leave its folder out",
                    path.display()
                ))
            })?;
            let slash = if kind.is_dir() { "/" } else { "" };
            names.push(format!("{name}{slash}"));
        }
        names.sort_unstable();
        let names = names.into_iter();
        self.levels.push(Level { folder, names });
        Ok(())
    }
}

impl Iterator for Walk {
    type Item = Result<Item, Failure>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(folder) = self.enter.take()
                && let Err(failure) = self.enter(folder)
            {
                return Some(Err(failure));
            }
            let level = self.levels.last_mut()?;
            let Some(name) = level.names.next() else {
                self.levels.pop();
                continue;
            };
            let name = format!("{}{name}", level.folder);
            if name.ends_with('/') {
                self.enter = Some(name);
                continue;
            }
            if let Some(file) = file(&self.root, name).transpose() {
                return Some(file);
            }
        }
    }
}

/// Returns the file `name` below `root`; `None` if it is something else.
fn file(root: &FsPath, name: String) -> Result<Option<Item>, Failure> {
    let path = root.join(&name);
    match std::fs::metadata(&path) {
        Ok(meta) if meta.is_file() => Ok(Some(Item {
            name,
            modified: meta.modified().map_or(DateTime::UNIX_EPOCH, DateTime::from),
            listed: Listed {
                bytes: meta.len(),
                e_tag: None,
            },
        })),
        Ok(_) => {
            tracing::warn!("{} is no file and is left out", path.display());
            Ok(None)
        }
        Err(error) if path.is_symlink() => {
            tracing::warn!("{} is left out, it points nowhere: {error}", path.display());
            Ok(None)
        }
        Err(error) => Err(Failure::io(
            format!("cannot list {}", path.display()),
            &error,
        )),
    }
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
        self.listed.bytes == 0
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
        let found = files(home.path().to_owned()).map_ok(|item| item.name);
        let found: Vec<_> = found.try_collect().await.unwrap();
        names.sort();
        assert_eq!(found, names);
    }
}
