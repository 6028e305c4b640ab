//! Reading of rows: few ranged GETs, each verified by checksums.
//!
//! The manifest has the checksum of a file's tail, and the tail has the checksums of all other
//! blocks. So a file needs no ETag, which would be another one after a restore from a backup.

use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::TryStreamExt;
use futures::future::try_join;
use object_store::{GetOptions, GetRange, ObjectStore};
use parking_lot::Mutex;

use super::charge::Charge;
use super::index::CHECKSUM_BLOCK;
use super::layout::{Column, Layout, Part};
use crate::manifest::FileEntry;
use crate::memtable::Block;
use crate::{Point, SeriesError};

/// Max bytes of two columns read by one GET: reading the gap costs less than a round trip.
const ONE_GET: u64 = 256 << 10;

/// Reads the tail of a file, which `charge` has the memory for.
pub(crate) async fn layout(
    store: &dyn ObjectStore,
    file: &FileEntry,
    charge: Charge,
) -> Result<Layout, SeriesError> {
    let start = file.bytes - file.tail;
    let tail = get(store, file, start..file.bytes).await?;
    if crate::checksum::crc32c(&tail) != file.tail_crc32c {
        return Err(damaged(
            file,
            "its tail does not match the sum in the manifest",
        ));
    }
    Layout::decode(&tail, start, file.series, charge).map_err(|wrong| damaged(file, wrong))
}

pub(crate) fn damaged(file: &FileEntry, reason: impl Into<String>) -> SeriesError {
    SeriesError::DamagedFile {
        object: file.path().to_string(),
        reason: reason.into(),
    }
}

/// Reads exactly these bytes of a file of the length that the manifest names.
async fn get(
    store: &dyn ObjectStore,
    file: &FileEntry,
    range: Range<u64>,
) -> Result<Bytes, SeriesError> {
    let path = file.path();
    let failed = |source| match source {
        object_store::Error::NotFound { .. } => SeriesError::MissingFile {
            object: path.to_string(),
        },
        source => SeriesError::Store {
            operation: format!("read {path}"),
            source,
        },
    };
    let options = GetOptions {
        range: Some(GetRange::Bounded(range.clone())),
        ..GetOptions::default()
    };
    let response = store.get_opts(&path, options).await.map_err(failed)?;
    if response.meta.size != file.bytes || response.range != range {
        return Err(damaged(file, "its length is not the one in the manifest"));
    }
    let mut chunks = response.into_stream();
    let mut bytes = BytesMut::new();
    while let Some(chunk) = chunks.try_next().await.map_err(failed)? {
        if bytes.is_empty() && chunk.len() as u64 == range.end - range.start {
            return Ok(chunk);
        }
        bytes.extend_from_slice(&chunk);
    }
    if bytes.len() as u64 == range.end - range.start {
        Ok(bytes.freeze())
    } else {
        Err(damaged(
            file,
            "the store sent fewer bytes than the range has",
        ))
    }
}

/// Copies of decoded rows: in the reader, merged with rows of other files, and in the steps made of
/// the rows.
const DECODED_COPIES: u64 = 3;

/// Max rows decoded at a time: half a megabyte.
const MAX_DECODED_ROWS: u64 = 32 << 10;

/// Decoded pages.
#[derive(Debug, Default, Clone)]
struct Decoded {
    /// Position in the file.
    first: u64,
    points: Block,
}

/// Reads rows of one file. Keeps the last decoded pages, which neighbouring series share.
#[derive(Debug)]
pub(crate) struct FileReader {
    store: Arc<dyn ObjectStore>,
    file: FileEntry,
    pub(crate) layout: Arc<Layout>,
    /// Rows from here on are not read ahead.
    pub(crate) end: u64,
    last: Mutex<Decoded>,
    /// Of decoded pages, and of those being read.
    charge: Mutex<Charge>,
}

impl FileReader {
    pub(crate) fn new(
        store: Arc<dyn ObjectStore>,
        file: FileEntry,
        layout: Arc<Layout>,
        charge: Charge,
    ) -> Self {
        Self {
            store,
            file,
            layout,
            end: u64::MAX,
            last: Mutex::default(),
            charge: Mutex::new(charge),
        }
    }

