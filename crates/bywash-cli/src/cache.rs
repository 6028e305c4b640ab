//! `bywash cache`: what a running server has in memory.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use bywash::origin::client_builder;
use bywash::{CachedObject, Changed, Why};
use indicatif::BinaryBytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use url::Url;

use crate::failure::{Failure, Kind};
use crate::output::Output;
use crate::progress::or_interrupt;
use crate::serve::data_dir::{DEFAULT_DATA_DIR, Session};

/// See and change what a running server has in memory
///
/// The server is found by its data folder, or named by --admin-addr.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
    /// The server's data folder
    #[arg(long, global = true, value_name = "DIR", default_value = DEFAULT_DATA_DIR)]
    data_dir: PathBuf,
    /// Address of the server's admin endpoints [default: as the data folder says]
    #[arg(long, global = true, value_name = "HOST:PORT")]
    admin_addr: Option<SocketAddr>,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// List the objects the server knows, with what of each is in memory
    Ls {
        /// s3://bucket or s3://bucket/prefix [default: all buckets]
        #[arg(value_name = "PREFIX")]
        prefix: Option<Place>,
    },
    /// Read objects into the server's memory, up to three quarters of it
    Warm {
        /// s3://bucket or s3://bucket/prefix
        #[arg(value_name = "PREFIX")]
        prefix: Place,
    },
    /// Forget objects, and give their memory back; the origin keeps them
    Drop {
        /// s3://bucket or s3://bucket/prefix
        #[arg(value_name = "PREFIX")]
        prefix: Place,
    },
    /// Tell whether a read would be a hit or a miss, why, and what the object has cost so far
    Why {
        /// s3://bucket/key
        #[arg(value_name = "KEY")]
        key: Place,
    },
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let server = Server::find(&args)?;
    let out = args.output;
    or_interrupt(async {
        match &args.verb {
            Verb::Ls { prefix } => list(&server, prefix.as_ref(), out).await,
            Verb::Warm { prefix } => change(&server, "warm", prefix, out).await,
            Verb::Drop { prefix } => change(&server, "drop", prefix, out).await,
            Verb::Why { key } => why(&server, key, out).await,
        }
    })
    .await
}

/// A bucket of the server, and a key or the beginning of keys in it.
#[derive(Debug, Clone)]
struct Place {
    bucket: String,
    key: String,
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rest = text.strip_prefix("s3://").filter(|rest| !rest.is_empty());
        let rest = rest.ok_or("it is no object of the server; write s3://bucket/prefix")?;
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        Ok(Self {
            bucket: bucket.to_owned(),
            key: key.to_owned(),
        })
    }
}

/// One line of `cache ls`.
#[derive(Debug, Serialize)]
struct Line<'a> {
    bucket: &'a str,
    #[serde(flatten)]
    object: &'a CachedObject,
}

async fn list(server: &Server, prefix: Option<&Place>, out: Output) -> Result<(), Failure> {
    let mut query = Vec::new();
    if let Some(prefix) = prefix {
        query = vec![
            ("bucket", prefix.bucket.as_str()),
            ("prefix", prefix.key.as_str()),
        ];
    }
    let buckets: BTreeMap<String, Vec<CachedObject>> = server.get("/cache", &query).await?;
    for (bucket, objects) in &buckets {
        for object in objects {
            out.line(&Line { bucket, object }, || {
                format!(
                    "{:>12} of {:>12} validated {:>7} ago  s3://{bucket}/{}",
                    BinaryBytes(object.resident_bytes).to_string(),
                    BinaryBytes(object.size).to_string(),
                    age(object),
                    object.key
                )
            })?;
        }
    }
    Ok(())
}

async fn why(server: &Server, key: &Place, out: Output) -> Result<(), Failure> {
    let (bucket, key) = (key.bucket.as_str(), key.key.as_str());
    if key.is_empty() {
        return Err(Failure::usage(format!(
            "s3://{bucket} is a bucket; write s3://{bucket}/key, or list it: bywash cache ls s3://{bucket}"
        )));
    }
    let why: Why = server
        .get("/cache/why", &[("bucket", bucket), ("key", key)])
        .await?;
    out.lines(&why, || {
        let mut lines = vec![format!("{}: s3://{bucket}/{}", why.outcome, why.key)];
        lines.extend(why.reasons.iter().map(|reason| format!("  {reason}")));
        if let Some(object) = &why.object {
            lines.push(format!(
                "  version {}, {} bytes",
                object.version, object.size
            ));
            lines.push(format!(
                "  tier {}, {} bytes of it there",
                why.tier, object.resident_bytes
            ));
            let cost = object.cost;
            lines.push(format!(
                "  cost so far: {} requests to the origin, {} bytes, {} ms",
                cost.requests, cost.bytes, cost.time_ms
            ));
        }
        lines
    })
}

