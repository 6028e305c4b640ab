//! Names to series. A known name is found without a lock.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bywash_mem::{NameLookup, Names};
use parking_lot::Mutex;

use crate::head::{Charge, Series};
use crate::limits::MAX_NAME;
use crate::selector::Pattern;
use crate::{Row, Selector, SeriesError};

/// What a series costs beside its names and rows, in bytes: its place, its cells in tables that grow by doubling, its turn in the
/// order of names.
const SERIES_BYTES: usize = 308;
/// Rows whose names are looked up side by side, and series that are brought near before they are written to, so that their memory
/// comes at the same time. A cache of 32 KiB has all of it: some five lines a row.
pub(crate) const SIDE_BY_SIDE: usize = 16;

/// One series of one open database; worth nothing in another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeriesHandle(pub(crate) u32);

/// All series that were ever named since the database was opened. None is forgotten, and no id is used again.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    series: Names<Series>,
    /// Names of sources and metrics.
    texts: Names<Text>,
    /// By source and metric, as of the last list.
    order: Mutex<Arc<[Named]>>,
    /// What all of it was charged.
    bytes: AtomicU64,
}

/// A series and its names.
#[derive(Debug)]
pub(crate) struct Named {
    id: u32,
    pub(crate) source: Arc<str>,
    pub(crate) metric: Arc<str>,
}

#[derive(Debug)]
struct Text {
    id: u32,
    text: Arc<str>,
}

impl Catalog {
    /// The series of these names, made if it is new.
    #[inline]
    pub(crate) fn handle(
        &self,
        source: &str,
        metric: &str,
        charge: &Charge,
    ) -> Result<SeriesHandle, SeriesError> {
        let search = self.series.start_lookup(source, metric);
        self.found(search, (source, metric), charge)
    }

