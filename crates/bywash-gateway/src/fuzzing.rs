//! What the fuzzers of `fuzz/` call: for each parser of bytes from a disk or a network one function that takes any bytes, and
//! panics where what is read breaks a promise. The gate calls them too, with drawn and with damaged good bytes.

use crate::uploads::fuzz as uploads;

/// A body in aws-chunked framing; the first byte is the length of the pieces it comes in.
pub fn chunked(bytes: &[u8]) {
    crate::chunked::fuzz::body(bytes);
}

/// The file of an open multipart upload. The first byte chooses between a whole file and the bodies of its records, each of
/// which begins with its kind and ends with a line break.
pub fn multipart(bytes: &[u8]) {
    match bytes.split_first() {
        Some((choice, rest)) if choice % 2 == 0 => uploads::file(rest),
        Some((_, rest)) => uploads::bodies(rest),
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn framed_bodies() {
        bywash_damage::parser("chunked", chunked);
    }

    #[test]
    fn files_of_multipart_uploads() {
        bywash_damage::parser("multipart", multipart);
    }
}
