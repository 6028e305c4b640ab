//! What another process needs to know of a download that ended midway.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path as FsPath, PathBuf};

use crc_fast::{CrcAlgorithm, checksum};
use serde::{Deserialize, Serialize};

use crate::file::Place;

/// Ends the name of the file that parts are written to.
const DATA: &str = ".bywash-part";
/// Ends the name of the file that says which parts are there.
const STATE: &str = ".bywash-part.state";

/// Whether a file of this name is one of a download's, and no user's.
pub(crate) fn is_own_file(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(b".") && (name.ends_with(DATA.as_bytes()) || name.ends_with(STATE.as_bytes()))
}

/// The files of a download to `target`: the bytes, and the state.
pub(super) fn paths(target: &FsPath) -> Option<(PathBuf, PathBuf)> {
    let named = |end: &str| {
        let mut name = std::ffi::OsString::from(".");
        name.push(target.file_name()?);
        name.push(end);
        Some(target.with_file_name(name))
    };
    Some((named(DATA)?, named(STATE)?))
}

/// Which bytes a download is of: the first line of its state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Version {
    pub(super) url: String,
    pub(super) endpoint: Option<String>,
    pub(super) e_tag: Option<String>,
    pub(super) version: Option<String>,
    pub(super) bytes: u64,
    /// Of every part but the last.
    pub(super) part_bytes: u64,
}

impl Version {
    pub(super) fn range(&self, part: u64) -> Range<u64> {
        let start = part * self.part_bytes;
        start..self.bytes.min(start + self.part_bytes)
    }

    fn parts(&self) -> u64 {
        self.bytes.div_ceil(self.part_bytes)
    }
}

/// A download's files, held by this process alone.
#[derive(Debug)]
pub(super) struct Staged {
    pub(super) version: Version,
    pub(super) data: File,
    pub(super) data_path: PathBuf,
    state: File,
    pub(super) state_path: PathBuf,
    /// Parts that an earlier process brought.
    present: BTreeSet<u64>,
    pub(super) resumed_bytes: u64,
    /// Another version was there, and is gone now.
    pub(super) begun_anew: bool,
}

impl Staged {
    /// Takes the files of a download over, or begins them. Reads again what is there.
    pub(super) fn open(place: &Place, version: Version) -> io::Result<Self> {
        let (data_path, state_path) = paths(&place.target).ok_or(io::ErrorKind::InvalidInput)?;
        let mut state = lock(&state_path)?;
        let mut text = Vec::new();
        state.read_to_end(&mut text)?;
        let data = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&data_path)?;
        let (before, present) = read_state(&text);
        let same = before.as_ref() == Some(&version);
        let mut staged = Self {
            begun_anew: before.is_some() && !same,
            version,
            data,
            data_path,
            state,
            state_path,
            present: BTreeSet::new(),
            resumed_bytes: 0,
        };
        if same {
            staged.believe(present)?;
            if !text.ends_with(b"\n") {
                // A line that a crash cut off must not lie before the next one.
                staged.state.write_all(b"\n")?;
            }
        } else {
            staged.begin()?;
        }
        Ok(staged)
    }

    /// Keeps those parts whose bytes are what was noted of them.
    fn believe(&mut self, noted: BTreeMap<u64, u32>) -> io::Result<()> {
        if self.data.metadata()?.len() != self.version.bytes {
            return self.data.set_len(self.version.bytes);
        }
        let mut buffer = Vec::new();
        for (part, crc) in noted {
            if part >= self.version.parts() {
                continue;
            }
            let range = self.version.range(part);
            let length = range.end - range.start;
            buffer.resize(usize::try_from(length).map_err(io::Error::other)?, 0);
            self.data.read_exact_at(&mut buffer, range.start)?;
            if crc32c(&buffer) == crc {
                self.present.insert(part);
                self.resumed_bytes += length;
            }
        }
        Ok(())
    }

    /// Forgets what was there. The state never says of old bytes that they are new ones.
    fn begin(&mut self) -> io::Result<()> {
        self.state.set_len(0)?;
        self.data.set_len(0)?;
        self.data.set_len(self.version.bytes)?;
        let mut header = serde_json::to_string(&self.version)?;
        header.push('\n');
        self.state.write_all(header.as_bytes())
    }

    /// The parts that are still to come.
    pub(super) fn missing(&self) -> Vec<u64> {
        (0..self.version.parts())
            .filter(|part| !self.present.contains(part))
            .collect()
    }

    /// Notes that these bytes of a part are in their place.
    pub(super) fn note(&self, part: u64, bytes: &[u8]) -> io::Result<()> {
        // One write at the end of the file: lines of parts that end side by side do not mix.
        (&self.state).write_all(line(part, crc32c(bytes)).as_bytes())
    }
}

/// Opens the state for this process alone.
fn lock(path: &FsPath) -> io::Result<File> {
    loop {
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(io::Error::other(
                    "another process downloads to it now; wait for that one",
                ));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // Whoever ended meanwhile took the file that is locked now away.
        let (ours, there) = (file.metadata()?, std::fs::metadata(path));
        if there.is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino())) {
            return Ok(file);
        }
    }
}

