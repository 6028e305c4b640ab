//! Source of series: a running server, or a database folder without a server.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bywash::Engine;
use bywash::origin::folder::FolderStore;
use bywash_console::{InsertError, SeriesRequest, insert_lines};
use bywash_series::{SeriesDb, SeriesError, SeriesOptions};
use reqwest::Method;
use serde::de::DeserializeOwned;

use super::{Name, Row};
use crate::admin::AdminClient;
use crate::failure::{Failure, Kind};
use crate::serve::data_dir::DEFAULT_DATA_DIR;
use crate::serve::databases;

/// Memory for opening a folder: more than a server's log needs.
const FOLDER_MEMORY: u64 = 1 << 30;

#[derive(Debug, clap::Args)]
pub(crate) struct DatabaseArgs {
    /// The server's data folder, which has its address and key
    #[arg(long, global = true, value_name = "DIR", default_value = DEFAULT_DATA_DIR)]
    data_dir: PathBuf,
    /// Not a server but a database's own folder, as DATA-DIR/series or DATA-DIR/history; no server may use it
    #[arg(long, global = true, value_name = "DIR")]
    folder: Option<PathBuf>,
}

pub(super) enum Database {
    Server(AdminClient),
    Folder(SeriesDb),
}

impl Database {
    pub(super) async fn open(args: &DatabaseArgs) -> Result<Self, Failure> {
        match &args.folder {
            Some(folder) => Ok(Self::Folder(open_folder(folder).await?)),
            None => Ok(Self::Server(AdminClient::find(&args.data_dir, None)?)),
        }
    }

    /// Closes the database: rows written to a folder are in its log or files.
    pub(super) async fn close(self) -> Result<(), Failure> {
        match self {
            Self::Server(_) => Ok(()),
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
                let names = request
                    .list(db)
                    .await
                    .map_err(|error| Failure::usage(error.to_string()))?;
                let name = |(source, metric): (&str, &str)| Name {
                    source: source.to_owned(),
                    metric: metric.to_owned(),
                };
                Ok(names.iter().map(name).collect())
            }
        }
    }

    pub(super) async fn query(&self, request: &SeriesRequest) -> Result<Vec<Row>, Failure> {
        match self {
            Self::Server(server) => rows_of(server, "/series/query", request).await,
            Self::Folder(db) => {
                let found = request
                    .query(db)
                    .await
                    .map_err(|error| Failure::usage(error.to_string()))?;
                let rows = found.iter().flat_map(|series| {
                    series.points.iter().map(|point| Row {
                        source: series.source.to_string(),
                        metric: series.metric.to_string(),
                        timestamp: point.timestamp,
                        value: point.value,
                    })
                });
                Ok(rows.collect())
            }
        }
    }
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
