//! Confinement of tree copies: object names must not lead outside of the destination.

use std::path::{Component, Path as FsPath, PathBuf};

use bywash::origin::folder::FolderStore;

use crate::failure::Failure;
use crate::url::Url;

/// Destination folder of a tree copy. Files stay below it, because the store chooses their names.
#[derive(Debug, Clone)]
pub(crate) struct Tree {
    folder: PathBuf,
    /// The data folder, which copies must not write to.
    data_dir: PathBuf,
    /// Folders that are copied, which links must not lead to.
    sources: Vec<PathBuf>,
    /// Symbolic links to folders are followed.
    keep_dirlinks: bool,
}

impl Tree {
    pub(crate) fn new(folder: &FsPath, data_dir: &FsPath, keep_dirlinks: bool) -> Self {
        Self {
            folder: folder.to_owned(),
            data_dir: data_dir.to_owned(),
            sources: Vec::new(),
            keep_dirlinks,
        }
    }

    /// Keeps copies of these sources out of the folders among them.
    pub(crate) fn apart_from(mut self, sources: &[Url]) -> Self {
        let folders = sources.iter().filter_map(|source| match source {
            Url::File(folder) | Url::Folder(folder) => Some(resolved(folder)),
            Url::Stdio | Url::Object(_) => None,
        });
        self.sources.extend(folders);
        self
    }

    /// Checks that a file may be written at `path`. Returns the resolved path of the folder joined with the rest.
    ///
    /// # Errors
    /// If a name below the folder is reserved or not a plain name, if a folder on the way is a symbolic link, or if
    /// the file would be in the data folder.
    pub(crate) fn confine(&self, path: &FsPath) -> Result<PathBuf, Failure> {
        let refused =
            |why: String| Failure::failed(format!("cannot write {}: {why}", path.display()));
        let below = path
            .strip_prefix(&self.folder)
            .map_err(|_| refused(format!("it is not below {}", self.folder.display())))?;
        let (mut target, data_dir) = (resolved(&self.folder), resolved(&self.data_dir));
        let is_inside = target.starts_with(&data_dir);
        let mut parts = below.components().peekable();
        while let Some(part) = parts.next() {
            let Component::Normal(name) = part else {
                return Err(refused("the name leads out of the folder".to_owned()));
            };
            refuse_own_name(FsPath::new(name)).map_err(refused)?;
            target.push(name);
            if parts.peek().is_some() && target.is_symlink() {
                if !self.keep_dirlinks {
                    return Err(refused(format!(
                        "{} is a symbolic link; remove it, or follow links to folders with --keep-dirlinks",
                        target.display()
                    )));
                }
                target = resolved(&target);
                if let Some(source) = self
                    .sources
                    .iter()
                    .find(|source| target.starts_with(source))
                {
                    return Err(refused(format!(
                        "it would be in {}, which is copied; remove the symbolic link",
                        source.display()
                    )));
                }
            }
            if !is_inside && target.starts_with(&data_dir) {
                return Err(refused(
                    "it would be in the data folder; copy elsewhere, or name another with --data-dir".to_owned(),
                ));
            }
        }
        Ok(target)
    }
}

/// Rejects a path with a reserved last name: later commands would treat the file as Bywash's own.
pub(crate) fn refuse_own_name(path: &FsPath) -> Result<(), String> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if FolderStore::is_own_name(&name) {
        Err(format!(
            "{name} is a name of Bywash's own files; write it under another name"
        ))
    } else {
        Ok(())
    }
}

/// Resolves all links in the existing part of the path.
pub(crate) fn resolved(path: &FsPath) -> PathBuf {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for existing in whole.ancestors() {
        if let (Ok(real), Ok(rest)) = (existing.canonicalize(), whole.strip_prefix(existing)) {
            // Joining an empty path would append a slash.
            return if rest.as_os_str().is_empty() {
                real
            } else {
                real.join(rest)
            };
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_own_names_and_the_data_folder_are_refused_below_the_folder_only() {
        let home = tempfile::tempdir().unwrap();
        let real = home.path().canonicalize().unwrap();
        std::fs::create_dir_all(real.join("to/sub")).unwrap();
        std::fs::create_dir(real.join("outside")).unwrap();
        symlink("to", real.join("link-to-target")).unwrap();
        symlink("../outside", real.join("to/link")).unwrap();
        symlink("../../outside/file", real.join("to/sub/file")).unwrap();
        symlink("../data", real.join("to/sneaky")).unwrap();
        let to = real.join("link-to-target");
        // The data folder need not exist.
        let tree = |keep| Tree::new(&to, &real.join("to/data"), keep);
        for (name, expected) in [
            ("new/a", Some("to/new/a")),
            ("sub/a", Some("to/sub/a")),
            // The link itself is replaced.
            ("sub/file", Some("to/sub/file")),
            ("link/a", None),
            ("data/uploads/x", None),
            (".bywash/keys/x", None),
            ("sub/.a.bywash-part", None),
            ("../a", None),
            ("/etc/a", None),
        ] {
            let found = tree(false).confine(&to.join(name)).ok();
            assert_eq!(found, expected.map(|name| real.join(name)), "{name}");
        }
        let found = tree(true).confine(&to.join("link/a")).unwrap();
        assert_eq!(found, real.join("outside/a"));
        std::fs::create_dir(real.join("data")).unwrap();
        let data = Tree::new(&to, &real.join("data"), true);
        assert!(data.confine(&to.join("sneaky/x")).is_err());
        // A tree copied explicitly into the data folder is allowed.
        let within = Tree::new(&to, &real, false);
        assert!(within.confine(&to.join("a")).is_ok());
    }
}
