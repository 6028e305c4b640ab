//! Variable-length integers of log and files.

/// Appends a number in groups of seven bits, the lowest first. The top bit of a byte marks that another follows.
#[inline]
pub(crate) fn put_varint(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Decodes a number from the front. `None` if it does not end within 64 bits and within `bytes`.
#[inline]
pub(crate) fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

/// Zigzag-encoded difference of two numbers.
#[inline]
pub(crate) fn zigzag_delta(from: i64, to: i64) -> u64 {
    let by = to.wrapping_sub(from);
    (by << 1 ^ by >> 63) as u64
}

/// Number at this zigzag-encoded difference from another.
#[inline]
pub(crate) fn apply_delta(from: i64, zigzag_delta: u64) -> i64 {
    let by = (zigzag_delta >> 1) as i64 ^ -((zigzag_delta & 1) as i64);
    from.wrapping_add(by)
}
