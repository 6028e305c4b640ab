//! The catalog: names to series. Lookups of known names take no lock.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bywash_mem::{NameLookup, Names};
use parking_lot::Mutex;

use crate::limits::MAX_NAME;
use crate::memtable::{MemoryReservation, RowMemory, Series};
use crate::query::Pattern;
use crate::{Row, Selector, SeriesError};

/// Bytes charged for a series besides names and rows: its entry, its share of growing tables, its entry in sort
/// order.
const SERIES_OVERHEAD: usize = 308;
/// Rows looked up together, and series prefetched before they are written, so that their cache misses overlap. Some
/// five cache lines a row fit a cache of 32 KiB.
pub(crate) const LOOKUP_BATCH: usize = 16;

/// A series of one open database. Not valid in another database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeriesHandle(pub(crate) u32);

/// All series named since the database was opened. Entries are never removed and ids never reused.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    series: Names<Series>,
    /// Interned names of sources and metrics.
    strings: Names<InternedString>,
    /// Series by source and metric, as of the last listing.
    order: Mutex<Arc<[NamedSeries]>>,
    /// Bytes charged for the catalog.
    bytes: AtomicU64,
}

/// A series with its names.
#[derive(Debug)]
pub(crate) struct NamedSeries {
    id: u32,
    pub(crate) source: Arc<str>,
    pub(crate) metric: Arc<str>,
}

#[derive(Debug)]
struct InternedString {
    id: u32,
    text: Arc<str>,
}

impl Catalog {
    /// Returns the handle of a series, and inserts the series if it is new.
    #[inline]
    pub(crate) fn handle(
        &self,
        source: &str,
        metric: &str,
        memory: &MemoryReservation,
    ) -> Result<SeriesHandle, SeriesError> {
        let lookup = self.series.start_lookup(source, metric);
        self.finish_or_insert(lookup, (source, metric), memory)
    }

