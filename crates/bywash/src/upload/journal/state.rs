//! Contents of a journal file.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path as FsPath, PathBuf};

use bywash_store::{SessionOptions, SessionToken, folder::StoredAttributes};
use chrono::{DateTime, Utc};
use object_store::path::Path;
use object_store::{Attributes, PutMode, UpdateVersion};
use serde::{Deserialize, Serialize};
use url::Url;

use super::kinds::{FORMAT, Fields, Kind};
use crate::records::{FileHeader, RecordRead};

/// Facts known when an upload begins: all that another process needs to continue it.
#[derive(Debug, Clone, PartialEq)]
pub struct Header {
    /// The object's URL without secrets: `s3://bucket/key`.
    pub url: String,
    /// The origin's endpoint, if the URL does not contain it.
    pub endpoint: Option<String>,
    /// The bucket's name in the engine.
    pub bucket: String,
    /// The object in the bucket.
    pub object: Path,
    /// The options with which the session was opened.
    pub options: SessionOptions,
    /// Bytes of a chunk: every process cuts the same bytes into the same chunks.
    pub chunk: u64,
    /// The session at the store.
    pub session: SessionToken,
    /// The source, if it is a file.
    pub source: Option<SourceIdentity>,
    /// Time of the upload's start.
    pub started: DateTime<Utc>,
}

/// Identity of a source file, to detect that it changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceIdentity {
    /// Absolute path.
    pub path: PathBuf,
    /// Number of its device.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Size in bytes.
    pub size: u64,
    /// Time of the last write, in nanoseconds since 1970.
    pub modified_ns: i64,
}

impl SourceIdentity {
    /// Returns the identity of the file `path` with the metadata `meta`.
    ///
    /// # Errors
    /// If the working folder is unknown.
    pub fn of(path: &FsPath, meta: &std::fs::Metadata) -> io::Result<Self> {
        let modified_ns = meta
            .mtime()
            .saturating_mul(1_000_000_000)
            .saturating_add(meta.mtime_nsec());
        Ok(Self {
            path: std::path::absolute(path)?,
            device: meta.dev(),
            inode: meta.ino(),
            size: meta.len(),
            modified_ns,
        })
    }

    /// Describes in words how a file found now differs from this one; `None` if it is the same.
    #[must_use]
    pub fn difference(&self, now: &Self) -> Option<String> {
        let time = DateTime::<Utc>::from_timestamp_nanos;
        if self.size != now.size {
            Some(format!(
                "its size was {} bytes and is {}",
                self.size, now.size
            ))
        } else if self.modified_ns != now.modified_ns {
            Some(format!(
                "it was last written at {} and is now of {}",
                time(self.modified_ns).to_rfc3339(),
                time(now.modified_ns).to_rfc3339()
            ))
        } else if self.inode != now.inode {
            Some(format!(
                "it is another file: its inode was {} and is {}",
                self.inode, now.inode
            ))
        } else if self.device != now.device {
            Some(format!(
                "it is on another device: {} was {}",
                now.device, self.device
            ))
        } else {
            None
        }
    }
}

/// Progress of an upload, as acknowledged by the store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Offset below which the store has all bytes.
    pub offset: u64,
    /// CRC32C of these bytes.
    pub crc32c: u32,
}

/// Length and checksum of the object, recorded when its completion was requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectDigest {
    /// Length in bytes.
    pub length: u64,
    /// CRC32C.
    pub crc32c: u32,
}

/// Contents of a journal file, and how much of the file is valid.
#[derive(Debug)]
pub(super) struct State {
    pub(super) header: Header,
    pub(super) progress: Progress,
    pub(super) whole: Option<ObjectDigest>,
    /// The process that wrote last.
    pub(super) process: u32,
    /// Bytes of the file that are whole records.
    pub(super) length: usize,
}

/// Reason for which a file is not a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ParseError {
    /// Written by another version.
    OtherVersion(u32),
    /// Bytes that no crash leaves behind.
    Damaged { offset: usize, detail: &'static str },
}

/// Parses a whole file. Ignores a torn record at its end.
pub(super) fn parse(file: &[u8]) -> Result<State, ParseError> {
    let damaged = |offset, detail| ParseError::Damaged { offset, detail };
    let mut position = match FORMAT.check_header(file) {
        FileHeader::Known(first) => first,
        FileHeader::Version(version) => return Err(ParseError::OtherVersion(version)),
        FileHeader::Foreign => return Err(damaged(0, "it does not begin as a journal")),
    };
    let (first, mut process) = match FORMAT.read(file, position) {
        RecordRead::Record { kind, body, next } if kind == Kind::Header.code() => {
            let read = read_header(body);
            let (header, process) =
                read.ok_or(damaged(position, "its header cannot be understood"))?;
            position = next;
            (header, process)
        }
        // The header was synced before the file got its name.
        _ => return Err(damaged(position, "it has no whole header")),
    };
    let (mut progress, mut whole) = (Progress::default(), None);
    loop {
        let (kind, body, next) = match FORMAT.read(file, position) {
            RecordRead::Record { kind, body, next } => (kind, body, next),
            RecordRead::End | RecordRead::Torn => break,
            RecordRead::Damaged(detail) => return Err(damaged(position, detail)),
        };
        let understood = match Kind::of(kind) {
            Some(Kind::Acknowledged) => read_progress(body).map(|read| progress = read),
            Some(Kind::Finishing) => read_whole(body).map(|read| whole = Some(read)),
            Some(Kind::Taken) => Fields(body).u32().map(|read| process = read),
            Some(Kind::Header) | None => None,
        };
        understood.ok_or(damaged(position, "a record cannot be understood"))?;
        position = next;
    }
    Ok(State {
        header: first,
        progress,
        whole,
        process,
        length: position,
    })
}

