//! `bywash rm`: objects and files away.

use std::collections::BTreeMap;

use futures::StreamExt;
use futures::stream;
use object_store::ObjectStore;
use object_store::path::Path;

use crate::failure::Failure;
use crate::location::{Location, Remote, one_object};
use crate::output::Output;
use crate::progress::or_interrupt;

/// Delete objects or files
///
/// All are tried; the exit code is that of the first failure. An object that does not exist counts
/// as deleted, as S3 has it; a file that does not exist is a failure.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// s3://bucket/key or a file path
    #[arg(required = true, value_name = "WHAT")]
    locations: Vec<Location>,
    #[command(flatten)]
    remote: Remote,
    #[command(flatten)]
    pub(crate) output: Output,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    // All names are checked before anything is deleted.
    let mut files = Vec::new();
    let mut objects: BTreeMap<&str, Vec<Path>> = BTreeMap::new();
    for location in &args.locations {
        match location {
            Location::Stdio => {
                return Err(Failure::usage(
                    "- cannot be deleted; write s3://bucket/key or a file path",
                ));
            }
            Location::File(path) => files.push(path),
            Location::S3 { bucket, key } => objects
                .entry(bucket)
                .or_default()
                .push(one_object(bucket, key)?),
        }
    }
    let mut failures = Vec::new();
    for path in files {
        let name = path.display().to_string();
        match std::fs::remove_file(path) {
            Ok(()) => removed(&name, args.output)?,
            Err(error) => failures.push(Failure::io(format!("cannot delete {name}"), &error)),
        }
    }
    for (bucket, paths) in objects {
        or_interrupt(delete(bucket, paths, &args, &mut failures)).await?;
    }
    let mut failures = failures.into_iter();
    let Some(first) = failures.next() else {
        return Ok(());
    };
    for other in failures {
        other.report(args.output.json);
    }
    Err(first)
}

/// Deletes in as few requests as the protocol allows.
async fn delete(
    bucket: &str,
    paths: Vec<Path>,
    args: &Args,
    failures: &mut Vec<Failure>,
) -> Result<(), Failure> {
    let store = args.remote.bucket(bucket)?;
    let mut outcomes = store.delete_stream(stream::iter(paths.into_iter().map(Ok)).boxed());
    while let Some(outcome) = outcomes.next().await {
        match outcome {
            Ok(path) => removed(&format!("s3://{bucket}/{path}"), args.output)?,
            Err(error) => failures.push(Failure::store(
                format!("cannot delete in s3://{bucket}"),
                &error,
            )),
        }
    }
    Ok(())
}

fn removed(name: &str, output: Output) -> Result<(), Failure> {
    if output.json {
        output.line(&serde_json::json!({"removed": name}), String::new)?;
    }
    Ok(())
}
