//! What the fuzzers demand of a log that somebody else may have written.

use super::frame::{Frame, Kind, Names, Turns};
use super::read::SegmentReader;
use super::segment::header;

/// Any bytes as a segment: frames lie one behind the other, and never reach beyond the file.
pub(crate) fn segment(bytes: &[u8]) {
    let Ok(mut reader) = SegmentReader::new(bytes, "segment".into(), 1, Vec::new()) else {
        return;
    };
    let mut framed = 0;
    while let Some(frame) = reader.next().expect("memory can be read") {
        framed += frame.bytes();
        body(frame.kind, frame.body);
    }
    let rest = reader.rest().expect("memory can be read");
    for frame in rest.frames() {
        framed += frame.bytes();
        body(frame.kind, frame.body);
    }
    assert!(framed + rest.unreadable() <= bytes.len() as u64);
    assert!(framed <= rest.end() || rest.end() == 0);
}

/// Any bytes as the body of a frame whose checksums are right; the first byte says of which kind.
pub(crate) fn frame(bytes: &[u8]) {
    let Some((&kind, rest)) = bytes.split_first() else {
        return;
    };
    let Some(kind) = Kind::from_number(u32::from(kind)) else {
        return;
    };
    let mut file = header(1).to_vec();
    let place = (1, file.len() as u64);
    Frame::new(kind, 0, rest).put(place, &mut file);
    segment(&file);
}

fn body(kind: Kind, body: &[u8]) {
    match kind {
        Kind::Names => {
            for (_, source, metric) in Names(body).flatten() {
                assert!(source.len() + metric.len() <= body.len());
            }
        }
        Kind::Closed => {}
        Kind::Rows => {
            let turns = Turns::new(body).flatten();
            // A row takes a value's eight bytes at least.
            assert!(turns.map(|turn| turn.points().count()).sum::<usize>() <= body.len() / 8);
        }
    }
}
