//! One series, point by point.

use std::sync::Arc;

use crate::runs::{Merge, Readers, Run};
use crate::selector::Selector;
use crate::snapshot::{Names, Snapshot};
use crate::{Point, SeriesDb, SeriesError};

/// The points of one series by ascending timestamp, as they were when the iterator was made: what is written, sealed, merged or
/// dropped meanwhile changes nothing. Files it may need are not deleted before it is dropped.
#[derive(Debug)]
pub struct SeriesIterator {
    names: Names,
    runs: Vec<Run>,
    readers: Arc<Readers>,
    rest: Merge,
    /// What was merged and not given out yet.
    points: Vec<Point>,
    at: usize,
}

impl SeriesDb {
    /// The points of a series, from the first on; none if there is no such series. Files are read when their turn comes.
    #[must_use]
    pub fn iterator(&self, source: &str, metric: &str) -> SeriesIterator {
        let names: Names = (source.into(), metric.into());
        let selector = Selector::series(source, metric);
        let snapshot = self.snapshot(&selector, i64::MIN..=i64::MAX);
        let (runs, readers) = snapshot.into_parts(&names);
        SeriesIterator {
            rest: merge(&names, &runs, &readers, i64::MIN),
            names,
            runs,
            readers,
            points: Vec::new(),
            at: 0,
        }
    }
}

fn merge(names: &Names, runs: &[Run], readers: &Arc<Readers>, from: i64) -> Merge {
    Merge::new((&names.0, &names.1), runs, from..=i64::MAX, readers)
}

impl SeriesIterator {
    /// The next point; `None` at the end. After an error it may be called again and goes on where it was.
    ///
    /// # Errors
    /// [`SeriesError::Store`]; [`SeriesError::DamagedFile`].
    pub async fn next(&mut self) -> Result<Option<Point>, SeriesError> {
        if self.at == self.points.len() {
            self.points.clear();
            self.at = 0;
            let mut room = Vec::new();
            self.points.extend(self.rest.next(&mut room).await?);
        }
        let point = self.points.get(self.at).copied();
        self.at += usize::from(point.is_some());
        Ok(point)
    }

    /// Goes to the first point that is not before `timestamp`, forth or back, so that it is the next one. False: there is none,
    /// and the iterator stands at its end.
    ///
    /// # Errors
    /// As [`Self::next`]; it then stands where it stood.
    pub async fn seek(&mut self, timestamp: i64) -> Result<bool, SeriesError> {
        let mut rest = merge(&self.names, &self.runs, &self.readers, timestamp);
        let mut room = Vec::new();
        let points = rest.next(&mut room).await?.to_vec();
        (self.rest, self.points, self.at) = (rest, points, 0);
        Ok(!self.points.is_empty())
    }

    /// Back to the first point.
    pub fn reset(&mut self) {
        self.rest = merge(&self.names, &self.runs, &self.readers, i64::MIN);
        self.points.clear();
        self.at = 0;
    }
}

impl SeriesDb {
    pub(crate) fn snapshot(
        &self,
        selector: &Selector,
        range: std::ops::RangeInclusive<i64>,
    ) -> Snapshot {
        Snapshot::take(&self.0.head, &self.0.files, selector, range)
    }
}
