//! `bywash ls`: what is in a bucket or a folder.

use std::path::{Path as FsPath, PathBuf};

use chrono::{DateTime, SecondsFormat, Utc};
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{Error as StoreError, ObjectMeta, ObjectStore, ObjectStoreExt};
use serde::Serialize;

use crate::failure::{Failure, Kind};
use crate::location::{Location, Remote, object_path};
use crate::output::Output;
use crate::progress::or_interrupt;

/// List a bucket, the keys below a prefix, or a folder
///
/// Without --recursive, keys are shown up to the next slash after the prefix.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// s3://bucket, s3://bucket/prefix or a file path
    #[arg(value_name = "WHERE")]
    location: Location,
    /// Every key below the prefix
    #[arg(long, short)]
    recursive: bool,
    #[command(flatten)]
    remote: Remote,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// One line of a listing.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Entry {
    Prefix {
        name: String,
    },
    Object {
        name: String,
        size: u64,
        modified: DateTime<Utc>,
        #[serde(skip_serializing_if = "Option::is_none")]
        e_tag: Option<String>,
    },
}

impl Entry {
    fn object(meta: ObjectMeta) -> Self {
        Self::Object {
            name: meta.location.into(),
            size: meta.size,
            modified: meta.last_modified,
            e_tag: meta.e_tag,
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Prefix { name } => format!("{:>20} {:>14} {name}", "", "PRE"),
            Self::Object {
                name,
                size,
                modified,
                ..
            } => {
                format!(
                    "{} {size:>14} {name}",
                    modified.to_rfc3339_opts(SecondsFormat::Secs, true)
                )
            }
        }
    }
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    match &args.location {
        Location::Stdio => Err(Failure::usage(
            "- cannot be listed; write s3://bucket/prefix or a file path",
        )),
        Location::File(path) => files(path, &args),
        Location::S3 { bucket, key } => or_interrupt(objects(bucket, key, &args)).await,
    }
}

async fn objects(bucket: &str, key: &str, args: &Args) -> Result<(), Failure> {
    let store = args.remote.bucket(bucket)?;
    let prefix = object_path(key)?;
    let failed =
        |error: StoreError| Failure::store(format!("cannot list s3://{bucket}/{key}"), &error);
    let mut found = 0_u64;
    if args.recursive {
        let mut listing = store.list(Some(&prefix));
        while let Some(meta) = listing.try_next().await.map_err(failed)? {
            found += 1;
            print(&Entry::object(meta), args.output)?;
        }
    } else {
        let listing = store
            .list_with_delimiter(Some(&prefix))
            .await
            .map_err(failed)?;
        for entry in merge(listing.common_prefixes, listing.objects) {
            found += 1;
            print(&entry, args.output)?;
        }
    }
    if found > 0 || prefix.is_root() {
        return Ok(());
    }
    // Nothing below it: perhaps it names an object.
    if key.ends_with('/') {
        return Err(Failure::new(
            Kind::NotFound,
            format!("cannot list s3://{bucket}/{key}: no key begins with it"),
        ));
    }
    print(
        &Entry::object(store.head(&prefix).await.map_err(failed)?),
        args.output,
    )
}

/// Prefixes and objects in the order of their names.
fn merge(prefixes: Vec<Path>, objects: Vec<ObjectMeta>) -> Vec<Entry> {
    let prefixes = prefixes.into_iter().map(|prefix| Entry::Prefix {
        name: format!("{prefix}/"),
    });
    let mut entries: Vec<_> = prefixes
        .chain(objects.into_iter().map(Entry::object))
        .collect();
    entries.sort_by(|a, b| name(a).cmp(name(b)));
    entries
}

fn name(entry: &Entry) -> &str {
    match entry {
        Entry::Prefix { name } | Entry::Object { name, .. } => name,
    }
}

fn print(entry: &Entry, output: Output) -> Result<(), Failure> {
    output.line(entry, || entry.text())
}

fn files(path: &FsPath, args: &Args) -> Result<(), Failure> {
    let meta = std::fs::metadata(path)
        .map_err(|error| Failure::io(format!("cannot list {}", path.display()), &error))?;
    if meta.is_dir() {
        return folder(path, PathBuf::new(), args);
    }
    print(&file_entry(path.display().to_string(), &meta), args.output)
}

/// Lists `root/below`, names relative to `root`.
fn folder(root: &FsPath, below: PathBuf, args: &Args) -> Result<(), Failure> {
    let here = root.join(&below);
    let failed =
        |error: std::io::Error| Failure::io(format!("cannot list {}", here.display()), &error);
    let entries: Result<Vec<_>, _> = std::fs::read_dir(&here)
        .and_then(Iterator::collect)
        .map_err(failed);
    let mut entries = entries?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let name = below.join(entry.file_name());
        let meta = entry.metadata().map_err(failed)?;
        if !meta.is_dir() {
            print(&file_entry(name.display().to_string(), &meta), args.output)?;
        } else if args.recursive {
            folder(root, name, args)?;
        } else {
            print(
                &Entry::Prefix {
                    name: format!("{}/", name.display()),
                },
                args.output,
            )?;
        }
    }
    Ok(())
}

fn file_entry(name: String, meta: &std::fs::Metadata) -> Entry {
    let modified = meta.modified().map_or(DateTime::UNIX_EPOCH, DateTime::from);
    Entry::Object {
        name,
        size: meta.len(),
        modified,
        e_tag: None,
    }
}
