//! State of an interrupted download for a later process.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path as FsPath, PathBuf};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::transfer::file::FileTarget;

/// Suffix of the part file.
const DATA: &str = ".bywash-part";
/// Suffix of the state file.
const STATE: &str = ".download";

/// Path of the part file next to `target`.
fn data_path(target: &FsPath) -> Option<PathBuf> {
    let mut name = OsString::from(".");
    name.push(target.file_name()?);
    name.push(DATA);
    Some(target.with_file_name(name))
}

/// Path of the state file of a download to `target`, named by a hash of the whole path.
pub(super) fn state_path(states: &FsPath, target: &FsPath) -> io::Result<PathBuf> {
    let whole = std::path::absolute(target)?;
    let name = hex(&Sha256::digest(whole.as_os_str().as_bytes())[..16]);
    Ok(states.join(name + STATE))
}

/// Version of the downloaded object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Version {
    pub(super) url: String,
    pub(super) endpoint: Option<String>,
    pub(super) e_tag: Option<String>,
    pub(super) version: Option<String>,
    pub(super) bytes: u64,
    /// Size of all parts but the last.
    pub(super) part_bytes: u64,
}

impl Version {
    pub(super) fn range(&self, part: u64) -> Range<u64> {
        let start = part * self.part_bytes;
        start..self.bytes.min(start.saturating_add(self.part_bytes))
    }

    fn parts(&self) -> u64 {
        self.bytes.div_ceil(self.part_bytes)
    }
}

/// Device and inode of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Node {
    device: u64,
    inode: u64,
}

impl Node {
    fn of(meta: &std::fs::Metadata) -> Self {
        Self {
            device: meta.dev(),
            inode: meta.ino(),
        }
    }
}

/// First line of a state file.
#[derive(Debug, Serialize, Deserialize)]
struct Header {
    /// Path of the part file, for people.
    file: String,
    /// Identity of the part file. No other file is used in its place.
    node: Node,
    #[serde(flatten)]
    version: Version,
}

/// The locked files of a download.
#[derive(Debug)]
pub(super) struct Staged {
    pub(super) version: Version,
    pub(super) data: File,
    pub(super) data_path: PathBuf,
    state: File,
    pub(super) state_path: PathBuf,
    /// Parts that an earlier process stored.
    present: BTreeSet<u64>,
    pub(super) resumed_bytes: u64,
    /// Whether the state of another download was discarded.
    pub(super) restarted: bool,
}

impl Staged {
    /// Continues a download, or starts it; always starts if `fresh`. Rereads the existing parts.
    pub(super) fn open(
        target: &FileTarget,
        version: Version,
        states: &FsPath,
        fresh: bool,
    ) -> io::Result<Self> {
        let data_path = data_path(&target.resolved).ok_or(io::ErrorKind::InvalidInput)?;
        let state_path = state_path(states, &target.resolved)?;
        let mut state = lock_state(&state_path)?;
        let mut text = Vec::new();
        state.read_to_end(&mut text)?;
        let (before, recorded) = read_state(&text);
        let found = open_data(&data_path)?;
        let known = before.is_some();
        let is_same =
            |header: &Header| header.version == version || planted!("cli-other-version-continued");
        let same = before.filter(|header| !fresh && is_same(header));
        match (same, found) {
            (Some(header), Some(data)) if header.node == Node::of(&data.metadata()?) => {
                if !text.ends_with(b"\n") {
                    // Ends a line that a crash cut off, before the next one.
                    state.write_all(b"\n")?;
                }
                let mut staged = Self::new(version, (data, data_path), (state, state_path), false);
                staged.keep_recorded(recorded)?;
                Ok(staged)
            }
            (_, found) => {
                drop(found);
                // The state must not list parts of a missing file.
                state.set_len(0)?;
                let data = make_data(&data_path)?;
                data.set_len(version.bytes)?;
                let header = Header {
                    file: target.resolved.display().to_string(),
                    node: Node::of(&data.metadata()?),
                    version: version.clone(),
                };
                let mut line = serde_json::to_string(&header)?;
                line.push('\n');
                state.write_all(line.as_bytes())?;
                Ok(Self::new(
                    version,
                    (data, data_path),
                    (state, state_path),
                    known,
                ))
            }
        }
    }

    fn new(
        version: Version,
        (data, data_path): (File, PathBuf),
        (state, state_path): (File, PathBuf),
        restarted: bool,
    ) -> Self {
        Self {
            version,
            data,
            data_path,
            state,
            state_path,
            present: BTreeSet::new(),
            resumed_bytes: 0,
            restarted,
        }
    }

