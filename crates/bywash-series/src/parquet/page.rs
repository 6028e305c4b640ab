//! Decoding of one page as our writer encodes it: a Thrift header, then zstd-compressed values. Required columns have
//! no levels.
//!
//! Not by the parquet crate, which allocates zstd contexts and several buffers a column: that took longer than
//! decoding.

use std::cell::RefCell;

use zstd::bulk::Decompressor;

use crate::Point;
use crate::varint::{apply_delta, take_varint};

/// Both columns of a page.
pub(crate) struct Page<'a> {
    pub(crate) timestamps: &'a [u8],
    pub(crate) values: &'a [u8],
    pub(crate) rows: usize,
    /// Whether values are encoded as BYTE_STREAM_SPLIT; else PLAIN.
    pub(crate) split: bool,
}

/// Buffers reused between pages.
#[derive(Default)]
struct PageBuffers {
    zstd: Option<Decompressor<'static>>,
    timestamps: Vec<u8>,
    values: Vec<u8>,
}

thread_local! {
    static BUFFERS: RefCell<PageBuffers> = RefCell::default();
}

impl Page<'_> {
    /// Appends the page's rows to `out`. An error describes the invalid part.
    pub(crate) fn decode(&self, out: &mut Vec<Point>) -> Result<(), &'static str> {
        BUFFERS.with_borrow_mut(|buffers| {
            let zstd = match &mut buffers.zstd {
                Some(zstd) => zstd,
                none => none.insert(Decompressor::new().map_err(|_| "no memory to unpack it")?),
            };
            let size = self.rows * size_of::<f64>();
            // The worst deltas, of 64 bits each, add a few bytes a block.
            unpack(
                zstd,
                self.timestamps,
                2 * size + 1024,
                &mut buffers.timestamps,
            )
            .ok_or("its timestamps cannot be unpacked")?;
            unpack(zstd, self.values, size, &mut buffers.values)
                .filter(|unpacked| *unpacked == size)
                .ok_or("its values cannot be unpacked")?;
            let begin = out.len();
            timestamps(&buffers.timestamps, self.rows, out)
                .ok_or("its timestamps are no deltas of so many rows")?;
            let points = out[begin..].iter_mut();
            if self.split {
                for (at, point) in points.enumerate() {
                    let bits = std::array::from_fn(|byte| buffers.values[byte * self.rows + at]);
                    point.value = f64::from_le_bytes(bits);
                }
            } else {
                for (point, bits) in points.zip(buffers.values.as_chunks().0) {
                    point.value = f64::from_le_bytes(*bits);
                }
            }
            Ok(())
        })
    }
}

/// Decompresses a page of at most `max` bytes. Returns its length, `None` if it is invalid.
fn unpack(
    zstd: &mut Decompressor<'_>,
    page: &[u8],
    max: usize,
    out: &mut Vec<u8>,
) -> Option<usize> {
    let mut header = page;
    // Page type (0, data), uncompressed and compressed size, as consecutive integer fields. The remaining header is
    // known.
    let [kind, size, packed] = [(); 3].map(|()| {
        header.split_off_first().filter(|field| **field == 0x15)?;
        usize::try_from(apply_delta(0, take_varint(&mut header)?)).ok()
    });
    let size = size.filter(|size| kind == Some(0) && *size <= max)?;
    let packed = page.len().checked_sub(packed?)?;
    out.clear();
    out.reserve(size);
    let unpacked = zstd.decompress_to_buffer(&page[packed..], out).ok()?;
    (unpacked == size).then_some(size)
}

/// Appends rows with these DELTA_BINARY_PACKED timestamps and zero values. `None` if the encoding is invalid or there
/// are not exactly `rows`, at least one.
fn timestamps(mut from: &[u8], rows: usize, out: &mut Vec<Point>) -> Option<()> {
    let block = usize::try_from(take_varint(&mut from)?).ok()?;
    let parts = usize::try_from(take_varint(&mut from)?).ok()?;
    let count = take_varint(&mut from)?;
    let mut last = apply_delta(0, take_varint(&mut from)?);
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
        let min = apply_delta(0, take_varint(&mut from)?);
        for &width in from.split_off(..parts)? {
            let now = left.min(part);
            if now == 0 {
                break;
            }
            let bits = (width <= 64).then_some(usize::from(width))?;
            let packed = from.split_off(..(part / 8).checked_mul(bits)?)?;
            let mut next = |delta: u64| {
                last = last.wrapping_add(min).wrapping_add(delta as i64);
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

/// Unpacks numbers of `bits` bits, at least one, from the lowest bit of the first byte on. `packed` must be whole
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
pub(crate) mod fuzz {
    use super::*;

    /// Any bytes as a page's columns with this many rows.
    pub(crate) fn page(bytes: &[u8], rows: usize, split: bool) {
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
