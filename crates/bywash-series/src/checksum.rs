//! CRC32C, the checksum of log and files.

use crc_fast::{CrcAlgorithm, checksum};

/// The CRC32C of `bytes`.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}
