#![allow(clippy::unwrap_used, reason = "tests")]

use futures::{FutureExt, StreamExt};

use super::*;
use crate::record::RequestIds;

fn run(raw: &[u8], piece: usize) -> (Result<Vec<u8>, BodyError>, Arc<RequestContext>) {
    let context = Arc::new(RequestContext::new(RequestIds::new().next(), None));
    let pieces: Vec<_> = raw
        .chunks(piece)
        .map(|piece| Ok(Bytes::copy_from_slice(piece)))
        .collect();
    let mut body = ChunkedBody::new(futures::stream::iter(pieces), None, Arc::clone(&context));
    let mut all = Vec::new();
    loop {
        // Its input is always ready.
        match body.next().now_or_never().unwrap() {
            Some(Ok(piece)) => all.extend_from_slice(&piece),
            Some(Err(error)) => return (Err(error), context),
            None => return (Ok(all), context),
        }
    }
}

const FRAMED: &[u8] = b"5\r\nhello\r\n00006;x=y\r\n world\r\n0\r\nX-One: 1\r\nx-two:2\n\r\n";

#[test]
fn decoding_is_independent_of_piece_sizes() {
    for piece in 1..FRAMED.len() {
        let (decoded, context) = run(FRAMED, piece);
        assert_eq!(decoded.unwrap(), b"hello world");
        let trailers = context.trailers.get().unwrap();
        assert_eq!(
            (trailers["x-one"].as_bytes(), trailers["x-two"].as_bytes()),
            (&b"1"[..], &b"2"[..])
        );
    }
}

#[test]
fn sizes_are_hexadecimal_digits_alone() {
    for size in ["+5", "-5", " 5", "5 ", "0x5", "", "g"] {
        let framed = format!("{size}\r\nhello\r\n0\r\n\r\n");
        let (result, context) = run(framed.as_bytes(), 4);
        assert!(result.is_err(), "{size:?}");
        let fault = context.fault().unwrap();
        assert_eq!(*fault.code(), S3ErrorCode::InvalidRequest);
    }
}

#[test]
fn lines_and_trailers_above_their_limits_are_rejected() {
    let line = |bytes: usize| {
        let name = "x".repeat(bytes - "5;\r\n".len());
        format!("5;{name}\r\nhello\r\n0\r\n\r\n")
    };
    let trailers = |bytes: usize| {
        let value = "v".repeat(bytes - "x-a: \r\n\r\n".len());
        format!("0\r\nx-a: {value}\r\n\r\n")
    };
    let taken = |text: String| run(text.as_bytes(), 100).0.is_ok();
    assert!(taken(line(MAX_CHUNK_LINE_BYTES)));
    assert!(!taken(line(MAX_CHUNK_LINE_BYTES + 1)));
    assert!(taken(trailers(MAX_TRAILER_BYTES)));
    assert!(!taken(trailers(MAX_TRAILER_BYTES + 1)));
}

#[test]
fn every_cut_is_noticed() {
    let end = FRAMED.len() - b"X-One: 1\r\nx-two:2\n\r\n".len();
    for cut in 0..end {
        let (result, context) = run(&FRAMED[..cut], 4);
        assert!(result.is_err(), "{cut}");
        let fault = context.fault().unwrap();
        assert_eq!(*fault.code(), S3ErrorCode::IncompleteBody);
    }
}
