//! Requirements of the decoders, for the fuzzer `peer`.

use bytes::Bytes;

use super::frame::{Frame, FrameReader};
use super::wire;
use crate::limits::MAX_FRAME_BYTES;

/// The first byte selects the decoder.
pub(crate) fn peer(bytes: &[u8]) {
    match bytes.split_first() {
        Some((0, rest)) => wire::fuzz::request(rest),
        Some((1, rest)) => wire::fuzz::response(rest),
        Some((2, rest)) => wire::fuzz::read(rest),
        Some((step, rest)) => frames(rest, usize::from(*step)),
        None => {}
    }
}

/// Frames are the same however they are cut, and never hold more than they may.
fn frames(bytes: &[u8], step: usize) {
    let whole = read(bytes, bytes.len().max(1));
    let cut = read(bytes, step);
    assert_eq!(whole, cut);
    for frame in whole.0 {
        if let Frame::Data(payload) | Frame::Response(payload) = frame {
            assert!((1..=MAX_FRAME_BYTES).contains(&payload.len()));
        }
    }
}

/// Frames before the first error, and whether there was one.
fn read(bytes: &[u8], step: usize) -> (Vec<Frame>, bool) {
    let mut reader = FrameReader::new();
    let mut frames = Vec::new();
    for piece in bytes.chunks(step) {
        reader.feed(Bytes::copy_from_slice(piece));
        loop {
            match reader.next() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(_) => return (frames, true),
            }
        }
    }
    (frames, false)
}
