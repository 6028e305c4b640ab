//! Frames: a head with checksums of its place and of the body.

use crc_fast::{CrcAlgorithm, checksum};

use crate::catalog::SeriesHandle;
use crate::limits::MAX_FRAME_BYTES;
use crate::numbers::{difference, moved, put_number, take_number};
use crate::{MAX_NAME, Point};

/// Bytes of a frame's head.
pub(crate) const HEAD: usize = 24;

/// What a frame holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Ids and names of series, before the generation's first rows of each.
    Names = 1,
    /// Rows.
    Rows = 2,
    /// Nothing: the database was closed here.
    Closed = 3,
}

impl Kind {
    pub(super) fn from_number(number: u32) -> Option<Self> {
        [Self::Names, Self::Rows, Self::Closed]
            .into_iter()
            .find(|kind| *kind as u32 == number)
    }
}

pub(super) fn crc32c(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// A frame to be written, or one that was read and checked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame<'a> {
    pub(crate) kind: Kind,
    /// Of the rows.
    pub(crate) generation: u64,
    pub(crate) body: &'a [u8],
    body_crc: u32,
}

impl<'a> Frame<'a> {
    pub(crate) fn new(kind: Kind, generation: u64, body: &'a [u8]) -> Self {
        Self {
            kind,
            generation,
            body,
            body_crc: crc32c(body),
        }
    }

    /// Its length in the file.
    pub(crate) fn bytes(&self) -> u64 {
        (HEAD + self.body.len()) as u64
    }

    /// Writes it out for its place: segment and offset.
    pub(super) fn put(&self, place: (u64, u64), out: &mut Vec<u8>) {
        let mut head = [0; HEAD];
        head[..4].copy_from_slice(&(self.body.len() as u32).to_le_bytes());
        head[4..8].copy_from_slice(&(self.kind as u32).to_le_bytes());
        head[8..16].copy_from_slice(&self.generation.to_le_bytes());
        head[16..20].copy_from_slice(&self.body_crc.to_le_bytes());
        let crc = head_crc(&head, place);
        head[20..].copy_from_slice(&crc.to_le_bytes());
        out.extend_from_slice(&head);
        out.extend_from_slice(self.body);
    }

    /// The frame that these bytes begin with, if it is whole; they lie at this place: segment and offset.
    pub(super) fn parse(bytes: &'a [u8], place: (u64, u64)) -> Option<Self> {
        // What costs least comes first, for this is asked of every offset behind damage.
        let (head, frame) = Self::claimed(bytes)?;
        let whole = frame.body.len() <= MAX_FRAME_BYTES
            && word(head, 20) == head_crc(head, place)
            && frame.body_crc == crc32c(frame.body);
        whole.then_some(frame)
    }

    /// A frame that was parsed before.
    pub(super) fn known(bytes: &'a [u8]) -> Self {
        let (_, frame) = Self::claimed(bytes).expect("it was parsed here");
        frame
    }

    /// What the bytes say, without a look at their checksums.
    fn claimed(bytes: &'a [u8]) -> Option<(&'a [u8; HEAD], Self)> {
        let (head, rest) = bytes.split_first_chunk::<HEAD>()?;
        let frame = Self {
            kind: Kind::from_number(word(head, 4))?,
            generation: long(head, 8),
            body: rest.get(..word(head, 0) as usize)?,
            body_crc: word(head, 16),
        };
        Some((head, frame))
    }
}

/// Of the place and of the 20 bytes before it: bytes of another place are never taken for a frame.
fn head_crc(head: &[u8; HEAD], (segment, offset): (u64, u64)) -> u32 {
    let mut covered = [0; 36];
    covered[..8].copy_from_slice(&segment.to_le_bytes());
    covered[8..16].copy_from_slice(&offset.to_le_bytes());
    covered[16..].copy_from_slice(&head[..20]);
    crc32c(&covered)
}

