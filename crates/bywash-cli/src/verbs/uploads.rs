//! `bywash uploads`: lists, resumes and drops the uploads of killed and failed copies.

mod sweep;

use std::path::PathBuf;

use bywash::upload::Resumed;
use bywash::upload::journal::{Entry, Header, Journal, JournalError, ListedUpload};
use chrono::{DateTime, SecondsFormat, Utc};
use serde::Serialize;

use crate::endpoint::{self, Endpoint, Remote};
use crate::failure::{Failure, Kind};
use crate::interrupt::or_interrupt;
use crate::output::Output;
use crate::progress::resumed_bar;
use crate::serve::data_dir::DEFAULT_DATA_DIR;
use crate::transfer::part::ahead;
use crate::transfer::source::Source;
use crate::transfer::upload;

/// List, resume and drop uploads whose process ended before they were complete
///
/// `bywash cp` records each upload of more than one chunk in the data folder. Once no process works on it, another process can
/// resume it.
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
    /// The data folder of the copies
    #[arg(long, global = true, value_name = "DIR", env = "BYWASH_DATA_DIR", default_value = DEFAULT_DATA_DIR)]
    data_dir: PathBuf,
    #[command(flatten)]
    remote: Remote,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// List open uploads: their progress, and whether a process works on them
    List,
    /// Resume an upload: only bytes that the store does not have are sent
    Resume {
        /// As `list` shows it
        #[arg(value_name = "ID", required_unless_present = "all")]
        id: Option<String>,
        /// Every upload that no process works on
        #[arg(long, conflicts_with = "id")]
        all: bool,
    },
    /// Drop an upload, and its parts at the store
    Abort {
        /// As `list` shows it
        #[arg(value_name = "ID")]
        id: String,
    },
    /// Drop uploads without recent progress, in the data folder and at the stores
    Sweep(sweep::Args),
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    match &args.verb {
        Verb::List => list(&args),
        Verb::Resume { id, all: _ } => Box::pin(resume(&args, id.as_deref())).await,
        Verb::Abort { id } => or_interrupt(abort(&args, id)).await,
        Verb::Sweep(sweep) => or_interrupt(sweep::run(&args, sweep)).await,
    }
}

impl Args {
    fn journal(&self) -> Journal {
        endpoint::journal(&self.data_dir)
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint::new(&self.remote, &self.data_dir)
    }
}

/// One line of `list`.
#[derive(Debug, Serialize)]
struct UploadLine {
    id: String,
    url: Option<String>,
    /// Bytes that the store acknowledged last.
    acknowledged_bytes: u64,
    /// Bytes of the object, if known.
    bytes: Option<u64>,
    started: Option<DateTime<Utc>>,
    /// Whether a process works on it now.
    alive: bool,
    process: Option<u32>,
    source: Option<String>,
    /// Whether its bytes can be read again.
    rewindable: bool,
    /// Damage of its file.
    problem: Option<String>,
}

impl UploadLine {
    fn new(listed: ListedUpload) -> Self {
        let ListedUpload {
            id, content, alive, ..
        } = listed;
        match content {
            Ok(content) => Self {
                id,
                acknowledged_bytes: content.progress.offset,
                bytes: content.header.options.length,
                started: Some(content.header.started),
                alive,
                process: alive.then_some(content.process),
                source: source_name(&content.header),
                rewindable: content.header.source.is_some(),
                problem: None,
                url: Some(content.header.url),
            },
            Err(error) => Self {
                id,
                url: None,
                acknowledged_bytes: 0,
                bytes: None,
                started: None,
                alive,
                process: None,
                source: None,
                rewindable: false,
                problem: Some(error.to_string()),
            },
        }
    }

    fn text(&self) -> String {
        let Some(url) = &self.url else {
            let problem = self.problem.as_deref().unwrap_or_default();
            return format!("{}  {problem}", self.id);
        };
        let of = self
            .bytes
            .map_or_else(String::new, |bytes| format!(" of {bytes}"));
        let state = match self.process {
            Some(process) => format!("process {process} works on it"),
            None if self.rewindable => "can be resumed".to_owned(),
            None => "came from a pipe, which cannot be rewound: can only be aborted".to_owned(),
        };
        let started = self.started.unwrap_or_default();
        format!(
            "{}  {}  {}{of} bytes  {url}  ({state})",
            self.id,
            started.to_rfc3339_opts(SecondsFormat::Secs, true),
            self.acknowledged_bytes,
        )
    }
}

fn source_name(header: &Header) -> Option<String> {
    let source = header.source.as_ref()?;
    Some(source.path.display().to_string())
}

fn list(args: &Args) -> Result<(), Failure> {
    for listed in args.journal().list().map_err(|error| journal(&error))? {
        let line = UploadLine::new(listed);
        args.output.line(&line, || line.text())?;
    }
    Ok(())
}

