//! Record of the staged bytes that are on disk: the file `ranges`, next to the staged bytes.
//!
//! ```text
//! start:u64 end:u64 crc32c:u32 check:u32      little-endian; check is CRC32C of the 20 bytes before it
//! ```
//!
//! A record is appended after its bytes were synced, then synced itself. So each whole record is valid after any
//! crash.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use crc_fast::{CrcAlgorithm, Digest};

use crate::digest::read_range;

const RECORD_BYTES: usize = 24;

/// A range that is on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Synced {
    end: u64,
    crc32c: u32,
    /// Written by this process, or verified by it.
    seen: bool,
}

/// The open `ranges` file, and its content.
#[derive(Debug)]
pub(super) struct Ranges {
    file: File,
    /// Bytes of the file that are whole records.
    length: u64,
    /// Ranges by their start.
    synced: BTreeMap<u64, Synced>,
}

impl Ranges {
    /// Reads the file up to the first record that is not whole.
    pub(super) fn open(file: File) -> io::Result<Self> {
        let mut ranges = Self {
            file,
            length: 0,
            synced: BTreeMap::new(),
        };
        let mut record = [0; RECORD_BYTES];
        loop {
            match ranges.file.read_exact_at(&mut record, ranges.length) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
                Err(error) => return Err(error),
            }
            let Some((range, crc32c)) = decode(&record) else {
                break;
            };
            ranges.insert(range, crc32c, false);
            ranges.length += RECORD_BYTES as u64;
        }
        Ok(ranges)
    }

    /// Records durably a range that is on disk already.
    pub(super) fn add(&mut self, range: Range<u64>, crc32c: u32) -> io::Result<()> {
        let record = encode(&range, crc32c);
        // At a fixed position: overwrites half a record of an earlier failure.
        self.file.write_all_at(&record, self.length)?;
        self.file.sync_data()?;
        self.length += RECORD_BYTES as u64;
        self.insert(range, crc32c, true);
        Ok(())
    }

    /// Removes ranges that overlap it: they were recorded by an upload with other chunk boundaries.
    fn insert(&mut self, range: Range<u64>, crc32c: u32, seen: bool) {
        let overlapped: Vec<u64> = self
            .synced
            .range(..range.end)
            .rev()
            .take_while(|(_, old)| old.end > range.start)
            .map(|(start, _)| *start)
            .collect();
        for start in overlapped {
            self.synced.remove(&start);
        }
        let synced = Synced {
            end: range.end,
            crc32c,
            seen,
        };
        self.synced.insert(range.start, synced);
    }

    /// Verifies the ranges that this process did not write against `data`, and removes those with another checksum.
    pub(super) fn verify(&mut self, data: &File) -> io::Result<()> {
        let unseen: Vec<u64> = self
            .synced
            .iter()
            .filter(|(_, synced)| !synced.seen)
            .map(|(start, _)| *start)
            .collect();
        for start in unseen {
            let Some(synced) = self.synced.get_mut(&start) else {
                continue;
            };
            if hash(data, start..synced.end)? == Some(synced.crc32c) {
                synced.seen = true;
            } else {
                self.synced.remove(&start);
            }
        }
        Ok(())
    }

    /// The ranges on disk, in ascending order, without overlap, with their CRC32C.
    pub(super) fn all(&self) -> impl Iterator<Item = (Range<u64>, u32)> {
        self.synced
            .iter()
            .map(|(start, synced)| (*start..synced.end, synced.crc32c))
    }

    /// Checks that exactly the first `length` bytes are on disk; else returns the first offset where that is not so.
    pub(super) fn covers(&self, length: u64) -> Result<(), u64> {
        let mut reached = 0;
        for (range, _) in self.all() {
            if range.start != reached {
                break;
            }
            reached = range.end;
        }
        let beyond = self.synced.last_key_value().map_or(0, |(_, last)| last.end);
        if reached == length && beyond == length {
            Ok(())
        } else {
            Err(reached.min(length))
        }
    }
}

