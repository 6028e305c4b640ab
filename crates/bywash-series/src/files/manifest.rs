//! The manifest: which files there are. One small object, replaced as a whole; `docs/formats.md` has the bytes.

use std::collections::BTreeSet;

use bytes::Bytes;
use object_store::path::Path;
use serde::{Deserialize, Serialize};

use super::write::WrittenFile;

/// Where it lies in the store.
pub(super) const PATH: &str = "manifest";

/// The folder of the files.
pub(super) const FILES: &str = "files";

const MAGIC: &str = "BYWASHTS";
const FORMAT: u32 = 1;

/// A file as the manifest names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileEntry {
    /// The object in the folder of files; never used again.
    pub(crate) name: String,
    /// First and last partition whose rows it has.
    pub(crate) partitions: (i64, i64),
    /// Lowest and highest generation whose rows it has. The higher one wins where files have a timestamp twice.
    pub(crate) generations: (u64, u64),
    /// First and last timestamp of its rows.
    pub(crate) range: (i64, i64),
    pub(crate) rows: u64,
    pub(crate) series: u64,
    /// Length of the object, and of its end that is read first.
    pub(crate) bytes: u64,
    pub(crate) tail: u64,
    pub(crate) tail_crc32c: u32,
    /// Of the object, as the store told it. Reads insist on it.
    pub(crate) e_tag: Option<String>,
}

impl FileEntry {
    pub(super) fn new(
        name: String,
        partitions: (i64, i64),
        generations: (u64, u64),
        written: &WrittenFile,
    ) -> Self {
        Self {
            name,
            partitions,
            generations,
            range: written.range,
            rows: written.rows,
            series: written.series,
            bytes: written.bytes.len() as u64,
            tail: written.tail,
            tail_crc32c: written.tail_crc32c,
            e_tag: None,
        }
    }

    pub(crate) fn path(&self) -> Path {
        path_of(&self.name)
    }
}

pub(super) fn path_of(name: &str) -> Path {
    Path::from_iter([FILES, name])
}

/// What was true at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// Counts the swaps.
    pub(super) number: u64,
    /// Drawn by each process that opens the store to write: tells one's own manifest from another's.
    pub(super) writer: String,
    /// Length of a partition, in nanoseconds.
    pub(super) span: i64,
    /// All rows of lower generations are sealed, or gone by retention.
    pub(super) sealed_below: u64,
    /// Which (partition, generation) are sealed besides.
    pub(super) sealed: BTreeSet<(i64, u64)>,
    pub(super) files: Vec<FileEntry>,
}

/// Why bytes are no manifest.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoManifest {
    Newer(u32),
    Damaged(String),
}

impl Manifest {
    /// Of a store that has none.
    pub(super) fn empty(span: i64) -> Self {
        Self {
            number: 0,
            writer: String::new(),
            span,
            sealed_below: 0,
            sealed: BTreeSet::new(),
            files: Vec::new(),
        }
    }

    pub(super) fn encode(&self) -> Bytes {
        let body = serde_json::to_vec(self).expect("numbers and names are JSON");
        let mut out = format!("{MAGIC} {FORMAT} {:08x}\n", super::crc32c(&body)).into_bytes();
        out.extend(body);
        out.into()
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, NoManifest> {
        let wrong = |what: &str| NoManifest::Damaged(what.to_owned());
        let line = bytes.iter().position(|byte| *byte == b'\n');
        let (head, body) = bytes.split_at(line.ok_or_else(|| wrong("it has no first line"))?);
        let body = &body[1..];
        let head = std::str::from_utf8(head).unwrap_or_default();
        let words: Vec<_> = head.split(' ').collect();
        let [MAGIC, format, sum] = words[..] else {
            return Err(wrong("its first line is not a manifest's"));
        };
        match format.parse() {
            Ok(FORMAT) => {}
            Ok(newer) => return Err(NoManifest::Newer(newer)),
            Err(_) => return Err(wrong("its first line is not a manifest's")),
        }
        if sum != format!("{:08x}", super::crc32c(body)) {
            return Err(wrong("its body does not match its sum"));
        }
        let manifest: Self =
            serde_json::from_slice(body).map_err(|failed| wrong(&failed.to_string()))?;
        let sane = |file: &FileEntry| file.tail <= file.bytes && file.range.0 <= file.range.1;
        if manifest.files.iter().all(sane) {
            Ok(manifest)
        } else {
            Err(wrong("a file contradicts itself"))
        }
    }
}
