//! Index of the series in a file: positions and time range of the rows of each. Its encoding is in `docs/formats.md`.

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use crate::checksum::crc32c;
use crate::query::{Pattern, Selector};
use crate::varint::{apply_delta, put_varint, take_varint, zigzag_delta};

const MAGIC: &[u8; 8] = b"BYWINDEX";
const FORMAT: u32 = 2;

/// Bytes of a block with its own checksum. A read extends to block boundaries.
pub(crate) const CHECKSUM_BLOCK: u64 = 16 << 10;

/// The rows of one series in one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SeriesRows {
    /// Positions in the file.
    pub(crate) rows: Range<u64>,
    /// First and last timestamp.
    pub(crate) range: (i64, i64),
}

#[derive(Debug)]
struct Entry {
    source: u32,
    metric: u32,
    rows: SeriesRows,
}

/// The series of one file, by source and metric.
#[derive(Debug)]
pub(crate) struct SeriesIndex {
    /// Sorted.
    metrics: Vec<Arc<str>>,
    /// Sorted, each with the end of its entries.
    sources: Vec<(Arc<str>, usize)>,
    entries: Vec<Entry>,
    /// CRC32C of each [`CHECKSUM_BLOCK`] before the index.
    pub(crate) checksums: Vec<u32>,
}

impl SeriesIndex {
    /// Rows of a series, if the file has any.
    pub(crate) fn find(&self, source: &str, metric: &str) -> Option<&SeriesRows> {
        let at = self
            .sources
            .binary_search_by(|(known, _)| (**known).cmp(source))
            .ok()?;
        let entries = &self.entries[self.places_of(at)];
        let metric = self
            .metrics
            .binary_search_by(|known| (**known).cmp(metric))
            .ok()?;
        let at = entries
            .binary_search_by_key(&metric, |entry| entry.metric as usize)
            .ok()?;
        Some(&entries[at].rows)
    }

    /// Position after the rows of this series and of all series that sort before it.
    pub(crate) fn end_of(&self, source: &str, metric: &str) -> u64 {
        let before = self.sources.partition_point(|(known, _)| **known < *source);
        let mut count = self.sources[..before].last().map_or(0, |(_, end)| *end);
        if self
            .sources
            .get(before)
            .is_some_and(|(known, _)| **known == *source)
        {
            let entries = &self.entries[self.places_of(before)];
            let is_before = |entry: &Entry| *self.metrics[entry.metric as usize] <= *metric;
            count += entries.partition_point(is_before);
        }
        self.entries[..count]
            .last()
            .map_or(0, |entry| entry.rows.rows.end)
    }

