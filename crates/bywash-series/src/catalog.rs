//! Names to series. A known name is found without a lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bywash_mem::{Names, Search};

use crate::head::{Charge, Series};
use crate::selector::Pattern;
use crate::{Row, Selector, SeriesError};

/// The most bytes of a source's or a metric's name.
pub const MAX_NAME: usize = 64 << 10;

/// What a series costs beside its names and rows, in bytes: its place, its cells in tables that grow by doubling.
const SERIES_BYTES: usize = 256;
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
    /// What all of it was charged.
    bytes: AtomicU64,
}

#[derive(Debug)]
struct Text {
    id: u32,
    text: Arc<str>,
}

/// Texts in order, and of each id the place of its text among them, if it is there.
struct Ranked<'a> {
    texts: Vec<&'a Arc<str>>,
    places: Vec<Option<u32>>,
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
        let search = self.series.begin(source, metric);
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
            let mut searches: [Option<Search>; SIDE_BY_SIDE] = [None; SIDE_BY_SIDE];
            for (search, row) in searches.iter_mut().zip(rows) {
                let names = Some((row.source, row.metric));
                if names != before {
                    *search = Some(self.series.begin(row.source, row.metric));
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
        search: Search,
        (source, metric): (&str, &str),
        charge: &Charge,
    ) -> Result<SeriesHandle, SeriesError> {
        match self.series.end(search, source, metric) {
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
        let series = self.series.get_or_insert_numbered(source, metric, |id| {
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
        let entry = self.texts.get_or_insert_numbered("", text, |id| Text {
            id,
            text: text.into(),
        });
        entry.id
    }

    /// The series of these names, if there is one.
    pub(crate) fn find(&self, source: &str, metric: &str) -> Option<&Series> {
        let id = self
            .series
            .end(self.series.begin(source, metric), source, metric)?;
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
        let text = |id| {
            &self
                .texts
                .value(id)
                .expect("entered before the series")
                .text
        };
        (text(series.source), text(series.metric))
    }

    /// Source and metric of those of `series` that are selected, in order.
    ///
    /// Each text is compared with others once, however many series have it; series are then sorted by numbers.
    pub(crate) fn sorted<'a>(
        &self,
        series: impl Iterator<Item = &'a Series>,
        selector: &Selector,
    ) -> Vec<(Arc<str>, Arc<str>)> {
        let series: Vec<(u32, u32)> = series
            .map(|series| (series.source, series.metric))
            .collect();
        let sources = self.ranked(series.iter().map(|series| series.0), &selector.source);
        let metrics = self.ranked(series.iter().map(|series| series.1), &selector.metric);
        let place = |&(source, metric): &(u32, u32)| {
            let source = sources.places[source as usize]?;
            Some(u64::from(source) << 32 | u64::from(metrics.places[metric as usize]?))
        };
        let mut places: Vec<u64> = series.iter().filter_map(place).collect();
        places.sort_unstable();
        let texts = |place: u64| {
            let (source, metric) = (place >> 32, place as u32);
            (
                Arc::clone(sources.texts[source as usize]),
                Arc::clone(metrics.texts[metric as usize]),
            )
        };
        places.into_iter().map(texts).collect()
    }

    /// Those of the texts with these ids that the pattern means.
    fn ranked(&self, ids: impl Iterator<Item = u32>, pattern: &Pattern) -> Ranked<'_> {
        let mut seen = vec![false; self.texts.len()];
        let first = |id: &u32| !std::mem::replace(&mut seen[*id as usize], true);
        let text = |id| {
            let text = &self
                .texts
                .value(id)
                .expect("entered before the series")
                .text;
            pattern.matches(text).then_some((text, id))
        };
        let mut texts: Vec<(&Arc<str>, u32)> = ids.filter(first).filter_map(text).collect();
        texts.sort_unstable();
        let mut places = vec![None; seen.len()];
        for (place, (_, id)) in (0..).zip(&texts) {
            places[*id as usize] = Some(place);
        }
        Ranked {
            texts: texts.into_iter().map(|(text, _)| text).collect(),
            places,
        }
    }

    /// All series in the order of their ids, with what is entered meanwhile.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Series> {
        (0..u32::MAX).map_while(|id| self.series.value(id))
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
