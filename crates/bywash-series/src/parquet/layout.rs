//! Layout of a file, decoded from its tail: pages, and the index of series.

use std::ops::Range;

use bytes::Bytes;
use parquet::basic::{Compression, Encoding, Type as Physical};
use parquet::errors::ParquetError;
use parquet::file::metadata::{
    PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData,
};
use parquet::file::page_index::column_index::ColumnIndexMetaData;
use parquet::file::page_index::offset_index::PageLocation;

use super::charge::Charge;
use super::index::{CHECKSUM_BLOCK, SeriesIndex};
use super::page;
use super::write::{TIMESTAMP, VALUE};
use crate::Point;
use crate::manifest::FileEntry;

/// Copies of a tail while it is decoded, at most: its bytes, its names, and Parquet's metadata, which takes more than its encoding.
const TAIL_COPIES: u64 = 4;
/// Bytes of a series in a decoded tail in addition to its names, at most: its entry, and the places
/// of a source and a metric of its own.
const DECODED_SERIES_BYTES: u64 = 192;

/// The decoded tail of a file. Immutable.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) index: SeriesIndex,
    /// Whether values are encoded as BYTE_STREAM_SPLIT; else PLAIN.
    split: bool,
    /// All pages of all row groups, by row.
    pages: Vec<Page>,
    /// Size in memory, in bytes.
    memory: u64,
    charge: Charge,
}

/// The same rows in the columns of timestamps and of values.
#[derive(Debug)]
struct Page {
    group: usize,
    /// Positions in the file.
    rows: Range<u64>,
    timestamp: PageLocation,
    value: PageLocation,
    /// Latest timestamp of any series.
    latest: i64,
}

/// A column of pages.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Column {
    Timestamp,
    Value,
}

impl Page {
    fn of(&self, column: Column) -> &PageLocation {
        match column {
            Column::Timestamp => &self.timestamp,
            Column::Value => &self.value,
        }
    }

    /// Byte range of a column of the page.
    fn bytes(&self, column: Column) -> Range<u64> {
        let page = self.of(column);
        page.offset as u64..page.offset as u64 + page.compressed_page_size as u64
    }
}

/// Some bytes of a file, and their offset.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) start: u64,
    pub(crate) bytes: Bytes,
}

impl Part {
    fn get(&self, range: Range<u64>) -> Option<&[u8]> {
        let [start, end] = [range.start, range.end].map(|at| at.checked_sub(self.start));
        self.bytes.get(start? as usize..end? as usize)
    }
}

impl Layout {
    /// Max bytes of memory that reading and decoding the tail of a file takes.
    pub(crate) fn decoding_bytes(file: &FileEntry) -> u64 {
        let tail = file.tail.saturating_mul(TAIL_COPIES);
        tail.saturating_add(file.series.saturating_mul(DECODED_SERIES_BYTES))
    }

    /// Decodes a tail that begins at offset `start`, with `series` series. An error describes the
    /// invalid part. `charge` has [`Self::decoding_bytes`], and keeps the bytes of the layout.
    pub(crate) fn decode(
        tail: &Bytes,
        start: u64,
        series: u64,
        mut charge: Charge,
    ) -> Result<Self, String> {
        let of_parquet = |failed: ParquetError| format!("its footer is not one: {failed}");
        let mut reader =
            ParquetMetaDataReader::new().with_page_index_policy(PageIndexPolicy::Required);
        reader
            .try_parse_sized(tail, start + tail.len() as u64)
            .map_err(of_parquet)?;
        let metadata = reader.finish().map_err(of_parquet)?;
        let rows = u64::try_from(metadata.file_metadata().num_rows()).unwrap_or(u64::MAX);
        let index = SeriesIndex::decode(tail, rows, series)?;
        if index.checksums.len() as u64 != start.div_ceil(CHECKSUM_BLOCK) {
            return Err("its index has no sum of each block".to_owned());
        }
        let split = is_split(&metadata)?;
        let pages = pages(&metadata)?;
        if pages.last().is_none_or(|page| page.rows.end != rows) {
            return Err("its pages do not hold all rows".to_owned());
        }
        let pages_bytes = pages.len() * size_of::<Page>();
        let memory = index.memory() + pages_bytes as u64;
        charge.shrink_to(memory);
        Ok(Self {
            memory,
            index,
            split,
            pages,
            charge,
        })
    }

    /// Size in memory, in bytes.
    pub(crate) fn memory(&self) -> u64 {
        self.memory
    }

    /// Charges the layout as cached memory, see [`Charge::move_to_downloads`].
    pub(crate) fn charge_as_cached(&mut self) -> bool {
        self.charge.move_to_downloads()
    }

    /// Pages of these rows, at least one, cut at the end of a row group.
    pub(crate) fn pages_of(&self, rows: &Range<u64>) -> Range<usize> {
        let first = self
            .pages
            .partition_point(|page| page.rows.end <= rows.start);
        let limit = rows.end;
        let more = self.pages[first..].iter().skip(1);
        let group = self.pages[first].group;
        let more = more.take_while(|page| page.rows.start < limit && page.group == group);
        first..first + 1 + more.count()
    }