pub(super) fn word(bytes: &[u8], at: usize) -> u32 {
    let bytes = bytes[at..at + 4].try_into().expect("four of them");
    u32::from_le_bytes(bytes)
}

pub(super) fn long(bytes: &[u8], at: usize) -> u64 {
    let bytes = bytes[at..at + 8].try_into().expect("eight of them");
    u64::from_le_bytes(bytes)
}

/// Adds a series to the body of a frame of names.
pub(crate) fn put_names(handle: SeriesHandle, (source, metric): (&str, &str), out: &mut Vec<u8>) {
    put_number(u64::from(handle.0), out);
    for name in [source, metric] {
        put_number(name.len() as u64, out);
        out.extend_from_slice(name.as_bytes());
    }
}

/// The series in a frame of names: id, source, metric. Ends early at what no writer writes.
#[derive(Debug)]
pub(crate) struct Names<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Names<'a> {
    type Item = Option<(u32, &'a str, &'a str)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let series = self.series();
        if series.is_none() {
            self.0 = &[];
        }
        Some(series)
    }
}

impl<'a> Names<'a> {
    fn series(&mut self) -> Option<(u32, &'a str, &'a str)> {
        let id = u32::try_from(take_number(&mut self.0)?).ok()?;
        Some((id, self.name()?, self.name()?))
    }

    fn name(&mut self) -> Option<&'a str> {
        let length = usize::try_from(take_number(&mut self.0)?).ok()?;
        if length > MAX_NAME {
            return None;
        }
        let (name, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        std::str::from_utf8(name).ok()
    }
}

/// Adds a turn of one series to the body of a frame of rows. `last` is the first timestamp of the turn before, 0 at first.
///
/// Within a turn all differences take as many bytes as the largest, so that a row costs two moves.
#[inline]
pub(crate) fn put_turn(
    (handle, number): (SeriesHandle, u32),
    rows: &[(SeriesHandle, i64, f64)],
    last: &mut i64,
    out: &mut Vec<u8>,
) {
    put_number(u64::from(handle.0), out);
    put_number(u64::from(number), out);
    put_number(rows.len() as u64, out);
    let mut before = *last;
    let mut bits = 0;
    for row in rows {
        bits |= difference(before, row.1);
        before = row.1;
    }
    let width = (u64::BITS - bits.leading_zeros()).div_ceil(8) as usize;
    out.push(width as u8);
    before = *last;
    for row in rows {
        // Difference and value at once: sixteen bytes are written, and those too many are taken off again.
        let bytes =
            u128::from(difference(before, row.1)) | u128::from(row.2.to_bits()) << (8 * width);
        out.extend_from_slice(&bytes.to_le_bytes());
        out.truncate(out.len() - (8 - width));
        before = row.1;
    }
    *last = rows.first().map_or(*last, |row| row.1);
}

/// The turns in a frame of rows. Ends early, with `None`, at what no writer writes.
#[derive(Debug)]
pub(crate) struct Turns<'a> {
    rest: &'a [u8],
    last: i64,
}

/// A turn of one series, as a frame has it.
#[derive(Debug)]
pub(crate) struct LoggedTurn<'a> {
    /// Of the series.
    pub(crate) id: u32,
    pub(crate) number: u32,
    /// What the first difference is to.
    from: i64,
    /// Bytes of a difference.
    width: usize,
    rows: &'a [u8],
}

impl<'a> Turns<'a> {
    pub(crate) fn new(body: &'a [u8]) -> Self {
        Self {
            rest: body,
            last: 0,
        }
    }

