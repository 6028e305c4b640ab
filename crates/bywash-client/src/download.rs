//! Whole objects, read while they arrive.

use std::io::{self, Read, Seek, SeekFrom};
use std::time::Duration;

use crate::bucket::{Bucket, Metadata};
use crate::connection::unexpected;
use crate::error::{Error, Result};
use crate::get::{GetOptions, PendingGet, RangesOf, byte_range};
use crate::message::ErrorCode;
use crate::view::View;

/// Bytes that a reader asks for at once: some blocks, which the server loads in parallel.
const WINDOW_BYTES: u64 = 8 << 20;

impl Bucket {
    /// Has the server load an object whole, by several requests to its origin at once, and returns a reader that follows while the rest
    /// arrives. All programs of the machine that read the object share that one load.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn download(&self, key: &str) -> Result<Download> {
        let metadata = self.head(key, &GetOptions::default())?;
        let options = GetOptions {
            if_match: metadata.etag.clone(),
            ..GetOptions::default()
        };
        let whole = RangesOf {
            bucket: self.name(),
            key,
            ranges: &[],
        };
        // On a connection of its own, which waits for the whole object while the reader uses others. As long as the server allows:
        // the caller decides how long it waits at the end.
        let client = self.client().clone().with_deadline(Duration::MAX);
        let whole = client.begin_get(&[whole], &options)?;
        Ok(Download {
            bucket: self.clone(),
            metadata,
            whole,
            window: None,
            position: 0,
        })
    }
}

/// An object that the server loads whole. Reads return bytes as they arrive, of one version.
///
/// A reader gets bytes before the object is complete; [`Self::finish`] returns it after its digest was compared, where the server
/// compares and the store states one.
#[derive(Debug)]
pub struct Download {
    bucket: Bucket,
    metadata: Metadata,
    /// The read of all bytes.
    whole: PendingGet,
    /// Bytes around the position, and where they begin.
    window: Option<(u64, View)>,
    position: u64,
}

impl Download {
    /// The version that is downloaded.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Number of bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.metadata.size
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.metadata.size == 0
    }

    /// Waits until all bytes are there and compared, and returns them.
    ///
    /// # Errors
    /// As [`Bucket::get`]; [`ErrorCode::VersionChanged`] if the object was replaced since the download began, [`ErrorCode::Damaged`] if
    /// it does not have its digest.
    pub fn finish(mut self) -> Result<View> {
        self.whole.extend(self.bucket.client().deadline());
        let results = self.whole.wait()?;
        let ranges = results.into_iter().next().ok_or_else(unexpected)??;
        ranges.into_object().map(|object| object.bytes)
    }

    /// Reads bytes at `offset` into `target`, as many as there are up to its length; waits for them. Does not move the position.
    ///
    /// # Errors
    /// As [`Self::finish`].
    pub fn read_at(&mut self, offset: u64, target: &mut [u8]) -> Result<usize> {
        if offset >= self.metadata.size || target.is_empty() {
            return Ok(0);
        }
        if !self.has(offset) {
            let end = (offset + WINDOW_BYTES.max(target.len() as u64)).min(self.metadata.size);
            let options = GetOptions {
                if_match: self.metadata.etag.clone(),
                ..GetOptions::default()
            };
            let read = self
                .bucket
                .get_with(&self.metadata.key, byte_range(offset..end), &options);
            let object = read.map_err(|error| self.changed(error))?;
            self.window = Some((offset, object.bytes));
        }
        let (start, view) = self.window.as_ref().ok_or_else(unexpected)?;
        let mut skip = usize::try_from(offset - start).map_err(|_| unexpected())?;
        let mut filled = 0;
        for segment in view.segments() {
            let bytes = segment.get(skip..).unwrap_or_default();
            skip = skip.saturating_sub(segment.len());
            let count = bytes.len().min(target.len() - filled);
            target[filled..filled + count].copy_from_slice(&bytes[..count]);
            filled += count;
        }
        Ok(filled)
    }

    fn has(&self, offset: u64) -> bool {
        self.window
            .as_ref()
            .is_some_and(|(start, view)| (*start..start + view.len() as u64).contains(&offset))
    }

    fn changed(&self, error: Error) -> Error {
        if error.code() != ErrorCode::Precondition {
            return error;
        }
        let message = format!(
            "download {}/{}: the object was replaced while it was read; download it again",
            self.bucket.name(),
            self.metadata.key
        );
        Error::new(ErrorCode::VersionChanged, message)
    }
}

impl Read for Download {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let count = self.read_at(self.position, target)?;
        self.position += count as u64;
        Ok(count)
    }
}

impl Seek for Download {
    /// A position before the start is an error and leaves the position as it was; one beyond the end is allowed.
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::End(offset) => self.metadata.size.checked_add_signed(offset),
            SeekFrom::Current(offset) => self.position.checked_add_signed(offset),
        };
        let invalid = || io::Error::new(io::ErrorKind::InvalidInput, "a position before the start");
        self.position = position.ok_or_else(invalid)?;
        Ok(self.position)
    }
}