    /// Keeps the parts whose bytes match their recorded hashes.
    fn keep_recorded(&mut self, recorded: BTreeMap<u64, String>) -> io::Result<()> {
        if self.data.metadata()?.len() != self.version.bytes {
            return self.data.set_len(self.version.bytes);
        }
        let mut buffer = Vec::new();
        for (part, digest) in recorded {
            if part >= self.version.parts() {
                continue;
            }
            let range = self.version.range(part);
            let length = range.end - range.start;
            buffer.resize(usize::try_from(length).map_err(io::Error::other)?, 0);
            self.data.read_exact_at(&mut buffer, range.start)?;
            if sha256(&buffer) == digest || planted!("cli-kept-part-not-compared") {
                self.present.insert(part);
                self.resumed_bytes += length;
            }
        }
        Ok(())
    }

    /// The missing parts.
    pub(super) fn missing(&self) -> Vec<u64> {
        (0..self.version.parts())
            .filter(|part| !self.present.contains(part))
            .collect()
    }

    /// Records that the bytes of this SHA-256 of a part are stored.
    pub(super) fn record_part(&self, part: u64, digest: &str) -> io::Result<()> {
        // A single append: lines of concurrent parts do not mix.
        (&self.state).write_all(line(part, digest).as_bytes())
    }

    /// Removes the downloaded bytes and their state.
    pub(super) fn discard(&self) -> io::Result<()> {
        self.check_name()?;
        std::fs::remove_file(&self.data_path)?;
        std::fs::remove_file(&self.state_path)
    }

    /// Checks that the name still belongs to the part file that was written.
    pub(super) fn check_name(&self) -> io::Result<()> {
        let named = std::fs::symlink_metadata(&self.data_path)?;
        match Node::of(&named) == Node::of(&self.data.metadata()?) {
            true => Ok(()),
            false => Err(io::Error::other(
                "another program replaced the file of its parts; try again",
            )),
        }
    }
}

fn busy() -> io::Error {
    io::Error::other("another process downloads to it now; wait for that one")
}

/// Opens and locks the state file.
fn lock_state(path: &FsPath) -> io::Result<File> {
    loop {
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(busy()),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // The file just locked may have been removed by a process that ended in between.
        let (ours, there) = (file.metadata()?, std::fs::metadata(path));
        if there.is_ok_and(|there| Node::of(&there) == Node::of(&ours)) {
            return Ok(file);
        }
    }
}

/// Opens and locks the part file. `None` if it does not exist or is not a regular file.
fn open_data(path: &FsPath) -> io::Result<Option<File>> {
    // Does not follow links or block on pipes.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path);
    let Ok(file) = opened else {
        return Ok(None);
    };
    if !file.metadata()?.is_file() {
        return Ok(None);
    }
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(busy()),
        _ => Ok(Some(file)),
    }
}

/// Creates and locks a new part file, replacing any file of that name.
fn make_data(path: &FsPath) -> io::Result<File> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(busy()),
        // A concurrent process removed it.
        _ if file.metadata()?.nlink() == 0 => Err(busy()),
        _ => Ok(file),
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Formats a part number and its SHA-256. The end mark distinguishes a complete line from a torn one.
fn line(part: u64, digest: &str) -> String {
    format!("{part} {digest}.\n")
}

