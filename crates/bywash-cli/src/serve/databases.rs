//! The series databases of a server: its own history, and values sent to it.
//!
//! In the data folder, `history/` and `series/` each have `files/` with data files and `log/` with the write-ahead
//! log. With `--series-bucket` the data files are in folders of these names there, and only the logs are in the data folder.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bywash::origin::folder::FolderStore;
use bywash::origin::{Origin, ReadOnly};
use bywash::time::parse_duration;
use bywash::{Consistency, DamagedFile, Engine, EngineError, OriginUrl};
use bywash_console::{HISTORY_EVERY, History};
use bywash_series::{Ack, PreparedDb, Retention, SeriesDb, SeriesError, SeriesOptions};
use object_store::ObjectStore;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::data_dir::DataDir;
use super::origin;
use super::settings::{BucketSettings, Settings};
use crate::failure::Failure;
use crate::size;

/// Names of the databases: their folders, in the data folder and in a bucket.
pub(crate) const SERIES: &str = "series";
pub(crate) const HISTORY: &str = "history";

/// Default max size of the server's own history on disk: years for a few buckets.
const HISTORY_BYTES: u64 = 1 << 30;
/// Each database may use the memory limit divided by this.
const MEMORY_SHARE: u64 = 16;
/// Bucket of the history's data files.
const HISTORY_BUCKET: &str = "bywash-history";
/// Suffix of the message of a rejected write.
const HISTORY_ONLY_READ: &str =
    "it is the server's own history, which the server alone writes; write to another bucket";
/// Max time for the databases to flush and close after the servers have ended.
pub(super) const CLOSE_DEADLINE: Duration = Duration::from_secs(3);
/// Max time of that for a flush. Then the rows stay in the log.
const FLUSH_DEADLINE: Duration = Duration::from_secs(2);

/// Retention of both databases.
#[derive(Debug, Clone, Copy)]
pub(super) struct DatabaseRetention {
    /// Retention of the server's own history; `None` disables it.
    history: Option<Retention>,
    /// Retention of values sent by clients.
    series: Retention,
}

impl DatabaseRetention {
    /// Parses the settings. Retention drops whole files: see [`Retention`].
    pub(super) fn parse(
        no_history: bool,
        history_size: Option<String>,
        series_age: Option<String>,
        series_size: Option<String>,
    ) -> Result<Self, Failure> {
        let bytes = |option: &str, text: Option<String>| {
            let bytes = text.map(|text| size::parse(&text)).transpose();
            bytes.map_err(|wrong| Failure::usage(format!("{option}: {wrong}")))
        };
        let history = Retention {
            age: None,
            bytes: bytes("--history-size", history_size)?.or(Some(HISTORY_BYTES)),
        };
        let age = series_age.map(|text| parse_duration(&text)).transpose();
        let series = Retention {
            age: age.map_err(|wrong| Failure::usage(format!("--series-age: {wrong}")))?,
            bytes: bytes("--series-size", series_size)?,
        };
        Ok(Self {
            history: (!no_history).then_some(history),
            series,
        })
    }
}

/// Options of the database for values sent by clients.
fn series_options(engine: &Engine, retention: Retention) -> SeriesOptions {
    SeriesOptions {
        memtable_bytes: Some(engine.budget().limit() / MEMORY_SHARE),
        wal_bytes: 256 << 20,
        segment_bytes: 4 << 20,
        retention,
        ..SeriesOptions::default()
    }
}

/// Options of the history's database.
fn history_options(engine: &Engine, retention: Retention) -> SeriesOptions {
    SeriesOptions {
        // Losing the last point before a kill is acceptable.
        ack: Ack::Memory,
        // So is dropping a point that would have to wait.
        write_timeout: Duration::ZERO,
        memtable_bytes: Some(engine.budget().limit() / MEMORY_SHARE),
        wal_bytes: 32 << 20,
        segment_bytes: 1 << 20,
        retention,
        ..SeriesOptions::default()
    }
}

