//! CRC32C of what is sent, folded range by range.

use bytes::Bytes;
use crc_fast::{CrcAlgorithm::Crc32Iscsi, Digest};
use md5::{Digest as _, Md5};

/// CRC32C of these pieces, one after another.
pub(crate) fn crc32c(pieces: &[Bytes]) -> u32 {
    let mut digest = Digest::new(Crc32Iscsi);
    for piece in pieces {
        digest.update(piece);
    }
    narrow(digest.finalize())
}

/// CRC32C of two ranges one after another, from that of each and the second one's length in bytes.
pub(crate) fn combine(first: u32, second: u32, second_length: u64) -> u32 {
    narrow(crc_fast::checksum_combine(
        Crc32Iscsi,
        u64::from(first),
        u64::from(second),
        second_length,
    ))
}

/// MD5 of these pieces, one after another: what some stores vouch with.
pub(crate) fn md5(pieces: &[Bytes]) -> [u8; 16] {
    let mut digest = Md5::new();
    pieces.iter().for_each(|piece| digest.update(piece));
    digest.finalize().into()
}

fn narrow(crc: u64) -> u32 {
    u32::try_from(crc).expect("a CRC32C has 32 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_fold_to_the_whole() {
        assert_eq!(crc32c(&[Bytes::from_static(b"123456789")]), 0xE306_9283);
        let whole = Bytes::from_static(b"folded once, whatever the cuts");
        for cut in 0..=whole.len() {
            let (first, second) = (whole.slice(..cut), whole.slice(cut..));
            let length = second.len() as u64;
            let folded = combine(
                crc32c(std::slice::from_ref(&first)),
                crc32c(std::slice::from_ref(&second)),
                length,
            );
            assert_eq!(folded, crc32c(&[first, second]), "cut at {cut}");
            assert_eq!(folded, crc32c(std::slice::from_ref(&whole)));
        }
    }
}
