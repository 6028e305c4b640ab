//! Rows of one page, as our writer makes them: a header of Thrift's, then values under zstd. Columns that are required have no
//! levels.
//!
//! Here rather than by Parquet's reader, which makes contexts of zstd and several buffers for each column it is asked for: that
//! took longer than the rows.

use std::cell::RefCell;

use zstd::bulk::Decompressor;

use crate::Point;
use crate::numbers::{moved, take_number};

/// Both columns of a page, and what is known of it.
pub(super) struct Page<'a> {
    pub(super) timestamps: &'a [u8],
    pub(super) values: &'a [u8],
    pub(super) rows: usize,
    /// Whether values are encoded as BYTE_STREAM_SPLIT; else PLAIN.
    pub(super) split: bool,
}

/// What is kept from page to page.
#[derive(Default)]
struct Room {
    zstd: Option<Decompressor<'static>>,
    timestamps: Vec<u8>,
    values: Vec<u8>,
}

thread_local! {
    static ROOM: RefCell<Room> = RefCell::default();
}

impl Page<'_> {
    /// Appends the page's rows to `out`. The error says what is wrong.
    pub(super) fn decode(&self, out: &mut Vec<Point>) -> Result<(), &'static str> {
        ROOM.with_borrow_mut(|room| {
            let zstd = match &mut room.zstd {
                Some(zstd) => zstd,
                none => none.insert(Decompressor::new().map_err(|_| "no memory to unpack it")?),
            };
            let size = self.rows * size_of::<f64>();
            // The worst deltas, of 64 bits each, come with a few bytes a block.
            unpack(zstd, self.timestamps, 2 * size + 1024, &mut room.timestamps)
                .ok_or("its timestamps cannot be unpacked")?;
            unpack(zstd, self.values, size, &mut room.values)
                .filter(|unpacked| *unpacked == size)
                .ok_or("its values cannot be unpacked")?;
            let begin = out.len();
            timestamps(&room.timestamps, self.rows, out)
                .ok_or("its timestamps are no deltas of so many rows")?;
            let points = out[begin..].iter_mut();
            if self.split {
                for (at, point) in points.enumerate() {
                    let bits = std::array::from_fn(|byte| room.values[byte * self.rows + at]);
                    point.value = f64::from_le_bytes(bits);
                }
            } else {
                for (point, bits) in points.zip(room.values.as_chunks().0) {
                    point.value = f64::from_le_bytes(*bits);
                }
            }
            Ok(())
        })
    }
}

/// Unpacks a page of at most so many bytes; answers how many. `None`: it is none.
fn unpack(
    zstd: &mut Decompressor<'_>,
    page: &[u8],
    most: usize,
    out: &mut Vec<u8>,
) -> Option<usize> {
    let mut header = page;
    // Its kind (0, data), its size unpacked and packed, each the next field, an integer. What else it says is known.
    let [kind, size, packed] = [(); 3].map(|()| {
        header.split_off_first().filter(|field| **field == 0x15)?;
        usize::try_from(moved(0, take_number(&mut header)?)).ok()
    });
    let size = size.filter(|size| kind == Some(0) && *size <= most)?;
    let packed = page.len().checked_sub(packed?)?;
    out.clear();
    out.reserve(size);
    let unpacked = zstd.decompress_to_buffer(&page[packed..], out).ok()?;
    (unpacked == size).then_some(size)
}

/// Appends rows with these timestamps, encoded as DELTA_BINARY_PACKED, and without values. `None`: they are not so many, at least
/// one, or not encoded so.
fn timestamps(mut from: &[u8], rows: usize, out: &mut Vec<Point>) -> Option<()> {
    let block = usize::try_from(take_number(&mut from)?).ok()?;
    let parts = usize::try_from(take_number(&mut from)?).ok()?;
    let count = take_number(&mut from)?;
    let mut last = moved(0, take_number(&mut from)?);
    let part = block.checked_div(parts)?;
    let mut left = rows.checked_sub(1)?;
    if count != rows as u64 || part == 0 || part % 32 > 0 {
        return None;
    }
    let row = |timestamp| Point {
        timestamp,
        value: 0.0,
    };
    out.push(row(last));
    while left > 0 {
        let least = moved(0, take_number(&mut from)?);
        for &width in from.split_off(..parts)? {
            let now = left.min(part);
            if now == 0 {
                break;
            }
            let bits = (width <= 64).then_some(usize::from(width))?;
            let packed = from.split_off(..(part / 8).checked_mul(bits)?)?;
            let mut next = |delta: u64| {
                last = last.wrapping_add(least).wrapping_add(delta as i64);
                row(last)
            };
            if bits == 0 {
                out.extend((0..now).map(|_| next(0)));
            } else {
                out.extend(numbers(packed, bits).take(now).map(next));
            }
            left -= now;
        }
    }
    Some(())
}

/// Numbers of so many bits, one at least, which follow each other from the lowest bit of the first byte on. `packed` is of whole
/// words of 32 bits.
fn numbers(packed: &[u8], bits: usize) -> impl Iterator<Item = u64> {
    let mask = u64::MAX >> (64 - bits);
    let mut words = packed.as_chunks::<4>().0.iter();
    let (mut held, mut holds) = (0_u128, 0);
    std::iter::from_fn(move || {
        while holds < bits {
            held |= u128::from(u32::from_le_bytes(*words.next()?)) << holds;
            holds += 32;
        }
        let number = held as u64 & mask;
        held >>= bits;
        holds -= bits;
        Some(number)
    })
}

#[cfg(any(test, fuzzing))]
pub(super) mod fuzz {
    use super::*;

    /// Any bytes as a page's columns of so many rows.
    pub(in super::super) fn page(bytes: &[u8], rows: usize, split: bool) {
        let (timestamps, values) = bytes.split_at(bytes.len() / 2);
        let page = Page {
            timestamps,
            values,
            rows,
            split,
        };
        let mut out = Vec::new();
        if page.decode(&mut out).is_ok() {
            assert_eq!(out.len(), rows);
        }
        out.clear();
        if super::timestamps(bytes, rows, &mut out).is_some() {
            assert_eq!(out.len(), rows);
        }
        assert!(out.len() <= rows);
    }
}
