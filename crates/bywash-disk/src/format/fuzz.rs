//! Properties of the parsers of segments that fuzzers check. Checksums would reject any change, so they are set.

use super::*;

/// Any bytes as a header: the decoded header encodes to the same bytes, and without its checksum it
/// is refused.
pub(crate) fn header(bytes: &[u8]) {
    let mut page = page(bytes, HEADER_MAGIC, HEADER_BYTES);
    let header = Header::decode(&page).expect("magic number and checksum are right");
    assert_eq!(header.encode()[..HEADER_BYTES], page[..HEADER_BYTES]);
    page[HEADER_BYTES - 1] ^= 1;
    assert_eq!(Header::decode(&page), None);
}

/// As [`header`], of a seal.
pub(crate) fn seal(bytes: &[u8]) {
    let mut page = page(bytes, SEAL_MAGIC, SEAL_BYTES);
    let seal = Seal::decode(&page).expect("magic number and checksum are right");
    assert_eq!(seal.encode()[..SEAL_BYTES], page[..SEAL_BYTES]);
    page[SEAL_BYTES - 1] ^= 1;
    assert_eq!(Seal::decode(&page), None);
}

/// Any bytes as a summary: each item is in the bytes, and the decoded summary is encoded alike.
pub(crate) fn summary(bytes: &[u8]) {
    let pages = pages_of(bytes.len()).max(1);
    let mut summary = bytes.to_vec();
    summary.resize(pages as usize * PAGE, 0);
    summary[..4].copy_from_slice(SUMMARY_MAGIC);
    summary[20..24].copy_from_slice(&pages.to_le_bytes());
    assert_eq!(Summary::pages_in(&summary[..PAGE], pages), Some(pages));
    let crc = crc32c(&summary[8..]);
    summary[4..8].copy_from_slice(&crc.to_le_bytes());
    let Some(read) = Summary::decode(&summary) else {
        return;
    };
    assert!(read.pages() <= pages, "more was read than there is");
    assert_eq!(Summary::decode(&read.encode()), Some(read));
    summary[8] ^= 1;
    assert_eq!(Summary::decode(&summary), None);
}

fn page(bytes: &[u8], magic: &[u8], length: usize) -> [u8; PAGE] {
    let mut page = [0; PAGE];
    let taken = bytes.len().min(length);
    page[..taken].copy_from_slice(&bytes[..taken]);
    page[..magic.len()].copy_from_slice(magic);
    let crc = crc32c(&page[..length - 4]);
    page[length - 4..length].copy_from_slice(&crc.to_le_bytes());
    page
}
