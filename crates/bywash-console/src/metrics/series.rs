//! Metrics of the series databases.

use bywash_series::SeriesStats;

use super::{Family, head, sample};
use crate::databases::DatabaseStates;

const COUNTERS: [Family<SeriesStats>; 4] = [
    (
        "bywash_series_rows_total",
        "Rows written to a series database.",
        |s| s.rows,
    ),
    (
        "bywash_series_departed_total",
        "Series whose names left memory, having no rows there.",
        |s| s.departed_series,
    ),
    (
        "bywash_series_flushes_total",
        "Flushes of a series database to its store.",
        |s| s.flushes,
    ),
    (
        "bywash_series_failed_flushes_total",
        "Flushes of a series database that failed; they are repeated.",
        |s| s.failed_flushes,
    ),
];

const GAUGES: [Family<SeriesStats>; 7] = [
    (
        "bywash_series_names",
        "Series of a database whose names are in memory.",
        |s| s.series,
    ),
    (
        "bywash_series_memory_bytes",
        "Memory of rows and names of a series database.",
        |s| s.memtable_bytes,
    ),
    (
        "bywash_series_memory_limit_bytes",
        "The limit of bywash_series_memory_bytes, at which writes wait for a flush.",
        |s| s.memtable_limit,
    ),
    (
        "bywash_series_log_bytes",
        "Bytes of the log of a series database.",
        |s| s.wal_bytes,
    ),
    (
        "bywash_series_log_limit_bytes",
        "The limit of bywash_series_log_bytes, at which writes wait for a flush.",
        |s| s.wal_limit,
    ),
    (
        "bywash_series_files",
        "Data files of a series database.",
        |s| s.files,
    ),
    (
        "bywash_series_file_bytes",
        "Bytes of the data files of a series database.",
        |s| s.file_bytes,
    ),
];

/// Writes the counters and sizes of each database.
pub(super) fn write(text: &mut String, databases: &DatabaseStates) {
    let counters = COUNTERS.iter().map(|family| ("counter", family));
    let gauges = GAUGES.iter().map(|family| ("gauge", family));
    for (kind, (name, help, read)) in counters.chain(gauges) {
        head(text, name, kind, help);
        for (database, state) in databases {
            sample(text, name, &[("database", database)], read(&state.stats));
        }
    }
    const FAILING: &str = "bywash_series_store_failing_seconds";
    head(
        text,
        FAILING,
        "gauge",
        "Time for which flushes of a series database have failed or waited; 0 if the last one succeeded.",
    );
    for (database, state) in databases {
        let failure = state.store_failure.as_ref();
        let seconds = failure.map_or(0, |failure| failure.seconds);
        sample(text, FAILING, &[("database", database)], seconds);
    }
}
