//! `bywash cp`: one object or file to another place.
//!
//! A [`Source`] reads parts ahead, in parallel where it can; the sink stores them: a file is written beside its place and
//! renamed, an object goes to an [`Upload`](bywash::upload::Upload) of the engine. Nothing is visible at the destination before
//! all of it is there. An upload of a file that was killed can be taken over: see [`crate::uploads`].

use std::path::{Path as FsPath, PathBuf};
use std::time::Instant;

use indicatif::ProgressBar;
use object_store::ObjectStoreExt;
use serde::Serialize;
use tokio::io::AsyncWriteExt;

use crate::cat::to_stdout;
use crate::failure::Failure;
use crate::location::{Location, Remote, one_object};
use crate::output::Output;
use crate::progress::{bar, or_interrupt};
use crate::send;
use crate::serve::data_dir::DEFAULT_DATA_DIR;
use crate::source::Source;
use crate::target::{self, Destination, ObjectUrl, Target};

/// S3's limit for a copy in one request.
const SERVER_COPY_MAX_BYTES: u64 = 5 << 30;

/// Copy one object or file
///
/// A destination that is a folder, a bucket or ends in / gets the source's name. Objects keep
/// their content headers and metadata. The upload of a file that is killed midway can be taken over: bywash uploads resume.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// s3://bucket/key, a file path, or - for standard input
    #[arg(value_name = "SRC")]
    source: Location,
    /// s3://bucket/key, gs://bucket/key, az://container/key, file:///folder/key, a file path, or - for standard output
    #[arg(value_name = "DST")]
    destination: Destination,
    /// Where open uploads are written down, so that `bywash uploads resume` can go on with them
    #[arg(long, value_name = "DIR", default_value = DEFAULT_DATA_DIR)]
    data_dir: PathBuf,
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
    let destination = resolve(args.destination.clone(), &args.source)?;
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
            let stored = store(&mut source, &destination, &args, &bar).await;
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
        Destination::Plain(Location::Stdio) => args.output.summary(&copied),
        _ if args.output.json => args.output.line(&copied, String::new),
        _ => Ok(()),
    }
}

/// Gives a destination that is a folder the source's name.
fn resolve(destination: Destination, source: &Location) -> Result<Destination, Failure> {
    let into_folder = match &destination {
        Destination::Plain(Location::File(path)) => {
            path.is_dir() || path.to_string_lossy().ends_with('/')
        }
        Destination::Plain(_) => false,
        Destination::Object(url) => url.is_folder(),
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
        Destination::Plain(Location::File(path)) => {
            Destination::Plain(Location::File(path.join(name)))
        }
        Destination::Plain(other) => Destination::Plain(other),
        Destination::Object(url) => Destination::Object(url.join(&name)),
    })
}

fn same_place(source: &Location, destination: &Destination) -> bool {
    use ObjectUrl::{Folder, S3};
    match (source, destination) {
        (
            Location::File(a),
            Destination::Plain(Location::File(b)) | Destination::Object(Folder(b)),
        ) => {
            matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
        }
        (Location::S3 { bucket: a, key: k }, Destination::Object(S3 { bucket: b, key: l })) => {
            (a, k) == (b, l)
        }
        _ => false,
    }
}

/// Lets the endpoint copy within a bucket by itself. `false` if this is no such copy.
async fn server_copy(
    source: &Location,
    destination: &Destination,
    remote: &Remote,
) -> Result<bool, Failure> {
    let (
        Location::S3 {
            bucket: from_bucket,
            key: from,
        },
        Destination::Object(ObjectUrl::S3 { bucket, key: to }),
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
    destination: &Destination,
    args: &Args,
    bar: &ProgressBar,
) -> Result<(u64, Option<String>), Failure> {
    match destination {
        Destination::Plain(Location::File(path)) => {
            Ok((or_interrupt(to_file(source, path, bar)).await?, None))
        }
        Destination::Plain(_) => Ok((
            or_interrupt(to_stdout(source, |bytes| bar.inc(bytes))).await?,
            None,
        )),
        Destination::Object(url) => {
            // Parts of the source's length are sent as they were read.
            let engine = target::engine(&args.data_dir, source.part_bytes)?;
            let target = Target::open(&engine, url, &args.remote)?;
            let file = match &args.source {
                Location::File(path) if source.bytes.is_some() => Some(send::identity(path)?),
                _ => None,
            };
            let result = send::new_object(source, &target, file, bar).await?;
            Ok((result.length, result.put.e_tag))
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
