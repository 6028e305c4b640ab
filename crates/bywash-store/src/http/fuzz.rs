//! Fuzzing entry points for a web server's responses.

use http::{HeaderMap, StatusCode};
use object_store::path::Path;

use crate::object_head::Head;

/// Parses any head of a response: its range must lie in the object.
pub(crate) fn head(status: StatusCode, headers: &HeaderMap) {
    if let Ok(Some(head)) = Head::read(&Path::from("object"), status, headers) {
        assert!(head.range.start <= head.range.end && head.range.end <= head.meta.size);
    }
}
