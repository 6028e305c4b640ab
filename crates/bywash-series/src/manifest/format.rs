//! The manifest: the list of current files. One small object, replaced as a whole; `docs/formats.md` has the bytes.

use std::collections::BTreeSet;
use std::ops::Range;

use bytes::Bytes;
use object_store::path::Path;
use serde::{Deserialize, Serialize};

use crate::parquet::WrittenFile;

/// Path of the manifest in the store.
pub(crate) const PATH: &str = "manifest";

/// Folder of the data files.
pub(crate) const FILES: &str = "files";

const MAGIC: &str = "BYWASHTS";
const FORMAT: u32 = 1;

/// Generations of an epoch have this many bits.
const EPOCH_BITS: u32 = 32;

/// Number of epochs whose generations fit in 64 bits.
const EPOCHS: u64 = 1 << EPOCH_BITS;

/// Manifest entry of a data file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileEntry {
    /// Name in the folder of data files; never reused.
    pub(crate) name: String,
    /// First and last partition of its rows.
    pub(crate) partitions: (i64, i64),
    /// Oldest and newest generation of its rows. On equal timestamps the newer file wins.
    pub(crate) generations: (u64, u64),
    /// First and last timestamp of its rows.
    pub(crate) range: (i64, i64),
    pub(crate) rows: u64,
    pub(crate) series: u64,
    /// Length of the object, and of its tail, which is read first.
    pub(crate) bytes: u64,
    pub(crate) tail: u64,
    pub(crate) tail_crc32c: u32,
}

impl FileEntry {
    pub(crate) fn new(
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
        }
    }

    pub(crate) fn path(&self) -> Path {
        path_of(&self.name)
    }
}

pub(crate) fn path_of(name: &str) -> Path {
    Path::from_iter([FILES, name])
}

/// One state of the database's files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// Incremented by each swap.
    pub(crate) number: u64,
    /// Random id of the process that wrote this manifest.
    pub(crate) writer: String,
    /// Partition width, in nanoseconds.
    pub(crate) span: i64,
    /// All rows of lower generations were flushed. Retention may have dropped them since.
    #[serde(rename = "sealed_below")]
    pub(crate) flushed_below: u64,
    /// Partitions and generations flushed above that.
    #[serde(rename = "sealed")]
    pub(crate) flushed: BTreeSet<(i64, u64)>,
    /// Number of times that a writer with another log took over. Generations of an epoch begin at [`Self::first_generation`].
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) epoch: u64,
    /// Whether the writer has a log, so that rows may exist that no file has.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub(crate) logged: bool,
    /// Logs of earlier writers, the oldest first. Their rows may not all be in files.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) earlier: Vec<EarlierLog>,
    pub(crate) files: Vec<FileEntry>,
}

/// Log of a writer that another one followed: which of its rows are in files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EarlierLog {
    /// Id of the last process that wrote it.
    pub(crate) writer: String,
    /// Epoch of its last generations.
    pub(crate) epoch: u64,
    #[serde(rename = "sealed_below")]
    pub(crate) flushed_below: u64,
    #[serde(rename = "sealed")]
    pub(crate) flushed: BTreeSet<(i64, u64)>,
}

impl EarlierLog {
    /// Generations whose rows may not be in files.
    pub(crate) fn unflushed(&self) -> Range<u64> {
        self.flushed_below..first_generation(self.epoch + 1)
    }
}

/// First generation of an epoch: above any that a log of an earlier one reaches, as a process closes a few a second.
pub(crate) fn first_generation(epoch: u64) -> u64 {
    epoch << EPOCH_BITS
}

/// Epoch of a generation.
pub(crate) fn epoch_of(generation: u64) -> u64 {
    generation >> EPOCH_BITS
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn yes() -> bool {
    true
}

fn is_yes(value: &bool) -> bool {
    *value
}

/// Why bytes are not a manifest.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ManifestError {
    Newer(u32),
    Damaged(String),
}

impl Manifest {
    /// The manifest of a new store.
    pub(crate) fn empty(span: i64) -> Self {
        Self {
            number: 0,
            writer: String::new(),
            span,
            flushed_below: 0,
            flushed: BTreeSet::new(),
            epoch: 0,
            logged: false,
            earlier: Vec::new(),
            files: Vec::new(),
        }
    }

    /// Generations whose rows are in no file, but may be in an earlier log, or in the writer's own
    /// log from before its return.
    pub(crate) fn outstanding(&self) -> impl Iterator<Item = Range<u64>> {
        let own = self.flushed_below..first_generation(self.epoch);
        let earlier = self.earlier.iter().map(EarlierLog::unflushed);
        earlier.chain([own]).filter(|range| !range.is_empty())
    }

    pub(crate) fn encode(&self) -> Bytes {
        let body = serde_json::to_vec(self).expect("numbers and names are JSON");
        let mut out =
            format!("{MAGIC} {FORMAT} {:08x}\n", crate::checksum::crc32c(&body)).into_bytes();
        out.extend(body);
        out.into()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, ManifestError> {
        let wrong = |what: &str| ManifestError::Damaged(what.to_owned());
        let line = bytes.iter().position(|byte| *byte == b'\n');
        let (first_line, body) = bytes.split_at(line.ok_or_else(|| wrong("it has no first line"))?);
        let body = &body[1..];
        let first_line = std::str::from_utf8(first_line).unwrap_or_default();
        let words: Vec<_> = first_line.split(' ').collect();
        let [MAGIC, format, sum] = words[..] else {
            return Err(wrong("its first line is not a manifest's"));
        };
        match format.parse() {
            Ok(FORMAT) => {}
            Ok(newer) => return Err(ManifestError::Newer(newer)),
            Err(_) => return Err(wrong("its first line is not a manifest's")),
        }
        if sum != format!("{:08x}", crate::checksum::crc32c(body)) {
            return Err(wrong("its body does not match its sum"));
        }
        let manifest: Self =
            serde_json::from_slice(body).map_err(|failed| wrong(&failed.to_string()))?;
        let sane = |file: &FileEntry| file.tail <= file.bytes && file.range.0 <= file.range.1;
        if !manifest.files.iter().all(sane) {
            return Err(wrong("a file contradicts itself"));
        }
        let mut epochs = manifest.earlier.iter().map(|log| log.epoch);
        if manifest.epoch >= EPOCHS || epochs.any(|epoch| epoch > manifest.epoch) {
            return Err(wrong("its epochs are no count of writers"));
        }
        Ok(manifest)
    }
}
