//! The oracle: each word of a block encodes the block's key and the load it came from.

use crate::BlockKey;

/// Bytes of the words a block is made of; the first is the number of the load.
const WORD: usize = size_of::<u64>();
/// Odd and without a pattern: the fraction of the golden ratio.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// The word before a block's second one. The others are it plus multiples of `STEP`, so that the compiler can vectorise.
fn base(key: BlockKey, generation: u64) -> u64 {
    let mixed = (key.object << 32) ^ (u64::from(key.block) << 24) ^ generation;
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB)
}

/// Writes the bytes of the `generation`th load of a key. They do not depend on the store: a block may be adopted by another.
pub(super) fn write(key: BlockKey, generation: u64, into: &mut [u8]) {
    let mut word = base(key, generation);
    let mut next = generation;
    for bytes in into.chunks_mut(WORD) {
        bytes.copy_from_slice(&next.to_le_bytes()[..bytes.len()]);
        word = word.wrapping_add(STEP);
        next = word;
    }
}

/// Returns the load that these bytes came from, of at least one word; `None` if any byte is not that load's.
pub(super) fn read(key: BlockKey, bytes: &[u8]) -> Option<u64> {
    let (first, rest) = bytes.split_first_chunk::<WORD>()?;
    let generation = u64::from_le_bytes(*first);
    let (words, tail) = rest.as_chunks::<WORD>();
    let mut word = base(key, generation);
    let mut wrong = 0;
    for bytes in words {
        word = word.wrapping_add(STEP);
        wrong |= u64::from_le_bytes(*bytes) ^ word;
    }
    let last = word.wrapping_add(STEP).to_le_bytes();
    (wrong == 0 && tail == &last[..tail.len()]).then_some(generation)
}

/// As [`read`], of a block that was resized: cut at some place, and continued with zeros.
pub(super) fn read_resized(key: BlockKey, bytes: &[u8]) -> Option<u64> {
    let zeros = bytes.iter().rev().take_while(|byte| **byte == 0).count();
    // The bytes before the cut may end in zeros themselves, in a word at most.
    let min = bytes.len() - zeros;
    (min.max(WORD)..=bytes.len().min(min.max(WORD) + WORD)).find_map(|cut| read(key, &bytes[..cut]))
}

#[cfg(not(shuttle))]
#[test]
fn oracle_detects_one_wrong_byte() {
    let [key, other] = [3, 4].map(|object| BlockKey {
        store: 0,
        object,
        block: 0,
    });
    let mut bytes = Vec::new();
    for len in [8, 9, 64, 100] {
        bytes.resize(len, 0);
        write(key, 7, &mut bytes);
        assert_eq!(read(key, &bytes), Some(7));
        assert!(len == 8 || read(other, &bytes).is_none());
        for at in 8..len {
            bytes[at] ^= 1;
            assert_eq!(read(key, &bytes), None);
            bytes[at] ^= 1;
        }
    }
    assert_eq!(read(key, &[0xDB; 64]), None, "freed memory");
    bytes.truncate(50);
    assert_eq!(read_resized(key, &bytes), Some(7));
    bytes.resize(90, 0);
    assert_eq!(read_resized(key, &bytes), Some(7));
    bytes[89] = 1;
    assert_eq!(read_resized(key, &bytes), None);
}
