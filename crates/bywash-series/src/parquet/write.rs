//! Encoding of rows as a Parquet file, in memory.
//!
//! A file is one object: row groups of four plain columns, then our own index of its series (other readers skip it),
//! then Parquet's page index and footer. The last three are its *tail*, read by one GET.

use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{
    Compression, Encoding, LogicalType, Repetition, TimeUnit, Type as Physical, ZstdLevel,
};
use parquet::data_type::{DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::{KeyValue, SortingColumn};
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::{ColumnPath, Type, TypePtr};

use super::index::IndexBuilder;
use super::names;
use crate::{Profile, SeriesError};

/// Max rows of a row group: readers of whole groups, such as DuckDB, hold this many at once.
pub(crate) const ROW_GROUP_ROWS: usize = 1 << 20;

/// Values passed to a column writer at a time. Divides the rows of a page, so that both columns break pages at the
/// same rows.
const BATCH_ROWS: usize = 1024;

/// Bytes of names, counted once a series, at which a row group ends: its dictionaries are in memory.
const NAMES_BYTES: usize = 32 << 20;

/// Encoding of values and timestamps for a profile.
struct Encodings {
    values: Encoding,
    /// Level of zstd.
    level: i32,
    /// Rows of a page, the same in both columns. A reader of one series decodes whole pages.
    page_rows: usize,
}

impl Encodings {
    /// Chosen by bytes a point and time on TSBS's data: `bench/results/2026-11-22-series-bytes.md`.
    fn of(profile: Profile) -> Self {
        match profile {
            // In small pages higher levels find less to compress, and take longer.
            Profile::Portable => Self {
                values: Encoding::PLAIN,
                level: 1,
                page_rows: 2048,
            },
            // Byte streams need long pages and a more thorough search.
            Profile::Compact => Self {
                values: Encoding::BYTE_STREAM_SPLIT,
                level: 5,
                page_rows: 8192,
            },
        }
    }
}

/// The columns, in the order of the schema.
const SOURCE: usize = 0;
const METRIC: usize = 1;
pub(crate) const TIMESTAMP: usize = 2;
pub(crate) const VALUE: usize = 3;

/// A finished file.
#[derive(Debug)]
pub(crate) struct WrittenFile {
    /// Bytes of the object.
    pub(crate) bytes: Bytes,
    /// Length of the tail.
    pub(crate) tail: u64,
    /// CRC32C of the tail, which has the checksums of all other bytes.
    pub(crate) tail_crc32c: u32,
    pub(crate) rows: u64,
    pub(crate) series: u64,
    /// First and last timestamp of all rows.
    pub(crate) range: (i64, i64),
}

/// Rows of the next row group.
#[derive(Debug, Default)]
struct RowGroupBuffer {
    /// Source, metric and number of rows, for each run of one series.
    names: Vec<(Arc<str>, Arc<str>, usize)>,
    names_bytes: usize,
    timestamps: Vec<i64>,
    values: Vec<f64>,
}

/// Writes one file. Rows must be sorted by source, metric, timestamp.
pub(crate) struct FileWriter {
    parquet: SerializedFileWriter<Vec<u8>>,
    level: ZstdLevel,
    rows: RowGroupBuffer,
    index: IndexBuilder,
}

impl FileWriter {
    pub(crate) fn new(profile: Profile) -> Result<Self, SeriesError> {
        Self::with_capacity(profile, 0)
    }

    /// A writer with capacity for this many bytes, so that a growing file is not moved.
    pub(crate) fn with_capacity(profile: Profile, bytes: u64) -> Result<Self, SeriesError> {
        let buffers = Vec::with_capacity(usize::try_from(bytes).unwrap_or(0));
        let encodings = Encodings::of(profile);
        let level = ZstdLevel::try_new(encodings.level)?;
        let properties = properties(&encodings, level);
        let parquet = SerializedFileWriter::new(buffers, schema()?, properties.into())?;
        Ok(Self {
            parquet,
            level,
            rows: RowGroupBuffer::default(),
            index: IndexBuilder::default(),
        })
    }

    /// Appends rows of one series. A series may be appended in several calls.
    pub(crate) fn append(
        &mut self,
        source: &Arc<str>,
        metric: &Arc<str>,
        mut timestamps: &[i64],
        mut values: &[f64],
    ) -> Result<(), SeriesError> {
        debug_assert_eq!(timestamps.len(), values.len());
        self.index.append(source, metric, timestamps);
        while !timestamps.is_empty() {
            let buffers = ROW_GROUP_ROWS - self.rows.timestamps.len();
            let now = buffers.min(timestamps.len());
            self.rows
                .names
                .push((Arc::clone(source), Arc::clone(metric), now));
            self.rows.timestamps.extend_from_slice(&timestamps[..now]);
            self.rows.values.extend_from_slice(&values[..now]);
            (timestamps, values) = (&timestamps[now..], &values[now..]);
            self.rows.names_bytes += source.len() + metric.len();
            if now == buffers || self.rows.names_bytes >= NAMES_BYTES {
                self.write_group()?;
            }
        }
        Ok(())
    }

    fn write_group(&mut self) -> Result<(), SeriesError> {
        if self.rows.timestamps.is_empty() {
            return Ok(());
        }
        let rows = &mut self.rows;
        let columns = self.parquet.schema_descr();
        let (source, metric) = (columns.column(SOURCE), columns.column(METRIC));
        let mut group = self.parquet.next_row_group()?;
        let sources = rows.names.iter().map(|(source, _, rows)| (source, *rows));
        names::write(&mut group, source, self.level, sources)?;
        let metrics = rows.names.iter().map(|(_, metric, rows)| (metric, *rows));
        names::write(&mut group, metric, self.level, metrics)?;
        let mut column = next_column(&mut group)?;
        column
            .typed::<Int64Type>()
            .write_batch(&rows.timestamps, None, None)?;
        column.close()?;
        let mut column = next_column(&mut group)?;
        column
            .typed::<DoubleType>()
            .write_batch(&rows.values, None, None)?;
        column.close()?;
        group.close()?;
        rows.names.clear();
        rows.names_bytes = 0;
        rows.timestamps.clear();
        rows.values.clear();
        Ok(())
    }

    /// Finishes the file. `None` if it has no row.
    pub(crate) fn finish(mut self) -> Result<Option<WrittenFile>, SeriesError> {
        self.write_group()?;
        let Some(range) = self.index.range() else {
            return Ok(None);
        };
        let encode = |failed: std::io::Error| SeriesError::Encode(ParquetError::from(failed));
        self.parquet.flush().map_err(encode)?;
        let data = self.parquet.inner().len();
        let (rows, series) = (self.index.rows(), self.index.series());
        let index = self.index.encode(self.parquet.inner());
        self.parquet.write_all(&index).map_err(encode)?;
        for (key, value) in [
            ("bywash.series.format", "1".to_owned()),
            ("bywash.series.index", format!("{data}+{}", index.len())),
        ] {
            self.parquet
                .append_key_value_metadata(KeyValue::new(key.to_owned(), value));
        }
        let bytes = Bytes::from(self.parquet.into_inner()?);
        let tail = &bytes[data..];
        Ok(Some(WrittenFile {
            tail: tail.len() as u64,
            tail_crc32c: crate::checksum::crc32c(tail),
            rows,
            series,
            range,
            bytes,
        }))
    }
}

fn next_column<'g>(
    group: &'g mut SerializedRowGroupWriter<'_, Vec<u8>>,
) -> Result<parquet::file::writer::SerializedColumnWriter<'g>, SeriesError> {
    let column = group.next_column()?;
    Ok(column.expect("the schema has four columns and each is written once"))
}

