//! Rows to a Parquet file, in memory.
//!
//! A file is one object: row groups of four plain columns, then our own index of its series (other readers skip it), then
//! Parquet's page index and footer. The last three are its *tail*, read by one GET.

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

/// Rows of a row group at most: what a reader of whole groups, DuckDB for one, holds at once.
pub(super) const ROW_GROUP_ROWS: usize = 1 << 20;

/// Values handed to a column writer at once. Divides the rows of a page, so that both columns break pages at the same rows.
const BATCH_ROWS: usize = 1024;

/// Names of a row group, each series' counted, in bytes: with more of them it ends, for its dictionaries are held at once.
const NAMES_BYTES: usize = 32 << 20;

/// How a profile has values and timestamps.
struct Packing {
    values: Encoding,
    /// Of zstd.
    level: i32,
    /// Rows of a page, the same rows in both columns. A reader of one series decodes whole pages.
    page_rows: usize,
}

impl Packing {
    /// By bytes a point and time on TSBS's data: `bench/results/2026-11-22-series-bytes.md`.
    fn of(profile: Profile) -> Self {
        match profile {
            // Small pages leave the fastest level nothing to miss: higher ones find less, and take longer.
            Profile::Portable => Self {
                values: Encoding::PLAIN,
                level: 1,
                page_rows: 2048,
            },
            // Streams of single bytes want long pages and a search that does not give up early.
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
pub(super) const TIMESTAMP: usize = 2;
pub(super) const VALUE: usize = 3;

/// What a finished file is.
#[derive(Debug)]
pub(crate) struct WrittenFile {
    /// The object's bytes.
    pub(crate) bytes: Bytes,
    /// Length of the tail.
    pub(super) tail: u64,
    /// Its CRC32C; the rest of the file is covered by sums in the tail.
    pub(super) tail_crc32c: u32,
    pub(super) rows: u64,
    pub(super) series: u64,
    /// First and last timestamp of all rows.
    pub(super) range: (i64, i64),
}

/// Rows of the row group to be written.
#[derive(Debug, Default)]
struct Rows {
    /// Source, metric and rows of each run of one series.
    names: Vec<(Arc<str>, Arc<str>, usize)>,
    names_bytes: usize,
    timestamps: Vec<i64>,
    values: Vec<f64>,
}

/// Writes one file. Rows come sorted by source, metric, timestamp.
pub(crate) struct FileWriter {
    parquet: SerializedFileWriter<Vec<u8>>,
    level: ZstdLevel,
    rows: Rows,
    index: IndexBuilder,
}

impl FileWriter {
    pub(crate) fn new(profile: Profile) -> Result<Self, SeriesError> {
        Self::with_room(profile, 0)
    }

    /// A writer of a file of about so many bytes, which then is not moved while it grows.
    pub(super) fn with_room(profile: Profile, bytes: u64) -> Result<Self, SeriesError> {
        let room = Vec::with_capacity(usize::try_from(bytes).unwrap_or(0));
        let packing = Packing::of(profile);
        let level = ZstdLevel::try_new(packing.level)?;
        let properties = properties(&packing, level);
        let parquet = SerializedFileWriter::new(room, schema()?, properties.into())?;
        Ok(Self {
            parquet,
            level,
            rows: Rows::default(),
            index: IndexBuilder::default(),
        })
    }

    /// Adds rows of one series, behind those that came before; one series may come in several calls.
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
            let room = ROW_GROUP_ROWS - self.rows.timestamps.len();
            let now = room.min(timestamps.len());
            self.rows
                .names
                .push((Arc::clone(source), Arc::clone(metric), now));
            self.rows.timestamps.extend_from_slice(&timestamps[..now]);
            self.rows.values.extend_from_slice(&values[..now]);
            (timestamps, values) = (&timestamps[now..], &values[now..]);
            self.rows.names_bytes += source.len() + metric.len();
            if now == room || self.rows.names_bytes >= NAMES_BYTES {
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

    /// Ends the file. `None` if it has no row.
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
            tail_crc32c: super::crc32c(tail),
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

/// All required: no levels, no nulls.
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

fn properties(packing: &Packing, level: ZstdLevel) -> WriterProperties {
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
        .set_data_page_row_count_limit(packing.page_rows)
        .set_write_batch_size(BATCH_ROWS)
        .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
        .set_statistics_enabled(EnabledStatistics::Page)
        .set_sorting_columns(Some((0..=2).map(ascending).collect()))
        .set_column_dictionary_enabled(timestamp.clone(), false)
        .set_column_encoding(timestamp, Encoding::DELTA_BINARY_PACKED)
        .set_column_dictionary_enabled(value.clone(), false)
        .set_column_encoding(value.clone(), packing.values)
        // A NaN has no place in an order: no reader can be led astray by bounds that are not there.
        .set_column_statistics_enabled(value, EnabledStatistics::None);
    properties.build()
}