/// The open databases of a server.
#[derive(Debug)]
pub(super) struct Databases {
    /// Values of clients; `None` if their database is damaged.
    pub(super) series: Option<SeriesDb>,
    /// The server's own history, if it is enabled and its database is not damaged.
    pub(super) history: Option<History>,
    /// Whether values are flushed at the end, for a server elsewhere.
    in_bucket: bool,
    /// Records the history. Dropping the sender records the last point.
    recorder: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Databases {
    /// Opens the databases; the history only if it is enabled. Replays the logs of a killed server.
    ///
    /// Takes no store from another server before both are prepared. The history's is taken first:
    /// should it fail then, values are still written there.
    pub(super) async fn open(
        data: &DataDir,
        engine: &Engine,
        settings: &Settings,
    ) -> Result<Self, Failure> {
        let retention = &settings.retention;
        let options = series_options(engine, retention.series);
        let place = Place::new(SERIES, data, settings);
        let series = place.prepare(engine, options).await;
        let series = place.unless_damaged(engine, series)?;
        let history = match retention.history {
            None => None,
            Some(retention) => {
                let options = history_options(engine, retention);
                let place = Place::new(HISTORY, data, settings);
                let prepared = place.prepare(engine, options).await;
                let prepared = place.unless_damaged(engine, prepared)?;
                mount(engine, place.origin()?)?;
                place.take_over(engine, prepared).await?.map(History::new)
            }
        };
        Ok(Self {
            series: place.take_over(engine, series).await?,
            history,
            in_bucket: settings.series_bucket.is_some(),
            recorder: None,
        })
    }

    /// Records the history of `engine` until [`Self::close`].
    pub(super) fn record(&mut self, engine: &Engine) {
        let record = |history: &History| {
            let (stop, stopped) = oneshot::channel::<()>();
            let stopped = async {
                // Both a message and a dropped sender end it.
                let _ = stopped.await;
            };
            let recording = history
                .clone()
                .record(engine.clone(), HISTORY_EVERY, stopped);
            (stop, tokio::spawn(recording))
        };
        self.recorder = self.history.as_ref().map(record);
    }

    /// Closes the databases after the servers have ended and the last point of the history is recorded. The history
    /// is flushed, so that its bucket is complete at the next start, and so are values whose files are in a bucket. Other
    /// values may stay in their log.
    pub(super) async fn close(self) {
        let close_series = async {
            let Some(series) = &self.series else {
                return;
            };
            if self.in_bucket {
                flushed("values", series).await;
            }
            closed("series", series).await;
        };
        let close_history = async {
            if let Some((stop, recorder)) = self.recorder {
                drop(stop);
                if let Err(error) = recorder.await {
                    tracing::warn!(%error, "the server's history ended early");
                }
            }
            if let Some(history) = &self.history {
                flushed("server's history", history.db()).await;
                closed("history", history.db()).await;
            }
        };
        let close = async { tokio::join!(close_series, close_history) };
        if tokio::time::timeout(CLOSE_DEADLINE, close).await.is_err() {
            tracing::warn!(
                "series were not closed within {CLOSE_DEADLINE:?}; the next start reads them from their logs"
            );
        }
    }
}

async fn flushed(name: &str, db: &SeriesDb) {
    match tokio::time::timeout(FLUSH_DEADLINE, db.flush()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            let error = error.with_causes();
            tracing::warn!(error, "the {name} were not flushed; they stay in their log");
        }
        Err(_) => tracing::warn!(
            "the {name} were not flushed within {FLUSH_DEADLINE:?}; they stay in their log"
        ),
    }
}

async fn closed(name: &str, db: &SeriesDb) {
    if let Err(error) = db.close().await {
        tracing::warn!(%error, "the {name} did not close well; the next start reads them from their log");
    }
}

/// Why a database is not open.
#[derive(Debug)]
enum OpenError {
    /// Its own files are damaged: nothing else depends on them.
    Damaged(Failure),
    Other(Failure),
}

impl From<Failure> for OpenError {
    fn from(failure: Failure) -> Self {
        Self::Other(failure)
    }
}

/// Location of a database: its folder with the log, and its files next to the log or in a bucket.
struct Place<'a> {
    name: &'static str,
    folder: PathBuf,
    root: PathBuf,
    settings: &'a Settings,
}

impl<'a> Place<'a> {
    fn new(name: &'static str, data: &DataDir, settings: &'a Settings) -> Self {
        Self {
            name,
            folder: data.database(name),
            root: data.buckets(),
            settings,
        }
    }

    /// Prepares the database: its log is replayed, and its files stay with their writer.
    async fn prepare(
        &self,
        engine: &Engine,
        options: SeriesOptions,
    ) -> Result<PreparedDb, OpenError> {
        let (store, options) = match &self.settings.series_bucket {
            None => (self.folder_store()?, options),
            Some(bucket) => {
                let options = SeriesOptions {
                    shared_store: true,
                    ..options
                };
                (bucket.store(bucket.open(engine)?, self.name), options)
            }
        };
        let budget = engine.budget().clone();
        let prepared = SeriesDb::prepare(store, log(&self.folder), budget, options).await;
        prepared.map_err(|error| self.error(error))
    }