    /// Appends `rows` to `out`, with handles in place of names. Inserts new series. Consecutive rows with equal names
    /// share one lookup.
    pub(crate) fn handles(
        &self,
        rows: &[Row<'_>],
        memory: &MemoryReservation,
        out: &mut Vec<(SeriesHandle, i64, f64)>,
    ) -> Result<(), SeriesError> {
        let mut before = None;
        for rows in rows.chunks(LOOKUP_BATCH) {
            let mut lookups: [Option<NameLookup>; LOOKUP_BATCH] = [None; LOOKUP_BATCH];
            for (lookup, row) in lookups.iter_mut().zip(rows) {
                let names = Some((row.source, row.metric));
                if names != before {
                    *lookup = Some(self.series.start_lookup(row.source, row.metric));
                    before = names;
                }
            }
            for (lookup, row) in lookups.into_iter().zip(rows) {
                let handle = match lookup {
                    Some(lookup) => {
                        self.finish_or_insert(lookup, (row.source, row.metric), memory)?
                    }
                    None => out.last().expect("the row before has the same names").0,
                };
                out.push((handle, row.timestamp, row.value));
            }
        }
        Ok(())
    }

    #[inline]
    fn finish_or_insert(
        &self,
        lookup: NameLookup,
        (source, metric): (&str, &str),
        memory: &MemoryReservation,
    ) -> Result<SeriesHandle, SeriesError> {
        match self.series.finish_lookup(lookup, source, metric) {
            Some(id) => Ok(SeriesHandle(id)),
            None => self.insert((source, metric), memory),
        }
    }

    #[cold]
    fn insert(
        &self,
        (source, metric): (&str, &str),
        memory: &MemoryReservation,
    ) -> Result<SeriesHandle, SeriesError> {
        for (what, name) in [("source", source), ("metric", metric)] {
            if name.len() > MAX_NAME {
                let bytes = name.len();
                return Err(SeriesError::NameTooLong { what, bytes });
            }
        }
        let bytes = (SERIES_OVERHEAD + 3 * (source.len() + metric.len())) as u64;
        if !memory.try_charge(bytes) {
            return Err(SeriesError::TooManySeries {
                series: self.len(),
                limit: memory.limit(),
            });
        }
        let mut made = false;
        let series = self.series.get_or_insert_with_id(source, metric, |id| {
            made = true;
            Series::new(SeriesHandle(id), self.intern(source), self.intern(metric))
        });
        if made {
            // Relaxed: a count.
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
        } else {
            memory.release(RowMemory::heap(bytes));
        }
        Ok(series.handle)
    }

    fn intern(&self, text: &str) -> u32 {
        let entry = self
            .strings
            .get_or_insert_with_id("", text, |id| InternedString {
                id,
                text: text.into(),
            });
        entry.id
    }

    /// Returns the series with these names, if it exists.
    pub(crate) fn find(&self, source: &str, metric: &str) -> Option<&Series> {
        let id =
            self.series
                .finish_lookup(self.series.start_lookup(source, metric), source, metric)?;
        self.series.value(id)
    }

    #[inline]
    pub(crate) fn series(&self, handle: SeriesHandle) -> Option<&Series> {
        self.series.value(handle.0)
    }

    /// Prefetches series that are about to be written. More than [`LOOKUP_BATCH`] would evict the first.
    #[inline]
    pub(crate) fn prefetch(&self, handles: impl Iterator<Item = SeriesHandle> + Clone) {
        let series = handles.filter_map(|handle| self.series(handle));
        series.clone().for_each(Series::prefetch);
        series.for_each(Series::prefetch_next);
    }

    /// Returns source and metric.
    pub(crate) fn names(&self, series: &Series) -> (&Arc<str>, &Arc<str>) {
        (self.string(series.source), self.string(series.metric))
    }

    fn named(&self, series: &Series) -> NamedSeries {
        let (source, metric) = self.names(series);
        NamedSeries {
            id: series.handle.0,
            source: Arc::clone(source),
            metric: Arc::clone(metric),
        }
    }

    fn string(&self, id: u32) -> &Arc<str> {
        &self
            .strings
            .value(id)
            .expect("entered before the series")
            .text
    }

    /// Returns all series in name order, and the positions of the selected ones with a row in memory in `range`.
    pub(crate) fn select(
        &self,
        selector: &Selector,
        range: &RangeInclusive<i64>,
    ) -> (Arc<[NamedSeries]>, Vec<u32>) {
        if let Some((source, metric)) = selector.exact() {
            let found = self.find(source, metric).filter(|series| series.has(range));
            let order: Arc<[NamedSeries]> =
                found.map(|series| self.named(series)).into_iter().collect();
            let positions = (0..order.len() as u32).collect();
            return (order, positions);
        }
        let order = self.order();
        let positions = match &selector.source {
            Pattern::Glob(_) => 0..order.len(),
            Pattern::Exact(name) => {
                let from = order.partition_point(|named| *named.source < **name);
                let count = order[from..].partition_point(|named| *named.source == **name);
                from..from + count
            }
        };
        let series = |id: u32| self.series(SeriesHandle(id)).expect("it has a name");
        // When all series qualify, visit them in memory order, which differs from name order.
        let all = positions.len() == order.len();
        let inside = all.then(|| {
            self.iter()
                .map(|series| series.has(range))
                .collect::<Vec<_>>()
        });
        let has = |id: u32| match &inside {
            Some(inside) => inside[id as usize],
            None => series(id).has(range),
        };
        // Neighbours share a source: match it once.
        let mut last: Option<(&Arc<str>, bool)> = None;
        let mut selected = |at: &usize| {
            let named = &order[*at];
            let is_source = match last {
                Some((source, is_source)) if Arc::ptr_eq(source, &named.source) => is_source,
                _ => selector.source.matches(&named.source),
            };
            last = Some((&named.source, is_source));
            is_source && has(named.id) && selector.metric.matches(&named.metric)
        };
        let positions = positions
            .filter(&mut selected)
            .map(|at| at as u32)
            .collect();
        (order, positions)
    }

    /// Returns the first `max` series by name with a row in memory in this range, in order.
    ///
    /// Series inserted after the last listing are compared with the last of these. All are sorted only once the new
    /// ones outnumber the others.
    pub(crate) fn first(&self, max: usize, range: &RangeInclusive<i64>) -> Arc<[NamedSeries]> {
        let order = {
            let order = self.order.lock();
            Arc::clone(&order)
        };
        let order = match self.len() <= order.len().max(max).saturating_mul(2) {
            true => order,
            false => self.order(),
        };
        let has = |series: &&Series| series.has(range);
        let known = order.iter().map(|named| SeriesHandle(named.id));
        let known = known.filter_map(|handle| self.series(handle)).filter(has);
        let new = (order.len() as u32..u32::MAX).map_while(|id| self.series.value(id));
        let mut first: BTreeMap<_, &Series> = BTreeMap::new();
        for series in known.take(max).chain(new.filter(has)) {
            let names = self.names(series);
            let full = first.len() >= max;
            if !full
                || first
                    .last_key_value()
                    .is_some_and(|(last, _)| names < *last)
            {
                first.insert(names, series);
            }
            if first.len() > max {
                first.pop_last();
            }
        }
        first.values().map(|series| self.named(series)).collect()
    }

    /// All series by source and metric. Cached until a series is added.
    fn order(&self) -> Arc<[NamedSeries]> {
        let mut order = self.order.lock();
        let count = self.len() as u32;
        if (order.len() as u32) < count {
            *order = self.sort_names(count);
        }
        Arc::clone(&order)
    }

    /// Compares each distinct name once, then sorts series by the ranks of their names.
    fn sort_names(&self, count: u32) -> Arc<[NamedSeries]> {
        let mut strings: Vec<u32> = (0..self.strings.len() as u32).collect();
        strings.sort_unstable_by_key(|id| self.string(*id));
        let mut positions = vec![0_u64; strings.len()];
        for (position, id) in (0..).zip(strings) {
            positions[id as usize] = position;
        }
        let counted = self.iter().take(count as usize);
        let mut series: Vec<(u64, &Series)> = counted
            .map(|series| {
                let [source, metric] =
                    [series.source, series.metric].map(|text| positions[text as usize]);
                (source << 32 | metric, series)
            })
            .collect();
        series.sort_unstable_by_key(|(positions, _)| *positions);
        series
            .iter()
            .map(|(_, series)| self.named(series))
            .collect()
    }

    /// All series by id, including those inserted meanwhile.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Series> {
        (0..u32::MAX).map_while(|id| self.series.value(id))
    }

    /// Number of series in the order of the last listing.
    #[cfg(test)]
    pub(crate) fn ordered(&self) -> usize {
        self.order.lock().len()
    }

    /// Bytes charged for names. They are never released.
    pub(crate) fn bytes(&self) -> u64 {
        // Relaxed: a count.
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn len(&self) -> usize {
        self.series.len()
    }
}
