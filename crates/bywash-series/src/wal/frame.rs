//! Log frames: a header with checksums of the frame's position and body.

use crate::catalog::SeriesHandle;
use crate::checksum::crc32c;
use crate::limits::MAX_FRAME_BYTES;
use crate::varint::{apply_delta, put_varint, take_varint, zigzag_delta};
use crate::{MAX_NAME, Point};

/// Bytes of a frame header.
pub(crate) const FRAME_HEADER: usize = 24;

/// Content of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Ids and names of series, before the first rows of each in a generation.
    Names = 1,
    /// Rows.
    Rows = 2,
    /// Marks a close of the database. Empty.
    Closed = 3,
}

impl Kind {
    pub(super) fn from_number(number: u32) -> Option<Self> {
        [Self::Names, Self::Rows, Self::Closed]
            .into_iter()
            .find(|kind| *kind as u32 == number)
    }
}

/// A frame to write, or a parsed and verified one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame<'a> {
    pub(crate) kind: Kind,
    /// Generation of the rows.
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

    /// Length in the file.
    pub(crate) fn bytes(&self) -> u64 {
        (FRAME_HEADER + self.body.len()) as u64
    }

    /// Encodes the frame for its position, segment and offset.
    pub(super) fn put(&self, position: (u64, u64), out: &mut Vec<u8>) {
        let mut header = [0; FRAME_HEADER];
        header[..4].copy_from_slice(&(self.body.len() as u32).to_le_bytes());
        header[4..8].copy_from_slice(&(self.kind as u32).to_le_bytes());
        header[8..16].copy_from_slice(&self.generation.to_le_bytes());
        header[16..20].copy_from_slice(&self.body_crc.to_le_bytes());
        let crc = header_crc(&header, position);
        header[20..].copy_from_slice(&crc.to_le_bytes());
        out.extend_from_slice(&header);
        out.extend_from_slice(self.body);
    }

    /// Parses the frame at the start of `bytes`, which lie at this segment and offset. `None` if it is incomplete or
    /// a checksum does not match.
    pub(super) fn parse(bytes: &'a [u8], position: (u64, u64)) -> Option<Self> {
        // Cheap checks first: this runs for every offset after damage.
        let (header, frame) = Self::parse_unchecked(bytes)?;
        let whole = frame.body.len() <= MAX_FRAME_BYTES
            && read_u32(header, 20) == header_crc(header, position)
            && (frame.body_crc == crc32c(frame.body) || planted!("series-frame-not-compared"));
        whole.then_some(frame)
    }

    /// Parses a frame that was verified before.
    pub(super) fn parsed(bytes: &'a [u8]) -> Self {
        let (_, frame) = Self::parse_unchecked(bytes).expect("it was parsed here");
        frame
    }

    /// Parses without verifying checksums.
    fn parse_unchecked(bytes: &'a [u8]) -> Option<(&'a [u8; FRAME_HEADER], Self)> {
        let (header, tail) = bytes.split_first_chunk::<FRAME_HEADER>()?;
        let frame = Self {
            kind: Kind::from_number(read_u32(header, 4))?,
            generation: read_u64(header, 8),
            body: tail.get(..read_u32(header, 0) as usize)?,
            body_crc: read_u32(header, 16),
        };
        Some((header, frame))
    }
}

/// Covers the position and the 20 bytes before it, so that bytes copied from another position are never taken for a
/// frame.
fn header_crc(header: &[u8; FRAME_HEADER], (segment, offset): (u64, u64)) -> u32 {
    let mut covered = [0; 36];
    covered[..8].copy_from_slice(&segment.to_le_bytes());
    covered[8..16].copy_from_slice(&offset.to_le_bytes());
    covered[16..].copy_from_slice(&header[..20]);
    crc32c(&covered)
}

pub(super) fn read_u32(bytes: &[u8], at: usize) -> u32 {
    let bytes = bytes[at..at + 4].try_into().expect("four of them");
    u32::from_le_bytes(bytes)
}

pub(super) fn read_u64(bytes: &[u8], at: usize) -> u64 {
    let bytes = bytes[at..at + 8].try_into().expect("eight of them");
    u64::from_le_bytes(bytes)
}

/// Appends a series to the body of a names frame.
pub(crate) fn put_name_entry(
    handle: SeriesHandle,
    (source, metric): (&str, &str),
    out: &mut Vec<u8>,
) {
    put_varint(u64::from(handle.0), out);
    for name in [source, metric] {
        put_varint(name.len() as u64, out);
        out.extend_from_slice(name.as_bytes());
    }
}

/// Decodes a names frame into id, source and metric. Ends with `None` at an invalid entry.
#[derive(Debug)]
pub(crate) struct NamesDecoder<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for NamesDecoder<'a> {
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

impl<'a> NamesDecoder<'a> {
    fn series(&mut self) -> Option<(u32, &'a str, &'a str)> {
        let id = u32::try_from(take_varint(&mut self.0)?).ok()?;
        Some((id, self.name()?, self.name()?))
    }

    fn name(&mut self) -> Option<&'a str> {
        let length = usize::try_from(take_varint(&mut self.0)?).ok()?;
        if length > MAX_NAME {
            return None;
        }
        let (name, tail) = self.0.split_at_checked(length)?;
        self.0 = tail;
        std::str::from_utf8(name).ok()
    }
}

