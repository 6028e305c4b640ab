//! Encoding of a column of names: a dictionary, then run lengths.
//!
//! Not by the parquet crate, which looks up the name of each row: that took half of the time of a file.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{Compression, Encoding, PageType, ZstdLevel};
use parquet::column::page::{CompressedPage, Page, PageWriter};
use parquet::column::writer::ColumnCloseResult;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, OffsetIndexBuilder, PageEncodingStats};
use parquet::file::statistics::{Statistics, ValueStatistics};
use parquet::file::writer::{SerializedPageWriter, SerializedRowGroupWriter, TrackedWrite};
use parquet::schema::types::ColumnDescPtr;

use crate::varint::put_varint;

/// Max bytes of a name in the bounds of a row group: the footer has bounds twice, and they are rarely used.
const BOUND_BYTES: usize = 64;

/// Distinct names in the order of first use, and runs of rows by their index.
#[derive(Default)]
struct Names<'a> {
    positions: HashMap<&'a str, u32>,
    dictionary: Vec<u8>,
    runs: Vec<(u32, u64)>,
}

impl<'a> Names<'a> {
    fn add(&mut self, name: &'a str, rows: u64) {
        let next = self.positions.len() as u32;
        let place = *self.positions.entry(name).or_insert_with(|| {
            self.dictionary.extend((name.len() as u32).to_le_bytes());
            self.dictionary.extend(name.as_bytes());
            next
        });
        match self.runs.last_mut() {
            Some((known, all)) if *known == place => *all += rows,
            _ => self.runs.push((place, rows)),
        }
    }

    /// Encodes the runs in Parquet's RLE format.
    fn encode(&self) -> Vec<u8> {
        let last = self.positions.len() as u32 - 1;
        // Some readers do not support a bit width of 0.
        let bits = (u32::BITS - last.leading_zeros()).max(1);
        let mut out = vec![bits as u8];
        for (place, rows) in &self.runs {
            put_varint(rows << 1, &mut out);
            out.extend(&place.to_le_bytes()[..bits.div_ceil(8) as usize]);
        }
        out
    }

    fn bounds(&self) -> Option<Statistics> {
        let names = || self.positions.keys().copied();
        let (first, last) = (names().min()?, names().max()?);
        let bound = |name: &str| ByteArray::from(name.as_bytes().to_vec());
        (first.len().max(last.len()) <= BOUND_BYTES).then(|| {
            ValueStatistics::new(Some(bound(first)), Some(bound(last)), None, Some(0), false).into()
        })
    }
}

/// Writes the next column from runs of names; at least one row.
pub(crate) fn write<'a>(
    group: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
    column: ColumnDescPtr,
    level: ZstdLevel,
    runs: impl Iterator<Item = (&'a Arc<str>, usize)>,
) -> Result<(), ParquetError> {
    let mut names = Names::default();
    let mut rows = 0;
    for (name, count) in runs {
        names.add(name, count as u64);
        rows += count as u64;
    }
    let (dictionary, runs) = (&names.dictionary, names.encode());
    let pack =
        |bytes: &[u8]| zstd::bulk::compress(bytes, level.compression_level()).map(Bytes::from);
    let dictionary_page = Page::DictionaryPage {
        buf: pack(dictionary)?,
        num_values: names.positions.len() as u32,
        encoding: Encoding::PLAIN,
        is_sorted: false,
    };
    let page = Page::DataPage {
        buf: pack(&runs)?,
        num_values: rows as u32,
        encoding: Encoding::RLE_DICTIONARY,
        def_level_encoding: Encoding::RLE,
        rep_level_encoding: Encoding::RLE,
        statistics: None,
    };
    let mut chunk = TrackedWrite::new(Vec::new());
    let mut pages = SerializedPageWriter::new(&mut chunk);
    let first = pages.write_page(CompressedPage::new(dictionary_page, dictionary.len()))?;
    let second = pages.write_page(CompressedPage::new(page, runs.len()))?;
    pages.close()?;
    let mut offsets = OffsetIndexBuilder::new();
    offsets.append_row_count(rows as i64);
    offsets.append_offset_and_size(second.offset as i64, second.compressed_size as i32);
    let chunk = Bytes::from(chunk.into_inner()?);
    let mut metadata = ColumnChunkMetaData::builder(column)
        .set_compression(Compression::ZSTD(level))
        .set_encodings(vec![
            Encoding::PLAIN,
            Encoding::RLE,
            Encoding::RLE_DICTIONARY,
        ])
        .set_page_encoding_stats(page_stats())
        .set_total_compressed_size(chunk.len() as i64)
        .set_total_uncompressed_size((first.uncompressed_size + second.uncompressed_size) as i64)
        .set_num_values(rows as i64)
        .set_data_page_offset(second.offset as i64)
        .set_dictionary_page_offset(Some(first.offset as i64));
    if let Some(bounds) = names.bounds() {
        metadata = metadata.set_statistics(bounds);
    }
    let close = ColumnCloseResult {
        bytes_written: chunk.len() as u64,
        rows_written: rows,
        metadata: metadata.build()?,
        bloom_filter: None,
        column_index: None,
        offset_index: Some(offsets.build()),
    };
    group.append_column(&chunk, close)
}

/// One dictionary page, one page of runs.
fn page_stats() -> Vec<PageEncodingStats> {
    let pages = [
        (PageType::DICTIONARY_PAGE, Encoding::PLAIN),
        (PageType::DATA_PAGE, Encoding::RLE_DICTIONARY),
    ];
    let stats = pages.map(|(page_type, encoding)| PageEncodingStats {
        page_type,
        encoding,
        count: 1,
    });
    stats.to_vec()
}