async fn change(
    server: &Server,
    verb: &'static str,
    prefix: &Place,
    out: Output,
) -> Result<(), Failure> {
    let (bucket, prefix) = (&prefix.bucket, &prefix.key);
    let body = serde_json::json!({ "bucket": bucket, "prefix": prefix });
    let changed: Changed = server.post(&format!("/cache/{verb}"), &body).await?;
    out.line(&changed, || {
        let done = if verb == "warm" { "warmed" } else { "dropped" };
        let mut text = format!("{done} {} objects, {}", changed.objects, BinaryBytes(changed.bytes));
        if changed.left_out > 0 {
            text += &format!(
                "; {} left out, for they would push out what was read first (raise --memory of the server)",
                changed.left_out
            );
        }
        text
    })?;
    if changed.failed.is_empty() {
        return Ok(());
    }
    Err(Failure::failed(format!(
        "some objects could not be read: {}",
        changed.failed.join("; ")
    )))
}

fn age(object: &CachedObject) -> String {
    let age = Duration::from_millis(object.validated_ms_ago);
    format!("{:.1}s", age.as_secs_f64())
}

/// The admin endpoints of a running server.
struct Server {
    client: reqwest::Client,
    address: SocketAddr,
    /// Sent with each request; a server that asks for none does not mind.
    session: Option<Session>,
}

/// What the server says when it refuses.
#[derive(Debug, Deserialize)]
struct Refused {
    error: String,
}

impl Server {
    fn find(args: &Args) -> Result<Self, Failure> {
        let session = Session::read(&args.data_dir);
        let (address, session) = match (args.admin_addr, session) {
            (Some(address), session) => (address, session.ok()),
            (None, session) => {
                let session = session?;
                let address = session.admin.ok_or_else(|| {
                    Failure::usage(format!(
                        "{} does not say where its server's admin endpoints are; give --admin-addr, or restart the server",
                        args.data_dir.display()
                    ))
                })?;
                (address, Some(session))
            }
        };
        // No server has them elsewhere, and the key pair must not leave this machine unencrypted.
        if !address.ip().is_loopback() {
            return Err(Failure::usage(format!(
                "--admin-addr {address} is not loopback; run this on the server's machine"
            )));
        }
        let client = client_builder().no_proxy().build();
        let client = client
            .map_err(|error| Failure::failed(format!("cannot make an HTTP client: {error}")))?;
        Ok(Self {
            client,
            address,
            session,
        })
    }

    async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, &str)],
    ) -> Result<T, Failure> {
        let mut url = self.url(path)?;
        url.query_pairs_mut().extend_pairs(query);
        self.send(self.client.get(url)).await
    }

    async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &serde_json::Value,
    ) -> Result<T, Failure> {
        let request = self.client.post(self.url(path)?);
        let request = request.header("content-type", "application/json");
        self.send(request.body(body.to_string())).await
    }

    fn url(&self, path: &str) -> Result<Url, Failure> {
        let url = format!("http://{}{path}", self.address);
        Url::parse(&url).map_err(|error| Failure::usage(format!("{url}: {error}")))
    }

    async fn send<T: DeserializeOwned>(
        &self,
        request: reqwest::RequestBuilder,
    ) -> Result<T, Failure> {
        let request = match &self.session {
            Some(Session { credentials, .. }) => {
                request.basic_auth(&credentials.access_key, Some(&credentials.secret_key))
            }
            None => request,
        };
        let unreachable = |error: reqwest::Error| {
            let text = format!(
                "no server answers at {}: {error}; start one with bywash serve, or give its --data-dir or --admin-addr",
                self.address
            );
            Failure::new(Kind::Unreachable, text)
        };
        let answer = request.send().await.map_err(unreachable)?;
        let status = answer.status();
        let body = answer.bytes().await.map_err(unreachable)?;
        if !status.is_success() {
            let kind = match status.as_u16() {
                401 | 403 => Kind::Denied,
                404 => Kind::NotFound,
                _ => Kind::Failed,
            };
            let said = serde_json::from_slice(&body).map_or_else(
                |_| String::from_utf8_lossy(&body).trim().to_owned(),
                |Refused { error }| error,
            );
            return Err(Failure::new(kind, format!("{}: {said}", self.address)));
        }
        serde_json::from_slice(&body).map_err(|error| {
            let text = format!("{} is no server of this version: {error}", self.address);
            Failure::failed(text)
        })
    }
}