/// One line of `resume`.
#[derive(Debug, Serialize)]
struct Done {
    id: String,
    url: Option<String>,
    /// Bytes that the store had.
    resumed_bytes: u64,
    /// Bytes sent to it now.
    sent_bytes: u64,
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl Done {
    fn text(&self) -> String {
        let name = self.url.as_deref().unwrap_or(&self.id);
        match &self.error {
            None => format!(
                "{name}: complete; the store had {} bytes, {} were sent",
                self.resumed_bytes, self.sent_bytes
            ),
            Some(error) => format!("{name}: {error}"),
        }
    }
}

/// Resumes one upload, or all, and prints a line for each.
async fn resume(args: &Args, id: Option<&str>) -> Result<(), Failure> {
    let journal_of = args.journal();
    let ids = match id {
        Some(id) => vec![id.to_owned()],
        None => {
            let listed = journal_of.list().map_err(|error| journal(&error))?;
            listed.into_iter().map(|listed| listed.id).collect()
        }
    };
    let (count, mut failed) = (ids.len(), Vec::new());
    for id in ids {
        let mut url = None;
        let outcome = Box::pin(resume_one(args, &journal_of, &id, &mut url)).await;
        let (done, failure) = match outcome {
            Ok((resumed_bytes, sent_bytes)) => (
                Done {
                    id,
                    url,
                    resumed_bytes,
                    sent_bytes,
                    ok: true,
                    error: None,
                },
                None,
            ),
            Err(failure) => (
                Done {
                    id,
                    url,
                    resumed_bytes: 0,
                    sent_bytes: 0,
                    ok: false,
                    error: Some(failure.message.clone()),
                },
                Some(failure),
            ),
        };
        // Without JSON a failure of the only upload is printed once, as the verb's own.
        if args.output.json || done.ok || count > 1 {
            args.output.line(&done, || done.text())?;
        }
        failed.extend(failure);
    }
    if failed
        .iter()
        .any(|failure| failure.kind == Kind::Interrupted)
    {
        return Err(Failure::interrupted());
    }
    match failed.len() {
        0 => Ok(()),
        1 if count == 1 => Err(failed.remove(0)),
        some => Err(Failure::new(
            failed.remove(0).kind,
            format!("{some} of {count} uploads could not be resumed"),
        )),
    }
}

/// Returns the bytes that the store had, and the bytes sent now.
async fn resume_one(
    args: &Args,
    journal_of: &Journal,
    id: &str,
    url: &mut Option<String>,
) -> Result<(u64, u64), Failure> {
    let entry = take(journal_of, id).await?;
    let header = entry.header().clone();
    *url = Some(header.url.clone());
    let bucket = args.endpoint().of_upload(&header)?;
    let resumed = or_interrupt(async {
        let resumed = bucket.resume_upload(entry, ahead(header.chunk)).await;
        resumed.map_err(|error| Failure::store(format!("cannot resume {}", header.url), &error))
    });
    let (mut upload, resumed_bytes) = match resumed.await? {
        Resumed::Finished { length, .. } => return Ok((length, 0)),
        Resumed::Open {
            upload,
            resumed_bytes,
        } => (*upload, resumed_bytes),
    };
    let bar = resumed_bar(
        header.options.length,
        resumed_bytes,
        &header.url,
        args.output,
    );
    bar.set_position(upload.position());
    let sent = match &header.source {
        Some(file) => {
            let from = upload.position();
            let mut source = Source::rest_of_file(file.path.clone(), from, header.chunk).await?;
            upload::rest(
                &mut source,
                &mut upload,
                &header.url,
                &header.options.mode,
                Some(file),
                &bar,
            )
            .await
        }
        // All of its bytes were at the store.
        None => {
            or_interrupt(async {
                let finished = upload.finish().await;
                finished.map_err(|error| {
                    Failure::store(format!("cannot finish {}", header.url), &error)
                })
            })
            .await
        }
    };
    bar.finish_and_clear();
    Ok((resumed_bytes, sent?.sent_bytes))
}

async fn abort(args: &Args, id: &str) -> Result<(), Failure> {
    let journal_of = args.journal();
    let entry = match take(&journal_of, id).await {
        Err(failure) if is_damaged(&journal_of, id) => {
            // A damaged file names no session, so only the file can be removed.
            journal_of.forget(id).map_err(|error| journal(&error))?;
            return Err(Failure::failed(format!(
                "{}. The file was removed. To drop its parts at the store, if there are any: bywash uploads sweep --older-than 7d URL",
                failure.message
            )));
        }
        taken => taken?,
    };
    let (url, acknowledged_bytes) = (entry.header().url.clone(), entry.progress().offset);
    drop_upload(args, entry).await?;
    let line =
        serde_json::json!({"id": id, "url": url, "dropped_bytes": acknowledged_bytes, "ok": true});
    args.output.line(&line, || {
        format!("{url}: dropped, with {acknowledged_bytes} bytes at the store")
    })
}

fn is_damaged(journal_of: &Journal, id: &str) -> bool {
    journal_of.list().is_ok_and(|listed| {
        listed.iter().any(|listed| {
            listed.id == id && matches!(listed.content, Err(JournalError::Damaged { .. }))
        })
    })
}

async fn drop_upload(args: &Args, entry: Entry) -> Result<(), Failure> {
    let header = entry.header().clone();
    let bucket = args.endpoint().of_upload(&header)?;
    bucket
        .abort_journaled(entry)
        .await
        .map_err(|error| Failure::store(format!("cannot drop {}", header.url), &error))
}

async fn take(journal_of: &Journal, id: &str) -> Result<Entry, Failure> {
    let (journal_of, id) = (journal_of.clone(), id.to_owned());
    let taken = tokio::task::spawn_blocking(move || journal_of.take(&id)).await;
    let taken =
        taken.map_err(|error| Failure::failed(format!("cannot read the journal: {error}")))?;
    taken.map_err(|error| journal(&error))
}

/// Converts an error of the journal, whose message names file and next step.
fn journal(error: &JournalError) -> Failure {
    let kind = match error {
        JournalError::Unknown { .. } => Kind::NotFound,
        _ => Kind::Failed,
    };
    Failure::new(kind, error.to_string())
}
