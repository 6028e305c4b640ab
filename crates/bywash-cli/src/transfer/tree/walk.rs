//! Walk of a folder of files. Unreadable entries are left out, and cost no other file.

use std::ffi::{OsStr, OsString};
use std::fs::{DirEntry, Metadata};
use std::io::{self, ErrorKind};
use std::path::{Path as FsPath, PathBuf};
use std::vec;

use bywash::origin::folder::{FileIdentity, FolderStore};
use chrono::DateTime;

use super::{Asides, Item};
use crate::failure::Failure;
use crate::transfer::left_out::{LeftOut, Why};
use crate::transfer::removal;
use crate::transfer::version::{FileVersion, Version};

/// Depth-first walk of a folder. A folder `d` sorts as `d/`, so whole names come in order.
#[derive(Debug)]
pub(super) struct Walk {
    root: PathBuf,
    left_out: LeftOut,
    asides: Asides,
    /// Name of the folder to enter next, with its slash; the root's is empty.
    enter: Option<String>,
    levels: Vec<Level>,
}

#[derive(Debug)]
struct Level {
    folder: String,
    /// Names still to be visited; names of folders end with a slash.
    names: vec::IntoIter<String>,
}

impl Walk {
    pub(super) fn new(root: PathBuf, left_out: LeftOut, asides: Asides) -> Self {
        Self {
            root,
            left_out,
            asides,
            enter: Some(String::new()),
            levels: Vec::new(),
        }
    }

    /// Reads a folder. Only a failure at the root is one of the walk.
    fn enter(&mut self, folder: String) -> Result<(), Failure> {
        let here = self.root.join(&folder);
        let mut names = match self.names(&folder, &here) {
            Ok(names) => names,
            Err(error) if folder.is_empty() => {
                return Err(Failure::io(
                    format!("cannot list {}", here.display()),
                    &error,
                ));
            }
            Err(error) => {
                self.leave_out(&folder, &error);
                return Ok(());
            }
        };
        names.sort_unstable();
        names.dedup();
        let names = names.into_iter();
        self.levels.push(Level { folder, names });
        Ok(())
    }

    /// Returns the names in a folder, in any order.
    fn names(&self, folder: &str, here: &FsPath) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(here)? {
            let entry = entry?;
            let mut name = entry.file_name();
            if removal::is_aside(&name) {
                match self.put_back(folder, &name, here) {
                    Some(own) => name = own,
                    None => continue,
                }
            } else if FolderStore::is_own_name(&name.to_string_lossy()) {
                continue;
            }
            let path = here.join(&name);
            let Some(name) = name.to_str() else {
                let reason =
                    "a key is text, and this name is not UTF-8; rename it or leave its folder out";
                let like = format!("{folder}{}", name.to_string_lossy());
                self.left_out.add_unnamed(&like, path.display(), reason);
                continue;
            };
            match is_folder(&entry, &path) {
                Ok(true) => names.push(format!("{name}/")),
                Ok(false) => names.push(name.to_owned()),
                Err(error) => self.leave_out(&format!("{folder}{name}"), &error),
            }
        }
        Ok(names)
    }

    /// Gives a file that an interrupted move set aside its name, which is returned.
    fn put_back(&self, folder: &str, aside: &OsStr, here: &FsPath) -> Option<OsString> {
        let shown = here.join(aside);
        let Some(own) = removal::own_name(aside) else {
            let reason = "an interrupted mv set this file aside, and its own name is too long to be kept; name it again";
            self.left_out.add_unnamed(folder, shown.display(), reason);
            return None;
        };
        let path = here.join(own);
        let outcome = match self.asides {
            Asides::PutBack => removal::put_back(&path),
            Asides::LeaveOut => Ok(None),
        };
        let reason = match outcome {
            Ok(Some(_)) => {
                tracing::warn!(
                    "{} was set aside by an interrupted mv, and is put back",
                    path.display()
                );
                return Some(own.to_owned());
            }
            Ok(None) => {
                "an interrupted mv set this file aside; cp, mv or sync put it back".to_owned()
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                "another process moves this file".to_owned()
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => format!(
                "an interrupted mv set this file aside, and {} is there again: compare them, and remove or rename one",
                path.display()
            ),
            Err(error) => {
                format!("an interrupted mv set this file aside, and it cannot be put back: {error}")
            }
        };
        match own.to_str() {
            Some(own) => {
                let name = format!("{folder}{own}");
                self.left_out
                    .add(&name, Why::Unreadable, shown.display(), reason);
            }
            None => self.left_out.add_unnamed(folder, shown.display(), reason),
        }
        None
    }

    fn leave_out(&self, name: &str, error: &io::Error) {
        let path = self.root.join(name);
        self.left_out
            .add(name, Why::Unreadable, path.display(), error);
    }

    /// The file `name`; `None` if it is left out.
    fn file(&self, name: String) -> Option<Item> {
        let path = self.root.join(&name);
        let (why, reason) = match look(&path) {
            Ok((meta, version)) if meta.is_file() => {
                return Some(Item {
                    name,
                    bytes: meta.len(),
                    modified: meta.modified().map_or(DateTime::UNIX_EPOCH, DateTime::from),
                    version: Version::File(version),
                });
            }
            Ok(_) => (Why::NoFile, "it is no file".to_owned()),
            Err(error) => {
                let is_link = path.is_symlink();
                match error.kind() {
                    ErrorKind::NotFound if !is_link => (
                        Why::NoFile,
                        "it was removed while its folder was listed".to_owned(),
                    ),
                    ErrorKind::NotFound | ErrorKind::NotADirectory if is_link => {
                        (Why::NoFile, format!("it points nowhere: {error}"))
                    }
                    _ if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
                        (Why::NoFile, format!("it points nowhere: {error}"))
                    }
                    _ => (Why::Unreadable, error.to_string()),
                }
            }
        };
        self.left_out.add(&name, why, path.display(), reason);
        None
    }
}

/// Returns the metadata behind a path and its version.
fn look(path: &FsPath) -> io::Result<(Metadata, FileVersion)> {
    let meta = std::fs::metadata(path)?;
    let version = FileVersion::at(path, FileIdentity::from(&meta))?;
    Ok((meta, version))
}

/// Returns whether an entry is a folder. A file that was put back is looked up by its path.
fn is_folder(entry: &DirEntry, path: &FsPath) -> io::Result<bool> {
    let kind = entry.file_type();
    match kind {
        Ok(kind) => Ok(kind.is_dir()),
        Err(_) => Ok(std::fs::symlink_metadata(path)?.is_dir()),
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
            if let Some(file) = self.file(name) {
                return Some(Ok(file));
            }
        }
    }
}