    /// Indices of selected series that may have a row in this range, in name order.
    pub(crate) fn select<'a>(
        &'a self,
        selector: &'a Selector,
        range: &'a RangeInclusive<i64>,
    ) -> impl Iterator<Item = u32> {
        let known = |name: &str| {
            self.sources
                .binary_search_by(|(known, _)| (**known).cmp(name))
        };
        let sources = match &selector.source {
            Pattern::Exact(name) => known(name).map_or(0..0, |at| at..at + 1),
            Pattern::Glob(_) => 0..self.sources.len(),
        };
        let sources = sources.filter(|at| selector.source.matches(&self.sources[*at].0));
        sources
            .flat_map(|at| self.places_of(at))
            .filter(|at| {
                let entry = &self.entries[*at];
                entry.rows.overlaps(range)
                    && selector
                        .metric
                        .matches(&self.metrics[entry.metric as usize])
            })
            .map(|at| at as u32)
    }

    /// Returns source and metric of the series at this index.
    pub(crate) fn names(&self, place: u32) -> (&Arc<str>, &Arc<str>) {
        let entry = &self.entries[place as usize];
        (
            &self.sources[entry.source as usize].0,
            &self.metrics[entry.metric as usize],
        )
    }

    /// Indices of the series of one source.
    fn places_of(&self, at: usize) -> Range<usize> {
        let start = if at == 0 { 0 } else { self.sources[at - 1].1 };
        start..self.sources[at].1
    }

    /// Approximate size in memory, in bytes.
    pub(crate) fn memory(&self) -> u64 {
        let names = self
            .metrics
            .iter()
            .chain(self.sources.iter().map(|(source, _)| source));
        let names: usize = names.map(|name| name.len() + 56).sum();
        (names + self.entries.len() * size_of::<Entry>() + self.checksums.len() * 4) as u64
    }

    /// Decodes an index of `series` series at the start of `tail`. An error describes the invalid
    /// part.
    pub(crate) fn decode(tail: &[u8], rows: u64, series: u64) -> Result<Self, String> {
        let mut from = Decoder(tail);
        if from.bytes(8)? != MAGIC {
            return Err("its index does not begin as one".to_owned());
        }
        let format = from.u32()?;
        if format != FORMAT {
            return Err(format!(
                "its index has format {format}, this program knows {FORMAT}"
            ));
        }
        let checksums = from.counted(4, Decoder::u32)?;
        let metrics = from.counted(1, Decoder::name)?;
        let groups = from.varint()?;
        let mut index = Self {
            metrics,
            sources: Vec::new(),
            entries: Vec::new(),
            checksums,
        };
        // A group takes two bytes at least, and so do its entries four. Exact lengths: doubling would take twice the memory.
        index
            .sources
            .reserve_exact((groups as usize).min(from.0.len() / 2));
        index
            .entries
            .reserve_exact((series as usize).min(from.0.len() / 4));
        let (mut row, mut shape) = (0, Shape::default());
        for _ in 0..groups {
            let source = from.name()?;
            for _ in 0..from.varint()? {
                let (metric, rows) = from.entry(index.metrics.len(), &mut row, &mut shape)?;
                index.entries.push(Entry {
                    source: index.sources.len() as u32,
                    metric,
                    rows,
                });
            }
            index.sources.push((source, index.entries.len()));
        }
        if row == rows {
            Ok(index)
        } else {
            Err(format!("its index has {row} rows, the footer {rows}"))
        }
    }
}

/// Collects an index while the file is written.
#[derive(Debug, Default)]
pub(crate) struct IndexBuilder {
    series: Vec<(Arc<str>, Arc<str>, SeriesRows)>,
}

impl IndexBuilder {
    pub(crate) fn append(&mut self, source: &Arc<str>, metric: &Arc<str>, timestamps: &[i64]) {
        let (Some(first), Some(last)) = (timestamps.first(), timestamps.last()) else {
            return;
        };
        let start = self.rows();
        let end = start + timestamps.len() as u64;
        match self.series.last_mut() {
            Some((known, of, rows)) if known == source && of == metric => {
                rows.rows.end = end;
                rows.range.1 = *last;
            }
            _ => self.series.push((
                Arc::clone(source),
                Arc::clone(metric),
                SeriesRows {
                    rows: start..end,
                    range: (*first, *last),
                },
            )),
        }
    }

    pub(crate) fn rows(&self) -> u64 {
        self.series.last().map_or(0, |(_, _, rows)| rows.rows.end)
    }

    pub(crate) fn series(&self) -> u64 {
        self.series.len() as u64
    }

    /// First and last timestamp of all rows, if there are any.
    pub(crate) fn range(&self) -> Option<(i64, i64)> {
        let ranges = self.series.iter().map(|(_, _, rows)| rows.range);
        ranges.reduce(|all, one| (all.0.min(one.0), all.1.max(one.1)))
    }

