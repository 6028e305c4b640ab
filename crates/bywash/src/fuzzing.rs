//! Entry points of the fuzzers in `fuzz/`, one for each parser of bytes from a disk or a network. Each accepts any
//! bytes and panics if the result breaks a promise. The gate also runs them, with random bytes and with mutated valid
//! ones.

use bytes::Bytes;

use crate::UploadToken;
use crate::upload::{journal, sealed_token};

/// Parses the file of an open upload; the first byte selects a whole file or the bodies of its records.
pub fn journal(bytes: &[u8]) {
    match bytes.split_first() {
        Some((choice, rest)) if choice % 2 == 0 => journal::fuzz::file(rest),
        Some((_, rest)) => journal::fuzz::bodies(rest),
        None => {}
    }
}

/// Parses an upload token, whole and as the body of one with a valid checksum: its version, and its header up to a zero, which the
/// bytes that the store does not have follow. Checks that a parsed token is written and read again alike.
pub fn token(bytes: &[u8]) {
    whole_token(Bytes::copy_from_slice(bytes));
    if let Some((version, rest)) = bytes.split_first() {
        let end = rest.iter().position(|byte| *byte == 0);
        let (header, waiting) = rest.split_at(end.unwrap_or(rest.len()));
        whole_token(sealed_token(u32::from(*version), header, waiting));
    }
}

fn whole_token(bytes: Bytes) {
    if let Ok(token) = UploadToken::from_bytes(bytes) {
        let written = token.to_bytes().expect("it was written before");
        let again = UploadToken::from_bytes(Bytes::from(written)).expect("a token just written");
        assert_eq!(again.position(), token.position());
        assert_eq!(again.acknowledged(), token.acknowledged());
        assert_eq!(again.path(), token.path());
        let again = again.to_bytes().expect("it was read");
        assert!(
            again == token.to_bytes().expect("as before"),
            "written alike"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journals() {
        bywash_support::fuzz_corpus::run_seeds("journal", journal);
    }

    #[test]
    fn tokens() {
        bywash_support::fuzz_corpus::run_seeds("token", token);
    }
}
