//! Retries of a download after failures of the file system.

use std::io;
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Backoff before the first retry. Each retry doubles it, up to the maximum.
const INITIAL_BACKOFF: Duration = Duration::from_millis(100);
const LONGEST_BACKOFF: Duration = Duration::from_secs(10);
/// Retries after failures other than a full disk.
const RETRIES: u32 = 3;

/// Retries of one download.
#[derive(Debug)]
pub(super) struct FileRetries {
    full_disk_deadline: Duration,
    /// Since when the disk is full or read-only.
    full_since: Option<Instant>,
    backoff: Duration,
    retries: u32,
}

impl FileRetries {
    pub(super) fn new(full_disk_deadline: Duration) -> Self {
        Self {
            full_disk_deadline,
            full_since: None,
            backoff: INITIAL_BACKOFF,
            retries: 0,
        }
    }

    /// Waits before the next attempt. A full disk does not count as an attempt.
    ///
    /// # Errors
    /// `error`, if there is to be no further attempt.
    pub(super) async fn wait(&mut self, error: io::Error) -> io::Result<()> {
        let now = Instant::now();
        let ends = if is_full(&error) {
            let since = *self.full_since.get_or_insert(now);
            now - since >= self.full_disk_deadline
        } else {
            self.retries += 1;
            self.retries > RETRIES || is_final(&error)
        };
        if ends {
            return Err(error);
        }
        tracing::warn!(%error, backoff = ?self.backoff, "a download waits for the disk");
        sleep(self.backoff).await;
        self.backoff = (self.backoff * 2).min(LONGEST_BACKOFF);
        Ok(())
    }

    /// Records that bytes were written.
    pub(super) fn progress(&mut self) {
        self.full_since = None;
        self.backoff = INITIAL_BACKOFF;
    }
}

/// Returns whether space may come back by itself.
pub(super) fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(
        error.kind(),
        StorageFull | QuotaExceeded | ReadOnlyFilesystem
    )
}

/// Returns whether another attempt would fail as well.
fn is_final(error: &io::Error) -> bool {
    use io::ErrorKind::{AlreadyExists, InvalidInput};
    matches!(error.kind(), AlreadyExists | InvalidInput)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn full_disk_is_waited_for_until_the_deadline_and_takes_no_retry() {
        let deadline = Duration::from_secs(60);
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        let mut retries = FileRetries::new(deadline);
        let began = Instant::now();
        while retries.wait(full()).await.is_ok() {}
        let waited = began.elapsed();
        assert!(
            waited >= deadline && waited < deadline + LONGEST_BACKOFF,
            "{waited:?}"
        );
        retries.progress();
        let failed = || io::Error::other("broken");
        for _ in 0..RETRIES {
            retries.wait(failed()).await.unwrap();
        }
        retries.wait(failed()).await.unwrap_err();
    }

    #[tokio::test(start_paused = true)]
    async fn backoff_doubles_from_100_ms() {
        let mut retries = FileRetries::new(Duration::from_secs(60));
        for expected in [100, 200, 400] {
            let began = Instant::now();
            retries.wait(io::Error::other("broken")).await.unwrap();
            assert_eq!(began.elapsed(), Duration::from_millis(expected));
        }
    }
}