/// Writes the body of a progress record: offset, CRC, and a reserved zero.
pub(super) fn write_progress(progress: Progress, out: &mut Vec<u8>) {
    out.extend_from_slice(&progress.offset.to_le_bytes());
    out.extend_from_slice(&progress.crc32c.to_le_bytes());
    out.extend_from_slice(&0_u32.to_le_bytes());
}

fn read_progress(body: &[u8]) -> Option<Progress> {
    let mut fields = Fields(body);
    let progress = Progress {
        offset: fields.u64()?,
        crc32c: fields.u32()?,
    };
    (fields.u32()? == 0 && fields.0.is_empty()).then_some(progress)
}

pub(super) fn write_whole(whole: &ObjectDigest, out: &mut Vec<u8>) {
    out.extend_from_slice(&whole.length.to_le_bytes());
    out.extend_from_slice(&whole.crc32c.to_le_bytes());
}

fn read_whole(body: &[u8]) -> Option<ObjectDigest> {
    let mut fields = Fields(body);
    let whole = ObjectDigest {
        length: fields.u64()?,
        crc32c: fields.u32()?,
    };
    fields.0.is_empty().then_some(whole)
}

/// The header as JSON. Ignores unknown fields of a newer version.
#[derive(Serialize, Deserialize)]
struct StoredHeader {
    url: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    endpoint: Option<String>,
    bucket: String,
    object: String,
    mode: StoredMode,
    #[serde(default)]
    attributes: StoredAttributes,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    length: Option<u64>,
    chunk: u64,
    session: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    source: Option<StoredSource>,
    /// Nanoseconds since 1970.
    started: i64,
    process: u32,
}

/// A put mode as JSON.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::upload) enum StoredMode {
    Overwrite,
    Create,
    Update {
        e_tag: Option<String>,
        version: Option<String>,
    },
}

impl From<&PutMode> for StoredMode {
    fn from(mode: &PutMode) -> Self {
        match mode {
            PutMode::Overwrite => Self::Overwrite,
            PutMode::Create => Self::Create,
            PutMode::Update(version) => Self::Update {
                e_tag: version.e_tag.clone(),
                version: version.version.clone(),
            },
        }
    }
}

impl From<StoredMode> for PutMode {
    fn from(stored: StoredMode) -> Self {
        match stored {
            StoredMode::Overwrite => Self::Overwrite,
            StoredMode::Create => Self::Create,
            StoredMode::Update { e_tag, version } => Self::Update(UpdateVersion { e_tag, version }),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct StoredSource {
    /// A `file://` URL, since a path need not be text.
    path: String,
    device: u64,
    inode: u64,
    size: u64,
    modified_ns: i64,
}

/// Returns the body of the header record.
///
/// # Errors
/// If an attribute is of a kind that cannot be stored, or the source's path is not absolute.
pub(super) fn header_json(header: &Header, process: u32) -> Result<Vec<u8>, String> {
    let stored = StoredHeader {
        url: header.url.clone(),
        endpoint: header.endpoint.clone(),
        bucket: header.bucket.clone(),
        object: header.object.to_string(),
        mode: StoredMode::from(&header.options.mode),
        attributes: StoredAttributes::new(&header.options.attributes)
            .map_err(|error| error.to_string())?,
        length: header.options.length,
        chunk: header.chunk,
        session: header.session.0.clone(),
        source: header.source.as_ref().map(stored_source).transpose()?,
        started: header.started.timestamp_nanos_opt().unwrap_or_default(),
        process,
    };
    serde_json::to_vec(&stored).map_err(|error| error.to_string())
}

fn stored_source(source: &SourceIdentity) -> Result<StoredSource, String> {
    let path = Url::from_file_path(&source.path)
        .map_err(|()| format!("{} is not an absolute path", source.path.display()))?;
    Ok(StoredSource {
        path: path.into(),
        device: source.device,
        inode: source.inode,
        size: source.size,
        modified_ns: source.modified_ns,
    })
}

fn read_header(body: &[u8]) -> Option<(Header, u32)> {
    let stored: StoredHeader = serde_json::from_slice(body).ok()?;
    let source = match stored.source {
        None => None,
        Some(source) => Some(SourceIdentity {
            path: Url::parse(&source.path).ok()?.to_file_path().ok()?,
            device: source.device,
            inode: source.inode,
            size: source.size,
            modified_ns: source.modified_ns,
        }),
    };
    let header = Header {
        url: stored.url,
        endpoint: stored.endpoint,
        bucket: stored.bucket,
        object: Path::parse(stored.object).ok()?,
        options: SessionOptions {
            mode: PutMode::from(stored.mode),
            attributes: Attributes::from(stored.attributes),
            length: stored.length,
            ..SessionOptions::default()
        },
        chunk: stored.chunk,
        session: SessionToken(stored.session),
        source,
        started: DateTime::from_timestamp_nanos(stored.started),
    };
    Some((header, stored.process))
}
