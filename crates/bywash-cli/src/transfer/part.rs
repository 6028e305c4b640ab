//! Parts of a copy: their size, how many are in flight, and the bytes of one.

use bytes::Bytes;
use bywash::Segments;

/// Min size of a part: below, the round trip outweighs the transfer.
pub(crate) const PART_MIN_BYTES: u64 = 8 << 20;
/// Part size for a source of unknown length: S3 allows 10,000 parts, so up to 312 GiB.
pub(crate) const PART_UNKNOWN_BYTES: u64 = 32 << 20;
/// Max parts of an S3 upload.
const PARTS_MAX: u64 = 10_000;
/// Max bytes of parts read ahead, at least one part. The sink may hold as much again.
const AHEAD_BYTES: u64 = 32 << 20;
/// More concurrent requests do not raise the throughput.
const AHEAD_PARTS_MAX: u64 = 4;

/// Bytes of a part, in the pieces that they were read in: the frames of an object's part are not joined.
#[derive(Debug)]
pub(crate) struct Part {
    pieces: Vec<Bytes>,
    len: usize,
}

impl Part {
    /// Number of bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Its pieces.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Bytes> {
        self.pieces.iter()
    }

    /// Returns all bytes in one piece. Copies them if there are several.
    pub(crate) fn into_contiguous(mut self) -> Bytes {
        match self.pieces.len() {
            1 => self.pieces.remove(0),
            _ => self.pieces.concat().into(),
        }
    }
}

impl From<Bytes> for Part {
    fn from(bytes: Bytes) -> Self {
        Self {
            len: bytes.len(),
            pieces: vec![bytes],
        }
    }
}

impl From<Segments> for Part {
    fn from(frames: Segments) -> Self {
        Self {
            len: frames.len(),
            pieces: frames.into_iter().collect(),
        }
    }
}

impl IntoIterator for Part {
    type Item = Bytes;
    type IntoIter = std::vec::IntoIter<Bytes>;

    fn into_iter(self) -> Self::IntoIter {
        self.pieces.into_iter()
    }
}

/// Compares bytes, not where the pieces end.
impl PartialEq for Part {
    fn eq(&self, other: &Self) -> bool {
        let mut others = other.pieces.iter();
        let mut theirs: &[u8] = &[];
        for mut ours in self.pieces.iter().map(|piece| &piece[..]) {
            while !ours.is_empty() {
                if theirs.is_empty() {
                    let Some(next) = others.next() else {
                        return false;
                    };
                    theirs = next;
                }
                let common = ours.len().min(theirs.len());
                if ours[..common] != theirs[..common] {
                    return false;
                }
                (ours, theirs) = (&ours[common..], &theirs[common..]);
            }
        }
        self.len == other.len
    }
}

/// Returns how many parts of this length may be in flight on one side.
pub(crate) fn ahead(part_bytes: u64) -> usize {
    // At most AHEAD_PARTS_MAX, so the cast is lossless.
    (AHEAD_BYTES / part_bytes).clamp(1, AHEAD_PARTS_MAX) as usize
}

/// The smallest part size that S3's limit of parts allows, in whole MiB.
pub(crate) fn part_bytes(bytes: u64) -> u64 {
    bytes
        .div_ceil(PARTS_MAX)
        .next_multiple_of(1 << 20)
        .max(PART_MIN_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_stay_within_the_limits_of_s3_and_of_memory() {
        const TIB: u64 = 1 << 40;
        for bytes in [0, 1, PART_MIN_BYTES, 100 << 30, 5 * TIB] {
            let part = part_bytes(bytes);
            assert!(
                bytes.div_ceil(part) <= PARTS_MAX && part >= PART_MIN_BYTES,
                "{bytes}: {part}"
            );
            assert!(
                ahead(part) == 1 || ahead(part) as u64 * part <= AHEAD_BYTES,
                "{bytes}: {part}"
            );
        }
        assert_eq!(ahead(PART_MIN_BYTES), 4);
    }

    #[test]
    fn parts_compare_by_bytes_wherever_their_pieces_end() {
        let part = |pieces: &[&'static str]| Part {
            len: pieces.iter().map(|piece| piece.len()).sum(),
            pieces: pieces.iter().map(|piece| Bytes::from(*piece)).collect(),
        };
        let whole = part(&["abcdef"]);
        for same in [&["abc", "def"][..], &["a", "", "bcde", "f"]] {
            assert!(part(same) == whole && whole == part(same), "{same:?}");
            assert_eq!(part(same).into_contiguous(), "abcdef");
        }
        for other in [&["abc"][..], &["abc", "dez"], &["abcdef", "g"], &[]] {
            assert!(part(other) != whole && whole != part(other), "{other:?}");
        }
    }
}
