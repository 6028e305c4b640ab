//! Schedule of the work on data files: the check of the writer, retention, compaction, deletion of orphans.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::compaction::Unflushed;
use crate::db::Shared;
use crate::flush::blocking;
use crate::{SeriesDb, SeriesError};

/// Interval of maintenance. Flushes continue during maintenance.
const EVERY: Duration = Duration::from_secs(60);

/// Min age of an object that no manifest names before it is deleted: longer than any upload takes.
const GRACE: Duration = Duration::from_secs(24 * 60 * 60);

impl SeriesDb {
    /// Checks that no other process took the store over, applies [`crate::SeriesOptions::retention`], compacts small files,
    /// and deletes orphans of crashes at least a day old. Also runs every minute by itself; failed steps are repeated then.
    ///
    /// # Errors
    /// [`SeriesError::Store`]; [`SeriesError::AnotherWriter`]; [`SeriesError::DamagedFile`].
    pub async fn compact(&self) -> Result<(), SeriesError> {
        run_maintenance(&self.0).await
    }
}

async fn run_maintenance(shared: &Shared) -> Result<(), SeriesError> {
    let outcome = run_steps(shared).await;
    shared.check_superseded(&outcome);
    outcome
}

async fn run_steps(shared: &Shared) -> Result<(), SeriesError> {
    shared.files.check_writer().await?;
    let now = shared.options.clock.now();
    shared
        .files
        .apply_retention(shared.options.retention, now)
        .await?;
    let unflushed = unflushed(shared).await?;
    shared.files.compact(now, &unflushed).await?;
    shared.files.delete_orphans(GRACE, now).await?;
    Ok(())
}

async fn unflushed(shared: &Shared) -> Result<Unflushed, SeriesError> {
    // First: rows that come while the keys are collected are in this generation, or in a later one.
    let from = shared.gate.oldest_open();
    let memtable = Arc::clone(&shared.memtable);
    let keys = blocking(move || Ok(memtable.unflushed())).await?;
    Ok(Unflushed { keys, from })
}

/// Runs maintenance periodically until dropped.
pub(crate) async fn maintenance_loop(shared: &Shared) {
    let mut ticks = interval_at(Instant::now() + EVERY, EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Err(failed) = run_maintenance(shared).await {
            tracing::warn!(%failed, "maintenance of series files failed; it is retried in a minute");
        }
    }
}