    #[inline]
    fn turn(&mut self) -> Option<LoggedTurn<'a>> {
        let id = u32::try_from(take_number(&mut self.rest)?).ok()?;
        let number = u32::try_from(take_number(&mut self.rest)?).ok()?;
        let count = usize::try_from(take_number(&mut self.rest)?).ok()?;
        let (&width, rest) = self.rest.split_first()?;
        let width = usize::from(width);
        if width > 8 {
            return None;
        }
        let (rows, rest) = rest.split_at_checked(count.checked_mul(width + 8)?)?;
        self.rest = rest;
        let turn = LoggedTurn {
            id,
            number,
            from: self.last,
            width,
            rows,
        };
        self.last = turn
            .points()
            .next()
            .map_or(self.last, |first| first.timestamp);
        Some(turn)
    }
}

impl<'a> Iterator for Turns<'a> {
    type Item = Option<LoggedTurn<'a>>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let turn = self.turn();
        if turn.is_none() {
            self.rest = &[];
        }
        Some(turn)
    }
}

impl LoggedTurn<'_> {
    #[inline]
    pub(crate) fn points(&self) -> impl ExactSizeIterator<Item = Point> {
        let width = self.width;
        // The value is what follows the difference, and is always there to be read along with it.
        let mask = if width == 8 {
            u64::MAX
        } else {
            (1 << (8 * width)) - 1
        };
        let mut before = self.from;
        self.rows.chunks_exact(width + 8).map(move |row| {
            before = moved(before, long(row, 0) & mask);
            Point {
                timestamp: before,
                value: f64::from_bits(long(row, width)),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_bit_by_bit() {
        let quiet = f64::from_bits(0x7ff8_dead_beef_0001);
        let rows: Vec<(i64, f64)> = vec![
            (0, -0.0),
            (i64::MAX, quiet),
            (i64::MIN, f64::INFINITY),
            (-1, f64::from_bits(0x7ff0_0000_0000_0002)),
            (10_000_000_000, 5e-324),
        ];
        let mut body = Vec::new();
        let mut last = 0;
        let mut expected = Vec::new();
        for (number, count) in [(0, 1), (300, 5), (1, 0), (7, 3), (8, 1)] {
            let handle = SeriesHandle(u32::MAX - number);
            let rows: Vec<_> = rows[..count].iter().map(|&(t, v)| (handle, t, v)).collect();
            put_turn((handle, number), &rows, &mut last, &mut body);
            expected.push((handle.0, number, rows));
        }
        let mut turns = Turns::new(&body);
        for (id, number, rows) in expected {
            let turn = turns.next().unwrap().unwrap();
            let points: Vec<Point> = turn.points().collect();
            assert_eq!(
                (turn.id, turn.number, points.len()),
                (id, number, rows.len())
            );
            for (point, row) in points.iter().zip(&rows) {
                assert_eq!(
                    (point.timestamp, point.value.to_bits()),
                    (row.1, row.2.to_bits())
                );
            }
        }
        assert!(turns.next().is_none());
    }

    #[test]
    fn a_frame_is_one_in_its_place_alone_and_at_its_length_alone() {
        let frame = Frame::new(Kind::Rows, 7, b"body");
        let mut bytes = vec![0; 5];
        frame.put((3, 5), &mut bytes);
        assert!(
            Frame::parse(&bytes[5..], (3, 5))
                .is_some_and(|found| found.body == b"body" && found.generation == 7)
        );
        assert!(Frame::parse(&bytes[5..], (4, 5)).is_none());
        assert!(Frame::parse(&bytes[5..], (3, 4)).is_none());
        for end in 5..bytes.len() {
            assert!(Frame::parse(&bytes[5..end], (3, 5)).is_none());
        }
        for bit in 40..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Frame::parse(&flipped[5..], (3, 5)).is_none(), "bit {bit}");
        }
    }

    #[test]
    fn bodies_of_rubbish_end_in_an_error() {
        for body in [
            &[1][..],
            &[1, 1, 1, 9],
            &[1, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 0],
            &[0xff; 11],
        ] {
            assert!(matches!(Turns::new(body).next(), Some(None)), "of {body:?}");
            assert_eq!(Names(body).next(), Some(None), "of {body:?}");
        }
    }
}