fn encode(range: &Range<u64>, crc32c: u32) -> [u8; RECORD_BYTES] {
    let mut record = [0; RECORD_BYTES];
    record[..8].copy_from_slice(&range.start.to_le_bytes());
    record[8..16].copy_from_slice(&range.end.to_le_bytes());
    record[16..20].copy_from_slice(&crc32c.to_le_bytes());
    let check = crc_of(&record[..20]);
    record[20..].copy_from_slice(&check.to_le_bytes());
    record
}

fn decode(record: &[u8; RECORD_BYTES]) -> Option<(Range<u64>, u32)> {
    let (start, rest) = record.split_first_chunk()?;
    let (end, rest) = rest.split_first_chunk()?;
    let (crc32c, rest) = rest.split_first_chunk()?;
    let (check, _) = rest.split_first_chunk()?;
    let range = u64::from_le_bytes(*start)..u64::from_le_bytes(*end);
    let whole = u32::from_le_bytes(*check) == crc_of(&record[..20]);
    (whole && !range.is_empty()).then_some((range, u32::from_le_bytes(*crc32c)))
}

fn crc_of(bytes: &[u8]) -> u32 {
    // The CRC has 32 bits.
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Returns the CRC32C of a range of a file; `None` if the file is shorter.
pub(super) fn hash(file: &File, range: Range<u64>) -> io::Result<Option<u32>> {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    match read_range(file, range, |piece| digest.update(piece)) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        read => read.map(|()| Some(digest.finalize() as u32)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn file() -> File {
        tempfile::tempfile().unwrap()
    }

    fn all(ranges: &Ranges) -> Vec<(Range<u64>, u32)> {
        ranges.all().collect()
    }

    #[test]
    fn whole_records_are_read_and_a_torn_one_is_overwritten() {
        let log = file();
        let mut ranges = Ranges::open(log.try_clone().unwrap()).unwrap();
        ranges.add(10..20, 1).unwrap();
        ranges.add(0..10, 2).unwrap();
        for torn in 0..24 {
            log.set_len(48 + torn).unwrap();
            let mut again = Ranges::open(log.try_clone().unwrap()).unwrap();
            assert_eq!(all(&again), [(0..10, 2), (10..20, 1)]);
            again.add(20..30, 3).unwrap();
            let last = Ranges::open(log.try_clone().unwrap()).unwrap();
            assert_eq!(all(&last), [(0..10, 2), (10..20, 1), (20..30, 3)]);
        }
        // A flipped bit ends the valid records: later bytes are sent again.
        log.write_all_at(&[7], 24).unwrap();
        assert_eq!(all(&Ranges::open(log).unwrap()), [(10..20, 1)]);
    }

    #[test]
    fn ranges_that_changed_on_disk_are_dropped() {
        let (log, data) = (file(), file());
        data.write_all_at(b"aaaabbbb", 0).unwrap();
        let mut ranges = Ranges::open(log.try_clone().unwrap()).unwrap();
        ranges.add(0..4, crc_of(b"aaaa")).unwrap();
        ranges.add(4..8, crc_of(b"bbbb")).unwrap();
        data.write_all_at(b"x", 5).unwrap();
        let mut again = Ranges::open(log.try_clone().unwrap()).unwrap();
        again.verify(&data).unwrap();
        assert_eq!(all(&again), [(0..4, crc_of(b"aaaa"))]);
        data.set_len(2).unwrap();
        let mut short = Ranges::open(log).unwrap();
        short.verify(&data).unwrap();
        assert_eq!(all(&short), []);
    }

    #[test]
    fn gaps_and_excess_bytes_are_detected() {
        let mut ranges = Ranges::open(file()).unwrap();
        assert_eq!(ranges.covers(0), Ok(()));
        assert_eq!(ranges.covers(1), Err(0));
        ranges.add(0..4, 0).unwrap();
        ranges.add(6..8, 0).unwrap();
        assert_eq!(ranges.covers(8), Err(4));
        assert_eq!(ranges.covers(4), Err(4));
        ranges.add(4..6, 0).unwrap();
        assert_eq!(ranges.covers(8), Ok(()));
        assert_eq!(ranges.covers(7), Err(7));
        // With other boundaries: earlier records no longer count.
        ranges.add(3..5, 0).unwrap();
        assert_eq!(all(&ranges), [(3..5, 0), (6..8, 0)]);
    }
}
