//! Entries that listings of a bucket leave out: counted, and each named once by a warning.

use bywash_store::{LeftOut, Omission, Omissions};

use crate::error::EngineError;
use crate::left_out::Unlistable;
use crate::shared::BucketShared;

/// The part of a listing in progress that is counted already.
#[derive(Debug, Default)]
pub(crate) struct CountedOmissions {
    count: u64,
    named: usize,
}

impl BucketShared {
    /// Counts the entries that a listing has left out since the last call, and logs a warning.
    ///
    /// # Errors
    /// If the bucket's listings are to fail for it.
    pub(crate) fn count_left_out(
        &self,
        omissions: &Omissions,
        counted: &mut CountedOmissions,
    ) -> Result<(), EngineError> {
        if omissions.count() == counted.count {
            return Ok(());
        }
        let left = omissions.left_out();
        let named = left.named.get(counted.named..).unwrap_or_default();
        let result = self.count_entries(left.count - counted.count, named);
        *counted = CountedOmissions {
            count: left.count,
            named: left.named.len(),
        };
        result
    }

    /// Counts the entries that a page has left out, and logs a warning.
    ///
    /// # Errors
    /// If the bucket's listings are to fail for it.
    pub(crate) fn count_page_left_out(&self, left: &LeftOut) -> Result<(), EngineError> {
        match left.count {
            0 => Ok(()),
            count => self.count_entries(count, &left.named),
        }
    }

    fn count_entries(&self, count: u64, named: &[(String, Omission)]) -> Result<(), EngineError> {
        self.counters.left_out(count);
        if self.unlistable == Unlistable::Error {
            let (entry, reason) = match named.first() {
                Some((name, omission)) => (format!("{name:?}"), omission.to_string()),
                None => (
                    format!("{count} entries"),
                    "the origin's server leaves them out".to_owned(),
                ),
            };
            return Err(EngineError::Unlistable {
                bucket: self.name.clone(),
                entry,
                reason,
            });
        }
        for (name, omission) in named {
            if self.warned_entries.is_new(name) {
                tracing::warn!(
                    bucket = self.name,
                    entry = ?name,
                    reason = %omission,
                    "listings leave out an entry",
                );
            }
        }
        Ok(())
    }
}
