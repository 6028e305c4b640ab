//! Which series there are.

use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::selector::{Pattern, Selector};
use crate::snapshot::with_sealed;
use crate::{SeriesDb, SeriesError};

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
    ) -> Result<Vec<(Arc<str>, Arc<str>)>, SeriesError> {
        // Memory first, then files, as a snapshot has it; but no rows are taken.
        let memory = self.0.head.names(selector, &range);
        let version = self.0.files.version();
        with_sealed(memory, &version, &Arc::default(), selector, &range).await
    }

    /// The sources with a row in `range`, in order. As [`Self::list`].
    ///
    /// # Errors
    /// As that.
    pub async fn sources(&self, range: RangeInclusive<i64>) -> Result<Vec<String>, SeriesError> {
        let mut names = self.list(&Selector::all(), range).await?;
        names.dedup_by(|next, kept| next.0 == kept.0);
        Ok(names.iter().map(|(source, _)| source.to_string()).collect())
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
        Ok(names.iter().map(|(_, metric)| metric.to_string()).collect())
    }
}
