//! Iteration over the points of one series.

use std::sync::Arc;

use super::{FileReaders, MergeIterator, Names, Selector, Snapshot, SortedRun};
use crate::parquet::Charge;
use crate::{Point, SeriesDb, SeriesError};

/// The points of one series by ascending timestamp, as of the creation of the iterator. Later writes, flushes,
/// compactions and retention do not affect it. Its files are not deleted before it is dropped.
#[derive(Debug)]
pub struct SeriesIterator {
    names: Names,
    runs: Vec<SortedRun>,
    readers: Arc<FileReaders>,
    unread: MergeIterator,
    /// Merged points not returned yet.
    points: Vec<Point>,
    at: usize,
}

impl SeriesDb {
    /// Iterates over the points of a series, from the first on; empty if there is no such series. Files are read as
    /// they are reached.
    #[must_use]
    pub fn iterator(&self, source: &str, metric: &str) -> SeriesIterator {
        let names: Names = (source.into(), metric.into());
        let selector = Selector::series(source, metric);
        // The rows of one series are charged where they are; rows of files are charged as they are
        // read.
        let range = i64::MIN..=i64::MAX;
        let memory = (&self.0.memtable, &self.0.files);
        let snapshot = Snapshot::take(memory.0, memory.1, &selector, range, &Charge::new(None));
        let snapshot = snapshot.expect("nothing is charged");
        let (runs, readers) = (snapshot.runs(&names), Arc::default());
        SeriesIterator {
            unread: merge(&names, &runs, &readers, i64::MIN),
            names,
            runs,
            readers,
            points: Vec::new(),
            at: 0,
        }
    }
}

fn merge(
    names: &Names,
    runs: &[SortedRun],
    readers: &Arc<FileReaders>,
    from: i64,
) -> MergeIterator {
    MergeIterator::new((&names.0, &names.1), runs, from..=i64::MAX, readers)
}

impl SeriesIterator {
    /// Returns the next point, `None` at the end. After an error a further call continues at the same point.
    ///
    /// # Errors
    /// [`SeriesError::Store`]; [`SeriesError::DamagedFile`].
    pub async fn next(&mut self) -> Result<Option<Point>, SeriesError> {
        if self.at == self.points.len() {
            self.points.clear();
            self.at = 0;
            let mut buffer = Vec::new();
            self.points.extend(self.unread.next(&mut buffer).await?);
        }
        let point = self.points.get(self.at).copied();
        self.at += usize::from(point.is_some());
        Ok(point)
    }

    /// Moves to the first point at or after `timestamp`, forward or backward. Returns false, at the
    /// end, if no such point exists.
    ///
    /// # Errors
    /// As [`Self::next`]; the position is then unchanged.
    pub async fn seek(&mut self, timestamp: i64) -> Result<bool, SeriesError> {
        let mut unread = merge(&self.names, &self.runs, &self.readers, timestamp);
        let mut buffer = Vec::new();
        let points = unread.next(&mut buffer).await?.to_vec();
        (self.unread, self.points, self.at) = (unread, points, 0);
        Ok(!self.points.is_empty())
    }

    /// Moves back to the first point.
    pub fn reset(&mut self) {
        self.unread = merge(&self.names, &self.runs, &self.readers, i64::MIN);
        self.points.clear();
        self.at = 0;
    }
}
