//! `bywash cp`: one object or file to another place.
//!
//! A [`Source`] reads parts ahead, in parallel where it can; the sink stores them: a file is
//! written beside its place and renamed, an object larger than one part becomes a multipart upload
//! with several parts in flight. Nothing is visible at the destination before all of it is there.

use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use indicatif::ProgressBar;
use object_store::path::Path;
use object_store::{
    MultipartUpload, ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload,
    PutResult,
};
use serde::Serialize;
use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;

use crate::cat::to_stdout;
use crate::failure::Failure;
use crate::location::{Location, Remote, one_object};
use crate::output::Output;
use crate::progress::{bar, or_interrupt};
use crate::source::{Source, ahead};

/// S3's limit for a copy in one request.
const SERVER_COPY_MAX_BYTES: u64 = 5 << 30;
/// How long a failed upload tries to take its parts back before the program gives up on it.
const ABORT_TIMEOUT: Duration = Duration::from_secs(10);

/// Copy one object or file
///
/// A destination that is a folder, a bucket or ends in / gets the source's name. Objects keep
/// their content headers and metadata.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// s3://bucket/key, a file path, or - for standard input
    #[arg(value_name = "SRC")]
    source: Location,
    /// s3://bucket/key, a file path, or - for standard output
    #[arg(value_name = "DST")]
    destination: Location,
    #[command(flatten)]
    remote: Remote,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Serialize)]
struct Copied {
    source: String,
    destination: String,
    /// Absent when the endpoint copied by itself.
    bytes: Option<u64>,
    seconds: f64,
    e_tag: Option<String>,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let destination = resolve(args.destination, &args.source)?;
    if same_place(&args.source, &destination) {
        return Err(Failure::usage(format!(
            "{} would be copied onto itself",
            args.source
        )));
    }
    let start = Instant::now();
    let (bytes, e_tag) = match server_copy(&args.source, &destination, &args.remote).await? {
        true => (None, None),
        false => {
            let mut source = or_interrupt(Source::open(&args.source, None, &args.remote)).await?;
            let bar = bar(source.bytes, destination.to_string(), args.output);
            let stored = store(&mut source, &destination, &args.remote, &bar).await;
            if stored.is_ok() {
                bar.finish()
            } else {
                bar.abandon()
            }
            let (bytes, e_tag) = stored?;
            (Some(bytes), e_tag)
        }
    };
    let copied = Copied {
        source: args.source.to_string(),
        destination: destination.to_string(),
        bytes,
        seconds: start.elapsed().as_secs_f64(),
        e_tag,
    };
    match destination {
        Location::Stdio => args.output.summary(&copied),
        _ if args.output.json => args.output.line(&copied, String::new),
        _ => Ok(()),
    }
}

/// Gives a destination that is a folder the source's name.
fn resolve(destination: Location, source: &Location) -> Result<Location, Failure> {
    let into_folder = match &destination {
        Location::Stdio => false,
        Location::File(path) => path.is_dir() || path.to_string_lossy().ends_with('/'),
        Location::S3 { key, .. } => key.is_empty() || key.ends_with('/'),
    };
    if !into_folder {
        return Ok(destination);
    }
    let name = source.file_name().ok_or_else(|| {
        Failure::usage(format!(
            "{destination} is a folder, and {source} has no name to give; write the whole name"
        ))
    })?;
    Ok(match destination {
        Location::File(path) => Location::File(path.join(name)),
        Location::S3 { bucket, key } => Location::S3 {
            bucket,
            key: format!("{key}{name}"),
        },
        Location::Stdio => Location::Stdio,
    })
}

fn same_place(source: &Location, destination: &Location) -> bool {
    match (source, destination) {
        (Location::File(a), Location::File(b)) => {
            matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
        }
        (Location::S3 { .. }, Location::S3 { .. }) => source == destination,
        _ => false,
    }
}

/// Lets the endpoint copy within a bucket by itself. `false` if this is no such copy.
async fn server_copy(
    source: &Location,
    destination: &Location,
    remote: &Remote,
) -> Result<bool, Failure> {
    let (
        Location::S3 {
            bucket: from_bucket,
            key: from,
        },
        Location::S3 { bucket, key: to },
    ) = (source, destination)
    else {
        return Ok(false);
    };
    if from_bucket != bucket {
        return Ok(false);
    }
    let (from, to) = (one_object(bucket, from)?, one_object(bucket, to)?);
    let store = remote.bucket(bucket)?;
    or_interrupt(async {
        let failed =
            |error| Failure::store(format!("cannot copy {source} to {destination}"), &error);
        if store.head(&from).await.map_err(failed)?.size > SERVER_COPY_MAX_BYTES {
            return Ok(false);
        }
        store.copy(&from, &to).await.map_err(failed)?;
        Ok(true)
    })
    .await
}

/// Stores all of `source` at `destination`; returns the bytes, and the new object's ETag.
async fn store(
    source: &mut Source,
    destination: &Location,
    remote: &Remote,
    bar: &ProgressBar,
) -> Result<(u64, Option<String>), Failure> {
    match destination {
        Location::Stdio => Ok((
            or_interrupt(to_stdout(source, |bytes| bar.inc(bytes))).await?,
            None,
        )),
        Location::File(path) => Ok((or_interrupt(to_file(source, path, bar)).await?, None)),
        Location::S3 { bucket, key } => {
            let upload = Upload {
                path: one_object(bucket, key)?,
                store: remote.bucket(bucket)?,
                name: destination.to_string(),
                bar,
            };
            upload.run(source).await
        }
    }
}

