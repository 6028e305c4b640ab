//! Entry points of the fuzzers of `fuzz/`: one function for each parser of untrusted bytes. Each takes any bytes and
//! panics if the result breaks an invariant. Tests call them too, with random and with damaged valid bytes.

use crate::uploads::fuzz as uploads;

/// A body in aws-chunked framing; the first byte is the length of its pieces.
pub fn chunked(bytes: &[u8]) {
    crate::chunked::fuzz::body(bytes);
}

/// The file of an open multipart upload. The first byte selects a whole file or record bodies, each with its kind
/// first and a line break at its end.
pub fn multipart(bytes: &[u8]) {
    match bytes.split_first() {
        Some((choice, rest)) if choice % 2 == 0 => uploads::file(rest),
        Some((_, rest)) => uploads::bodies(rest),
        None => {}
    }
}

/// A body of Google's API: `multipart/related` with the boundary `b`, or a batch. The first byte selects, and is the length
/// of a piece.
pub fn gcs_bodies(bytes: &[u8]) {
    crate::gcs::fuzz::bodies(bytes);
}

/// A text of Google's API: a Content-Range, a document, a page token, a pattern or a selection of fields. The first byte
/// selects.
pub fn gcs_texts(bytes: &[u8]) {
    crate::gcs::fuzz::texts(bytes);
}

/// A JSON web token.
pub fn jwt(bytes: &[u8]) {
    crate::gcs::fuzz_jwt(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_decode_or_fail_as_a_framed_body() {
        bywash_support::fuzz_corpus::run_seeds("chunked", chunked);
    }

    #[test]
    fn any_bytes_decode_or_fail_as_an_upload_file() {
        bywash_support::fuzz_corpus::run_seeds("multipart", multipart);
    }

    #[test]
    fn any_bytes_are_read_or_refused_as_bodies_of_googles_api() {
        bywash_support::fuzz_corpus::run_seeds("gcs_bodies", gcs_bodies);
    }

    #[test]
    fn any_bytes_are_read_or_refused_as_texts_of_googles_api() {
        bywash_support::fuzz_corpus::run_seeds("gcs_texts", gcs_texts);
    }

    #[test]
    fn any_bytes_are_a_token_or_fail_and_none_is_signed() {
        bywash_support::fuzz_corpus::run_seeds("jwt", jwt);
    }
}
