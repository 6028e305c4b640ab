//! Reading rows of a file: few ranged GETs, each pinned to the version that was written and compared with its sums.

use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::TryStreamExt;
use futures::future::try_join;
use object_store::{GetOptions, GetRange, ObjectStore};
use parking_lot::Mutex;

use super::index::SUM_BYTES;
use super::layout::{Column, Layout, Part};
use super::manifest::FileEntry;
use crate::{Point, SeriesError};

/// Two columns whose pages span no more than this are read by one GET, in bytes: less than a round trip costs.
const ONE_GET: u64 = 256 << 10;

/// Reads the tail of a file.
pub(super) async fn layout(
    store: &dyn ObjectStore,
    file: &FileEntry,
) -> Result<Layout, SeriesError> {
    let start = file.bytes - file.tail;
    let tail = get(store, file, start..file.bytes).await?;
    if super::crc32c(&tail) != file.tail_crc32c {
        return Err(damaged(
            file,
            "its tail does not match the sum in the manifest",
        ));
    }
    Layout::decode(&tail, start).map_err(|wrong| damaged(file, wrong))
}

pub(super) fn damaged(file: &FileEntry, reason: impl Into<String>) -> SeriesError {
    SeriesError::DamagedFile {
        object: file.path().to_string(),
        reason: reason.into(),
    }
}

/// Exactly these bytes of the version the manifest names.
async fn get(
    store: &dyn ObjectStore,
    file: &FileEntry,
    range: Range<u64>,
) -> Result<Bytes, SeriesError> {
    let path = file.path();
    let failed = |source| SeriesError::Store {
        doing: format!("read {path}"),
        source,
    };
    let options = GetOptions {
        range: Some(GetRange::Bounded(range.clone())),
        if_match: file.e_tag.clone(),
        ..GetOptions::default()
    };
    let answer = store.get_opts(&path, options).await.map_err(failed)?;
    if answer.meta.size != file.bytes || answer.range != range {
        return Err(damaged(file, "its length is not the one in the manifest"));
    }
    let mut chunks = answer.into_stream();
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

/// The most rows decoded at once. A reader holds so many of each run it stands in, in memory nobody charges: half a megabyte.
const MOST_ROWS: u64 = 32 << 10;

/// Decoded pages.
#[derive(Debug, Default, Clone)]
struct Decoded {
    /// Position in the file.
    first: u64,
    points: Arc<Vec<Point>>,
}

/// Reads rows of one file. Remembers the pages it decoded last: neighbouring series share them.
#[derive(Debug)]
pub(crate) struct FileReader {
    store: Arc<dyn ObjectStore>,
    file: FileEntry,
    pub(crate) layout: Arc<Layout>,
    /// No rows from here on are read ahead.
    pub(crate) end: u64,
    last: Mutex<Decoded>,
}

impl FileReader {
    pub(super) fn new(store: Arc<dyn ObjectStore>, file: FileEntry, layout: Arc<Layout>) -> Self {
        Self {
            store,
            file,
            layout,
            end: u64::MAX,
            last: Mutex::default(),
        }
    }

    /// The first of these rows, some or all, by their places in what was decoded. `rows` is not empty and of the index.
    pub(crate) async fn read(
        &self,
        rows: &Range<u64>,
    ) -> Result<(Arc<Vec<Point>>, Range<usize>), SeriesError> {
        let last = std::mem::take(&mut *self.last.lock());
        let known = last.first..last.first + last.points.len() as u64;
        let decoded = if known.contains(&rows.start) {
            last
        } else {
            // Who went on to here goes on, with the series behind: twice as much at once.
            let ahead = if rows.start == known.end {
                2 * (known.end - known.start)
            } else {
                0
            };
            let end = rows.end.max(self.end.min(rows.start + ahead));
            let end = end.min(rows.start + MOST_ROWS);
            let pages = self.layout.pages_of(&(rows.start..end));
            // Their memory is used again, unless somebody still reads there.
            let room = Arc::try_unwrap(last.points).unwrap_or_default();
            self.decode(&pages, room).await?
        };
        self.last.lock().clone_from(&decoded);
        let place = |row: u64| (row - decoded.first) as usize;
        let places = place(rows.start)..place(rows.end).min(decoded.points.len());
        Ok((decoded.points, places))
    }

    async fn decode(
        &self,
        pages: &Range<usize>,
        mut points: Vec<Point>,
    ) -> Result<Decoded, SeriesError> {
        let timestamps = self.layout.bytes_of(pages, Column::Timestamp);
        let values = self.layout.bytes_of(pages, Column::Value);
        let (timestamps, values) = if values.end.saturating_sub(timestamps.start) <= ONE_GET {
            let both = self.summed(timestamps.start..values.end).await?;
            (both.clone(), both)
        } else {
            try_join(self.summed(timestamps), self.summed(values)).await?
        };
        points.clear();
        let decoded = self
            .layout
            .decode_pages(pages, &timestamps, &values, &mut points);
        let wrong = |wrong| damaged(&self.file, format!("a page cannot be read: {wrong}"));
        decoded.map_err(wrong)?;
        Ok(Decoded {
            first: self.layout.rows_of(pages).start,
            points: points.into(),
        })
    }

    /// At least these bytes, with the blocks they lie in compared with their sums.
    async fn summed(&self, range: Range<u64>) -> Result<Part, SeriesError> {
        let data = self.file.bytes - self.file.tail;
        let start = range.start / SUM_BYTES * SUM_BYTES;
        let end = range.end.next_multiple_of(SUM_BYTES).min(data);
        if start >= end || range.end > end {
            return Err(damaged(&self.file, "a page lies outside of its columns"));
        }
        let bytes = get(&*self.store, &self.file, start..end).await?;
        let sums = &self.layout.index.sums[(start / SUM_BYTES) as usize..];
        let blocks = bytes.chunks(SUM_BYTES as usize);
        let matches = blocks
            .zip(sums)
            .all(|(block, sum)| super::crc32c(block) == *sum);
        if matches {
            Ok(Part { start, bytes })
        } else {
            Err(damaged(
                &self.file,
                format!("bytes {start} to {end} do not match their sums"),
            ))
        }
    }
}
