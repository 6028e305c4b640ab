//! Files being written: nothing is visible under a key before it is complete and on disk.
//!
//! A staged file is locked by its writer; [`super::sweep`] removes those without a lock.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::time::SystemTime;

use bytes::Bytes;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::etag;
use super::identity::{Identity, unique_time};
use super::names::STAGING;
use super::root::Root;
use crate::digest::ContentDigest;
use crate::staged_file::{hold, rename_durably, unique_name};

/// Bytes of a file above which they are synced before it gets its mtime.
const EARLY_SYNC_BYTES: u64 = 8 << 20;

/// A file in the staging folder, removed when dropped unless it was placed.
#[derive(Debug)]
pub(super) struct Staged {
    folder: OwnedFd,
    name: String,
    file: File,
    /// Whether it is left in place when dropped.
    keep: bool,
    /// Whether all of its bytes are on the disk.
    is_synced: bool,
}

impl Staged {
    /// Creates an empty file in the staging folder, locked until `self` is dropped.
    pub(super) fn create(root: &Root) -> Result<Self, Errno> {
        let folder = root.make_folder(STAGING)?;
        loop {
            let name = unique_name();
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let fd = rustix::fs::openat(&folder, &name, flags, Mode::from(0o666))?;
            let file = File::from(fd);
            if hold(&file)? {
                return Ok(Self {
                    folder,
                    name,
                    file,
                    keep: false,
                    is_synced: false,
                });
            }
        }
    }

    /// Wraps the file `name` of `folder`, open to write; it is left there unless it is placed.
    pub(super) fn keeping(folder: OwnedFd, name: &str, file: File) -> Self {
        Self {
            folder,
            name: name.to_owned(),
            file,
            keep: true,
            is_synced: false,
        }
    }

    /// Wraps the file of an object, which is on the disk as it is.
    pub(super) fn of_object(folder: OwnedFd, name: &str, file: File) -> Self {
        let mut object = Self::keeping(folder, name, file);
        object.is_synced = true;
        object
    }

    pub(super) fn write(&mut self, body: impl IntoIterator<Item = Bytes>) -> std::io::Result<()> {
        self.is_synced = false;
        // Small pieces are collected; pieces of a buffer's size and more go straight to the file.
        let mut writer = std::io::BufWriter::with_capacity(64 * 1024, &self.file);
        for piece in body {
            writer.write_all(&piece)?;
        }
        writer.flush()
    }

    /// Appends the rest of `from`, inside the file system where possible (reflink or server-side copy), and returns
    /// the number of bytes.
    pub(super) fn append(&mut self, mut from: &File) -> std::io::Result<u64> {
        self.is_synced = false;
        std::io::copy(&mut from, &mut self.file)
    }

    /// Reads all bytes back for their digest, of the algorithm of `like`.
    pub(super) fn digest(&self, like: &ContentDigest) -> std::io::Result<ContentDigest> {
        like.same_of_file(&self.file, 0..self.identity()?.size())
    }

    /// Makes the bytes durable and sets the file's final mtime. [`Self::place`] changes the rest of its identity.
    pub(super) fn finish(&mut self) -> std::io::Result<Identity> {
        Ok(self.finish_with(None)?.0)
    }

    /// As [`Self::finish`], with the client's ETag. Returns also whether the file has it: if not, it belongs in the side file.
    pub(super) fn finish_with(&mut self, e_tag: Option<&str>) -> std::io::Result<(Identity, bool)> {
        if self.identity()?.size() > EARLY_SYNC_BYTES {
            // So that the file is placed soon after the time that it gets.
            self.file.sync_data()?;
        }
        self.file.set_modified(unique_time())?;
        let identity = self.identity()?;
        let has = match e_tag {
            Some(e_tag) => etag::write(&self.file, &identity, e_tag)?,
            None => false,
        };
        if !planted!("folder-file-not-synced") {
            self.sync()?;
        }
        Ok((identity, has))
    }

    /// Makes the file durable. The only place that says so.
    fn sync(&mut self) -> std::io::Result<()> {
        self.file.sync_all()?;
        self.is_synced = true;
        Ok(())
    }

    /// Sets the file's mtime.
    pub(super) fn set_modified(&self, time: SystemTime) -> std::io::Result<()> {
        self.file.set_modified(time)
    }

    /// The file's mtime, as the file system stores it.
    pub(super) fn modified(&self) -> std::io::Result<SystemTime> {
        self.file.metadata()?.modified()
    }

    /// The current identity of the file.
    pub(super) fn identity(&self) -> std::io::Result<Identity> {
        Ok(Identity::of(&rustix::fs::fstat(&self.file)?))
    }

    /// Renames the file to `name` in `folder`, durably; its bytes must be on the disk. With `exclusive`, fails with `EXIST` if the name is taken,
    /// also against other processes.
    pub(super) fn place(
        &mut self,
        folder: &OwnedFd,
        name: &str,
        exclusive: bool,
    ) -> Result<(), Errno> {
        // After a power failure the name would lead to fewer bytes: no test cuts the power, and a kill loses none.
        debug_assert!(self.is_synced, "{name} has bytes that are not on the disk");
        let from = (&self.folder, self.name.as_ref());
        rename_durably(from, (folder, name.as_ref()), !exclusive)?;
        self.keep = true;
        Ok(())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.keep {
            // Leftovers that cannot be removed now are removed by the sweep.
            let _ = rustix::fs::unlinkat(&self.folder, &self.name, AtFlags::empty());
        }
    }
}

/// Removes `name` in `folder` and the files in it. Files that another process removes first are no error.
pub(super) fn remove_flat_folder(root: &Root, folder: &str, name: &str) -> Result<(), Errno> {
    let gone = |result: Result<(), Errno>| match result {
        Err(Errno::NOENT) => Ok(()),
        result => result,
    };
    let path = format!("{folder}/{name}");
    let mut files = Vec::new();
    root.read_folder(&path, |file, _| {
        files.push(file.to_owned());
        true
    })?;
    let inner = match root.open_folder(&path) {
        Err(Errno::NOENT) => return Ok(()),
        inner => inner?,
    };
    for file in files {
        gone(rustix::fs::unlinkat(&inner, &file, AtFlags::empty()))?;
    }
    let parent = root.open_folder(folder)?;
    gone(rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn staged() -> (tempfile::TempDir, Root, Staged) {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::open(dir.path().to_owned()).unwrap();
        let mut staged = Staged::create(&root).unwrap();
        staged.write([Bytes::from_static(b"one")]).unwrap();
        (dir, root, staged)
    }

    #[test]
    fn finished_file_is_synced_and_gets_its_name() {
        let (dir, root, mut staged) = staged();
        staged.finish().unwrap();
        let folder = root.open_folder("").unwrap();
        staged.place(&folder, "object", true).unwrap();
        assert_eq!(std::fs::read(dir.path().join("object")).unwrap(), b"one");
    }

    #[test]
    #[should_panic(expected = "object has bytes that are not on the disk")]
    fn file_without_a_sync_gets_no_name() {
        let (_dir, root, mut staged) = staged();
        let folder = root.open_folder("").unwrap();
        let _ = staged.place(&folder, "object", true);
    }

    #[test]
    #[should_panic(expected = "object has bytes that are not on the disk")]
    fn bytes_after_the_sync_are_synced_again() {
        let (_dir, root, mut staged) = staged();
        staged.finish().unwrap();
        staged.write([Bytes::from_static(b"two")]).unwrap();
        let folder = root.open_folder("").unwrap();
        let _ = staged.place(&folder, "object", true);
    }
}
