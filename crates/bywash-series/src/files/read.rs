//! Reading rows of a file: few ranged GETs, each pinned to the version that was written and compared with its sums.

use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::TryStreamExt;
use futures::future::try_join;
use object_store::{GetOptions, GetRange, ObjectStore};
use parking_lot::Mutex;
use parquet::data_type::{DoubleType, Int64Type};

use super::index::SUM_BYTES;
use super::layout::{Column, Layout};
use super::manifest::FileEntry;
use crate::SeriesError;

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

/// Decoded pages.
#[derive(Debug, Default, Clone)]
struct Decoded {
    /// Position in the file.
    first: u64,
    timestamps: Arc<[i64]>,
    values: Arc<[f64]>,
}

/// Reads rows of one file. Remembers the pages it decoded last: neighbouring series share them.
#[derive(Debug)]
pub(crate) struct FileReader {
    store: Arc<dyn ObjectStore>,
    file: FileEntry,
    pub(crate) layout: Arc<Layout>,
    last: Mutex<Decoded>,
}

/// Rows of one series, by position in the file.
#[derive(Debug)]
pub(crate) struct ReadRows {
    decoded: Decoded,
    rows: Range<u64>,
}

impl ReadRows {
    pub(crate) fn timestamps(&self) -> &[i64] {
        &self.decoded.timestamps[self.within()]
    }

    pub(crate) fn values(&self) -> &[f64] {
        &self.decoded.values[self.within()]
    }

    fn within(&self) -> Range<usize> {
        let first = self.decoded.first;
        (self.rows.start - first) as usize..(self.rows.end - first) as usize
    }
}

impl FileReader {
    pub(super) fn new(store: Arc<dyn ObjectStore>, file: FileEntry, layout: Arc<Layout>) -> Self {
        Self {
            store,
            file,
            layout,
            last: Mutex::default(),
        }
    }

    /// The first of these rows, `most` or fewer, but one at least. `rows` is not empty and of the index.
    pub(crate) async fn read(&self, rows: &Range<u64>, most: u64) -> Result<ReadRows, SeriesError> {
        let last = self.last.lock().clone();
        let known = last.first..last.first + last.timestamps.len() as u64;
        let decoded = if known.contains(&rows.start) {
            last
        } else {
            let pages = self.layout.pages_of(rows, most);
            let decoded = self.decode(&pages).await?;
            self.last.lock().clone_from(&decoded);
            decoded
        };
        let end = decoded.first + decoded.timestamps.len() as u64;
        Ok(ReadRows {
            rows: rows.start..rows.end.min(end),
            decoded,
        })
    }

    async fn decode(&self, pages: &Range<usize>) -> Result<Decoded, SeriesError> {
        let timestamps = self.layout.bytes_of(pages, Column::Timestamp);
        let values = self.layout.bytes_of(pages, Column::Value);
        let ((timestamps, t_start), (values, v_start)) =
            if values.end.saturating_sub(timestamps.start) <= ONE_GET {
                let (both, start) = self.summed(timestamps.start..values.end).await?;
                ((both.clone(), start), (both, start))
            } else {
                try_join(self.summed(timestamps), self.summed(values)).await?
            };
        let wrong = |failed| damaged(&self.file, format!("a page cannot be read: {failed}"));
        let layout = &self.layout;
        let timestamps =
            layout.decode_pages::<Int64Type>(pages, Column::Timestamp, &timestamps, t_start);
        let values = layout.decode_pages::<DoubleType>(pages, Column::Value, &values, v_start);
        Ok(Decoded {
            first: layout.rows_of(pages).start,
            timestamps: timestamps.map_err(wrong)?.into(),
            values: values.map_err(wrong)?.into(),
        })
    }

    /// At least these bytes, with the blocks they lie in compared with their sums, and where they begin.
    async fn summed(&self, range: Range<u64>) -> Result<(Bytes, u64), SeriesError> {
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
            Ok((bytes, start))
        } else {
            Err(damaged(
                &self.file,
                format!("bytes {start} to {end} do not match their sums"),
            ))
        }
    }
}
