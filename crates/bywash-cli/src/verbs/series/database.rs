//! Source of series: a running server, a database folder without a server, or the files that a server keeps in a bucket.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bywash::origin::folder::FolderStore;
use bywash::{Bucket, Engine, OriginUrl};
use bywash_console::{Content, InsertError, SeriesRequest, SeriesRequestError, insert_lines};
use bywash_series::{SeriesDb, SeriesError, SeriesNames, SeriesOptions, SeriesPoints};
use object_store::prefix::PrefixStore;
use reqwest::Method;
use serde::de::DeserializeOwned;

use super::{Name, Row};
use crate::admin::AdminClient;
use crate::endpoint::{Endpoint, Remote};
use crate::failure::{Failure, Kind};
use crate::serve::data_dir::DEFAULT_DATA_DIR;
use crate::serve::databases;

/// Max manifests read for one result: each time a file is gone, its server has written another.
const SNAPSHOTS: u32 = 5;
/// Memory for opening a folder: more than a server's log needs.
const FOLDER_MEMORY: u64 = 1 << 30;

#[derive(Debug, clap::Args)]
pub(crate) struct DatabaseArgs {
    /// The server's data folder, which has its address and key
    #[arg(long, global = true, value_name = "DIR", env = "BYWASH_DATA_DIR", default_value = DEFAULT_DATA_DIR)]
    data_dir: PathBuf,
    /// Not a server but a database's own folder, as DATA-DIR/series or DATA-DIR/history; no server may use it
    #[arg(long, global = true, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Not a server but its files in a bucket, where --series-bucket keeps them: s3://bucket/prefix, gs://, az:// or a folder. Read only,
    /// also beside a running server; values that it has not flushed yet are missing
    #[arg(long, global = true, value_name = "URL", conflicts_with = "folder")]
    at: Option<String>,
    #[command(flatten)]
    remote: Remote,
}

pub(super) enum Database {
    Server(AdminClient),
    Folder(SeriesDb),
    Files(Files),
}

impl Database {
    pub(super) async fn open(args: &DatabaseArgs) -> Result<Self, Failure> {
        match (&args.at, &args.folder) {
            (Some(url), _) => Ok(Self::Files(Files::new(url, &args.remote)?)),
            (None, Some(folder)) => Ok(Self::Folder(open_folder(folder).await?)),
            (None, None) => Ok(Self::Server(AdminClient::find(&args.data_dir, None)?)),
        }
    }

    /// Closes the database: rows written to a folder are in its log or files.
    pub(super) async fn close(self) -> Result<(), Failure> {
        match self {
            Self::Server(_) | Self::Files(_) => Ok(()),
            Self::Folder(db) => db.close().await.map_err(|error| failed(&error)),
        }
    }

    pub(super) async fn write(&self, lines: Vec<u8>, precision: &str) -> Result<(), Failure> {
        match self {
            Self::Server(server) => {
                let query = [("precision", precision)];
                let request = server.request(Method::POST, "/write", &query)?;
                server.send(request.body(lines)).await.map(|_| ())
            }
            Self::Files(files) => Err(Failure::usage(format!(
                "{} is read only here: its server alone writes to it; write to the server, or to --folder",
                files.url
            ))),
            Self::Folder(db) => {
                let (db, precision) = (db.clone(), precision.to_owned());
                let inserted =
                    tokio::task::spawn_blocking(move || insert_lines(&db, &lines, &precision))
                        .await
                        .map_err(|error| Failure::failed(error.to_string()))?;
                inserted.map_err(|error| {
                    let kind = match error {
                        InsertError::Precision | InsertError::Refused(_) => Kind::Usage,
                        InsertError::Database(_) => Kind::Failed,
                    };
                    Failure::new(kind, error.to_string())
                })
            }
        }
    }

    pub(super) async fn list(&self, request: &SeriesRequest) -> Result<Vec<Name>, Failure> {
        match self {
            Self::Server(server) => rows_of(server, "/series/list", request).await,
            Self::Folder(db) => {
                let names = request.list(db).await;
                Ok(names_of(&names.map_err(|error| refused(&error))?))
            }
            Self::Files(files) => {
                files
                    .read(request, async |db| Ok(names_of(&request.list(db).await?)))
                    .await
            }
        }
    }

    pub(super) async fn query(&self, request: &SeriesRequest) -> Result<Vec<Row>, Failure> {
        match self {
            Self::Server(server) => rows_of(server, "/series/query", request).await,
            Self::Folder(db) => {
                let found = request.query(db).await;
                Ok(points_of(&found.map_err(|error| refused(&error))?))
            }
            Self::Files(files) => {
                files
                    .read(request, async |db| Ok(points_of(&request.query(db).await?)))
                    .await
            }
        }
    }
}

fn names_of(names: &SeriesNames) -> Vec<Name> {
    let name = |(source, metric): (&str, &str)| Name {
        source: source.to_owned(),
        metric: metric.to_owned(),
    };
    names.iter().map(name).collect()
}

fn points_of(found: &[SeriesPoints]) -> Vec<Row> {
    let rows = found.iter().flat_map(|series| {
        series.points.iter().map(|point| Row {
            source: series.source.to_string(),
            metric: series.metric.to_string(),
            timestamp: point.timestamp,
            value: point.value,
        })
    });
    rows.collect()
}