fn crc32c(bytes: &[u8]) -> u32 {
    // The algorithm's value has 32 bits.
    (checksum(CrcAlgorithm::Crc32Iscsi, bytes) & u64::from(u32::MAX)) as u32
}

/// A number of a part and its CRC32C. The end mark tells a whole line from one that was cut off.
fn line(part: u64, crc: u32) -> String {
    format!("{part} {crc:08x}.\n")
}

/// The version, and the parts noted; what is damaged counts as not there.
fn read_state(text: &[u8]) -> (Option<Version>, BTreeMap<u64, u32>) {
    let text = String::from_utf8_lossy(text);
    let mut lines = text.lines();
    let version = lines
        .next()
        .and_then(|line| serde_json::from_str(line).ok())
        .filter(|version: &Version| version.part_bytes > 0);
    let part = |line: &str| {
        let (part, crc) = line.strip_suffix('.')?.split_once(' ')?;
        Some((part.parse().ok()?, u32::from_str_radix(crc, 16).ok()?))
    };
    (version, lines.filter_map(part).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

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

    fn place(folder: &FsPath) -> Place {
        Place::prepare(&folder.join("k"), &PutMode::Overwrite)
            .unwrap()
            .unwrap()
    }

    fn keep(staged: &Staged, part: u64) {
        let range = staged.version.range(part);
        let bytes: Vec<u8> = range.clone().map(|at| at as u8).collect();
        staged.data.write_all_at(&bytes, range.start).unwrap();
        staged.note(part, &bytes).unwrap();
    }

    #[test]
    fn what_was_written_is_gone_on_with_by_the_next() {
        let home = tempfile::tempdir().unwrap();
        let place = place(home.path());
        let first = Staged::open(&place, version("one")).unwrap();
        assert_eq!(first.missing(), [0, 1, 2]);
        keep(&first, 2);
        keep(&first, 0);
        let told = Staged::open(&place, version("one")).unwrap_err();
        assert!(told.to_string().contains("another process"), "{told}");
        drop(first);
        let second = Staged::open(&place, version("one")).unwrap();
        assert_eq!((second.missing(), second.resumed_bytes), (vec![1], 15));
        assert!(!second.begun_anew);
    }

    #[test]
    fn another_version_starts_over() {
        let home = tempfile::tempdir().unwrap();
        let place = place(home.path());
        keep(&Staged::open(&place, version("one")).unwrap(), 0);
        let second = Staged::open(&place, version("two")).unwrap();
        assert!(second.begun_anew);
        assert_eq!((second.missing(), second.resumed_bytes), (vec![0, 1, 2], 0));
        let mut bytes = [1; 10];
        second.data.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, [0; 10], "nothing of the old version is left");
    }

    #[test]
    fn a_part_that_is_not_what_was_noted_comes_again() {
        let home = tempfile::tempdir().unwrap();
        let place = place(home.path());
        let first = Staged::open(&place, version("one")).unwrap();
        keep(&first, 0);
        keep(&first, 1);
        first.data.write_all_at(&[99], 12).unwrap();
        drop(first);
        let second = Staged::open(&place, version("one")).unwrap();
        assert_eq!(second.missing(), [1, 2]);
    }

    #[test]
    fn a_state_cut_off_at_any_byte_is_read_as_far_as_it_goes() {
        let home = tempfile::tempdir().unwrap();
        let place = place(home.path());
        let first = Staged::open(&place, version("one")).unwrap();
        for part in 0..3 {
            keep(&first, part);
        }
        let (data, state) = (first.data_path.clone(), first.state_path.clone());
        drop(first);
        let (bytes, whole) = (
            std::fs::read(&data).unwrap(),
            std::fs::read(&state).unwrap(),
        );
        let header = whole.iter().position(|byte| *byte == b'\n').unwrap();
        for length in 0..whole.len() {
            std::fs::write(&state, &whole[..length]).unwrap();
            std::fs::write(&data, &bytes).unwrap();
            let next = Staged::open(&place, version("one")).unwrap();
            let complete = whole[..length].iter().filter(|byte| **byte == b'.').count();
            let expected = if length < header { 3 } else { 3 - complete };
            assert!(next.missing().len() >= expected, "{length}");
            assert!(next.missing().len() <= expected + 1, "{length}");
            // What it wrote is whole again.
            keep(&next, 1);
            drop(next);
            let last = Staged::open(&place, version("one")).unwrap();
            assert!(!last.missing().contains(&1), "{length}");
        }
    }

    #[test]
    fn names_of_downloads_are_known() {
        for (name, own) in [
            (".k.bywash-part", true),
            (".k.bywash-part.state", true),
            ("k.bywash-part", false),
            (".k", false),
        ] {
            assert_eq!(is_own_file(OsStr::new(name)), own, "{name}");
        }
    }
}
