//! Properties of aws-chunked decoding that fuzzers check.

use futures::{FutureExt, StreamExt};

use super::*;
use crate::record::RequestIds;

/// Any bytes as a framed body, whole and in pieces: decoding does not depend on the pieces, and a reframed body
/// decodes to the same. The first byte is the length of a piece.
pub(crate) fn body(bytes: &[u8]) {
    let Some((piece, rest)) = bytes.split_first() else {
        return;
    };
    let piece = usize::from(*piece).max(1);
    let whole = run(ChunkFraming::Decode, rest, rest.len().max(1));
    assert_eq!(
        run(ChunkFraming::Decode, rest, piece),
        whole,
        "decoded in pieces of {piece}"
    );
    if let (Some(decoded), Some(framed)) = (&whole, run(ChunkFraming::Reframe, rest, piece)) {
        let again = run(ChunkFraming::Decode, &framed, framed.len().max(1));
        assert_eq!(again.as_ref(), Some(decoded), "framed anew");
    }
    run(ChunkFraming::Guard, rest, piece);
}

/// Returns the output; `None` if the body is rejected.
fn run(mode: ChunkFraming, raw: &[u8], piece: usize) -> Option<Vec<u8>> {
    let context = Arc::new(RequestContext::new(RequestIds::new().next(), None, None));
    let pieces: Vec<_> = raw
        .chunks(piece)
        .map(|piece| Ok(Bytes::copy_from_slice(piece)))
        .collect();
    let mut body = ChunkedBody::new(futures::stream::iter(pieces), mode, context);
    let mut all = Vec::new();
    // Its input is always ready.
    while let Some(piece) = body.next().now_or_never().expect("nothing to wait for") {
        all.extend_from_slice(&piece.ok()?);
    }
    Some(all)
}
