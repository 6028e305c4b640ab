//! Open uploads on disk, one file each, so that they outlive the server. Everything here blocks on the file system.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use sha2::{Digest as _, Sha256};

use super::{Change, Upload, UploadName, record};
use crate::limits::MAX_UPLOAD_FILE_APPENDED_BYTES;

/// Ends the name of an upload's file.
const SUFFIX: &str = "upload";
/// Ends the name of a file that is not whole yet.
const STAGED_SUFFIX: &str = "new";

/// The folder of all open uploads of one server. No other server may use it.
#[derive(Debug)]
pub(super) struct Journal {
    folder: PathBuf,
}

/// What is known of the end of a file. Whoever writes to the file holds it locked.
#[derive(Debug, Default)]
pub(super) struct Tail {
    /// Bytes of the file, all of them whole records.
    length: u64,
    /// Those appended since the file was last written whole.
    appended: u64,
    /// A write failed, so the file may end anywhere.
    unsure: bool,
}

fn too_long() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        "a name is too long for the file",
    )
}

/// A multipart upload that a server keeps, as its file tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenUpload {
    /// The origin's id of it.
    pub id: String,
    /// Where the object will be.
    pub bucket: String,
    /// Its key.
    pub key: String,
    /// When it began.
    pub initiated: DateTime<Utc>,
    /// Parts stored so far.
    pub parts: usize,
    /// Bytes of them.
    pub bytes: u64,
}

/// The multipart uploads that a server keeps in `folder`, which may run; none if there is no such folder. Changes nothing. Blocks.
///
/// # Errors
/// If the folder or a file in it cannot be read: nobody knows which upload that file is of.
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
            // It ended meanwhile.
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
    /// Of a file that was read or written whole.
    fn at(length: u64) -> Self {
        Self {
            length,
            appended: 0,
            unsure: false,
        }
    }
}

impl Journal {
    /// Opens the folder, making it if it is missing, and reads every upload. Torn ends are cut. A file that cannot be read is
    /// reported and left.
    pub(super) fn open(folder: &Path) -> io::Result<(Self, Vec<(UploadName, Upload)>)> {
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
                // It never had its name, so no client was told of it.
                Some(STAGED_SUFFIX) => fs::remove_file(&path)?,
                Some(SUFFIX) => match journal.read(&path) {
                    Ok(upload) => uploads.push(upload),
                    Err(reason) => tracing::error!(
                        file = %path.display(),
                        %reason,
                        "an open multipart upload cannot be read, so its client must begin it again; the file is left"
                    ),
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
                "the server ended while it wrote of a multipart upload; what no client was told is cut"
            );
        }
        *content.upload.tail.lock() = Tail::at(content.whole as u64);
        Ok((content.name, content.upload))
    }

    /// The file of an upload. Names of keys and ids may be longer than those of files.
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

    /// Writes the whole file of an upload, in one step. On disk when it returns.
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

    /// Whether a change can be appended, or the file must be written whole.
    pub(super) fn appendable(tail: &Tail) -> bool {
        !tail.unsure && tail.appended < MAX_UPLOAD_FILE_APPENDED_BYTES
    }

    /// Appends a change. On disk when it returns.
    pub(super) fn append(
        &self,
        name: &UploadName,
        change: &Change,
        tail: &mut Tail,
    ) -> io::Result<()> {
        let bytes = record::change(change, tail.length).ok_or_else(too_long)?;
        tail.unsure = true;
        let mut file = OpenOptions::new().append(true).open(self.path(name))?;
        file.write_all(&bytes)?;
        file.sync_data()?;
        tail.unsure = false;
        tail.length += bytes.len() as u64;
        tail.appended += bytes.len() as u64;
        Ok(())
    }

    /// Removes the file of an upload; no file is as good.
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
