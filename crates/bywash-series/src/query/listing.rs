//! Listing of series.

use std::cmp::Ordering;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::{LeftOut, Names, Pattern, Selector, list_series, overlapping};
use crate::directory::Catalogs;
use crate::memtable::Memtable;
use crate::parquet::{Charge, Layout};
use crate::{SeriesDb, SeriesError};

/// Max tails of files decoded at a time for a list.
const CONCURRENT_TAIL_READS: u64 = 16;
/// Fraction of the budget that the tails decoded at a time take at most, unless one alone takes more.
const TAILS_PART_OF_BUDGET: u64 = 16;
/// Bytes of a name in a list in addition to its characters: its places in the list before and after
/// a merge, and two texts.
const NAME_BYTES: u64 = 2 * size_of::<Names>() as u64 + 2 * 16;

/// Names of series, in order, charged to the memory budget until they are dropped.
pub struct SeriesNames {
    /// Max names.
    max: usize,
    // Before the charge: memory is free before its charge is released.
    names: Vec<Names>,
    charge: Charge,
}

impl Default for SeriesNames {
    fn default() -> Self {
        Self::new(usize::MAX, Charge::new(None))
    }
}

impl SeriesNames {
    /// An empty list of at most `max` names.
    pub(crate) fn new(max: usize, charge: Charge) -> Self {
        Self {
            max,
            names: Vec::new(),
            charge,
        }
    }

    /// The list of one series.
    pub(crate) fn of_series(
        (source, metric): (&str, &str),
        charge: Charge,
    ) -> Result<Self, SeriesError> {
        let mut names = Self::new(1, charge);
        names.charge.grow(bytes(source, metric))?;
        names.names.push((source.into(), metric.into()));
        Ok(names)
    }

    /// Lists the first `max` series with a row in memory in this range. Names added later count against `max` too.
    fn first_in_memory(
        memtable: &Memtable,
        max: usize,
        range: &RangeInclusive<i64>,
        charge: &Charge,
    ) -> Result<Self, SeriesError> {
        memtable.directory.read(|catalogs| {
            let mut names = Self::new(max, charge.again());
            for catalog in catalogs.iter() {
                let first = catalog.first(max, range);
                names.merge(first.iter().map(|named| (&named.source, &named.metric)))?;
            }
            Ok(names)
        })
    }

    /// Lists the selected series with a row in memory in this range.
    pub(crate) fn in_memory(
        memtable: &Memtable,
        selector: &Selector,
        range: &RangeInclusive<i64>,
        charge: &Charge,
    ) -> Result<Self, SeriesError> {
        memtable
            .directory
            .read(|catalogs| Self::in_catalogs(catalogs, selector, range, charge))
    }

    /// As [`Self::in_memory`], inside [`crate::directory::Directory::read`].
    pub(crate) fn in_catalogs(
        catalogs: &Catalogs,
        selector: &Selector,
        range: &RangeInclusive<i64>,
        charge: &Charge,
    ) -> Result<Self, SeriesError> {
        let mut names = Self::new(usize::MAX, charge.again());
        for catalog in catalogs.iter() {
            let (order, positions) = catalog.select(selector, range);
            names.merge(positions.into_iter().map(|position| {
                let named = &order[position as usize];
                (&named.source, &named.metric)
            }))?;
        }
        Ok(names)
    }

    /// Adds the selected series of a file that may have a row in this range.
    pub(crate) fn add_file(
        &mut self,
        layout: &Layout,
        selector: &Selector,
        range: &RangeInclusive<i64>,
    ) -> Result<(), SeriesError> {
        let positions = layout.index.select(selector, range);
        self.merge(positions.map(|position| layout.index.names(position)))
    }