/// Writes a file beside `path` and renames it, so that no reader sees half of it. What is there
/// and is no regular file (a pipe, a device) is written to as it is.
async fn to_file(source: &mut Source, path: &FsPath, bar: &ProgressBar) -> Result<u64, Failure> {
    let failed =
        |error: &std::io::Error| Failure::io(format!("cannot write {}", path.display()), error);
    let existing = std::fs::metadata(path).ok();
    if existing.as_ref().is_some_and(|meta| !meta.is_file()) {
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open(path)
            .map_err(|error| failed(&error))?;
        return write_parts(source, file, bar, failed).await;
    }
    // A link stays a link: its target is replaced.
    let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let folder = target
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .map_or_else(|| PathBuf::from("."), PathBuf::from);
    let permissions = existing.map_or_else(default_permissions, |meta| meta.permissions());
    let staged = tempfile::Builder::new()
        .prefix(".bywash-cp-")
        .permissions(permissions)
        .tempfile_in(&folder)
        .map_err(|error| failed(&error))?;
    let file = staged
        .as_file()
        .try_clone()
        .map_err(|error| failed(&error))?;
    let bytes = write_parts(source, file, bar, failed).await?;
    staged
        .persist(&target)
        .map_err(|error| failed(&error.error))?;
    Ok(bytes)
}

/// What `open` gives a new file, before the umask.
fn default_permissions() -> std::fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(0o666)
}

async fn write_parts(
    source: &mut Source,
    file: std::fs::File,
    bar: &ProgressBar,
    failed: impl Fn(&std::io::Error) -> Failure,
) -> Result<u64, Failure> {
    let mut file = tokio::fs::File::from_std(file);
    let mut bytes = 0;
    while let Some(part) = source.next().await? {
        file.write_all(&part)
            .await
            .map_err(|error| failed(&error))?;
        bytes += part.len() as u64;
        bar.inc(part.len() as u64);
    }
    file.flush().await.map_err(|error| failed(&error))?;
    Ok(bytes)
}

/// The storing of one object.
#[derive(Debug)]
struct Upload<'a> {
    store: Arc<dyn ObjectStore>,
    path: Path,
    name: String,
    bar: &'a ProgressBar,
}

impl Upload<'_> {
    fn failed(&self, error: &object_store::Error) -> Failure {
        Failure::store(format!("cannot write {}", self.name), error)
    }

    /// Stores one part in one request, more as a multipart upload.
    async fn run(&self, source: &mut Source) -> Result<(u64, Option<String>), Failure> {
        let (first, second) = or_interrupt(async {
            let first = source.next().await?.unwrap_or_default();
            Ok((first, source.next().await?))
        })
        .await?;
        match second {
            None => or_interrupt(self.whole(first, source)).await,
            Some(second) => self.in_parts([first, second], source).await,
        }
    }

    async fn whole(
        &self,
        content: Bytes,
        source: &Source,
    ) -> Result<(u64, Option<String>), Failure> {
        let bytes = content.len() as u64;
        let options = PutOptions {
            attributes: source.attributes.clone(),
            ..PutOptions::default()
        };
        let put = self
            .store
            .put_opts(&self.path, content.into(), options)
            .await;
        let put = put.map_err(|error| self.failed(&error))?;
        self.bar.inc(bytes);
        Ok((bytes, put.e_tag))
    }

    async fn in_parts(
        &self,
        first: [Bytes; 2],
        source: &mut Source,
    ) -> Result<(u64, Option<String>), Failure> {
        let options = PutMultipartOptions {
            attributes: source.attributes.clone(),
            ..PutMultipartOptions::default()
        };
        let mut upload = or_interrupt(async {
            self.store
                .put_multipart_opts(&self.path, options)
                .await
                .map_err(|error| self.failed(&error))
        })
        .await?;
        let outcome = or_interrupt(self.feed(&mut *upload, first, source)).await;
        if outcome.is_err() {
            // Best effort: the failure that led here is the one to tell.
            match tokio::time::timeout(ABORT_TIMEOUT, upload.abort()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::warn!("{}: parts may be left at the endpoint: {error}", self.name)
                }
                Err(_) => tracing::warn!(
                    "{}: parts may be left at the endpoint: it does not answer",
                    self.name
                ),
            }
        }
        let (bytes, put) = outcome?;
        Ok((bytes, put.e_tag))
    }

    async fn feed(
        &self,
        upload: &mut dyn MultipartUpload,
        first: [Bytes; 2],
        source: &mut Source,
    ) -> Result<(u64, PutResult), Failure> {
        let most = ahead(source.part_bytes);
        let mut first = first.into_iter();
        let mut in_flight = JoinSet::new();
        let mut bytes = 0;
        while let Some(part) = match first.next() {
            Some(part) => Some(part),
            None => source.next().await?,
        } {
            if in_flight.len() >= most {
                self.stored(in_flight.join_next().await)?;
            }
            let length = part.len() as u64;
            bytes += length;
            let put = upload.put_part(PutPayload::from_bytes(part));
            in_flight.spawn(async move { put.await.map(|()| length) });
        }
        while !in_flight.is_empty() {
            self.stored(in_flight.join_next().await)?;
        }
        let put = upload
            .complete()
            .await
            .map_err(|error| self.failed(&error))?;
        Ok((bytes, put))
    }

    /// Takes note of a part that ended.
    fn stored(
        &self,
        part: Option<Result<object_store::Result<u64>, tokio::task::JoinError>>,
    ) -> Result<(), Failure> {
        match part {
            None => Ok(()),
            Some(Ok(Ok(bytes))) => {
                self.bar.inc(bytes);
                Ok(())
            }
            Some(Ok(Err(error))) => Err(self.failed(&error)),
            Some(Err(error)) => Err(Failure::failed(format!(
                "cannot write {}: {error}",
                self.name
            ))),
        }
    }
}
