//! Enumeration of folders and prefixes.

use std::collections::HashSet;
use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;

use bywash::origin::folder::FolderStore;
use chrono::{DateTime, Utc};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};

use crate::copy::Listed;
use crate::failure::{Failure, Kind};
use crate::location::Location;
use crate::stores::Stores;

/// A file or an object of a tree.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    /// Relative to the root, with slashes.
    pub(crate) name: String,
    pub(crate) location: Location,
    pub(crate) modified: DateTime<Utc>,
    pub(crate) listed: Listed,
}

/// Streams the items below a folder or prefix, by name. `NotFound` if the folder does not exist or no key has the
/// prefix. The first error ends the stream, which is then incomplete.
///
/// Links to files count as their targets; links to folders are not followed. Omits files of unfinished downloads and
/// of folder stores.
pub(crate) fn items(
    root: &Location,
    stores: &Stores,
) -> Result<BoxStream<'static, Result<Item, Failure>>, Failure> {
    match root {
        Location::Stdio => Err(Failure::usage(
            "- has nothing below it; write a folder or s3://bucket/prefix",
        )),
        Location::File(folder) => {
            let folder = folder.clone();
            let found = async move {
                let found = tokio::task::spawn_blocking(move || files(&folder)).await;
                let found =
                    found.map_err(|error| Failure::failed(format!("cannot list: {error}")))??;
                Ok::<_, Failure>(stream::iter(found.into_iter().map(Ok)))
            };
            Ok(stream::once(found).try_flatten().boxed())
        }
        Location::Object(address) => {
            let (store, prefix) = (stores.of(address)?, address.path()?);
            let address = address.clone();
            let item = move |(name, meta): (String, ObjectMeta)| Item {
                name,
                location: Location::Object(address.sibling(&meta.location)),
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
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    what: String,
) -> BoxStream<'static, Result<(String, ObjectMeta), Failure>> {
    let mut nothing = (!prefix.is_root()).then(|| {
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
    let told = all.filter_map(move |found| {
        if found.is_some() {
            nothing = None;
        }
        let told = found.or_else(|| nothing.take().map(Err));
        async { told }
    });
    // The marker of the prefix itself is not below it.
    told.try_filter(|(name, _)| std::future::ready(!name.is_empty()))
        .boxed()
}

/// Returns the name of a key relative to its prefix.
pub(crate) fn name_below(key: &Path, prefix: &Path) -> String {
    match key.prefix_match(prefix) {
        Some(parts) => Path::from_iter(parts).to_string(),
        None => key.to_string(),
    }
}

/// Lists the files below `root`, by name.
fn files(root: &FsPath) -> Result<Vec<Item>, Failure> {
    let mut found = Vec::new();
    folder(root, "", &mut found)?;
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

fn folder(here: &FsPath, below: &str, found: &mut Vec<Item>) -> Result<(), Failure> {
    let failed =
        |path: &FsPath, error| Failure::io(format!("cannot list {}", path.display()), &error);
    let entries = std::fs::read_dir(here).map_err(|error| failed(here, error))?;
    for entry in entries {
        let entry = entry.map_err(|error| failed(here, error))?;
        let (name, path) = (entry.file_name(), entry.path());
        if FolderStore::is_own_name(&name.to_string_lossy()) {
            continue;
        }
        let kind = entry.file_type().map_err(|error| failed(&path, error))?;
        let name = name.to_str().ok_or_else(|| {
            Failure::failed(format!(
                "cannot list {}: a key is text, and this name is not UTF-8; rename it or leave its folder out",
                path.display()
            ))
        })?;
        let name = format!("{below}{name}");
        if kind.is_dir() {
            folder(&path, &format!("{name}/"), found)?;
            continue;
        }
        match std::fs::metadata(&path) {
            Ok(meta) if meta.is_file() => found.push(file(name, path, &meta)),
            Ok(_) => tracing::warn!("{} is no file and is left out", path.display()),
            Err(error) if kind.is_symlink() => {
                tracing::warn!("{} is left out, it points nowhere: {error}", path.display());
            }
            Err(error) => return Err(failed(&path, error)),
        }
    }
    Ok(())
}

fn file(name: String, path: PathBuf, meta: &std::fs::Metadata) -> Item {
    Item {
        name,
        location: Location::File(path),
        modified: meta.modified().map_or(DateTime::UNIX_EPOCH, DateTime::from),
        listed: Listed {
            bytes: meta.len(),
            e_tag: None,
        },
    }
}

/// Lists a folder and all folders below it, parents first. Links are not followed.
pub(crate) fn folders(root: &FsPath, found: &mut Vec<PathBuf>) -> Result<(), Failure> {
    let failed = |error| Failure::io(format!("cannot list {}", root.display()), &error);
    found.push(root.to_owned());
    for entry in std::fs::read_dir(root).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.file_type().map_err(failed)?.is_dir() {
            folders(&entry.path(), found)?;
        }
    }
    Ok(())
}

/// Removes folder markers: empty objects that other names are below. Listings do not distinguish `dir/` from `dir`,
/// and a file cannot have the name of a folder.
pub(crate) fn without_markers(mut items: Vec<Item>) -> Vec<Item> {
    let mut folders = HashSet::new();
    for item in &items {
        for (slash, _) in item.name.match_indices('/') {
            folders.insert(item.name[..slash].to_owned());
        }
    }
    items.retain(|item| item.listed.bytes > 0 || !folders.contains(&item.name));
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_are_told_from_empty_objects() {
        let item = |(name, bytes): (&str, u64)| Item {
            name: name.to_owned(),
            location: Location::Stdio,
            modified: DateTime::UNIX_EPOCH,
            listed: Listed { bytes, e_tag: None },
        };
        let items = [("a", 0), ("a-b", 0), ("a/b", 0), ("c", 1), ("c/d", 1)].map(item);
        let left: Vec<_> = without_markers(items.into())
            .into_iter()
            .map(|i| i.name)
            .collect();
        assert_eq!(left, ["a-b", "a/b", "c", "c/d"]);
    }
}
