//! State of the series databases, for `/stats`, `/metrics` and the page.

use std::collections::BTreeMap;
use std::time::Duration;

use bywash_series::{SeriesDb, SeriesStats, StoreFailure};
use serde::Serialize;

use crate::page::lasted;
use crate::{History, Inner};

/// Time for which flushes may fail before the server counts as degraded: one failure is repeated within seconds.
const TOLERATED: Duration = Duration::from_secs(10);

/// Counters of a database, and the reason why its rows do not reach its store.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct DatabaseState {
    #[serde(flatten)]
    pub(crate) stats: SeriesStats,
    pub(crate) store_failure: Option<FailingStore>,
}

/// Flushes that fail, or one that takes long.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct FailingStore {
    pub(crate) failures: u64,
    pub(crate) seconds: u64,
    pub(crate) reason: String,
}

impl From<StoreFailure> for FailingStore {
    fn from(failure: StoreFailure) -> Self {
        Self {
            failures: failure.failures,
            seconds: failure.since.as_secs(),
            reason: failure.reason,
        }
    }
}

impl DatabaseState {
    fn of(db: &SeriesDb) -> Self {
        Self {
            stats: db.stats(),
            store_failure: db.store_failure().map(FailingStore::from),
        }
    }

    /// Returns why the server is degraded, if rows of the database `name` do not come into its store.
    pub(crate) fn reason(&self, name: &str) -> Option<String> {
        let failure = self.store_failure.as_ref()?;
        let since = Duration::from_secs(failure.seconds);
        if since < TOLERATED {
            return None;
        }
        let percent = |used: u64, limit: u64| used.saturating_mul(100) / limit.max(1);
        let stats = &self.stats;
        Some(format!(
            "series of the database {name} have not reached their store for {}: {}; {} % of their memory and {} % of their log \
             are used, and writes are refused when one of them is full",
            lasted(since),
            failure.reason,
            percent(stats.memtable_bytes, stats.memtable_limit),
            percent(stats.wal_bytes, stats.wal_limit),
        ))
    }
}

/// States by name.
pub(crate) type DatabaseStates = BTreeMap<&'static str, DatabaseState>;

impl Inner {
    /// The states of the databases: `values` received, and the server's own `history`.
    pub(crate) fn database_states(&self) -> DatabaseStates {
        let history = self.history.as_ref().map(History::db);
        let all = [("values", self.series.as_ref()), ("history", history)];
        all.into_iter()
            .filter_map(|(name, db)| Some((name, DatabaseState::of(db?))))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn database_is_a_reason_for_being_degraded_once_its_store_fails_for_a_while() {
        let state = |seconds| {
            let mut stats = SeriesStats::default();
            stats.wal_bytes = 30;
            stats.wal_limit = 40;
            let store_failure = FailingStore {
                failures: 3,
                seconds,
                reason: "it is down".to_owned(),
            };
            DatabaseState {
                stats,
                store_failure: Some(store_failure),
            }
        };
        assert_eq!(state(9).reason("values"), None);
        let reason = state(70).reason("values").expect("a reason");
        for part in [
            "database values",
            "1 min 10 s",
            "it is down",
            "75 % of their log",
        ] {
            assert!(reason.contains(part), "{reason}");
        }
        let fine = DatabaseState {
            store_failure: None,
            ..state(70)
        };
        assert_eq!(fine.reason("values"), None);
    }
}
