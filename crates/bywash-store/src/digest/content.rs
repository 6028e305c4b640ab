//! Digests of the whole content of an object.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use bytes::Bytes;
use crc_fast::CrcAlgorithm;
use md5::Md5;
use sha2::{Digest as _, Sha256};

/// Bytes of a file that are read at once. Any blocking thread may hold a buffer of this size: it is part of the 512 KiB of a thread.
const FILE_PIECE_BYTES: u64 = 64 << 10;

/// Digest of the whole content of an object.
///
/// An extension of [`object_store::GetResult`]: an origin adds the one that its store states, and a read through the
/// cache returns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ContentDigest {
    /// CRC-32 of ISO-HDLC, as in zip files.
    Crc32(u32),
    /// CRC-32C (Castagnoli).
    Crc32c(u32),
    /// CRC-64/NVME.
    Crc64Nvme(u64),
    /// MD5.
    Md5([u8; 16]),
    /// SHA-256.
    Sha256([u8; 32]),
}

impl ContentDigest {
    /// Parses a SHA-256 in hexadecimal digits.
    ///
    /// # Errors
    /// A sentence that names the mistake in `text`.
    pub fn parse_sha256(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no SHA-256; write its 64 hexadecimal digits");
        if text.len() != 64 || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        let mut digest = [0; 32];
        for (byte, digits) in digest.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(digits).map_err(|_| wrong())?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| wrong())?;
        }
        Ok(Self::Sha256(digest))
    }

    /// Digest of a range of a file, of the same algorithm as this one. Blocks.
    ///
    /// # Errors
    /// As [`read_range`].
    pub fn same_of_file(&self, file: &File, range: Range<u64>) -> io::Result<Self> {
        let mut digest = RunningDigest::like(self);
        read_range(file, range, |piece| digest.update(piece))?;
        Ok(digest.finish())
    }

    /// Returns the digest of these pieces, one after another, of the same algorithm as this one.
    pub fn same_of(&self, pieces: &[Bytes]) -> Self {
        let mut digest = RunningDigest::like(self);
        pieces.iter().for_each(|piece| digest.update(piece));
        digest.finish()
    }
}

impl fmt::Display for ContentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = |f: &mut fmt::Formatter<'_>, bytes: &[u8]| {
            bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
        };
        match self {
            Self::Crc32(crc) => write!(f, "CRC32 {crc:08x}"),
            Self::Crc32c(crc) => write!(f, "CRC32C {crc:08x}"),
            Self::Crc64Nvme(crc) => write!(f, "CRC64NVME {crc:016x}"),
            Self::Md5(md5) => f.write_str("MD5 ").and_then(|()| hex(f, md5)),
            Self::Sha256(sha256) => f.write_str("SHA-256 ").and_then(|()| hex(f, sha256)),
        }
    }
}

/// Digest of a sequence of bytes, computed as they come.
#[derive(Debug, Clone)]
pub struct RunningDigest(DigestState);

#[derive(Debug, Clone)]
enum DigestState {
    Crc32(crc_fast::Digest),
    Crc32c(crc_fast::Digest),
    Crc64Nvme(crc_fast::Digest),
    Md5(Md5),
    Sha256(Sha256),
}

impl RunningDigest {
    /// Begins a digest of the algorithm of `expected`.
    #[must_use]
    pub fn like(expected: &ContentDigest) -> Self {
        let crc = crc_fast::Digest::new;
        Self(match expected {
            ContentDigest::Crc32(_) => DigestState::Crc32(crc(CrcAlgorithm::Crc32IsoHdlc)),
            ContentDigest::Crc32c(_) => DigestState::Crc32c(crc(CrcAlgorithm::Crc32Iscsi)),
            ContentDigest::Crc64Nvme(_) => DigestState::Crc64Nvme(crc(CrcAlgorithm::Crc64Nvme)),
            ContentDigest::Md5(_) => DigestState::Md5(Md5::new()),
            ContentDigest::Sha256(_) => DigestState::Sha256(Sha256::new()),
        })
    }

    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            DigestState::Crc32(crc) | DigestState::Crc32c(crc) | DigestState::Crc64Nvme(crc) => {
                crc.update(bytes)
            }
            DigestState::Md5(md5) => md5.update(bytes),
            DigestState::Sha256(sha256) => sha256.update(bytes),
        }
    }

    /// Returns the digest of the bytes so far.
    #[must_use]
    pub fn finish(self) -> ContentDigest {
        // The upper half of a CRC of 32 bits is 0.
        match self.0 {
            DigestState::Crc32(crc) => ContentDigest::Crc32(crc.finalize() as u32),
            DigestState::Crc32c(crc) => ContentDigest::Crc32c(crc.finalize() as u32),
            DigestState::Crc64Nvme(crc) => ContentDigest::Crc64Nvme(crc.finalize()),
            DigestState::Md5(md5) => ContentDigest::Md5(md5.finalize().into()),
            DigestState::Sha256(sha256) => ContentDigest::Sha256(sha256.finalize().into()),
        }
    }
}

/// Calls `each` with the pieces of a range of a file. Blocks.
///
/// # Errors
/// `UnexpectedEof` if the file is shorter.
pub fn read_range(file: &File, range: Range<u64>, mut each: impl FnMut(&[u8])) -> io::Result<()> {
    // The piece length fits `usize`.
    let mut piece = vec![0; FILE_PIECE_BYTES.min(range.end - range.start) as usize];
    let mut at = range.start;
    while at < range.end {
        let wanted = (range.end - at).min(piece.len() as u64) as usize;
        file.read_exact_at(&mut piece[..wanted], at)?;
        each(&piece[..wanted]);
        at += wanted as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check values of the algorithms' definitions.
    #[test]
    fn digests_of_the_check_string_are_those_of_the_definitions() {
        for (like, shown) in [
            (ContentDigest::Crc32(0), "CRC32 cbf43926"),
            (ContentDigest::Crc32c(0), "CRC32C e3069283"),
            (ContentDigest::Crc64Nvme(0), "CRC64NVME ae8b14860a799888"),
            (
                ContentDigest::Md5([0; 16]),
                "MD5 25f9e794323b453885f5181f1b624d0b",
            ),
            (
                ContentDigest::Sha256([0; 32]),
                "SHA-256 15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225",
            ),
        ] {
            let mut running = RunningDigest::like(&like);
            for piece in ["", "1234", "", "56789"] {
                running.update(piece.as_bytes());
            }
            assert_eq!(running.finish().to_string(), shown);
        }
    }
}
