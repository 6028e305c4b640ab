//! Keeping the files few and no more than is wanted.

use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::db::Shared;
use crate::{SeriesDb, SeriesError};

/// How often files are looked through. Sealing goes on meanwhile.
const EVERY: Duration = Duration::from_secs(60);

/// How old an object that no manifest names must be before it is taken for left behind: longer than any upload takes.
const GRACE: Duration = Duration::from_secs(24 * 60 * 60);

impl SeriesDb {
    /// Drops the files that [`crate::SeriesOptions::retention`] lets go, merges small ones, and deletes what crashes left behind a day
    /// ago or earlier. Done each minute anyway; what fails is tried again then.
    ///
    /// # Errors
    /// [`SeriesError::Store`]; [`SeriesError::AnotherWriter`]; [`SeriesError::DamagedFile`].
    pub async fn tidy(&self) -> Result<(), SeriesError> {
        tidy(&self.0).await
    }
}

async fn tidy(shared: &Shared) -> Result<(), SeriesError> {
    let now = shared.options.clock.now();
    shared.files.retain(shared.options.retention, now).await?;
    shared.files.merge(now).await?;
    shared.files.collect_orphans(GRACE, now).await?;
    Ok(())
}

/// Tidies until it is dropped.
pub(crate) async fn keep_tidy(shared: &Shared) {
    let mut ticks = interval_at(Instant::now() + EVERY, EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Err(failed) = tidy(shared).await {
            tracing::warn!(%failed, "files of series were not merged or dropped; it is tried again in a minute");
        }
    }
}
