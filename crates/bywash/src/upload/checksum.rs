//! CRC32C of uploaded bytes; CRCs of ranges are combined.

use bytes::Bytes;
use crc_fast::{CrcAlgorithm::Crc32Iscsi, Digest};

/// CRC32C of a sequence of bytes.
#[derive(Debug, Clone)]
pub(crate) struct RunningCrc32c(Digest);

impl Default for RunningCrc32c {
    fn default() -> Self {
        Self(Digest::new(Crc32Iscsi))
    }
}

impl RunningCrc32c {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The CRC of the bytes so far.
    pub(crate) fn value(&self) -> u32 {
        narrow(self.0.finalize())
    }
}

/// Returns the CRC32C of these pieces, one after another.
pub(crate) fn crc32c(pieces: &[Bytes]) -> u32 {
    let mut crc = RunningCrc32c::default();
    pieces.iter().for_each(|piece| crc.update(piece));
    crc.value()
}

/// Returns the CRC32C of two ranges, one after another, from the CRC of each and the length of the second in bytes.
pub(crate) fn combine(first: u32, second: u32, second_length: u64) -> u32 {
    narrow(crc_fast::checksum_combine(
        Crc32Iscsi,
        first.into(),
        second.into(),
        second_length,
    ))
}

fn narrow(crc: u64) -> u32 {
    u32::try_from(crc).expect("a CRC32C has 32 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crcs_of_ranges_combine_to_the_whole() {
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