    /// Rows of some pages.
    pub(crate) fn rows_of(&self, pages: &Range<usize>) -> Range<u64> {
        self.pages[pages.start].rows.start..self.pages[pages.end - 1].rows.end
    }

    /// Byte range of some pages of one row group.
    pub(crate) fn bytes_of(&self, pages: &Range<usize>, column: Column) -> Range<u64> {
        let (first, last) = (&self.pages[pages.start], &self.pages[pages.end - 1]);
        first.bytes(column).start..last.bytes(column).end
    }

    /// The first of a series' rows that may have a timestamp of `from` or later. Skips pages that
    /// are earlier.
    pub(crate) fn skip_to(&self, rows: &Range<u64>, from: i64) -> u64 {
        // Pages at either end have rows of other series too, so their time ranges do not apply.
        let first = self
            .pages
            .partition_point(|page| page.rows.start < rows.start);
        let end = self.pages.partition_point(|page| page.rows.end <= rows.end);
        let own = self.pages.get(first..end).unwrap_or_default();
        let earlier = own.partition_point(|page| page.latest < from);
        own[..earlier]
            .last()
            .map_or(rows.start, |page| page.rows.end)
    }

    /// Appends the rows of some pages from the bytes of both columns. An error describes the
    /// invalid part.
    pub(crate) fn decode_pages(
        &self,
        pages: &Range<usize>,
        timestamps: &Part,
        values: &Part,
        points: &mut Vec<Point>,
    ) -> Result<(), &'static str> {
        let rows = self.rows_of(pages);
        points.reserve((rows.end - rows.start) as usize);
        for page in &self.pages[pages.clone()] {
            let bytes = (
                timestamps.get(page.bytes(Column::Timestamp)),
                values.get(page.bytes(Column::Value)),
            );
            let (Some(timestamps), Some(values)) = bytes else {
                return Err("it lies outside of what was read");
            };
            let page = page::Page {
                timestamps,
                values,
                rows: (page.rows.end - page.rows.start) as usize,
                split: self.split,
            };
            page.decode(points)?;
        }
        Ok(())
    }
}

/// Whether values are encoded as BYTE_STREAM_SPLIT. Fails for encodings that our writer does not use.
fn is_split(metadata: &ParquetMetaData) -> Result<bool, String> {
    let has = |group: &RowGroupMetaData, column: usize, encoding| {
        let mut all = group.column(column).encodings();
        all.any(|known| known == encoding)
    };
    let split = |group| has(group, VALUE, Encoding::BYTE_STREAM_SPLIT);
    let groups = metadata.row_groups();
    let all = groups.first().is_some_and(split);
    let as_ours = groups.iter().all(|group| {
        let packed = [TIMESTAMP, VALUE].map(|column| group.column(column).compression());
        let packed = packed.iter().all(|by| matches!(by, Compression::ZSTD(_)));
        let delta = has(group, TIMESTAMP, Encoding::DELTA_BINARY_PACKED);
        packed && delta && split(group) == all && all != has(group, VALUE, Encoding::PLAIN)
    });
    if as_ours {
        Ok(all)
    } else {
        Err("its columns are not encoded as those of a file of series".to_owned())
    }
}

fn pages(metadata: &ParquetMetaData) -> Result<Vec<Page>, String> {
    let mut pages = Vec::new();
    let mut before = 0;
    for (number, group) in metadata.row_groups().iter().enumerate() {
        let index = metadata.page_index_for_row_group(number);
        let (Some(timestamps), Some(values), Some(ColumnIndexMetaData::INT64(bounds))) = (
            index.offset_index(TIMESTAMP),
            index.offset_index(VALUE),
            index.column_index(TIMESTAMP),
        ) else {
            return Err("it has no page index".to_owned());
        };
        let (timestamps, values) = (timestamps.page_locations(), values.page_locations());
        let types = [TIMESTAMP, VALUE].map(|column| group.column(column).column_type());
        let same = timestamps.len() == values.len()
            && timestamps.len() == bounds.max_values().len()
            && timestamps
                .iter()
                .zip(values)
                .all(|(t, v)| t.first_row_index == v.first_row_index);
        if !same || types != [Physical::INT64, Physical::DOUBLE] {
            return Err("its columns are not those of a file of series".to_owned());
        }
        let starts = timestamps.iter().map(|page| page.first_row_index as u64);
        let ends = starts.clone().skip(1).chain([group.num_rows() as u64]);
        for (at, (start, end)) in starts.zip(ends).enumerate() {
            if start >= end {
                return Err("its pages are out of order".to_owned());
            }
            pages.push(Page {
                group: number,
                rows: before + start..before + end,
                timestamp: timestamps[at].clone(),
                value: values[at].clone(),
                latest: bounds.max_values()[at],
            });
        }
        before += group.num_rows() as u64;
    }
    Ok(pages)
}
