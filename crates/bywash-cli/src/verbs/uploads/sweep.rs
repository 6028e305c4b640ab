//! `bywash uploads sweep`: drops uploads without progress for long.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use bywash::origin::SessionToken;
use bywash::time::parse_duration;
use bywash::upload::journal::{Header, JournalError, ListedUpload};
use bywash::{Bucket, OriginUrl};
use bywash_console::ListedUploads;
use bywash_gateway::{GcsSessionTokens, gcs_session_tokens, open_uploads};
use chrono::Utc;

use super::{drop_upload, journal, take};
use crate::admin::AdminClient;
use crate::failure::{Failure, Kind};
use crate::serve::data_dir::{GCS_SESSIONS, MULTIPART};

/// Default age: the longest lifetime of sessions at the stores.
const DEFAULT_AGE: &str = "7d";

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Min age, as 7d, 12h, 30m or 90s: uploads written to since then stay. S3 reports only when an upload began
    #[arg(long, value_name = "AGE", default_value = DEFAULT_AGE, value_parser = parse_duration)]
    older_than: Duration,
    /// Origins to search for uploads that are in no journal, besides the folders that the journal names. Uploads of the same age
    /// of other data folders are dropped too; at s3:// also those of other programs
    #[arg(value_name = "URL")]
    origins: Vec<OriginUrl>,
}

pub(super) async fn run(args: &super::Args, sweep: &Args) -> Result<(), Failure> {
    let journal_of = args.journal();
    let endpoint = args.endpoint();
    // Origins to search, by name.
    let mut origins = BTreeMap::new();
    let mut failed = Vec::new();
    for url in &sweep.origins {
        let bucket = endpoint.bucket(url)?;
        origins.insert(url.to_string(), bucket);
    }
    for listed in journal_of.list().map_err(|error| journal(&error))? {
        let Ok(content) = &listed.content else {
            failed.push(format!("{} is left: its file is damaged", listed.id));
            continue;
        };
        // A store may have uploads of other programs that look like ours: it is searched only on request.
        if let Some(name) = own_folder(&content.header) {
            match endpoint.of_upload(&content.header) {
                Ok(bucket) => _ = origins.entry(name).or_insert(bucket),
                Err(failure) => failed.push(failure.message),
            }
        }
        if !listed.alive && is_old(&listed, sweep.older_than) {
            let url = content.header.url.clone();
            let dropped = match take(&journal_of, &listed.id).await {
                Ok(entry) => drop_upload(args, entry).await,
                Err(failure) => Err(failure),
            };
            match dropped {
                Ok(()) => print(args, Some(&listed.id), &url)?,
                Err(failure) => failed.push(failure.message),
            }
        }
    }
    for (file, reason) in resumable(args)?.damaged {
        let file = file.display();
        failed.push(format!(
            "{file} is left: {reason}; the server removes it in a week"
        ));
    }
    for (name, bucket) in &origins {
        if let Err(failure) = orphans(args, sweep, name, bucket).await {
            failed.push(failure.message);
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    Err(Failure::failed(format!(
        "some uploads were not swept: {}",
        failed.join("; ")
    )))
}

/// Aborts old sessions of an origin that no journal has.
async fn orphans(
    args: &super::Args,
    sweep: &Args,
    name: &str,
    bucket: &Bucket,
) -> Result<(), Failure> {
    let failed = |error| Failure::store(format!("cannot sweep {name}"), &error);
    let sessions = bucket.open_sessions().await.map_err(failed)?;
    // Read after listing the sessions: the journal then includes copies that began during the
    // listing.
    let mut known = known(args)?;
    known.extend(of_server(args).await?);
    for open in sessions {
        let idle = (Utc::now() - open.modified).to_std().unwrap_or_default();
        let is_known = known.iter().any(|token| bucket.is_session(&open, token));
        if idle >= sweep.older_than && !is_known {
            bucket.abort_session(&open).await.map_err(failed)?;
            print(args, None, &format!("{name}/{}", open.object))?;
        }
    }
    Ok(())
}

/// Sessions in the data folder: of copies, and of clients of `bywash serve`.
fn known(args: &super::Args) -> Result<Vec<SessionToken>, Failure> {
    let copies = args.journal().list().map_err(|error| journal(&error))?;
    let mut known = Vec::new();
    for listed in copies {
        match listed.content {
            Ok(content) => known.push(content.header.session),
            // It cannot be resumed, so its parts at the store are an orphan.
            Err(JournalError::Damaged { .. }) if !listed.alive => {}
            Err(error) => return Err(journal(&error)),
        }
    }
    let clients = open_uploads(&args.data_dir.join(MULTIPART)).map_err(|error| {
        Failure::failed(format!(
            "cannot list the open uploads of the server, so none is dropped: {error}"
        ))
    })?;
    known.extend(clients.into_iter().map(|open| SessionToken(open.id)));
    // A damaged one cannot be continued, so its parts at the store are an orphan.
    known.extend(resumable(args)?.tokens);
    Ok(known)
}

/// Resumable sessions of clients of `bywash serve`.
fn resumable(args: &super::Args) -> Result<GcsSessionTokens, Failure> {
    gcs_session_tokens(&args.data_dir.join(GCS_SESSIONS)).map_err(|error| {
        Failure::failed(format!(
            "cannot list the resumable sessions of the server, so none is dropped: {error}"
        ))
    })
}

/// Uploads of S3 clients that the running server of the data folder knows: in a cluster, the
/// uploads of all nodes, which are in no folder. None if no server runs.
async fn of_server(args: &super::Args) -> Result<Vec<SessionToken>, Failure> {
    let Ok(server) = AdminClient::find(&args.data_dir, None) else {
        return Ok(Vec::new());
    };
    let listed: ListedUploads = match server.get("/uploads", &[]).await {
        Err(failure) if failure.kind == Kind::Unreachable => return Ok(Vec::new()),
        listed => listed?,
    };
    if listed.partial {
        return Err(Failure::failed(format!(
            "the server at {} cannot list all open uploads of its cluster, so none is dropped",
            server.address()
        )));
    }
    let sessions = listed.newest.into_iter().filter_map(|open| open.session);
    Ok(sessions.map(SessionToken).collect())
}

fn print(args: &super::Args, id: Option<&str>, url: &str) -> Result<(), Failure> {
    let line = serde_json::json!({"id": id, "url": url, "ok": true});
    args.output.line(&line, || format!("{url}: dropped"))
}

fn is_old(listed: &ListedUpload, age: Duration) -> bool {
    SystemTime::now()
        .duration_since(listed.modified)
        .is_ok_and(|idle| idle >= age)
}

/// The folder that is the origin of a journaled upload. All open uploads in it are Bywash's.
fn own_folder(header: &Header) -> Option<String> {
    let folder = header.endpoint.as_ref()?;
    (header.url.starts_with("file://") && folder.starts_with("file://")).then(|| folder.clone())
}