    /// Merges further names, which are in order. Charges new names before it keeps them.
    fn merge<'a>(
        &mut self,
        more: impl Iterator<Item = (&'a Arc<str>, &'a Arc<str>)>,
    ) -> Result<(), SeriesError> {
        let mut more = more.take(self.max).peekable();
        if more.peek().is_none() {
            return Ok(());
        }
        let known = std::mem::take(&mut self.names);
        let mut merged = Vec::with_capacity(known.len());
        let mut known = known.into_iter().peekable();
        while merged.len() < self.max {
            let order = match (known.peek(), more.peek()) {
                (None, None) => break,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some((source, metric)), Some(next)) => (source, metric).cmp(next),
            };
            if order == Ordering::Greater {
                let (source, metric) = more.next().expect("it was just seen");
                self.charge.grow(bytes(source, metric))?;
                merged.push((Arc::clone(source), Arc::clone(metric)));
                continue;
            }
            merged.extend(known.next());
            if order == Ordering::Equal {
                more.next();
            }
        }
        self.names = merged;
        Ok(())
    }

    /// Whether the caller has charged the memory of the list, and of the data read for it.
    pub(crate) fn is_charged_by_caller(&self) -> bool {
        self.charge.is_charged_by_caller()
    }

    /// Number of tails to decode at a time, if the largest one takes `bytes`.
    pub(crate) fn tails_at_once(&self, bytes: u64) -> usize {
        let part = self
            .charge
            .limit()
            .map_or(u64::MAX, |limit| limit / TAILS_PART_OF_BUDGET);
        let fitting = part / bytes.max(1);
        fitting.clamp(1, CONCURRENT_TAIL_READS) as usize
    }

    /// Number of series.
    #[must_use]
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether the list is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Source and metric of each series.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.names
            .iter()
            .map(|(source, metric)| (&**source, &**metric))
    }

    pub(crate) fn as_slice(&self) -> &[Names] {
        &self.names
    }

    /// Names that outlive the list.
    pub(crate) fn owned(&self) -> impl ExactSizeIterator<Item = Names> {
        self.names.iter().cloned()
    }
}

/// Bytes charged for a name.
fn bytes(source: &str, metric: &str) -> u64 {
    NAME_BYTES + (source.len() + metric.len()) as u64
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
    /// [`SeriesError::NoMemory`]; [`SeriesError::Store`]; [`SeriesError::DamagedFile`].
    pub async fn list(
        &self,
        selector: &Selector,
        range: RangeInclusive<i64>,
    ) -> Result<SeriesNames, SeriesError> {
        self.list_without(&LeftOut::default(), None, selector, &range)
            .await
    }

    /// As [`Self::list`], without the names of files that are damaged or missing.
    ///
    /// # Errors
    /// As [`Self::list`]; [`SeriesError::DamagedFile`] past 16 such files.
    pub async fn list_readable(
        &self,
        selector: &Selector,
        range: RangeInclusive<i64>,
    ) -> Result<(SeriesNames, LeftOut), SeriesError> {
        self.list_rest(None, selector, range).await
    }

    /// Lists the first `max` series with a row in `range`, as [`Self::list_readable`] does. Its time depends on `max` names in
    /// memory and in each file, and on the number of series created since the last listing.
    ///
    /// # Errors
    /// As [`Self::list_readable`].
    pub async fn list_first(
        &self,
        max: usize,
        range: RangeInclusive<i64>,
    ) -> Result<(SeriesNames, LeftOut), SeriesError> {
        self.list_rest(Some(max), &Selector::all(), range).await
    }

    async fn list_rest(
        &self,
        max: Option<usize>,
        selector: &Selector,
        range: RangeInclusive<i64>,
    ) -> Result<(SeriesNames, LeftOut), SeriesError> {
        let mut left_out = LeftOut::default();
        loop {
            match self.list_without(&left_out, max, selector, &range).await {
                Ok(names) => return Ok((names, left_out)),
                Err(error) => left_out.add(error)?,
            }
        }
    }

    /// Lists all selected series, or the first `max` of all series.
    async fn list_without(
        &self,
        left_out: &LeftOut,
        max: Option<usize>,
        selector: &Selector,
        range: &RangeInclusive<i64>,
    ) -> Result<SeriesNames, SeriesError> {
        // Memory first, then files, as for a snapshot, but without copying rows.
        let (memtable, charge) = (&self.0.memtable, self.read_charge());
        let memory = match max {
            Some(max) => SeriesNames::first_in_memory(memtable, max, range, &charge)?,
            None => SeriesNames::in_memory(memtable, selector, range, &charge)?,
        };
        let mut files = overlapping(&self.0.files.version(), range);
        files.retain(|file| !left_out.has(file));
        list_series(memory, &files, selector, range).await
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
