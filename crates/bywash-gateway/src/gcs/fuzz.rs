//! Properties of the parsers of Google's API that fuzzers check.

use std::sync::Arc;

use bytes::Bytes;
use futures::{FutureExt, StreamExt, TryStreamExt};
use http::header::CONTENT_RANGE;
use http::{HeaderMap, HeaderValue};

use super::metadata::GivenMetadata;
use super::related;
use super::{compose, fields, glob, multipart, sessions};
use crate::body::RequestContext;
use crate::limits::MAX_METADATA_BYTES;
use crate::listing::ListPosition;
use crate::meta::user_metadata_of;
use crate::record::RequestIds;

/// A body of two parts, or a batch. The first byte selects, and is the length of a piece.
pub(crate) fn bodies(bytes: &[u8]) {
    let Some((choice, rest)) = bytes.split_first() else {
        return;
    };
    if choice % 2 == 0 {
        multipart::fuzz(rest);
        return;
    }
    let whole = read(rest, rest.len().max(1));
    let cut = read(rest, usize::from(*choice));
    assert_eq!(cut, whole, "cut in pieces of {choice}");
}

/// Reads a body of two parts. Returns the document, and the bytes; `None` if it is refused.
fn read(body: &[u8], piece: usize) -> Option<(related::RelatedHead, Vec<u8>)> {
    let pieces: Vec<_> = body
        .chunks(piece)
        .map(|piece| Ok(Bytes::copy_from_slice(piece)))
        .collect();
    let body = futures::stream::iter(pieces).boxed();
    let context = RequestContext::new(RequestIds::new().next(), None);
    let context = Arc::new(context);
    // Its input is always ready.
    let opened = related::open(body, "b", &context).now_or_never();
    let (head, bytes) = opened.expect("nothing to wait for").ok()?;
    let bytes = bytes.try_collect::<Vec<Bytes>>().now_or_never();
    let bytes = bytes.expect("nothing to wait for").ok()?;
    Some((head, bytes.concat()))
}

/// A Content-Range, a document of metadata or of a compose, a page token, a pattern with a name, or fields with a document.
/// The first byte selects.
pub(crate) fn texts(bytes: &[u8]) {
    let Some((choice, rest)) = bytes.split_first() else {
        return;
    };
    let text = String::from_utf8_lossy(rest);
    match choice % 6 {
        0 => {
            if let Ok(value) = HeaderValue::from_bytes(rest) {
                let headers = HeaderMap::from_iter([(CONTENT_RANGE, value)]);
                sessions::fuzz_range(&headers);
            }
        }
        1 => {
            if let Ok(given) = GivenMetadata::parse(rest) {
                let length = |(name, value): (&str, &str)| name.len() + value.len();
                let total: usize = user_metadata_of(&given.attributes).map(length).sum();
                assert!(total <= MAX_METADATA_BYTES);
            }
        }
        2 => compose::fuzz(rest),
        3 => {
            if let Some(position) = ListPosition::from_token(&text) {
                let again = ListPosition::from_token(&position.to_token());
                assert_eq!(again, Some(position));
            }
        }
        4 => {
            let (pattern, name) = text.split_once('\n').unwrap_or((&text, ""));
            if let Ok(glob) = glob::Glob::parse(pattern) {
                assert!(!glob.matches(name) || name.starts_with(glob.literal()));
            }
        }
        _ => fields::fuzz(rest),
    }
}
