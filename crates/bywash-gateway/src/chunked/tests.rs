#![allow(clippy::unwrap_used, reason = "tests")]

use futures::StreamExt;

use super::*;
use crate::record::RequestIds;

fn run(
    mode: ChunkFraming,
    raw: &[u8],
    piece: usize,
) -> (Result<Vec<u8>, BodyError>, Arc<RequestContext>, usize) {
    let context = Arc::new(RequestContext::new(RequestIds::new().next(), None, None));
    let pieces: Vec<_> = raw
        .chunks(piece)
        .map(|piece| Ok(Bytes::copy_from_slice(piece)))
        .collect();
    let mut body = ChunkedBody::new(futures::stream::iter(pieces), mode, Arc::clone(&context));
    let (mut all, mut largest) = (Vec::new(), 0);
    let result = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(async {
            while let Some(piece) = body.next().await {
                let piece = piece?;
                largest = largest.max(piece.len());
                all.extend_from_slice(&piece);
            }
            Ok(all)
        });
    (result, context, largest)
}

const FRAMED: &[u8] = b"5\r\nhello\r\n00006;x=y\r\n world\r\n0\r\nX-One: 1\r\nx-two:2\n\r\n";

#[test]
fn decoding_is_independent_of_piece_sizes() {
    for piece in 1..FRAMED.len() {
        let (decoded, context, _) = run(ChunkFraming::Decode, FRAMED, piece);
        assert_eq!(decoded.unwrap(), b"hello world");
        let trailers = context.trailers.get().unwrap();
        assert_eq!(
            (trailers["x-one"].as_bytes(), trailers["x-two"].as_bytes()),
            (&b"1"[..], &b"2"[..])
        );
    }
}

#[test]
fn small_pieces_of_signed_chunks_are_joined() {
    let mut framed = b"40000;chunk-signature=x\r\n".to_vec();
    framed.extend((0..0x40000).map(|at| at as u8));
    framed.extend_from_slice(b"\r\n5\r\nhello\r\n0\r\n\r\n");
    for piece in [1, 3, 1000, 16_383, 16_384, 65_536] {
        let (passed, _, largest) = run(ChunkFraming::Guard, &framed, piece);
        assert!(passed.unwrap() == framed, "{piece}");
        assert!(largest >= MAX_COPIED_PIECE_BYTES, "{piece}: {largest}");
    }
}

#[test]
fn reframed_chunks_are_small_and_decode_equally() {
    let mut framed = b"40000\r\n".to_vec();
    framed.extend(std::iter::repeat_n(7, 0x40000));
    framed.extend_from_slice(b"\r\n0\r\nx-one:1\r\n\r\n");
    for piece in [1, 3, 1000, 65_536] {
        let (reframed, ..) = run(ChunkFraming::Reframe, &framed, piece);
        let reframed = reframed.unwrap();
        let (decoded, context, largest) = run(ChunkFraming::Decode, &reframed, reframed.len());
        assert!(decoded.unwrap() == vec![7; 0x40000]);
        assert!(largest <= piece);
        assert_eq!(context.trailers.get().unwrap()["x-one"].as_bytes(), b"1");
    }
}

#[test]
fn guarded_chunks_pass_unchanged_up_to_the_limit() {
    for piece in [1, 7, 1000] {
        assert_eq!(run(ChunkFraming::Guard, FRAMED, piece).0.unwrap(), FRAMED);
    }
    let (refused, context, _) = run(ChunkFraming::Guard, b"1000001\r\n", 100);
    assert!(refused.is_err());
    assert_eq!(
        *context.fault().unwrap().code(),
        S3ErrorCode::InvalidRequest
    );
    assert!(
        run(ChunkFraming::Reframe, b"1000001\r\nx", 100).0.is_err(),
        "cut short, but not too large"
    );
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
    let taken = |text: String| run(ChunkFraming::Decode, text.as_bytes(), 100).0.is_ok();
    assert!(taken(line(MAX_CHUNK_LINE_BYTES)));
    assert!(!taken(line(MAX_CHUNK_LINE_BYTES + 1)));
    assert!(taken(trailers(MAX_TRAILER_BYTES)));
    assert!(!taken(trailers(MAX_TRAILER_BYTES + 1)));
}

#[test]
fn every_cut_is_noticed() {
    let end = FRAMED.len() - b"X-One: 1\r\nx-two:2\n\r\n".len();
    for mode in [
        ChunkFraming::Decode,
        ChunkFraming::Reframe,
        ChunkFraming::Guard,
    ] {
        for cut in 0..end {
            let (result, context, _) = run(mode, &FRAMED[..cut], 4);
            assert!(result.is_err(), "{mode:?} {cut}");
            assert_eq!(
                *context.fault().unwrap().code(),
                S3ErrorCode::IncompleteBody
            );
        }
    }
}
