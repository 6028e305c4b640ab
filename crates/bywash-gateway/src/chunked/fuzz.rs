//! Properties of aws-chunked decoding that fuzzers check.

use futures::{FutureExt, StreamExt};

use super::*;
use crate::record::RequestIds;

/// Any bytes as a framed body, whole and in pieces: decoding does not depend on the pieces, and the
/// decoded bytes, framed as one chunk, decode to the same. The first byte is the length of a piece.
pub(crate) fn body(bytes: &[u8]) {
    let Some((piece, rest)) = bytes.split_first() else {
        return;
    };
    let piece = usize::from(*piece).max(1);
    let whole = run(rest, rest.len().max(1));
    assert_eq!(run(rest, piece), whole, "decoded in pieces of {piece}");
    let Some(decoded) = whole else {
        return;
    };
    let mut framed = Vec::new();
    if !decoded.is_empty() {
        framed = format!("{:x}\r\n", decoded.len()).into_bytes();
        framed.extend_from_slice(&decoded);
        framed.extend_from_slice(b"\r\n");
    }
    framed.extend_from_slice(b"0\r\n");
    assert_eq!(run(&framed, piece), Some(decoded), "framed anew");
}

/// The output; `None` if the body is rejected.
fn run(raw: &[u8], piece: usize) -> Option<Vec<u8>> {
    let context = Arc::new(RequestContext::new(RequestIds::new().next(), None));
    let pieces: Vec<_> = raw
        .chunks(piece)
        .map(|piece| Ok(Bytes::copy_from_slice(piece)))
        .collect();
    let mut body = ChunkedBody::new(futures::stream::iter(pieces), None, context);
    let mut all = Vec::new();
    // Its input is always ready.
    while let Some(piece) = body.next().now_or_never().expect("nothing to wait for") {
        all.extend_from_slice(&piece.ok()?);
    }
    Some(all)
}