/// Appends consecutive rows of one series to the body of a rows frame. `last` is the first timestamp of the entry
/// before, initially 0.
///
/// All differences of an entry have the width of the largest, so that a row costs two stores.
#[inline]
pub(crate) fn put_rows(
    (handle, write_seq): (SeriesHandle, u32),
    rows: &[(SeriesHandle, i64, f64)],
    last: &mut i64,
    out: &mut Vec<u8>,
) {
    put_varint(u64::from(handle.0), out);
    put_varint(u64::from(write_seq), out);
    put_varint(rows.len() as u64, out);
    let mut before = *last;
    let mut bits = 0;
    for row in rows {
        bits |= zigzag_delta(before, row.1);
        before = row.1;
    }
    let width = (u64::BITS - bits.leading_zeros()).div_ceil(8) as usize;
    out.push(width as u8);
    before = *last;
    for row in rows {
        // Store difference and value together as sixteen bytes, then truncate the excess.
        let bytes =
            u128::from(zigzag_delta(before, row.1)) | u128::from(row.2.to_bits()) << (8 * width);
        out.extend_from_slice(&bytes.to_le_bytes());
        out.truncate(out.len() - (8 - width));
        before = row.1;
    }
    *last = rows.first().map_or(*last, |row| row.1);
}

/// Decodes a rows frame into entries. Ends with `None` at an invalid entry.
#[derive(Debug)]
pub(crate) struct RowsDecoder<'a> {
    tail: &'a [u8],
    last: i64,
}

/// Rows of one series in a frame.
#[derive(Debug)]
pub(crate) struct LoggedRows<'a> {
    /// Id of the series.
    pub(crate) id: u32,
    /// Sequence number of the write.
    pub(crate) write_seq: u32,
    /// Timestamp that the first difference refers to.
    from: i64,
    /// Bytes of a difference.
    width: usize,
    rows: &'a [u8],
}

impl<'a> RowsDecoder<'a> {
    pub(crate) fn new(body: &'a [u8]) -> Self {
        Self {
            tail: body,
            last: 0,
        }
    }

    #[inline]
    fn rows(&mut self) -> Option<LoggedRows<'a>> {
        let id = u32::try_from(take_varint(&mut self.tail)?).ok()?;
        let write_seq = u32::try_from(take_varint(&mut self.tail)?).ok()?;
        let count = usize::try_from(take_varint(&mut self.tail)?).ok()?;
        let (&width, tail) = self.tail.split_first()?;
        let width = usize::from(width);
        if width > 8 {
            return None;
        }
        let (rows, tail) = tail.split_at_checked(count.checked_mul(width + 8)?)?;
        self.tail = tail;
        let rows = LoggedRows {
            id,
            write_seq,
            from: self.last,
            width,
            rows,
        };
        self.last = rows
            .points()
            .next()
            .map_or(self.last, |first| first.timestamp);
        Some(rows)
    }
}

impl<'a> Iterator for RowsDecoder<'a> {
    type Item = Option<LoggedRows<'a>>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.tail.is_empty() {
            return None;
        }
        let rows = self.rows();
        if rows.is_none() {
            self.tail = &[];
        }
        Some(rows)
    }
}

impl LoggedRows<'_> {
    #[inline]
    pub(crate) fn points(&self) -> impl ExactSizeIterator<Item = Point> {
        let width = self.width;
        // The value follows the difference, so eight bytes can always be read here.
        let mask = if width == 8 {
            u64::MAX
        } else {
            (1 << (8 * width)) - 1
        };
        let mut before = self.from;
        self.rows.chunks_exact(width + 8).map(move |row| {
            before = apply_delta(before, read_u64(row, 0) & mask);
            Point {
                timestamp: before,
                value: f64::from_bits(read_u64(row, width)),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_decode_bit_for_bit() {
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
            let handle = SeriesHandle(u32::MAX - number, 0);
            let rows: Vec<_> = rows[..count].iter().map(|&(t, v)| (handle, t, v)).collect();
            put_rows((handle, number), &rows, &mut last, &mut body);
            expected.push((handle.0, number, rows));
        }
        let mut entries = RowsDecoder::new(&body);
        for (id, number, rows) in expected {
            let entry = entries.next().unwrap().unwrap();
            let points: Vec<Point> = entry.points().collect();
            assert_eq!(
                (entry.id, entry.write_seq, points.len()),
                (id, number, rows.len())
            );
            for (point, row) in points.iter().zip(&rows) {
                assert_eq!(
                    (point.timestamp, point.value.to_bits()),
                    (row.1, row.2.to_bits())
                );
            }
        }
        assert!(entries.next().is_none());
    }

    #[test]
    fn frame_parses_only_at_its_position_and_length() {
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
    fn invalid_bodies_fail_to_decode() {
        for body in [
            &[1][..],
            &[1, 1, 1, 9],
            &[1, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 0],
            &[0xff; 11],
        ] {
            assert!(
                matches!(RowsDecoder::new(body).next(), Some(None)),
                "of {body:?}"
            );
            assert_eq!(NamesDecoder(body).next(), Some(None), "of {body:?}");
        }
    }
}
