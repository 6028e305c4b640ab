//! What a server keeps as series: its own history, and values sent to it.
//!
//! Below the data folder, each of `history/` and `series/` has `files/`, the sealed series, and `log/`, what is not sealed yet.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bywash::origin::folder::FolderStore;
use bywash::origin::{Origin, ReadOnly};
use bywash::{Consistency, Engine, EngineError};
use bywash_console::{HISTORY_EVERY, record_history};
use bywash_series::{Ack, Retention, SeriesDb, SeriesOptions};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::data_dir::DataDir;
use super::stop_asked;
use crate::failure::Failure;

/// The most that the server's own history takes on disk: years of it for a few buckets.
const HISTORY_BYTES: u64 = 1 << 30;
/// The most of the memory that either database takes, as a share of it.
const MEMORY_SHARE: u64 = 16;
/// The bucket of the sealed history.
const HISTORY_BUCKET: &str = "bywash-history";
/// How long a database may take to close once the servers have ended.
const CLOSE_DEADLINE: Duration = Duration::from_secs(3);

/// The databases of a server, open.
#[derive(Debug)]
pub(super) struct Keeping {
    pub(super) series: SeriesDb,
    pub(super) history: Option<SeriesDb>,
    recorder: Option<JoinHandle<()>>,
}

impl Keeping {
    /// Opens them; the server's own history only if it is to be kept. Takes what a killed server left in their logs.
    pub(super) async fn open(
        data: &DataDir,
        engine: &Engine,
        keep_history: bool,
    ) -> Result<Self, Failure> {
        let memory = engine.budget().limit() / MEMORY_SHARE;
        let options = SeriesOptions {
            head_bytes: Some(memory),
            wal_bytes: 256 << 20,
            segment_bytes: 4 << 20,
            ..SeriesOptions::default()
        };
        let series = open(data.series(), engine, options).await?;
        let options = SeriesOptions {
            // The last point before a kill is no loss.
            ack: Ack::Memory,
            head_bytes: Some(memory),
            wal_bytes: 32 << 20,
            segment_bytes: 1 << 20,
            retention: Retention {
                bytes: Some(HISTORY_BYTES),
                ..Retention::default()
            },
            ..SeriesOptions::default()
        };
        let history = if keep_history {
            let history = open(data.history(), engine, options).await?;
            mount(engine, &files(&data.history()))?;
            Some(history)
        } else {
            None
        };
        Ok(Self {
            series,
            history,
            recorder: None,
        })
    }

    /// Begins to record the history of `engine`; it ends when a stop is asked for.
    pub(super) fn record(&mut self, engine: &Engine, stopped: watch::Receiver<bool>) {
        let record = |db: &SeriesDb| {
            record_history(
                engine.clone(),
                db.clone(),
                HISTORY_EVERY,
                stop_asked(stopped),
            )
        };
        self.recorder = self.history.as_ref().map(record).map(tokio::spawn);
    }

    /// Closes them when the servers have ended. What is not sealed by then stays in the logs.
    pub(super) async fn close(self) {
        let Self {
            series,
            history,
            recorder,
        } = self;
        let close = async {
            if let Some(recorder) = recorder
                && let Err(error) = recorder.await
            {
                tracing::warn!(%error, "the server's history ended early");
            }
            for (name, db) in [("series", Some(series)), ("history", history)] {
                if let Some(db) = db
                    && let Err(error) = db.close().await
                {
                    tracing::warn!(%error, "the {name} did not close well; the next start reads them from their log");
                }
            }
        };
        if tokio::time::timeout(CLOSE_DEADLINE, close).await.is_err() {
            tracing::warn!(
                "series were not closed within {CLOSE_DEADLINE:?}; the next start reads them from their logs"
            );
        }
    }
}

async fn open(
    folder: PathBuf,
    engine: &Engine,
    options: SeriesOptions,
) -> Result<SeriesDb, Failure> {
    let files = files(&folder);
    let failed = |error: &dyn std::fmt::Display| {
        Failure::failed(format!("cannot use {}: {error}", folder.display()))
    };
    std::fs::create_dir_all(&files).map_err(|error| failed(&error))?;
    let store = FolderStore::open(files).map_err(|error| failed(&error))?;
    let opened = SeriesDb::open(
        Arc::new(store),
        log(&folder),
        engine.budget().clone(),
        options,
    )
    .await;
    opened.map_err(|error| failed(&error))
}

/// Lets S3 clients read the sealed history, and only read it.
fn mount(engine: &Engine, files: &Path) -> Result<(), Failure> {
    let store = FolderStore::open(files).map_err(|error| Failure::failed(error.to_string()))?;
    let store: Arc<dyn Origin> = Arc::new(store);
    let mounted = engine.mount(
        HISTORY_BUCKET,
        Arc::new(ReadOnly::new(store)),
        Consistency::default(),
    );
    mounted.map(|_| ()).map_err(|error| match error {
        EngineError::BucketExists(_) => Failure::usage(format!(
            "the name {HISTORY_BUCKET} is that of the server's own history; give the bucket another, or --no-history"
        )),
        other => Failure::failed(other.to_string()),
    })
}

/// Where the sealed series of a database lie.
pub(crate) fn files(folder: &Path) -> PathBuf {
    folder.join("files")
}

/// Where what is not sealed lies.
pub(crate) fn log(folder: &Path) -> PathBuf {
    folder.join("log")
}
