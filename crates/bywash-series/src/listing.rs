//! Which series there are.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::catalog::Named;
use crate::files::Layout;
use crate::head::Head;
use crate::selector::{Pattern, Selector};
use crate::snapshot::{Names, with_sealed};
use crate::{SeriesDb, SeriesError};

/// Names of series, in order. They are read where the database has them: eight bytes a series are this list's own.
///
/// What it refers to stays as long as it does, be the database dropped: names in memory, indexes of files.
#[derive(Clone)]
pub struct SeriesNames {
    /// Names of each table, and of the list, beyond which it ends.
    max: usize,
    tables: Vec<Table>,
    /// Of each series the table, and its place there.
    series: Vec<(u32, u32)>,
}

/// What names are found in.
#[derive(Clone)]
enum Table {
    Memory(Arc<[Named]>),
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
    /// The first `max` series with a row in memory in this range. What is added counts against `max` too.
    fn first_in_memory(head: &Head, max: usize, range: &RangeInclusive<i64>) -> Self {
        let mut names = Self {
            max,
            ..Self::default()
        };
        let order = head.catalog.first(max, range);
        let places = 0..order.len() as u32;
        names.add(Table::Memory(order), places);
        names
    }

    /// The selected series with a row in memory in this range.
    pub(crate) fn in_memory(head: &Head, selector: &Selector, range: &RangeInclusive<i64>) -> Self {
        let mut names = Self::default();
        let (order, places) = head.catalog.select(selector, range);
        names.add(Table::Memory(order), places.into_iter());
        names
    }

    /// Adds the selected series of a file that may have a row in this range, behind those that are there.
    pub(crate) fn add_file(
        &mut self,
        layout: &Arc<Layout>,
        selector: &Selector,
        range: &RangeInclusive<i64>,
    ) {
        let series = layout.index.select(selector, range);
        self.add(Table::File(Arc::clone(layout)), series);
    }

    fn add(&mut self, table: Table, places: impl Iterator<Item = u32>) {
        let (number, before) = (self.tables.len() as u32, self.series.len());
        let places = places.take(self.max);
        self.series.extend(places.map(|place| (number, place)));
        if self.series.len() > before {
            self.tables.push(table);
        }
    }

    /// Puts what was added table by table in order, each name once.
    pub(crate) fn sort(&mut self) {
        if self.tables.len() < 2 {
            return;
        }
        let mut series = std::mem::take(&mut self.series);
        // Made of runs that are sorted already, which this sort finds and merges.
        series.sort_by(|one, other| self.names(*one).cmp(&self.names(*other)));
        series.dedup_by(|next, kept| self.names(*next) == self.names(*kept));
        series.truncate(self.max);
        self.series = series;
    }

    #[inline]
    fn names(&self, (table, place): (u32, u32)) -> (&Arc<str>, &Arc<str>) {
        match &self.tables[table as usize] {
            Table::File(layout) => layout.index.names(place),
            Table::Memory(order) => {
                let named = &order[place as usize];
                (&named.source, &named.metric)
            }
        }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.series.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.series.is_empty()
    }

    /// Source and metric of each.
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
    /// Source and metric of each selected series with a row in `range`, both ends included, in order.
    ///
    /// Of sealed rows only the first and last timestamp in each file are known: a series that has rows around the range and none
    /// in it may be listed too. Reads the tails of files that are not in memory, and no rows.
    ///
    /// # Errors
    /// [`SeriesError::Store`]; [`SeriesError::DamagedFile`].
    pub async fn list(
        &self,
        selector: &Selector,
        range: RangeInclusive<i64>,
    ) -> Result<SeriesNames, SeriesError> {
        // Memory first, then files, as a snapshot has it; but no rows are taken.
        let memory = SeriesNames::in_memory(&self.0.head, selector, &range);
        let version = self.0.files.version();
        with_sealed(memory, version.files(), &Arc::default(), selector, &range).await
    }

    /// As [`Self::list`] of every series, but only the first `max`. Takes time for `max` names of memory and of each file, and for
    /// the series that were made after the last list.
    ///
    /// # Errors
    /// As that.
    pub async fn list_first(
        &self,
        max: usize,
        range: RangeInclusive<i64>,
    ) -> Result<SeriesNames, SeriesError> {
        let memory = SeriesNames::first_in_memory(&self.0.head, max, &range);
        let version = self.0.files.version();
        let files = version.files();
        with_sealed(memory, files, &Arc::default(), &Selector::all(), &range).await
    }

    /// The sources with a row in `range`, in order. As [`Self::list`].
    ///
    /// # Errors
    /// As that.
    pub async fn sources(&self, range: RangeInclusive<i64>) -> Result<Vec<String>, SeriesError> {
        let names = self.list(&Selector::all(), range).await?;
        let mut sources: Vec<&str> = names.iter().map(|(source, _)| source).collect();
        sources.dedup();
        Ok(sources.into_iter().map(str::to_owned).collect())
    }

    /// The metrics of a source with a row in `range`, in order. As [`Self::list`].
    ///
    /// # Errors
    /// As that.
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