/// All columns are required: no levels, no nulls.
fn schema() -> Result<TypePtr, ParquetError> {
    let name = |name: &str| {
        Type::primitive_type_builder(name, Physical::BYTE_ARRAY)
            .with_repetition(Repetition::REQUIRED)
            .with_logical_type(Some(LogicalType::String))
            .build()
            .map(Arc::new)
    };
    let timestamp = Type::primitive_type_builder("timestamp", Physical::INT64)
        .with_repetition(Repetition::REQUIRED)
        .with_logical_type(Some(LogicalType::timestamp(true, TimeUnit::NANOS)))
        .build()?;
    let value = Type::primitive_type_builder("value", Physical::DOUBLE)
        .with_repetition(Repetition::REQUIRED)
        .build()?;
    let fields = vec![
        name("source")?,
        name("metric")?,
        Arc::new(timestamp),
        Arc::new(value),
    ];
    let schema = Type::group_type_builder("row")
        .with_fields(fields)
        .build()?;
    Ok(Arc::new(schema))
}

fn properties(encodings: &Encodings, level: ZstdLevel) -> WriterProperties {
    let (timestamp, value) = (ColumnPath::from("timestamp"), ColumnPath::from("value"));
    let ascending = |column_idx| SortingColumn {
        column_idx,
        descending: false,
        nulls_first: false,
    };
    let properties = WriterProperties::builder()
        .set_created_by("bywash".to_owned())
        .set_writer_version(WriterVersion::PARQUET_1_0)
        .set_compression(Compression::ZSTD(level))
        .set_data_page_row_count_limit(encodings.page_rows)
        .set_write_batch_size(BATCH_ROWS)
        .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
        .set_statistics_enabled(EnabledStatistics::Page)
        .set_sorting_columns(Some((0..=2).map(ascending).collect()))
        .set_column_dictionary_enabled(timestamp.clone(), false)
        .set_column_encoding(timestamp, Encoding::DELTA_BINARY_PACKED)
        .set_column_dictionary_enabled(value.clone(), false)
        .set_column_encoding(value.clone(), encodings.values)
        // NaN has no order, so bounds of values could mislead readers.
        .set_column_statistics_enabled(value, EnabledStatistics::None);
    properties.build()
}