/// Parses the header and the recorded parts. Ignores damaged lines.
fn read_state(text: &[u8]) -> (Option<Header>, BTreeMap<u64, String>) {
    let text = String::from_utf8_lossy(text);
    let mut lines = text.lines();
    let header = lines
        .next()
        .and_then(|line| serde_json::from_str(line).ok())
        .filter(|header: &Header| header.version.part_bytes > 0);
    let part = |line: &str| {
        let (part, digest) = line.strip_suffix('.')?.split_once(' ')?;
        Some((part.parse().ok()?, digest.to_owned()))
    };
    (header, lines.filter_map(part).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::os::unix::fs::symlink;

    use object_store::PutMode;

    use super::*;

    fn version(e_tag: &str) -> Version {
        Version {
            url: "s3://b/k".to_owned(),
            endpoint: None,
            e_tag: Some(e_tag.to_owned()),
            version: None,
            bytes: 25,
            part_bytes: 10,
        }
    }

    fn target(folder: &FsPath) -> FileTarget {
        FileTarget::prepare(&folder.join("k"), &PutMode::Overwrite, None)
            .unwrap()
            .unwrap()
    }

    /// Opens the download of a version, with the state next to its file.
    fn open(target: &FileTarget, e_tag: &str) -> io::Result<Staged> {
        Staged::open(target, version(e_tag), &target.folder, false)
    }

    fn store_part(staged: &Staged, part: u64) {
        let range = staged.version.range(part);
        let bytes: Vec<u8> = range.clone().map(|at| at as u8).collect();
        staged.data.write_all_at(&bytes, range.start).unwrap();
        staged.record_part(part, &sha256(&bytes)).unwrap();
    }

    #[test]
    fn recorded_parts_are_kept_by_the_next_process() {
        let home = tempfile::tempdir().unwrap();
        let target = target(home.path());
        let first = open(&target, "one").unwrap();
        assert_eq!(first.missing(), [0, 1, 2]);
        store_part(&first, 2);
        store_part(&first, 0);
        let error = open(&target, "one").unwrap_err();
        assert!(error.to_string().contains("another process"), "{error}");
        drop(first);
        let second = open(&target, "one").unwrap();
        assert_eq!((second.missing(), second.resumed_bytes), (vec![1], 15));
        assert!(!second.restarted);
    }

    #[test]
    fn download_of_another_version_starts_over() {
        let home = tempfile::tempdir().unwrap();
        let target = target(home.path());
        store_part(&open(&target, "one").unwrap(), 0);
        let second = open(&target, "two").unwrap();
        assert!(second.restarted);
        assert_eq!((second.missing(), second.resumed_bytes), (vec![0, 1, 2], 0));
        let mut bytes = [1; 10];
        second.data.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, [0; 10], "nothing of the old version is left");
    }

    #[test]
    fn part_unlike_its_recorded_hash_is_fetched_again() {
        let home = tempfile::tempdir().unwrap();
        let target = target(home.path());
        let first = open(&target, "one").unwrap();
        store_part(&first, 0);
        store_part(&first, 1);
        first.data.write_all_at(&[99], 12).unwrap();
        drop(first);
        let second = open(&target, "one").unwrap();
        assert_eq!(second.missing(), [1, 2]);
    }

    #[test]
    fn truncated_state_is_read_up_to_its_last_complete_line() {
        let home = tempfile::tempdir().unwrap();
        let target = target(home.path());
        let first = open(&target, "one").unwrap();
        for part in 0..3 {
            store_part(&first, part);
        }
        let (data, state) = (first.data_path.clone(), first.state_path.clone());
        drop(first);
        let (bytes, whole) = (
            std::fs::read(&data).unwrap(),
            std::fs::read(&state).unwrap(),
        );
        let header = whole.iter().position(|byte| *byte == b'\n').unwrap();
        // Exactly the file that the state identifies.
        let kept = home.path().join("kept");
        std::fs::hard_link(&data, &kept).unwrap();
        for length in 0..whole.len() {
            std::fs::write(&state, &whole[..length]).unwrap();
            std::fs::remove_file(&data).unwrap();
            std::fs::hard_link(&kept, &data).unwrap();
            std::fs::write(&data, &bytes).unwrap();
            let next = open(&target, "one").unwrap();
            let parts = &whole[header.min(length)..length];
            let complete = parts.iter().filter(|byte| **byte == b'.').count();
            let expected = if length < header { 3 } else { 3 - complete };
            assert!(next.missing().len() >= expected, "{length}");
            assert!(next.missing().len() <= expected + 1, "{length}");
            // The part that it writes is valid again.
            store_part(&next, 1);
            drop(next);
            let last = open(&target, "one").unwrap();
            assert!(!last.missing().contains(&1), "{length}");
        }
    }

    #[test]
    fn foreign_part_files_are_never_used() {
        let home = tempfile::tempdir().unwrap();
        let target = target(home.path());
        let (data, elsewhere) = (
            home.path().join(".k.bywash-part"),
            home.path().join("other"),
        );
        std::fs::write(&elsewhere, "precious").unwrap();
        // Without a state: foreign bytes, and a link to a user's file.
        std::fs::write(&data, [0; 25]).unwrap();
        assert_eq!(open(&target, "one").unwrap().missing(), [0, 1, 2]);
        std::fs::remove_file(&data).unwrap();
        symlink(&elsewhere, &data).unwrap();
        let first = open(&target, "one").unwrap();
        store_part(&first, 0);
        drop(first);
        assert_eq!(std::fs::read(&elsewhere).unwrap(), b"precious");
        // With a state: a different file with identical bytes.
        let copy = home.path().join("copy");
        std::fs::copy(&data, &copy).unwrap();
        std::fs::rename(&copy, &data).unwrap();
        let second = open(&target, "one").unwrap();
        assert_eq!((second.missing(), second.resumed_bytes), (vec![0, 1, 2], 0));
        // Replaced during the download.
        second.check_name().unwrap();
        std::fs::write(&copy, [0; 25]).unwrap();
        std::fs::rename(&copy, &data).unwrap();
        assert!(second.check_name().is_err());
    }

    #[test]
    fn part_file_is_locked_against_another_data_folder() {
        let home = tempfile::tempdir().unwrap();
        let target = target(home.path());
        let states = home.path().join("states");
        std::fs::create_dir(&states).unwrap();
        let first = open(&target, "one").unwrap();
        let refused = Staged::open(&target, version("one"), &states, false).unwrap_err();
        assert!(refused.to_string().contains("another process"), "{refused}");
        first.check_name().unwrap();
    }
}
