//! Listing of series.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::{Names, Pattern, Selector, list_series};
use crate::catalog::NamedSeries;
use crate::directory::Catalogs;
use crate::memtable::Memtable;
use crate::parquet::Layout;
use crate::{SeriesDb, SeriesError};

/// Names of series, in order. Refers to names in memory and to indexes of files: eight bytes a series are its own.
///
/// Keeps these alive, also after the database is dropped.
#[derive(Clone)]
pub struct SeriesNames {
    /// Max names of each table and of the list.
    max: usize,
    tables: Vec<NameTable>,
    /// Table and position in it, for each series.
    series: Vec<(u32, u32)>,
}

/// Where names are stored.
#[derive(Clone)]
enum NameTable {
    Memory(Arc<[NamedSeries]>),
    File(Arc<Layout>),
}

impl Default for SeriesNames {
    fn default() -> Self {
        Self {
            max: usize::MAX,
            tables: Vec::new(),
            series: Vec::new(),
        }
    }
}

impl SeriesNames {
    /// Lists the first `max` series with a row in memory in this range. Names added later count against `max` too.
    fn first_in_memory(memtable: &Memtable, max: usize, range: &RangeInclusive<i64>) -> Self {
        memtable.directory.read(|catalogs| {
            let mut names = Self {
                max,
                ..Self::default()
            };
            for catalog in catalogs.iter() {
                let order = catalog.first(max, range);
                let positions = 0..order.len() as u32;
                names.add(NameTable::Memory(order), positions);
            }
            names
        })
    }

    /// Lists the selected series with a row in memory in this range.
    pub(crate) fn in_memory(
        memtable: &Memtable,
        selector: &Selector,
        range: &RangeInclusive<i64>,
    ) -> Self {
        let read = |catalogs: &Catalogs| Self::in_catalogs(catalogs, selector, range);
        memtable.directory.read(read)
    }

    /// As [`Self::in_memory`], inside [`crate::directory::Directory::read`].
    pub(crate) fn in_catalogs(
        catalogs: &Catalogs,
        selector: &Selector,
        range: &RangeInclusive<i64>,
    ) -> Self {
        let mut names = Self::default();
        for catalog in catalogs.iter() {
            let (order, positions) = catalog.select(selector, range);
            names.add(NameTable::Memory(order), positions.into_iter());
        }
        names.sort();
        names
    }

    /// Appends the selected series of a file that may have a row in this range.
    pub(crate) fn add_file(
        &mut self,
        layout: &Arc<Layout>,
        selector: &Selector,
        range: &RangeInclusive<i64>,
    ) {
        let series = layout.index.select(selector, range);
        self.add(NameTable::File(Arc::clone(layout)), series);
    }

    fn add(&mut self, table: NameTable, positions: impl Iterator<Item = u32>) {
        let (number, before) = (self.tables.len() as u32, self.series.len());
        let positions = positions.take(self.max);
        self.series
            .extend(positions.map(|position| (number, position)));
        if self.series.len() > before {
            self.tables.push(table);
        }
    }

    /// Sorts the names of all tables and removes duplicates.
    pub(crate) fn sort(&mut self) {
        if self.tables.len() < 2 {
            return;
        }
        let mut series = std::mem::take(&mut self.series);
        // A concatenation of sorted runs, which this sort detects and merges.
        series.sort_by(|one, other| self.names(*one).cmp(&self.names(*other)));
        series.dedup_by(|next, kept| self.names(*next) == self.names(*kept));
        series.truncate(self.max);
        self.series = series;
    }

    #[inline]
    fn names(&self, (table, position): (u32, u32)) -> (&Arc<str>, &Arc<str>) {
        match &self.tables[table as usize] {
            NameTable::File(layout) => layout.index.names(position),
            NameTable::Memory(order) => {
                let named = &order[position as usize];
                (&named.source, &named.metric)
            }
        }
    }

    /// Number of series.
    #[must_use]
    pub fn len(&self) -> usize {
        self.series.len()
    }

    /// Whether the list is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.series.is_empty()
    }

    /// Source and metric of each series.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        let names = self.shared();
        names.map(|(source, metric)| (&**source, &**metric))
    }

    pub(crate) fn shared(&self) -> impl ExactSizeIterator<Item = (&Arc<str>, &Arc<str>)> {
        self.series.iter().map(|series| self.names(*series))
    }

    /// Names that outlive the list.
    pub(crate) fn owned(&self) -> impl ExactSizeIterator<Item = Names> {
        let names = self.shared();
        names.map(|(source, metric)| (Arc::clone(source), Arc::clone(metric)))
    }
}

impl fmt::Debug for SeriesNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl SeriesDb {
    /// Lists source and metric of each selected series with a row in `range`, both ends included, in order.
    ///
    /// For files, only the first and last timestamp of a series are known: a series with rows around the range and
    /// none in it may be listed too. Reads the tails of files that are not in memory, but no rows.
    ///
    /// # Errors
    /// [`SeriesError::Store`]; [`SeriesError::DamagedFile`].
    pub async fn list(
        &self,
        selector: &Selector,
        range: RangeInclusive<i64>,
    ) -> Result<SeriesNames, SeriesError> {
        // Memory first, then files, as for a snapshot, but without copying rows.
        let memory = SeriesNames::in_memory(&self.0.memtable, selector, &range);
        let version = self.0.files.version();
        list_series(memory, version.files(), &Arc::default(), selector, &range).await
    }

    /// Lists the first `max` series with a row in `range`, as [`Self::list`] does. Its time depends on `max` names in
    /// memory and in each file, and on the number of series created since the last listing.
    ///
    /// # Errors
    /// As [`Self::list`].
    pub async fn list_first(
        &self,
        max: usize,
        range: RangeInclusive<i64>,
    ) -> Result<SeriesNames, SeriesError> {
        let memory = SeriesNames::first_in_memory(&self.0.memtable, max, &range);
        let version = self.0.files.version();
        let files = version.files();
        list_series(memory, files, &Arc::default(), &Selector::all(), &range).await
    }

    /// Lists the sources with a row in `range`, in order, as [`Self::list`] does.
    ///
    /// # Errors
    /// As [`Self::list`].
    pub async fn sources(&self, range: RangeInclusive<i64>) -> Result<Vec<String>, SeriesError> {
        let names = self.list(&Selector::all(), range).await?;
        let mut sources: Vec<&str> = names.iter().map(|(source, _)| source).collect();
        sources.dedup();
        Ok(sources.into_iter().map(str::to_owned).collect())
    }

    /// Lists the metrics of a source with a row in `range`, in order, as [`Self::list`] does.
    ///
    /// # Errors
    /// As [`Self::list`].
    pub async fn metrics(
        &self,
        source: &str,
        range: RangeInclusive<i64>,
    ) -> Result<Vec<String>, SeriesError> {
        let selector = Selector {
            source: Pattern::Exact(source.to_owned()),
            metric: Pattern::parse("*"),
        };
        let names = self.list(&selector, range).await?;
        Ok(names.iter().map(|(_, metric)| metric.to_owned()).collect())
    }
}
