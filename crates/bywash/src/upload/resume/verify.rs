//! Compares the bytes at a store with the source file.

use std::fs::File;
use std::io;
use std::ops::Range;

use bywash_store::{ChunkRule, ContentDigest, Finished, StoredRange, read_range};

use crate::upload::ChunkPlan;
use crate::upload::checksum::{RunningCrc32c, combine};
use crate::upload::comparison::PartsETag;
use crate::upload::journal::Progress;

/// Result of the comparison.
pub(super) enum SourceComparison {
    Same {
        /// Offset below which store and source are the same; the next chunk begins here.
        offset: u64,
        crc32c: u32,
        /// Bytes that are the same, also after a gap: the writer finds them stored and does not send them again.
        stored: u64,
    },
    /// The source differs from the bytes sent.
    Different,
}

/// Compares the bytes at the store with the source, which is read up to their end.
pub(super) fn compare(
    file: &File,
    size: u64,
    rule: &ChunkRule,
    plan: &ChunkPlan,
    stored: &[StoredRange],
    progress: &Progress,
) -> io::Result<SourceComparison> {
    let before = hash(file, 0..progress.offset)?;
    if before != progress.crc32c && !planted!("upload-source-not-compared") {
        return Ok(SourceComparison::Different);
    }
    if !rule.parallel {
        return compare_prefix(file, stored, progress);
    }
    let (mut offset, mut crc32c, mut matching) = (0, 0, 0);
    let (mut start, mut index) = (0, 0);
    while start < size {
        let range = start..size.min(start + plan.length_of(index));
        let length = range.end - range.start;
        let part = stored.iter().find(|part| part.range == range);
        // After a gap the writer relies on the store's digest alone.
        if let Some(part) = part
            && (part.digest.is_some() || offset == range.start)
            && let Some(crc) = compared(file, part, progress)?
        {
            matching += length;
            if offset == range.start {
                crc32c = combine(crc32c, crc, length);
                offset = range.end;
            }
        }
        start = range.end;
        index += 1;
    }
    Ok(SourceComparison::Same {
        offset,
        crc32c,
        stored: matching,
    })
}

/// Returns the CRC32C of a part if the store has the source's bytes.
fn compared(file: &File, part: &StoredRange, progress: &Progress) -> io::Result<Option<u32>> {
    let crc = hash(file, part.range.clone())?;
    let same = match part.digest {
        Some(ContentDigest::Crc32c(stored)) => {
            stored == crc || planted!("upload-stored-part-not-compared")
        }
        Some(stored) => stored == stored.same_of_file(file, part.range.clone())?,
        // Acknowledged when it was sent, and the source is unchanged.
        None => part.range.end <= progress.offset,
    };
    Ok(same.then_some(crc))
}

/// Compares the single range from 0 of a store that takes chunks in order.
fn compare_prefix(
    file: &File,
    stored: &[StoredRange],
    progress: &Progress,
) -> io::Result<SourceComparison> {
    let end = contiguous(stored);
    if let [
        StoredRange {
            digest: Some(ContentDigest::Crc32c(stored)),
            ..
        },
    ] = stored
        && hash(file, 0..end)? != *stored
    {
        return Ok(SourceComparison::Different);
    }
    // The writer requests the status again and skips bytes stored beyond this offset; the object's checksum verifies
    // them at the end.
    let offset = end.min(progress.offset);
    let crc32c = if offset == progress.offset {
        progress.crc32c
    } else {
        hash(file, 0..offset)?
    };
    Ok(SourceComparison::Same {
        offset,
        crc32c,
        stored: end,
    })
}

/// Whether the ETag of an object proves that it is the source in the parts of a plan.
pub(super) fn is_of_parts(
    file: &File,
    size: u64,
    plan: &ChunkPlan,
    object: &Finished,
) -> io::Result<bool> {
    let mut e_tag = PartsETag::default();
    let (mut start, mut index) = (0, 0);
    // An upload has at least one part.
    while start < size || index == 0 {
        let range = start..size.min(start + plan.length_of(index));
        start = range.end;
        if let ContentDigest::Md5(md5) = ContentDigest::Md5([0; 16]).same_of_file(file, range)? {
            e_tag.add(&md5);
        }
        index += 1;
    }
    Ok(e_tag.matches(object))
}

/// Returns the number of bytes stored from 0 on without a gap.
pub(super) fn contiguous(stored: &[StoredRange]) -> u64 {
    let mut end = 0;
    for part in stored {
        if part.range.start != end {
            break;
        }
        end = part.range.end;
    }
    end
}

/// Returns the CRC32C of a range of a file.
pub(super) fn hash(file: &File, range: Range<u64>) -> io::Result<u32> {
    let mut crc = RunningCrc32c::default();
    read_range(file, range, |piece| crc.update(piece))?;
    Ok(crc.value())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::io::Write as _;

    use super::*;

    const PART: u64 = 1000;

    /// Of three parts at a store, the second has other bytes than the source: the upload continues there, and keeps the third.
    #[test]
    fn stored_part_with_other_bytes_is_sent_again() {
        let mut file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..3 * PART).map(|at| (at % 251) as u8).collect();
        file.write_all(&bytes).unwrap();
        let stored: Vec<_> = (0..3)
            .map(|part| {
                let range = part * PART..(part + 1) * PART;
                let crc = hash(&file, range.clone()).unwrap();
                StoredRange {
                    range,
                    digest: Some(ContentDigest::Crc32c(crc ^ u32::from(part == 1))),
                }
            })
            .collect();
        let rule = ChunkRule::PARTS;
        let plan = ChunkPlan::new(&rule, PART, true, Some(3 * PART)).unwrap();
        let progress = Progress {
            offset: 0,
            crc32c: 0,
        };
        let compared = compare(&file, 3 * PART, &rule, &plan, &stored, &progress).unwrap();
        let SourceComparison::Same {
            offset,
            crc32c,
            stored,
        } = compared
        else {
            panic!("the source has not changed");
        };
        assert_eq!((offset, stored), (PART, 2 * PART));
        assert_eq!(crc32c, hash(&file, 0..PART).unwrap());
    }
}
