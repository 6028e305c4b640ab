//! Fuzzing entry points for file names, which other programs may have written.

use super::names::{decode, encode};

/// Parses any text as a key and as a name: a key must round-trip, and other names must not decode to keys.
pub(crate) fn names(text: &str) {
    if let Some(chunk) = decode(text) {
        assert!(!chunk.bytes.is_empty());
    }
    if text.is_empty() {
        return;
    }
    let mut key = Vec::new();
    for name in encode(text).split('/') {
        key.extend(decode(name).expect("a name that was written").bytes);
    }
    assert_eq!(key, text.as_bytes());
}
