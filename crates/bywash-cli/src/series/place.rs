//! Where series are: at a running server, or in a folder that no server uses.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use bywash::Engine;
use bywash::origin::folder::FolderStore;
use bywash_console::{InsertError, RefusedLines, SeriesRequest, insert_lines};
use bywash_series::{SeriesDb, SeriesError, SeriesOptions};
use reqwest::{Client, Method, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use url::Url;

use super::{Name, Row};
use crate::failure::{Failure, Kind};
use crate::serve::data_dir::{Credentials, DEFAULT_DATA_DIR, Session};
use crate::serve::keeping;

/// Memory to open a folder with: more than a server's log holds.
const FOLDER_MEMORY: u64 = 1 << 30;

/// How long an answer may take: that of a large export.
const ANSWER_TIME: Duration = Duration::from_secs(300);

#[derive(Debug, clap::Args)]
pub(crate) struct At {
    /// The server's data folder: tells where it listens, and its key
    #[arg(long, global = true, value_name = "DIR", default_value = DEFAULT_DATA_DIR)]
    data_dir: PathBuf,
    /// Not a server but a database's own folder, as DATA-DIR/series or DATA-DIR/history; no server may use it
    #[arg(long, global = true, value_name = "DIR")]
    folder: Option<PathBuf>,
}

pub(super) enum Place {
    Server(Server),
    Folder(SeriesDb),
}

impl Place {
    pub(super) async fn open(args: &At) -> Result<Self, Failure> {
        match &args.folder {
            Some(folder) => Ok(Self::Folder(open_folder(folder).await?)),
            None => Ok(Self::Server(Server::of(&args.data_dir)?)),
        }
    }

    /// Ends it well: what was written to a folder is in its log or in its files.
    pub(super) async fn close(self) -> Result<(), Failure> {
        match self {
            Self::Server(_) => Ok(()),
            Self::Folder(db) => db.close().await.map_err(|error| failed(&error)),
        }
    }

    pub(super) async fn write(&self, lines: Vec<u8>, precision: &str) -> Result<(), Failure> {
        match self {
            Self::Server(server) => {
                let url = server.url("/write", [("precision", Some(precision))]);
                server
                    .send(Method::POST, url, lines.into())
                    .await
                    .map(|_| ())
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
            Self::Server(server) => server.rows("/series/list", request).await,
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
            Self::Server(server) => server.rows("/series/query", request).await,
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
    if !keeping::files(folder).is_dir() {
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
    let store = FolderStore::open(keeping::files(folder))
        .map_err(|error| Failure::store(folder.display(), &error))?;
    let opened = SeriesDb::open(
        Arc::new(store),
        keeping::log(folder),
        engine.budget().clone(),
        SeriesOptions::default(),
    )
    .await;
    opened.map_err(|error| failed(&error))
}

fn failed(error: &SeriesError) -> Failure {
    Failure::failed(error.to_string())
}

/// A server that runs, by its admin address.
pub(super) struct Server {
    client: Client,
    admin: String,
    credentials: Credentials,
}

impl Server {
    fn of(data_dir: &Path) -> Result<Self, Failure> {
        let session = Session::read(data_dir)?;
        let admin = session.admin.map(|admin| format!("http://{admin}"));
        let admin = admin.ok_or_else(|| {
            Failure::failed(format!(
                "an older bywash served {}; start it again with this one",
                data_dir.display()
            ))
        })?;
        Ok(Self {
            client: Client::builder()
                .referer(false)
                .timeout(ANSWER_TIME)
                .build()
                .map_err(|error| Failure::failed(format!("cannot make an HTTP client: {error}")))?,
            admin,
            credentials: session.credentials,
        })
    }

    fn url<'a>(
        &self,
        path: &str,
        query: impl IntoIterator<Item = (&'a str, Option<&'a str>)>,
    ) -> Result<Url, Failure> {
        let url: Result<Url, _> = format!("{}{path}", self.admin).parse();
        let mut url =
            url.map_err(|error| Failure::failed(format!("{} is no address: {error}", self.admin)))?;
        let given = query
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)));
        url.query_pairs_mut().extend_pairs(given);
        Ok(url)
    }

    async fn rows<T: DeserializeOwned>(
        &self,
        path: &str,
        request: &SeriesRequest,
    ) -> Result<Vec<T>, Failure> {
        let query = [
            ("source", request.source.as_deref()),
            ("metric", request.metric.as_deref()),
            ("start", request.start.as_deref()),
            ("end", request.end.as_deref()),
            ("step", request.step.as_deref()),
            ("agg", request.agg.as_deref()),
            // Numbers as they are, with those JSON has no word for.
            ("format", Some("csv")),
        ];
        let answer = self
            .send(Method::GET, self.url(path, query), Bytes::new())
            .await?;
        let rows = csv::Reader::from_reader(&answer[..])
            .into_deserialize()
            .collect::<Result<_, _>>();
        rows.map_err(|error| {
            Failure::failed(format!("{} answered what is no table: {error}", self.admin))
        })
    }

    /// The answer's body; anything but success is a failure that says what the server said.
    async fn send(
        &self,
        method: Method,
        url: Result<Url, Failure>,
        body: Bytes,
    ) -> Result<Bytes, Failure> {
        let request = self.client.request(method, url?).basic_auth(
            &self.credentials.access_key,
            Some(&self.credentials.secret_key),
        );
        let unreachable = |error: reqwest::Error| {
            Failure::new(
                Kind::Unreachable,
                format!(
                    "no server answers at {}: {error}; start it, or give --folder",
                    self.admin
                ),
            )
        };
        let answer = request.body(body).send().await.map_err(unreachable)?;
        let status = answer.status();
        let body = answer.bytes().await.map_err(unreachable)?;
        if status.is_success() {
            return Ok(body);
        }
        let kind = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Kind::Denied,
            StatusCode::BAD_REQUEST => Kind::Usage,
            _ => Kind::Failed,
        };
        Err(Failure::new(kind, reason(&body)))
    }
}

/// What `POST /write` answers when it is not about lines.
#[derive(Deserialize)]
struct Refusal {
    message: String,
}

/// Why a request was refused, for people.
fn reason(body: &[u8]) -> String {
    if let Ok(lines) = serde_json::from_slice::<RefusedLines>(body) {
        return lines.to_string();
    }
    let refusal: Result<Refusal, _> = serde_json::from_slice(body);
    refusal.map_or_else(
        |_| String::from_utf8_lossy(body).trim_end().to_owned(),
        |refusal| refusal.message,
    )
}
