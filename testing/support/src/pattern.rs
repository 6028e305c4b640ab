//! Object contents that identify their version and offset.

use bytes::Bytes;

/// Returns `len` bytes that differ from those of any other `seed` in nearly every 8-byte word, and from
/// themselves at any other offset.
///
/// The word at byte `8 * i` is splitmix64 (Steele, Lea, Flood 2014) of `seed + i` times its increment. A comparison thus
/// detects a block of another version, and a block at a wrong offset.
pub fn pattern(seed: u64, len: usize) -> Bytes {
    let mut out = Vec::with_capacity(len.next_multiple_of(8));
    let start = mix(seed);
    for word in 0..len.div_ceil(8) as u64 {
        out.extend_from_slice(&mix(start.wrapping_add(word)).to_le_bytes());
    }
    out.truncate(len);
    out.into()
}

/// The step and finaliser of splitmix64.
pub fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_identify_version_and_offset() {
        let (one, two) = (pattern(1, 4096), pattern(2, 4096));
        assert_eq!(one, pattern(1, 4096));
        assert_eq!(pattern(1, 100), one.slice(..100), "a prefix is a prefix");
        let same =
            |a: &[u8], b: &[u8]| a.chunks(8).zip(b.chunks(8)).filter(|(a, b)| a == b).count();
        assert_eq!(same(&one, &two), 0);
        assert_eq!(same(&one[8..], &one[..4088]), 0);
        assert_eq!(pattern(7, 0).len(), 0);
    }
}
