//! Properties of log parsing that fuzzers check.

use super::frame::{Frame, Kind, NamesDecoder, RowsDecoder};
use super::read::SegmentReader;
use super::segment::header;

/// Any bytes as a segment: frames do not overlap and end within the file.
pub(crate) fn segment(bytes: &[u8]) {
    let Ok(mut reader) = SegmentReader::new(bytes, "segment".into(), 1, Vec::new()) else {
        return;
    };
    let mut framed = 0;
    while let Some(frame) = reader.next().expect("memory can be read") {
        framed += frame.bytes();
        body(frame.kind, frame.body);
    }
    let tail = reader.tail().expect("memory can be read");
    for frame in tail.frames() {
        framed += frame.bytes();
        body(frame.kind, frame.body);
    }
    assert!(framed + tail.unreadable_bytes() <= bytes.len() as u64);
    assert!(framed <= tail.end() || tail.end() == 0);
}

/// Any bytes as the body of a frame with valid checksums; the first byte selects the kind.
pub(crate) fn frame(bytes: &[u8]) {
    let Some((&kind, tail)) = bytes.split_first() else {
        return;
    };
    let Some(kind) = Kind::from_number(u32::from(kind)) else {
        return;
    };
    let mut file = header(1).to_vec();
    let position = (1, file.len() as u64);
    Frame::new(kind, 0, tail).put(position, &mut file);
    segment(&file);
}

fn body(kind: Kind, body: &[u8]) {
    match kind {
        Kind::Names => {
            for (_, source, metric) in NamesDecoder(body).flatten() {
                assert!(source.len() + metric.len() <= body.len());
            }
        }
        Kind::Closed => {}
        Kind::Rows => {
            let entries = RowsDecoder::new(body).flatten();
            // A row takes at least the eight bytes of its value.
            assert!(entries.map(|rows| rows.points().count()).sum::<usize>() <= body.len() / 8);
        }
    }
}