fn refused(error: &SeriesRequestError) -> Failure {
    Failure::usage(error.to_string())
}

/// Files of a server's databases in a bucket.
pub(super) struct Files {
    url: OriginUrl,
    bucket: Bucket,
    engine: Engine,
}

impl Files {
    fn new(url: &str, remote: &Remote) -> Result<Self, Failure> {
        let url: OriginUrl = url
            .parse()
            .map_err(|error: bywash::OriginUrlError| Failure::usage(format!("--at: {error}")))?;
        let endpoint = Endpoint::with_short_deadline(remote);
        Ok(Self {
            bucket: endpoint.bucket(&url)?,
            engine: endpoint.engine()?.clone(),
            url,
        })
    }

    /// Returns the results of `read` for the databases of values and of history, as they are now.
    async fn read<T>(
        &self,
        request: &SeriesRequest,
        read: impl AsyncFn(&SeriesDb) -> Result<Vec<T>, SeriesRequestError>,
    ) -> Result<Vec<T>, Failure> {
        let mut attempts = 1;
        loop {
            let result = self.read_once(request, &read).await;
            match result {
                // The server has since merged or dropped a file: the next manifest names others.
                Err(error) if is_gone(&error) && attempts < SNAPSHOTS => attempts += 1,
                Err(error) => return Err(self.failure(error)),
                Ok(found) => return found.ok_or_else(|| self.failure(missing())),
            }
        }
    }

    /// Returns `None` if there is no database.
    async fn read_once<T>(
        &self,
        request: &SeriesRequest,
        read: &impl AsyncFn(&SeriesDb) -> Result<Vec<T>, SeriesRequestError>,
    ) -> Result<Option<Vec<T>>, SeriesRequestError> {
        let mut found = None;
        let all = [
            (databases::SERIES, Content::Values),
            (databases::HISTORY, Content::History),
        ];
        for (name, content) in all {
            let store = Arc::new(PrefixStore::new(self.bucket.clone(), name));
            match SeriesDb::open_to_read(store, self.engine.budget().clone()).await {
                Err(SeriesError::NoDatabase) => {}
                Err(error) => return Err(error.into()),
                Ok(db) => {
                    let found = found.get_or_insert_with(Vec::new);
                    if request.concerns(content) {
                        found.extend(read(&db).await?);
                    }
                }
            }
        }
        Ok(found)
    }

    fn failure(&self, error: SeriesRequestError) -> Failure {
        let what = format!("cannot read series at {}", self.url);
        match error {
            SeriesRequestError::Request(reason) => Failure::usage(reason),
            SeriesRequestError::Database(SeriesError::NoDatabase) => Failure::new(
                Kind::NotFound,
                format!("{what}: there is no database; give the place of --series-bucket"),
            ),
            SeriesRequestError::Database(SeriesError::Store { source, .. }) => {
                Failure::store(what, &source)
            }
            error => Failure::failed(format!("{what}: {error}")),
        }
    }
}

fn missing() -> SeriesRequestError {
    SeriesError::NoDatabase.into()
}

/// Whether a file is gone that the manifest named when it was read.
fn is_gone(error: &SeriesRequestError) -> bool {
    matches!(
        error,
        SeriesRequestError::Database(SeriesError::MissingFile { .. })
    )
}

async fn open_folder(folder: &Path) -> Result<SeriesDb, Failure> {
    if !databases::files(folder).is_dir() {
        return Err(Failure::new(
            Kind::NotFound,
            format!(
                "{} holds no series; give DATA-DIR/series or DATA-DIR/history of a server",
                folder.display()
            ),
        ));
    }
    let engine = Engine::builder().memory(FOLDER_MEMORY).build();
    let engine = engine.map_err(|error| Failure::failed(error.to_string()))?;
    let store = FolderStore::open(databases::files(folder))
        .map_err(|error| Failure::store(folder.display(), &error))?;
    let opened = SeriesDb::open(
        Arc::new(store),
        databases::log(folder),
        engine.budget().clone(),
        SeriesOptions::default(),
    )
    .await;
    opened.map_err(|error| failed(&error))
}

fn failed(error: &SeriesError) -> Failure {
    Failure::failed(error.to_string())
}

/// Queries a running server through its admin address.
async fn rows_of<T: DeserializeOwned>(
    server: &AdminClient,
    path: &str,
    request: &SeriesRequest,
) -> Result<Vec<T>, Failure> {
    let given = [
        ("source", request.source.as_deref()),
        ("metric", request.metric.as_deref()),
        ("start", request.start.as_deref()),
        ("end", request.end.as_deref()),
        ("step", request.step.as_deref()),
        ("agg", request.agg.as_deref()),
        // JSON has neither NaN nor infinity.
        ("format", Some("csv")),
    ];
    let query: Vec<_> = given
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        .collect();
    let request = server.request(Method::GET, path, &query)?;
    let body = server.send(request).await?;
    let rows = csv::Reader::from_reader(&body[..])
        .into_deserialize()
        .collect::<Result<_, _>>();
    rows.map_err(|error| {
        Failure::failed(format!(
            "the response of {} is no table: {error}",
            server.address()
        ))
    })
}