    /// Encodes the index, with checksums of `data`, all bytes before it.
    pub(crate) fn encode(&self, data: &[u8]) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend(FORMAT.to_le_bytes());
        put_varint(
            data.len().div_ceil(CHECKSUM_BLOCK as usize) as u64,
            &mut out,
        );
        for block in data.chunks(CHECKSUM_BLOCK as usize) {
            out.extend(crc32c(block).to_le_bytes());
        }
        let mut metrics: Vec<&Arc<str>> = self.series.iter().map(|(_, metric, _)| metric).collect();
        metrics.sort_unstable();
        metrics.dedup();
        put_varint(metrics.len() as u64, &mut out);
        for metric in &metrics {
            put_name(&mut out, metric);
        }
        let groups = self.series.chunk_by(|one, next| one.0 == next.0);
        put_varint(groups.clone().count() as u64, &mut out);
        let mut before = Shape::default();
        for group in groups {
            put_name(&mut out, &group[0].0);
            put_varint(group.len() as u64, &mut out);
            for (_, metric, rows) in group {
                let metric = metrics.partition_point(|known| *known < metric);
                put_varint(metric as u64, &mut out);
                let shape = shape(rows);
                for (before, now) in before.into_iter().zip(shape) {
                    put_varint(zigzag_delta(before, now), &mut out);
                }
                before = shape;
            }
        }
        out
    }
}

/// Number of rows, first timestamp, and time to the last one. Neighbouring series often agree in all three.
type Shape = [i64; 3];

fn shape(rows: &SeriesRows) -> Shape {
    let (first, last) = rows.range;
    let count = (rows.rows.end - rows.rows.start) as i64;
    [count, first, last.wrapping_sub(first)]
}

fn put_name(out: &mut Vec<u8>, name: &str) {
    put_varint(name.len() as u64, out);
    out.extend(name.as_bytes());
}

/// Bytes not decoded yet.
struct Decoder<'a>(&'a [u8]);

impl<'a> Decoder<'a> {
    fn bytes(&mut self, count: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = self
            .0
            .split_at_checked(count)
            .ok_or("its index ends too early")?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let bytes = self.bytes(N)?;
        Ok(bytes.try_into().expect("the slice has N bytes"))
    }

    fn u32(&mut self) -> Result<u32, String> {
        self.array().map(u32::from_le_bytes)
    }

    fn varint(&mut self) -> Result<u64, String> {
        take_varint(&mut self.0)
            .ok_or_else(|| "its index has a number that does not end".to_owned())
    }

    fn name(&mut self) -> Result<Arc<str>, String> {
        let length = self.varint()?;
        let bytes = self.bytes(usize::try_from(length).unwrap_or(usize::MAX))?;
        let name =
            std::str::from_utf8(bytes).map_err(|_| "its index has a name that is not UTF-8")?;
        Ok(name.into())
    }

    /// Decodes a count and then that many items of at least `min` bytes each.
    fn counted<T>(
        &mut self,
        min: usize,
        one: impl Fn(&mut Self) -> Result<T, String>,
    ) -> Result<Vec<T>, String> {
        let count = usize::try_from(self.varint()?).unwrap_or(usize::MAX);
        if count > self.0.len() / min {
            return Err("its index ends too early".to_owned());
        }
        (0..count).map(|_| one(self)).collect()
    }

    /// Decodes an entry that begins at `row`, as a difference to the `shape` before.
    fn entry(
        &mut self,
        metrics: usize,
        row: &mut u64,
        shape: &mut Shape,
    ) -> Result<(u32, SeriesRows), String> {
        let metric = self.varint()?;
        for number in shape.iter_mut() {
            *number = apply_delta(*number, self.varint()?);
        }
        let [count, first, length] = *shape;
        let start = *row;
        *row = start.saturating_add(count as u64);
        let last = first.wrapping_add(length);
        if metric >= metrics as u64 || *row == start || last < first {
            return Err("its index contradicts itself".to_owned());
        }
        let rows = SeriesRows {
            rows: start..*row,
            range: (first, last),
        };
        Ok((metric as u32, rows))
    }
}

impl SeriesRows {
    /// Whether a row may lie in the range.
    pub(crate) fn overlaps(&self, range: &RangeInclusive<i64>) -> bool {
        self.range.0 <= *range.end() && self.range.1 >= *range.start()
    }
}