    /// Opens a database that was prepared. `None` if it is damaged, which was noted.
    async fn take_over(
        &self,
        engine: &Engine,
        prepared: Option<PreparedDb>,
    ) -> Result<Option<SeriesDb>, Failure> {
        let Some(prepared) = prepared else {
            return Ok(None);
        };
        let opened = prepared.take_over().await;
        self.unless_damaged(engine, opened.map_err(|error| self.error(error)))
    }

    /// Returns the opened database. A damaged database is noted, and the server continues without
    /// it.
    fn unless_damaged<T>(
        &self,
        engine: &Engine,
        opened: Result<T, OpenError>,
    ) -> Result<Option<T>, Failure> {
        match opened {
            Ok(opened) => Ok(Some(opened)),
            Err(OpenError::Other(failure)) => Err(failure),
            Err(OpenError::Damaged(failure)) => {
                let effect = match self.name {
                    HISTORY => "the server keeps no history of its own counters",
                    _ => "values of clients are neither written nor read",
                };
                engine.note_damage(DamagedFile {
                    file: self.folder.display().to_string(),
                    reason: failure.message,
                    effect: format!("{effect}, until the next start without the damage"),
                });
                Ok(None)
            }
        }
    }

    /// Sorts the error of a database. A log that belongs to other files is damage in the data folder; with files in a bucket, the
    /// bucket may be another server's.
    fn error(&self, error: SeriesError) -> OpenError {
        let is_damage = match &error {
            SeriesError::DamagedFile { .. } | SeriesError::DamagedLog { .. } => true,
            SeriesError::Log { .. } | SeriesError::ForeignLog { .. } => {
                self.settings.series_bucket.is_none()
            }
            _ => false,
        };
        let failure = self.failure(error);
        if is_damage {
            OpenError::Damaged(failure)
        } else {
            OpenError::Other(failure)
        }
    }

    /// Opens the store of files next to the log.
    fn folder_store(&self) -> Result<Arc<dyn ObjectStore>, Failure> {
        let files = files(&self.folder);
        std::fs::create_dir_all(&files).map_err(|error| self.unusable(&error))?;
        let store = FolderStore::open(files).map_err(|error| self.unusable(&error))?;
        Ok(Arc::new(store))
    }

    fn unusable(&self, error: &dyn std::fmt::Display) -> Failure {
        Failure::failed(format!("cannot use {}: {error}", self.folder.display()))
    }

    fn failure(&self, error: SeriesError) -> Failure {
        let Some(bucket) = &self.settings.series_bucket else {
            return self.unusable(&error);
        };
        let what = format!("cannot keep {} in --series-bucket {bucket}", self.name);
        match error {
            SeriesError::Store { ref source, .. } => Failure::store(what, source),
            SeriesError::ForeignLog { .. } => Failure::failed(format!(
                "{what}: {error}; to continue in the bucket with the rows of the data folder, copy the files there first \
                 (bywash sync {} ...)",
                files(&self.folder).display()
            )),
            error => Failure::failed(format!("{what}: {error}")),
        }
    }

    /// Opens the origin of the data files alone.
    fn origin(&self) -> Result<Arc<dyn Origin>, Failure> {
        let settings = match &self.settings.series_bucket {
            None => BucketSettings::new(self.name, OriginUrl::File(files(&self.folder))),
            Some(bucket) => bucket.settings_of(self.name, &self.settings.buckets, &self.root),
        };
        if let OriginUrl::File(folder) = &settings.url {
            std::fs::create_dir_all(folder).map_err(|error| {
                Failure::io(format!("cannot make {}", folder.display()), &error)
            })?;
        }
        origin(&settings)
    }
}

/// Mounts the history's data files as a read-only bucket.
fn mount(engine: &Engine, files: Arc<dyn Origin>) -> Result<(), Failure> {
    let mounted = engine.mount(
        HISTORY_BUCKET,
        Arc::new(ReadOnly::because(HISTORY_ONLY_READ, files)),
        Consistency::default(),
    );
    mounted.map(|_| ()).map_err(|error| match error {
        EngineError::BucketExists(_) => Failure::usage(format!(
            "the name {HISTORY_BUCKET} belongs to the server's own history; give the bucket another name, or --no-history"
        )),
        other => Failure::failed(other.to_string()),
    })
}

/// Folder of a database's data files.
pub(crate) fn files(folder: &Path) -> PathBuf {
    folder.join("files")
}

/// Folder of a database's log.
pub(crate) fn log(folder: &Path) -> PathBuf {
    folder.join("log")
}

#[cfg(test)]
mod tests;
