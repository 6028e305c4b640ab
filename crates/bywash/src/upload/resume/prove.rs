//! Compares what a store keeps with the file it came from.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use crate::upload::checksum::{Running, combine};
use crate::upload::journal::Progress;
use crate::upload::{ChunkPlan, ChunkRule, Digest, Kept};

/// Bytes read at once when a source is hashed.
const HASH_PIECE_BYTES: u64 = 1 << 20;

/// What of the store's bytes the source proves.
pub(super) enum Proof {
    Same {
        /// Everything below is the same at the store and in the source, and the next chunk begins here.
        offset: u64,
        crc32c: u32,
        /// Bytes that are the same, those behind a gap included: the writer will find them kept, and not send them.
        kept: u64,
    },
    /// The source is not what was sent.
    Different,
}

/// Compares what the store keeps with the source. Reads all of the source up to there.
pub(super) fn prove(
    file: &File,
    size: u64,
    rule: &ChunkRule,
    plan: &ChunkPlan,
    kept: &[Kept],
    progress: &Progress,
) -> io::Result<Proof> {
    let before = hash(file, 0..progress.offset)?;
    if before != progress.crc32c {
        return Ok(Proof::Different);
    }
    if !rule.parallel {
        return prove_prefix(file, kept, progress);
    }
    let (mut offset, mut crc32c, mut together) = (0, 0, 0);
    let (mut start, mut index) = (0, 0);
    while start < size {
        let range = start..size.min(start + plan.length_of(index));
        let length = range.end - range.start;
        let part = kept.iter().find(|part| part.range == range);
        // Behind a gap the writer goes by the store's word alone.
        if let Some(part) = part
            && (part.digest.is_some() || offset == range.start)
            && let Some(crc) = proven(file, part, progress)?
        {
            together += length;
            if offset == range.start {
                crc32c = combine(crc32c, crc, length);
                offset = range.end;
            }
        }
        start = range.end;
        index += 1;
    }
    Ok(Proof::Same {
        offset,
        crc32c,
        kept: together,
    })
}

/// CRC32C of a part, if the store keeps what the source has there.
fn proven(file: &File, part: &Kept, progress: &Progress) -> io::Result<Option<u32>> {
    let crc = hash(file, part.range.clone())?;
    let same = match part.digest {
        Some(Digest::Crc32c(stored)) => stored == crc,
        Some(Digest::Md5(stored)) => stored == md5_of(file, part.range.clone())?,
        // Acknowledged when it was sent, and the source is what it was.
        None => part.range.end <= progress.offset,
    };
    Ok(same.then_some(crc))
}

/// A store that takes chunks in order keeps one range from 0.
fn prove_prefix(file: &File, kept: &[Kept], progress: &Progress) -> io::Result<Proof> {
    let end = contiguous(kept);
    if let [
        Kept {
            digest: Some(Digest::Crc32c(stored)),
            ..
        },
    ] = kept
        && hash(file, 0..end)? != *stored
    {
        return Ok(Proof::Different);
    }
    // The writer asks again, and skips what is kept beyond; the object's checksum proves that at its end.
    let offset = end.min(progress.offset);
    let crc32c = if offset == progress.offset {
        progress.crc32c
    } else {
        hash(file, 0..offset)?
    };
    Ok(Proof::Same {
        offset,
        crc32c,
        kept: end,
    })
}

/// Bytes kept from 0 without a gap.
pub(super) fn contiguous(kept: &[Kept]) -> u64 {
    let mut end = 0;
    for part in kept {
        if part.range.start != end {
            break;
        }
        end = part.range.end;
    }
    end
}

/// CRC32C of bytes of a file.
pub(super) fn hash(file: &File, range: Range<u64>) -> io::Result<u32> {
    let mut crc = Running::default();
    read(file, range, |piece| crc.update(piece))?;
    Ok(crc.value())
}

fn md5_of(file: &File, range: Range<u64>) -> io::Result<[u8; 16]> {
    use md5::Digest as _;
    let mut md5 = md5::Md5::new();
    read(file, range, |piece| md5.update(piece))?;
    Ok(md5.finalize().into())
}

fn read(file: &File, range: Range<u64>, mut each: impl FnMut(&[u8])) -> io::Result<()> {
    // At most a piece, so the cast keeps the value.
    let mut piece = vec![0; HASH_PIECE_BYTES.min(range.end - range.start) as usize];
    let mut at = range.start;
    while at < range.end {
        let wanted = (range.end - at).min(piece.len() as u64) as usize;
        file.read_exact_at(&mut piece[..wanted], at)?;
        each(&piece[..wanted]);
        at += wanted as u64;
    }
    Ok(())
}
