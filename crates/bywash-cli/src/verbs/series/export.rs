//! Export of points to CSV and Parquet.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, TimeUnit, Type as Physical, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::Result;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::{Type, TypePtr};

use super::Row;
use crate::failure::Failure;
use crate::output::written;

/// Rows of a row group, as in data files.
const GROUP_ROWS: usize = 1 << 20;

/// Writes `content` to a file, atomically, or to standard output.
pub(super) fn put(content: &[u8], path: Option<&Path>) -> std::result::Result<(), Failure> {
    let Some(path) = path else {
        return written(io::stdout().lock().write_all(content));
    };
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let put = || {
        let mut staged = tempfile::NamedTempFile::new_in(folder.unwrap_or(Path::new(".")))?;
        staged.write_all(content)?;
        staged.persist(path).map_err(io::Error::from)
    };
    put()
        .map(|_| ())
        .map_err(|error| Failure::io(format!("cannot write {}", path.display()), &error))
}

/// Encodes `rows` as CSV with a header.
pub(super) fn csv(rows: &[Row]) -> csv::Result<Vec<u8>> {
    let mut table = csv::Writer::from_writer(Vec::new());
    for row in rows {
        table.serialize(row)?;
    }
    table
        .into_inner()
        .map_err(|error| error.into_error().into())
}

/// Encodes `rows` as Parquet with the columns of data files.
pub(super) fn parquet(rows: &[Row]) -> Result<Vec<u8>> {
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .build();
    let mut file = SerializedFileWriter::new(Vec::new(), schema()?, Arc::new(properties))?;
    for rows in rows.chunks(GROUP_ROWS) {
        let mut group = file.next_row_group()?;
        text(&mut group, rows.iter().map(|row| &row.source))?;
        text(&mut group, rows.iter().map(|row| &row.metric))?;
        let timestamps: Vec<_> = rows.iter().map(|row| row.timestamp).collect();
        let mut column = group.next_column()?.expect("the schema has a third column");
        column
            .typed::<Int64Type>()
            .write_batch(&timestamps, None, None)?;
        column.close()?;
        let values: Vec<_> = rows.iter().map(|row| row.value).collect();
        let mut column = group
            .next_column()?
            .expect("the schema has a fourth column");
        column
            .typed::<DoubleType>()
            .write_batch(&values, None, None)?;
        column.close()?;
        group.close()?;
    }
    file.into_inner()
}

fn text<'a>(
    group: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
    values: impl Iterator<Item = &'a String>,
) -> Result<()> {
    let values: Vec<_> = values
        .map(|value| ByteArray::from(value.as_str()))
        .collect();
    let mut column = group
        .next_column()?
        .expect("the schema begins with two columns of text");
    column
        .typed::<ByteArrayType>()
        .write_batch(&values, None, None)?;
    column.close()
}

fn schema() -> Result<TypePtr> {
    let required = |name, physical, logical| {
        let column = Type::primitive_type_builder(name, physical)
            .with_repetition(parquet::basic::Repetition::REQUIRED);
        column.with_logical_type(logical).build().map(Arc::new)
    };
    let nanoseconds = LogicalType::timestamp(true, TimeUnit::NANOS);
    let columns = vec![
        required("source", Physical::BYTE_ARRAY, Some(LogicalType::String))?,
        required("metric", Physical::BYTE_ARRAY, Some(LogicalType::String))?,
        required("timestamp", Physical::INT64, Some(nanoseconds))?,
        required("value", Physical::DOUBLE, None)?,
    ];
    Type::group_type_builder("rows")
        .with_fields(columns)
        .build()
        .map(Arc::new)
}