    /// The rows with the handles of their names, behind those in `out`. Names that are new are entered. Rows that follow each
    /// other with the same names cost no look-up.
    pub(crate) fn handles(
        &self,
        rows: &[Row<'_>],
        charge: &Charge,
        out: &mut Vec<(SeriesHandle, i64, f64)>,
    ) -> Result<(), SeriesError> {
        let mut before = None;
        for rows in rows.chunks(SIDE_BY_SIDE) {
            let mut searches: [Option<NameLookup>; SIDE_BY_SIDE] = [None; SIDE_BY_SIDE];
            for (search, row) in searches.iter_mut().zip(rows) {
                let names = Some((row.source, row.metric));
                if names != before {
                    *search = Some(self.series.start_lookup(row.source, row.metric));
                    before = names;
                }
            }
            for (search, row) in searches.into_iter().zip(rows) {
                let handle = match search {
                    Some(search) => self.found(search, (row.source, row.metric), charge)?,
                    None => out.last().expect("the row before has the same names").0,
                };
                out.push((handle, row.timestamp, row.value));
            }
        }
        Ok(())
    }

    #[inline]
    fn found(
        &self,
        search: NameLookup,
        (source, metric): (&str, &str),
        charge: &Charge,
    ) -> Result<SeriesHandle, SeriesError> {
        match self.series.finish_lookup(search, source, metric) {
            Some(id) => Ok(SeriesHandle(id)),
            None => self.enter((source, metric), charge),
        }
    }

    #[cold]
    fn enter(
        &self,
        (source, metric): (&str, &str),
        charge: &Charge,
    ) -> Result<SeriesHandle, SeriesError> {
        for (what, name) in [("source", source), ("metric", metric)] {
            if name.len() > MAX_NAME {
                let bytes = name.len();
                return Err(SeriesError::NameTooLong { what, bytes });
            }
        }
        let bytes = (SERIES_BYTES + 3 * (source.len() + metric.len())) as u64;
        if !charge.take(bytes) {
            return Err(SeriesError::TooManySeries {
                series: self.len(),
                limit: charge.limit(),
            });
        }
        let mut made = false;
        let series = self.series.get_or_insert_with_id(source, metric, |id| {
            made = true;
            Series::new(SeriesHandle(id), self.text(source), self.text(metric))
        });
        if made {
            // Relaxed: a count.
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
        } else {
            charge.give(bytes);
        }
        Ok(series.handle)
    }

    fn text(&self, text: &str) -> u32 {
        let entry = self.texts.get_or_insert_with_id("", text, |id| Text {
            id,
            text: text.into(),
        });
        entry.id
    }

    /// The series of these names, if there is one.
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

    /// Has series brought near that are written to soon: no more than [`SIDE_BY_SIDE`], or the first are gone again.
    #[inline]
    pub(crate) fn come(&self, handles: impl Iterator<Item = SeriesHandle>) {
        handles
            .filter_map(|handle| self.series(handle))
            .for_each(Series::come);
    }

    /// Source and metric.
    pub(crate) fn names(&self, series: &Series) -> (&Arc<str>, &Arc<str>) {
        (self.text_of(series.source), self.text_of(series.metric))
    }

    fn named(&self, series: &Series) -> Named {
        let (source, metric) = self.names(series);
        Named {
            id: series.handle.0,
            source: Arc::clone(source),
            metric: Arc::clone(metric),
        }
    }

    fn text_of(&self, id: u32) -> &Arc<str> {
        &self
            .texts
            .value(id)
            .expect("entered before the series")
            .text
    }

    /// The selected series with a row in memory in this range, by their places in an order of names.
    pub(crate) fn select(
        &self,
        selector: &Selector,
        range: &RangeInclusive<i64>,
    ) -> (Arc<[Named]>, Vec<u32>) {
        if let Some((source, metric)) = selector.exact() {
            let found = self.find(source, metric).filter(|series| series.has(range));
            let order: Arc<[Named]> = found.map(|series| self.named(series)).into_iter().collect();
            let places = (0..order.len() as u32).collect();
            return (order, places);
        }
        let order = self.order();
        let places = match &selector.source {
            Pattern::Glob(_) => 0..order.len(),
            Pattern::Exact(name) => {
                let from = order.partition_point(|named| *named.source < **name);
                let count = order[from..].partition_point(|named| *named.source == **name);
                from..from + count
            }
        };
        let series = |id: u32| self.series(SeriesHandle(id)).expect("it has a name");
        // Where all are asked, they are so in the order of their memory: names have another.
        let all = places.len() == order.len();
        let inside = all.then(|| {
            self.iter()
                .map(|series| series.has(range))
                .collect::<Vec<_>>()
        });
        let has = |id: u32| match &inside {
            Some(inside) => inside[id as usize],
            None => series(id).has(range),
        };
        // Neighbours have one source: it is looked at once.
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
        let places = places.filter(&mut selected).map(|at| at as u32).collect();
        (order, places)
    }

    /// The first `max` series by name with a row in memory in this range, in order.
    ///
    /// Series entered after the last list are compared with the last of these, not sorted, while they are fewer than the others.
    pub(crate) fn first(&self, max: usize, range: &RangeInclusive<i64>) -> Arc<[Named]> {
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

    /// All series by source and metric. Kept until there are more.
    fn order(&self) -> Arc<[Named]> {
        let mut order = self.order.lock();
        let count = self.len() as u32;
        if (order.len() as u32) < count {
            *order = self.sorted(count);
        }
        Arc::clone(&order)
    }

    /// Each text is compared with others once, however many series have it; series are then sorted by numbers.
    fn sorted(&self, count: u32) -> Arc<[Named]> {
        let mut texts: Vec<u32> = (0..self.texts.len() as u32).collect();
        texts.sort_unstable_by_key(|id| self.text_of(*id));
        let mut places = vec![0_u64; texts.len()];
        for (place, id) in (0..).zip(texts) {
            places[id as usize] = place;
        }
        let counted = self.iter().take(count as usize);
        let mut series: Vec<(u64, &Series)> = counted
            .map(|series| {
                let [source, metric] =
                    [series.source, series.metric].map(|text| places[text as usize]);
                (source << 32 | metric, series)
            })
            .collect();
        series.sort_unstable_by_key(|(places, _)| *places);
        series
            .iter()
            .map(|(_, series)| self.named(series))
            .collect()
    }

    /// All series in the order of their ids, with what is entered meanwhile.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Series> {
        (0..u32::MAX).map_while(|id| self.series.value(id))
    }

    /// Series in the order of the last list.
    #[cfg(test)]
    pub(crate) fn ordered(&self) -> usize {
        self.order.lock().len()
    }

    /// What was charged for names, which are never given back.
    pub(crate) fn bytes(&self) -> u64 {
        // Relaxed: a count.
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn len(&self) -> usize {
        self.series.len()
    }
}
