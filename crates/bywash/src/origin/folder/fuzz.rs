//! What the fuzzers demand of names in a folder that somebody else may have written.

use super::names::{decode, encode};

/// Any text as a key, and as a name: a key comes back from its names, and no other name is one.
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
