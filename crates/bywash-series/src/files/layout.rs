//! What is known of a file once its tail was read: where the rows of a series are.

use std::ops::Range;

use bytes::Bytes;
use parquet::basic::Type as Physical;
use parquet::column::reader::get_typed_column_reader;
use parquet::data_type::DataType;
use parquet::errors::ParquetError;
use parquet::file::metadata::{
    ColumnChunkMetaData, PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader,
};
use parquet::file::page_index::column_index::ColumnIndexMetaData;
use parquet::file::page_index::offset_index::PageLocation;
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::serialized_reader::SerializedPageReader;

use super::index::{SUM_BYTES, SeriesIndex};
use super::write::{TIMESTAMP, VALUE};

/// The parts of a file that never change and are read first.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) index: SeriesIndex,
    groups: Vec<Group>,
    /// All pages of all groups, by row.
    pages: Vec<Page>,
    /// What it takes in memory, in bytes.
    pub(super) memory: u64,
}

/// The chunks of one row group that rows are read from.
#[derive(Debug)]
struct Group {
    timestamp: ColumnChunkMetaData,
    value: ColumnChunkMetaData,
}

/// The same rows in the columns of timestamps and of values.
#[derive(Debug)]
struct Page {
    group: usize,
    /// Positions in the file.
    rows: Range<u64>,
    timestamp: PageLocation,
    value: PageLocation,
    /// Of any series.
    latest: i64,
}

/// A column of some neighbouring pages.
#[derive(Debug, Clone, Copy)]
pub(super) enum Column {
    Timestamp,
    Value,
}

impl Layout {
    /// Reads a tail that begins at `start` of a file of `length` bytes. The error says what is wrong.
    pub(super) fn decode(tail: &Bytes, start: u64) -> Result<Self, String> {
        let of_parquet = |failed: ParquetError| format!("its footer is not one: {failed}");
        let mut reader =
            ParquetMetaDataReader::new().with_page_index_policy(PageIndexPolicy::Required);
        reader
            .try_parse_sized(tail, start + tail.len() as u64)
            .map_err(of_parquet)?;
        let metadata = reader.finish().map_err(of_parquet)?;
        let rows = u64::try_from(metadata.file_metadata().num_rows()).unwrap_or(u64::MAX);
        let index = SeriesIndex::decode(tail, rows)?;
        if index.sums.len() as u64 != start.div_ceil(SUM_BYTES) {
            return Err("its index has no sum of each block".to_owned());
        }
        let (groups, pages) = pages(&metadata)?;
        if pages.last().is_none_or(|page| page.rows.end != rows) {
            return Err("its pages do not hold all rows".to_owned());
        }
        let pages_bytes = pages.len() * size_of::<Page>() + groups.len() * 1024;
        Ok(Self {
            memory: index.memory() + pages_bytes as u64,
            index,
            groups,
            pages,
        })
    }

    /// Which pages hold these rows: all, or as many as have `most` rows and are of one row group; one at least.
    pub(super) fn pages_of(&self, rows: &Range<u64>, most: u64) -> Range<usize> {
        let first = self
            .pages
            .partition_point(|page| page.rows.end <= rows.start);
        let limit = rows.end.min(rows.start.saturating_add(most));
        let more = self.pages[first..].iter().skip(1);
        let group = self.pages[first].group;
        let more = more.take_while(|page| page.rows.start < limit && page.group == group);
        first..first + 1 + more.count()
    }

    /// The rows of some pages.
    pub(super) fn rows_of(&self, pages: &Range<usize>) -> Range<u64> {
        self.pages[pages.start].rows.start..self.pages[pages.end - 1].rows.end
    }

    /// Where some pages of one row group lie in the file.
    pub(super) fn bytes_of(&self, pages: &Range<usize>, column: Column) -> Range<u64> {
        let (first, last) = (&self.pages[pages.start], &self.pages[pages.end - 1]);
        let (first, last) = match column {
            Column::Timestamp => (&first.timestamp, &last.timestamp),
            Column::Value => (&first.value, &last.value),
        };
        first.offset as u64..last.offset as u64 + last.compressed_page_size as u64
    }

    /// From which of a series' rows on timestamps may be `from` or later: pages that are all earlier are skipped.
    pub(crate) fn skip_to(&self, rows: &Range<u64>, from: i64) -> u64 {
        // Pages at either end have rows of other series too: their times say nothing.
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

    /// Decodes a column of some pages of one row group; `bytes` holds them and begins at `start` of the file.
    pub(super) fn decode_pages<T: DataType>(
        &self,
        pages: &Range<usize>,
        column: Column,
        bytes: &Bytes,
        start: u64,
    ) -> Result<Vec<T::T>, ParquetError> {
        let group = &self.groups[self.pages[pages.start].group];
        let (chunk, of): (_, fn(&Page) -> &PageLocation) = match column {
            Column::Timestamp => (&group.timestamp, |page| &page.timestamp),
            Column::Value => (&group.value, |page| &page.value),
        };
        let locations: Vec<_> = self.pages[pages.clone()]
            .iter()
            .map(|page| of(page).clone())
            .collect();
        // What lies between a chunk's start and its first page is taken for a dictionary: the chunk starts at our first page.
        let chunk = chunk
            .clone()
            .into_builder()
            .set_data_page_offset(locations[0].offset)
            .build()?;
        let rows = self.rows_of(pages);
        let count = (rows.end - rows.start) as usize;
        let part = Part {
            start,
            bytes: bytes.clone(),
        };
        let reader = SerializedPageReader::new(part.into(), &chunk, count, Some(locations))?;
        let reader =
            parquet::column::reader::get_column_reader(chunk.column_descr_ptr(), Box::new(reader));
        let mut reader = get_typed_column_reader::<T>(reader);
        let mut values = Vec::with_capacity(count);
        let (read, _, _) = reader.read_records(count, None, None, &mut values)?;
        if read == count {
            Ok(values)
        } else {
            Err(ParquetError::EOF(format!(
                "{read} rows where there should be {count}"
            )))
        }
    }
}

fn pages(metadata: &ParquetMetaData) -> Result<(Vec<Group>, Vec<Page>), String> {
    let (mut groups, mut pages) = (Vec::new(), Vec::new());
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
        groups.push(Group {
            timestamp: group.column(TIMESTAMP).clone(),
            value: group.column(VALUE).clone(),
        });
    }
    Ok((groups, pages))
}

/// Some bytes of a file, found by their place in the whole.
struct Part {
    start: u64,
    bytes: Bytes,
}

impl Length for Part {
    fn len(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

impl ChunkReader for Part {
    type T = std::io::Cursor<Bytes>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        let length = self.len().saturating_sub(start) as usize;
        self.get_bytes(start, length).map(std::io::Cursor::new)
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        let from = start.checked_sub(self.start).map(|from| from as usize);
        let range = from.and_then(|from| Some(from..from.checked_add(length)?));
        match range {
            Some(range) if range.end <= self.bytes.len() => Ok(self.bytes.slice(range)),
            _ => Err(ParquetError::EOF(
                "a page lies outside of what was read".to_owned(),
            )),
        }
    }
}
