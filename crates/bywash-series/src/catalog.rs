//! The catalog: names to series. Lookups of known names take no lock.
//!
//! A catalog only grows. Names leave by its replacement: see `departures.rs`.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use bywash_mem::{NameLookup, Names};
use parking_lot::Mutex;

use crate::limits::MAX_NAME;
use crate::memtable::{Memtable, Series};
use crate::query::Pattern;
use crate::{Row, Selector, SeriesError};

/// Bytes charged for a series, without its rows and the allocations of [`Names`]: its place in the
/// order of names, and among unsorted or free ids.
const ORDER_BYTES: usize = size_of::<NamedSeries>() + 8;
/// Bytes of a shared text in addition to its characters.
const TEXT_OVERHEAD: usize = 16;
/// Rows looked up together, and series prefetched before they are written, so that their cache misses overlap. Some
/// five cache lines a row fit a cache of 32 KiB.
pub(crate) const LOOKUP_BATCH: usize = 16;

/// A series of one open database, as of a lookup. Not valid in another database, nor after the series has left memory, see
/// [`crate::SeriesError::Departed`]. Handles of a series from different times may differ.
///
/// The id of the series, and the epoch of the catalog that was looked up. An id whose series has
/// left may belong to another one since, which began in a later epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeriesHandle(pub(crate) u32, pub(crate) u32);

/// The series in memory. Entries are never removed, and an id belongs to one series.
#[derive(Debug)]
pub(crate) struct Catalog {
    /// Number of catalogs of the database before this one.
    pub(crate) epoch: u32,
    /// Ids have gaps: of series that a catalog before had and this one has not.
    series: Names<Series>,
    count: AtomicU32,
    /// Interned names of sources and metrics.
    strings: Names<InternedString>,
    /// Bytes of the texts of `strings`.
    text_bytes: AtomicUsize,
    /// Series by source and metric, as of the last listing.
    order: Mutex<Arc<[NamedSeries]>>,
    /// Ids of series that are not in that order.
    unsorted: Mutex<Vec<u32>>,
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
    pub(crate) fn new(epoch: u32) -> Self {
        Self {
            epoch,
            series: Names::new(),
            count: AtomicU32::new(0),
            strings: Names::new(),
            text_bytes: AtomicUsize::new(0),
            order: Mutex::default(),
            unsorted: Mutex::default(),
        }
    }

    /// Returns the handle of a series, and inserts the series if it is new. The catalog belongs to
    /// a writer's generation.
    #[inline]
    pub(crate) fn handle(
        &self,
        source: &str,
        metric: &str,
        memtable: &Memtable,
    ) -> Result<SeriesHandle, SeriesError> {
        let lookup = self.series.start_lookup(source, metric);
        self.finish_or_insert(lookup, (source, metric), memtable)
    }

    /// As [`Self::handle`], for names of the log: they were accepted, regardless of the memory they
    /// take now.
    pub(crate) fn handle_of_log(
        &self,
        names: (&str, &str),
        memtable: &Memtable,
    ) -> Result<SeriesHandle, SeriesError> {
        let lookup = self.series.start_lookup(names.0, names.1);
        match self.series.finish_lookup(lookup, names.0, names.1) {
            Some(id) => Ok(SeriesHandle(id, self.epoch)),
            None => self.insert(names, memtable, u64::MAX),
        }
    }

