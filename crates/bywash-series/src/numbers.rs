//! Numbers as log and files have them: few bytes for small ones.

/// A number in groups of seven bits, the lowest first; the top bit says that another follows.
#[inline]
pub(crate) fn put_number(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Takes such a number from the front. `None`: it does not end within 64 bits and these bytes.
#[inline]
pub(crate) fn take_number(bytes: &mut &[u8]) -> Option<u64> {
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

/// How far apart two numbers are, small for near ones on either side.
#[inline]
pub(crate) fn difference(from: i64, to: i64) -> u64 {
    let by = to.wrapping_sub(from);
    (by << 1 ^ by >> 63) as u64
}

/// The number so far from another.
#[inline]
pub(crate) fn moved(from: i64, difference: u64) -> i64 {
    let by = (difference >> 1) as i64 ^ -((difference & 1) as i64);
    from.wrapping_add(by)
}