    /// Returns decoded points and the positions in them of the first of these rows, some or all. `rows` must not be
    /// empty and must be from the index.
    pub(crate) async fn read(
        &self,
        rows: &Range<u64>,
    ) -> Result<(Block, Range<usize>), SeriesError> {
        let last = std::mem::take(&mut *self.last.lock());
        let known = last.first..last.first + last.points.len() as u64;
        let decoded = if known.contains(&rows.start) {
            last
        } else {
            // Sequential reads continue with the next series: double the amount.
            let ahead = if rows.start == known.end {
                2 * (known.end - known.start)
            } else {
                0
            };
            let end = rows.end.max(self.end.min(rows.start + ahead));
            let end = end.min(rows.start + MAX_DECODED_ROWS);
            let mut pages = self.layout.pages_of(&(rows.start..end));
            if self.charge_pages(&pages).is_err() {
                // Without rows that are only read ahead.
                pages = self.layout.pages_of(&(rows.start..rows.start + 1));
                self.charge_pages(&pages)?;
            }
            // Reuse the buffer, unless a reader still holds it.
            let buffer = Arc::try_unwrap(last.points).unwrap_or_default();
            self.decode(&pages, buffer.into_vec()).await?
        };
        self.last.lock().clone_from(&decoded);
        let place = |row: u64| (row - decoded.first) as usize;
        let positions = place(rows.start)..place(rows.end).min(decoded.points.len());
        Ok((decoded.points, positions))
    }

    fn charge_pages(&self, pages: &Range<usize>) -> Result<(), SeriesError> {
        let rows = self.layout.rows_of(pages);
        let decoded = (rows.end - rows.start) * size_of::<Point>() as u64;
        let [timestamps, values] =
            [Column::Timestamp, Column::Value].map(|column| self.layout.bytes_of(pages, column));
        let apart = timestamps.end - timestamps.start + values.end - values.start;
        let together = values.end.saturating_sub(timestamps.start);
        let encoded = if together <= ONE_GET { together } else { apart };
        let bytes = decoded * DECODED_COPIES + encoded + 4 * CHECKSUM_BLOCK;
        self.charge.lock().grow_to(bytes)
    }

    async fn decode(
        &self,
        pages: &Range<usize>,
        mut points: Vec<Point>,
    ) -> Result<Decoded, SeriesError> {
        let timestamps = self.layout.bytes_of(pages, Column::Timestamp);
        let values = self.layout.bytes_of(pages, Column::Value);
        let (timestamps, values) = if values.end.saturating_sub(timestamps.start) <= ONE_GET {
            let both = self.read_verified(timestamps.start..values.end).await?;
            (both.clone(), both)
        } else {
            try_join(self.read_verified(timestamps), self.read_verified(values)).await?
        };
        points.clear();
        let decoded = self
            .layout
            .decode_pages(pages, &timestamps, &values, &mut points);
        let wrong = |wrong| damaged(&self.file, format!("a page cannot be read: {wrong}"));
        decoded.map_err(wrong)?;
        Ok(Decoded {
            first: self.layout.rows_of(pages).start,
            points: Arc::new(points.into()),
        })
    }

    /// Reads at least these bytes and verifies the checksums of their blocks.
    async fn read_verified(&self, range: Range<u64>) -> Result<Part, SeriesError> {
        let data = self.file.bytes - self.file.tail;
        let start = range.start / CHECKSUM_BLOCK * CHECKSUM_BLOCK;
        let end = range.end.next_multiple_of(CHECKSUM_BLOCK).min(data);
        if start >= end || range.end > end {
            return Err(damaged(&self.file, "a page lies outside of its columns"));
        }
        let bytes = get(&*self.store, &self.file, start..end).await?;
        let checksums = &self.layout.index.checksums[(start / CHECKSUM_BLOCK) as usize..];
        let blocks = bytes.chunks(CHECKSUM_BLOCK as usize);
        let matches = blocks
            .zip(checksums)
            .all(|(block, sum)| crate::checksum::crc32c(block) == *sum);
        if matches {
            Ok(Part { start, bytes })
        } else {
            Err(damaged(
                &self.file,
                format!("bytes {start} to {end} do not match their checksums"),
            ))
        }
    }
}
