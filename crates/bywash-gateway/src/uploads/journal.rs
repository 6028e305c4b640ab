//! Open uploads on disk, one file each, to survive restarts. All functions block on the file system.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bywash::{DamagedFile, Engine};
use chrono::{DateTime, Utc};
use sha2::{Digest as _, Sha256};

use super::{Upload, UploadChange, UploadName, record};
use crate::limits::MAX_UPLOAD_FILE_APPENDED_BYTES;

/// Extension of an upload's file.
const SUFFIX: &str = "upload";
/// Extension of an incomplete file.
const STAGED_SUFFIX: &str = "new";

/// Folder of the open uploads of one server. No other server may use it.
#[derive(Debug)]
pub(super) struct Journal {
    folder: PathBuf,
}

/// State of the end of a file, locked during writes to it.
#[derive(Debug, Default)]
pub(super) struct Tail {
    /// Bytes of the file, all complete records.
    length: u64,
    /// Bytes appended since the file was last rewritten.
    appended: u64,
    /// A write failed: the end of the file is unknown.
    in_doubt: bool,
}

fn too_long() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        "a name is too long for the file",
    )
}

/// An open multipart upload of a server, as stored in its file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenUpload {
    /// Upload id of the origin.
    pub id: String,
    /// Bucket of the object.
    pub bucket: String,
    /// Key of the object.
    pub key: String,
    /// Start time.
    pub initiated: DateTime<Utc>,
    /// Number of parts stored.
    pub parts: usize,
    /// Bytes of these parts.
    pub bytes: u64,
}

/// Returns the open multipart uploads in `folder`, also of a running server; none if the folder is missing. Changes
/// nothing. Blocks.
///
/// # Errors
/// If the folder or a file in it cannot be read: its upload is then unknown.
pub fn open_uploads(folder: &Path) -> io::Result<Vec<OpenUpload>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut uploads = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_none_or(|suffix| suffix != SUFFIX) {
            continue;
        }
        let file = match fs::read(&path) {
            // It ended in between.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            file => file?,
        };
        let content = record::read(&file).map_err(|reason| {
            let text = format!("{}: {reason}", path.display());
            io::Error::new(io::ErrorKind::InvalidData, text)
        })?;
        uploads.push(OpenUpload {
            id: content.name.id,
            bucket: content.name.bucket,
            key: content.name.key,
            initiated: content.upload.initiated,
            parts: content.upload.parts.len(),
            bytes: content.upload.parts.values().map(|part| part.size).sum(),
        });
    }
    Ok(uploads)
}

impl Tail {
    /// State of a file that was read or written completely.
    fn at(length: u64) -> Self {
        Self {
            length,
            appended: 0,
            in_doubt: false,
        }
    }
}

impl Journal {
    /// Opens the folder, creating it if missing, and reads all uploads. Cuts torn ends. Notes damaged files in `engine`, and keeps them.
    pub(super) fn open(
        folder: &Path,
        engine: &Engine,
    ) -> io::Result<(Self, Vec<(UploadName, Upload)>)> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)?;
        let journal = Self {
            folder: folder.to_owned(),
        };
        let mut uploads = Vec::new();
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let suffix = path.extension().and_then(|suffix| suffix.to_str());
            match suffix {
                // It was never renamed, so no client knows the upload.
                Some(STAGED_SUFFIX) => fs::remove_file(&path)?,
                Some(SUFFIX) => match journal.read(&path) {
                    Ok(upload) => uploads.push(upload),
                    Err(reason) => engine.note_damage(DamagedFile {
                        file: path.display().to_string(),
                        reason,
                        effect:
                            "an open multipart upload is unknown, so its client must begin it again"
                                .to_owned(),
                    }),
                },
                _ => {}
            }
        }
        Ok((journal, uploads))
    }

    fn read(&self, path: &Path) -> Result<(UploadName, Upload), String> {
        let file = fs::read(path).map_err(|error| error.to_string())?;
        let content = record::read(&file).map_err(|error| error.to_string())?;
        if self.path(&content.name) != path {
            return Err("it has the name of another upload's file".to_owned());
        }
        let torn = file.len() - content.whole;
        if torn > 0 {
            cut(path, content.whole as u64).map_err(|error| error.to_string())?;
            tracing::warn!(
                file = %path.display(),
                bytes = torn,
                "the server stopped while it wrote the file of a multipart upload; the incomplete record, which was not acknowledged, is cut"
            );
        }
        *content.upload.tail.lock() = Tail::at(content.whole as u64);
        Ok((content.name, content.upload))
    }

    /// Path of an upload's file, by hash: keys and ids may be longer than file names.
    fn path(&self, name: &UploadName) -> PathBuf {
        let mut digest = Sha256::new();
        for text in [&name.bucket, &name.key, &name.id] {
            digest.update((text.len() as u64).to_le_bytes());
            digest.update(text);
        }
        let hex: String = digest
            .finalize()
            .iter()
            .take(16)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        self.folder.join(hex).with_extension(SUFFIX)
    }

    /// Writes the whole file of an upload atomically. Durable on return.
    pub(super) fn write(
        &self,
        name: &UploadName,
        upload: &Upload,
        tail: &mut Tail,
    ) -> io::Result<()> {
        let bytes = record::file(name, upload).ok_or_else(too_long)?;
        let path = self.path(name);
        let staged = path.with_extension(STAGED_SUFFIX);
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&staged)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        fs::rename(&staged, &path)?;
        File::open(&self.folder)?.sync_all()?;
        *tail = Tail::at(bytes.len() as u64);
        Ok(())
    }

    /// Whether a change can be appended; otherwise the file must be rewritten.
    pub(super) fn appendable(tail: &Tail) -> bool {
        !tail.in_doubt && tail.appended < MAX_UPLOAD_FILE_APPENDED_BYTES
    }

    /// Appends a change. Durable on return.
    pub(super) fn append(
        &self,
        name: &UploadName,
        change: &UploadChange,
        tail: &mut Tail,
    ) -> io::Result<()> {
        let bytes = record::change(change, tail.length).ok_or_else(too_long)?;
        tail.in_doubt = true;
        let mut file = OpenOptions::new().append(true).open(self.path(name))?;
        file.write_all(&bytes)?;
        file.sync_data()?;
        tail.in_doubt = false;
        tail.length += bytes.len() as u64;
        tail.appended += bytes.len() as u64;
        Ok(())
    }

    /// Removes the file of an upload, if it exists.
    pub(super) fn remove(&self, name: &UploadName) -> io::Result<()> {
        match fs::remove_file(self.path(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }
}

fn cut(path: &Path, length: u64) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    file.set_len(length)?;
    file.sync_all()
}

#[cfg(test)]
mod tests;
