//! What the fuzzers demand of a web server's answers.

use http::{HeaderMap, StatusCode};
use object_store::path::Path;

use super::head::Head;

/// Any head of an answer: the range that is read of it lies in the object.
pub(crate) fn head(status: StatusCode, headers: &HeaderMap) {
    if let Ok(Some(head)) = Head::read(&Path::from("object"), status, headers) {
        assert!(head.range.start <= head.range.end && head.range.end <= head.meta.size);
    }
}
