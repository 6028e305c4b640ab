//! Properties of file parsing that fuzzers check.

use super::format::Manifest;
use crate::parquet::SeriesIndex;

/// Any bytes as a manifest: decoding and encoding agree.
pub(crate) fn manifest(bytes: &[u8]) {
    if let Ok(manifest) = Manifest::decode(bytes) {
        let written = manifest.encode();
        let again = Manifest::decode(&written).expect("a manifest just written");
        assert_eq!(again.encode(), written);
    }
}

/// Any bytes as the body of a manifest with a valid checksum.
pub(crate) fn manifest_body(body: &[u8]) {
    let first = Manifest::empty(1).encode();
    let first = std::str::from_utf8(&first).unwrap_or_default();
    let words: Vec<_> = first.split([' ', '\n']).take(2).collect();
    let mut bytes = format!(
        "{} {:08x}\n",
        words.join(" "),
        crate::checksum::crc32c(body)
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    manifest(&bytes);
}

/// Any bytes as the index of a file with this many rows.
pub(crate) fn index(bytes: &[u8], rows: u64) {
    if let Ok(index) = SeriesIndex::decode(bytes, rows, rows) {
        assert!(index.memory() >= bytes.len().min(8) as u64);
    }
}

/// Any bytes as a page with this many rows.
pub(crate) fn page(bytes: &[u8], rows: usize) {
    crate::parquet::page::fuzz::page(bytes, rows, rows.is_multiple_of(2));
}