    /// Appends `rows` to `out`, with handles in place of names. Inserts new series. Consecutive
    /// rows with equal names share one lookup. The catalog belongs to a writer's generation.
    pub(crate) fn handles(
        &self,
        rows: &[Row<'_>],
        memtable: &Memtable,
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
                        self.finish_or_insert(lookup, (row.source, row.metric), memtable)?
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
        memtable: &Memtable,
    ) -> Result<SeriesHandle, SeriesError> {
        match self.series.finish_lookup(lookup, source, metric) {
            Some(id) => Ok(SeriesHandle(id, self.epoch)),
            None => self.insert((source, metric), memtable, memtable.max_name_bytes()),
        }
    }

    #[cold]
    fn insert(
        &self,
        names: (&str, &str),
        memtable: &Memtable,
        max_bytes: u64,
    ) -> Result<SeriesHandle, SeriesError> {
        for (what, name) in [("source", names.0), ("metric", names.1)] {
            if name.len() > MAX_NAME {
                let bytes = name.len();
                return Err(SeriesError::NameTooLong { what, bytes });
            }
        }
        memtable
            .directory
            .create(self, names, (&memtable.memory, max_bytes))?;
        let series = self.find(names.0, names.1).expect("just created");
        Ok(SeriesHandle(series.handle.0, self.epoch))
    }

    /// Adds a series under its handle: a new one, or one of another catalog. Under the lock of the
    /// directory, which knows that it is not there.
    pub(crate) fn add(
        &self,
        handle: SeriesHandle,
        (source, metric): (&str, &str),
        other: Option<&Series>,
    ) {
        let series = Series::new(handle, self.intern(source), self.intern(metric));
        if let Some(other) = other {
            series.copy_idle_since(other);
        }
        self.series.insert_at(handle.0, source, metric, series);
        self.unsorted.lock().push(handle.0);
        // Relaxed: a count; a listing that misses it looks at `unsorted`.
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    fn intern(&self, text: &str) -> u32 {
        let entry = self.strings.get_or_insert_with_id("", text, |id| {
            // Relaxed: written under the lock of the directory.
            self.text_bytes
                .fetch_add(TEXT_OVERHEAD + text.len(), Ordering::Relaxed);
            InternedString {
                id,
                text: text.into(),
            }
        });
        entry.id
    }

    /// Bytes allocated for all series, without their rows.
    pub(crate) fn bytes(&self) -> u64 {
        self.series.bytes() as u64 + self.bytes_beside_series()
    }

    /// Bytes of texts and of the order of names.
    fn bytes_beside_series(&self) -> u64 {
        // Relaxed: as in `intern`.
        let texts = self.text_bytes.load(Ordering::Relaxed);
        (self.strings.bytes() + texts + self.len() * ORDER_BYTES) as u64
    }

    /// Max bytes by which [`Self::add`] of a series with this id would increase [`Self::bytes`].
    pub(crate) fn bytes_to_add(&self, id: u32, (source, metric): (&str, &str)) -> u64 {
        let strings = &self.strings;
        let mut bytes = ORDER_BYTES + self.series.bytes_to_insert(id, source, metric);
        let mut next = strings.len() as u32;
        for text in [source, metric] {
            if strings.get(text).is_none() {
                // Of the second one too, the chunk and the table belong to the last id.
                let long =
                    strings.bytes_to_insert(next, "", text) - strings.bytes_to_insert(next, "", "");
                bytes += TEXT_OVERHEAD + text.len() + long;
                next += 1;
            }
        }
        if let Some(last) = next.checked_sub(1) {
            bytes += strings.bytes_to_insert(last, "", "");
        }
        bytes as u64
    }

    /// Approximate bytes of a catalog with only the series of these ids, in ascending order.
    pub(crate) fn bytes_of_copy(&self, ids: impl Iterator<Item = u32>) -> u64 {
        let mut count = 0;
        let series = self.series.bytes_of_copy(ids.inspect(|_| count += 1));
        // Texts have no order.
        let share = self.bytes_beside_series() * count / (self.len() as u64).max(count).max(1);
        series as u64 + share
    }

    /// Series with these names, if it exists.
    pub(crate) fn find(&self, source: &str, metric: &str) -> Option<&Series> {
        let id =
            self.series
                .finish_lookup(self.series.start_lookup(source, metric), source, metric)?;
        self.series.value(id)
    }

    /// Series of a handle, unless this catalog does not have it, or has another one under its id.
    #[inline]
    pub(crate) fn series(&self, handle: SeriesHandle) -> Option<&Series> {
        let series = self.series.value(handle.0)?;
        (series.handle.1 <= handle.1).then_some(series)
    }

    /// Series of an id, regardless of its handle.
    #[inline]
    pub(crate) fn by_id(&self, id: u32) -> Option<&Series> {
        self.series.value(id)
    }

    /// Prefetches series that are about to be written. More than [`LOOKUP_BATCH`] would evict the first.
    #[inline]
    pub(crate) fn prefetch(&self, handles: impl Iterator<Item = SeriesHandle> + Clone) {
        // The series itself is not read: that would wait for its cache line.
        let series = handles.filter_map(|handle| self.by_id(handle.0));
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
        let series = |id: u32| self.by_id(id).expect("it has a name");
        // When all series qualify, visit them in memory order, which differs from name order.
        let all = positions.len() == order.len();
        let inside = all.then(|| {
            let ids = 0..self.series.len() as u32;
            let has = |id| self.by_id(id).is_some_and(|series| series.has(range));
            ids.map(has).collect::<Vec<_>>()
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

    /// The first `max` series by name with a row in memory in this range, in order.
    ///
    /// Series inserted after the last listing are compared with the last of these. All are sorted only once the new
    /// ones outnumber the others.
    pub(crate) fn first(&self, max: usize, range: &RangeInclusive<i64>) -> Arc<[NamedSeries]> {
        let order = {
            let order = self.order.lock();
            Arc::clone(&order)
        };
        let order = if self.len() <= order.len().max(max).saturating_mul(2) {
            order
        } else {
            self.order()
        };
        let has = |series: &&Series| series.has(range);
        let series = |id: &u32| self.by_id(*id);
        let known = order.iter().map(|named| &named.id);
        let known = known.filter_map(series).filter(has);
        let unsorted = self.unsorted.lock().clone();
        let new = unsorted.iter().filter_map(series);
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
        if order.len() < self.len() {
            // Those added from here on may be in the order too.
            self.unsorted.lock().clear();
            *order = self.sort_names();
        }
        Arc::clone(&order)
    }

    /// Copies the order of names from the replaced catalog, so that the next listing need not sort all names again.
    pub(crate) fn inherit_order(&self, before: &Self) {
        let known = before.order.lock().clone();
        let mut order = self.order.lock();
        if !order.is_empty() {
            return;
        }
        let stays = |named: &NamedSeries| {
            let series = self.by_id(named.id)?;
            // An id may belong to another series by now.
            let same = before.by_id(named.id)?.handle == series.handle;
            same.then(|| self.named(series))
        };
        let kept: Arc<[NamedSeries]> = known.iter().filter_map(stays).collect();
        let mut is_ordered = vec![false; self.series.len()];
        for named in kept.iter() {
            is_ordered[named.id as usize] = true;
        }
        let mut unsorted = self.unsorted.lock();
        unsorted.retain(|id| !is_ordered.get(*id as usize).is_some_and(|ordered| *ordered));
        *order = kept;
    }

    /// Compares each distinct name once, then sorts series by the ranks of their names.
    fn sort_names(&self) -> Arc<[NamedSeries]> {
        let series: Vec<&Series> = self.iter().collect();
        // After the series: it has all of their strings.
        let mut strings: Vec<u32> = (0..self.strings.len() as u32).collect();
        strings.sort_unstable_by_key(|id| self.string(*id));
        let mut positions = vec![0_u64; strings.len()];
        for (position, id) in (0..).zip(strings) {
            positions[id as usize] = position;
        }
        let ranked = series.into_iter().map(|series| {
            let [source, metric] =
                [series.source, series.metric].map(|text| positions[text as usize]);
            (source << 32 | metric, series)
        });
        let mut series: Vec<(u64, &Series)> = ranked.collect();
        series.sort_unstable_by_key(|(positions, _)| *positions);
        series
            .iter()
            .map(|(_, series)| self.named(series))
            .collect()
    }

    /// All series by id, without series inserted during the iteration.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Series> {
        (0..self.series.len() as u32).filter_map(|id| self.by_id(id))
    }

    /// Number of series in the order of the last listing.
    #[cfg(test)]
    pub(crate) fn ordered(&self) -> usize {
        self.order.lock().len()
    }

    /// Number of series.
    pub(crate) fn len(&self) -> usize {
        // Relaxed: a count.
        self.count.load(Ordering::Relaxed) as usize
    }
}
