//! Rows in memory: every series, its points, and what they are charged to.

mod bounds;
mod charge;
mod run;
mod series;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

pub(crate) use self::charge::Charge;
pub(crate) use self::run::Block;
pub(crate) use self::series::{HeadRun, Series, Turn};
use crate::catalog::{Catalog, SeriesHandle};
use crate::frozen::{Frozen, FrozenSeries};
use crate::span::Span;

/// What is in memory of one database.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) span: Span,
    pub(crate) catalog: Catalog,
    pub(crate) charge: Charge,
}

/// Where rows lie: a partition and a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) partition: i64,
    pub(crate) generation: u64,
}

impl Head {
    pub(crate) fn new(span: Span, charge: Charge) -> Self {
        Self {
            span,
            catalog: Catalog::default(),
            charge,
        }
    }

    /// What was charged for rows.
    pub(crate) fn rows_bytes(&self) -> u64 {
        self.charge.used().saturating_sub(self.catalog.bytes())
    }

    /// The rows of one series in the partitions that `range` touches: each run by ascending timestamp, no two alike in a run.
    /// In no order of runs; of rows with one timestamp, that of the higher generation holds.
    ///
    /// A reader takes this before it takes the version of the files: what is sealed in between is then in both, and the same.
    pub(crate) fn runs(
        &self,
        source: &str,
        metric: &str,
        range: &RangeInclusive<i64>,
    ) -> Vec<HeadRun> {
        let partitions = self.span.partition(*range.start())..=self.span.partition(*range.end());
        let series = self.catalog.find(source, metric);
        series.map_or_else(Vec::new, |series| series.runs(self.span, partitions))
    }

    /// The series with rows in each place of these generations and those before.
    pub(crate) fn places(&self, up_to: u64) -> BTreeMap<Place, Vec<SeriesHandle>> {
        let mut places: BTreeMap<Place, Vec<SeriesHandle>> = BTreeMap::new();
        for series in self.catalog.iter() {
            series.places(self.span, |partition, generation| {
                if generation <= up_to {
                    let place = Place {
                        partition,
                        generation,
                    };
                    places.entry(place).or_default().push(series.handle);
                }
            });
        }
        places
    }

    /// All rows of a place whose generation is closed.
    pub(crate) fn frozen(&self, place: Place, series: &[SeriesHandle]) -> Frozen {
        let mut frozen: Vec<FrozenSeries> = series
            .iter()
            .filter_map(|&handle| self.frozen_series(place, handle))
            .collect();
        frozen.sort_unstable_by(|a, b| (&a.source, &a.metric).cmp(&(&b.source, &b.metric)));
        Frozen {
            partition: place.partition,
            generation: place.generation,
            series: frozen,
        }
    }

    fn frozen_series(&self, place: Place, handle: SeriesHandle) -> Option<FrozenSeries> {
        let series = self.catalog.series(handle)?;
        let run = series.run(self.span, place)?;
        let points = || run.blocks.iter().flat_map(|block| block.iter());
        let (source, metric) = self.catalog.names(series);
        Some(FrozenSeries {
            source: Arc::clone(source),
            metric: Arc::clone(metric),
            timestamps: points().map(|point| point.timestamp).collect(),
            values: points().map(|point| point.value).collect(),
        })
    }

    /// Drops the rows of a place; they are sealed.
    pub(crate) fn forget(&self, place: Place, series: &[SeriesHandle]) {
        let to = self.span.last_of(place.partition);
        let series = series
            .iter()
            .filter_map(|&handle| self.catalog.series(handle));
        let bytes = series
            .map(|series| series.forget(to, place.generation))
            .sum();
        self.charge.give(bytes);
    }
}
