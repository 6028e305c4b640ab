//! `bywash ls`: lists buckets, keys and files.

use std::path::{Path as FsPath, PathBuf};

use chrono::{DateTime, SecondsFormat, Utc};
use futures::TryStreamExt;
use indicatif::HumanBytes;
use object_store::path::Path;
use object_store::{Error as StoreError, ObjectMeta, ObjectStore, ObjectStoreExt};
use serde::Serialize;

use crate::address::Address;
use crate::endpoint::{Endpoint, Remote};
use crate::failure::{Failure, Kind};
use crate::interrupt::or_interrupt;
use crate::output::Output;
use crate::total::Total;
use crate::url::Url;
use crate::verbs::buckets::{Bucket, list};

/// List the buckets, a bucket, the keys below a prefix, or a folder
///
/// Without --recursive, keys are shown up to the next slash after the prefix.
///
/// With --json, one line each: kind (object, prefix or bucket), name, size, modified, e_tag; with --summary a last one of kind summary:
/// objects, prefixes, bytes, and bytes_exceeded: true if they are more than 2^64-1; in text with a > before them.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// s3://bucket, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or a file path [default: the buckets of the
    /// S3 endpoint]
    #[arg(value_name = "WHERE")]
    location: Option<Url>,
    /// List all keys below the prefix
    #[arg(long, short)]
    recursive: bool,
    /// Also print ETags
    #[arg(long, short)]
    long: bool,
    /// Sizes as 1.50 MiB
    #[arg(long, short = 'H')]
    human: bool,
    /// Print the number of objects and the sum of their bytes at the end
    #[arg(long, short)]
    summary: bool,
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

    fn text(&self, args: &Args) -> String {
        match self {
            Self::Prefix { name } => format!("{:>20} {:>14} {name}", "", "PRE"),
            Self::Object {
                name,
                size,
                modified,
                e_tag,
            } => {
                let modified = modified.to_rfc3339_opts(SecondsFormat::Secs, true);
                let size = shown(*size, args.human);
                let e_tag = e_tag.as_deref().unwrap_or("-");
                if args.long {
                    format!("{modified} {size:>14} {e_tag:<34} {name}")
                } else {
                    format!("{modified} {size:>14} {name}")
                }
            }
        }
    }
}

fn shown(bytes: u64, human: bool) -> String {
    if human {
        HumanBytes(bytes).to_string()
    } else {
        bytes.to_string()
    }
}

/// Prints a listing, and counts its objects and bytes.
#[derive(Debug)]
struct Listing<'a> {
    args: &'a Args,
    prefixes: u64,
    objects: u64,
    bytes: Total,
}

impl Listing<'_> {
    fn print(&mut self, entry: &Entry) -> Result<(), Failure> {
        match entry {
            Entry::Prefix { .. } => self.prefixes += 1,
            Entry::Object { size, .. } => {
                self.objects += 1;
                self.bytes.add(*size);
            }
        }
        self.args.output.line(entry, || entry.text(self.args))
    }

    fn end(&self) -> Result<(), Failure> {
        let Self {
            args,
            prefixes,
            objects,
            bytes,
        } = *self;
        if !args.summary {
            return Ok(());
        }
        let mut line = serde_json::json!({
            "kind": "summary", "objects": objects, "prefixes": prefixes, "bytes": bytes
        });
        if bytes.exceeded() {
            line["bytes_exceeded"] = true.into();
        }
        args.output.line(&line, || {
            format!(
                "{objects} objects, {prefixes} prefixes, {}",
                bytes.shown(args.human)
            )
        })
    }
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let mut listing = Listing {
        args: &args,
        prefixes: 0,
        objects: 0,
        bytes: Total::default(),
    };
    let Some(location) = &args.location else {
        return or_interrupt(buckets(&args)).await;
    };
    match location {
        Url::Stdio => {
            return Err(Failure::usage(
                "- cannot be listed; write s3://bucket/prefix or a file path",
            ));
        }
        Url::File(path) | Url::Folder(path) => files(path, &mut listing)?,
        Url::Object(address) => or_interrupt(objects(address, &mut listing)).await?,
    }
    listing.end()
}

async fn buckets(args: &Args) -> Result<(), Failure> {
    for Bucket {
        name,
        creation_date,
    } in list(&args.remote).await?
    {
        let line = serde_json::json!({"kind": "bucket", "name": name, "created": creation_date});
        let created = creation_date.unwrap_or_default();
        args.output
            .line(&line, || format!("{created:>24} s3://{name}"))?;
    }
    Ok(())
}

async fn objects(address: &Address, listing: &mut Listing<'_>) -> Result<(), Failure> {
    let endpoint = Endpoint::with_short_deadline(&listing.args.remote);
    let (store, prefix) = (endpoint.reader(address)?, address.path()?);
    let failed = |error: StoreError| Failure::store(format!("cannot list {address}"), &error);
    if !address.scheme.is_writable() && !address.is_folder() {
        // Web servers have no listing.
        let meta = store.head(&prefix).await.map_err(failed)?;
        return listing.print(&Entry::object(meta));
    }
    let mut found = 0_u64;
    if listing.args.recursive {
        let mut keys = store.list(Some(&prefix));
        while let Some(meta) = keys.try_next().await.map_err(failed)? {
            found += 1;
            listing.print(&Entry::object(meta))?;
        }
    } else {
        let below = store.list_with_delimiter(Some(&prefix)).await;
        let below = below.map_err(failed)?;
        for entry in merge(below.common_prefixes, below.objects) {
            found += 1;
            listing.print(&entry)?;
        }
    }
    if found > 0 || prefix.is_root() {
        return Ok(());
    }
    // No key is below it: it may name an object.
    if address.is_folder() {
        return Err(Failure::new(
            Kind::NotFound,
            format!("cannot list {address}: no key begins with it"),
        ));
    }
    listing.print(&Entry::object(store.head(&prefix).await.map_err(failed)?))
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

fn files(path: &FsPath, listing: &mut Listing<'_>) -> Result<(), Failure> {
    let meta = std::fs::metadata(path)
        .map_err(|error| Failure::io(format!("cannot list {}", path.display()), &error))?;
    if meta.is_dir() {
        return folder(path, PathBuf::new(), listing);
    }
    listing.print(&file_entry(path.display().to_string(), &meta))
}

/// Lists `root/below`, names relative to `root`.
fn folder(root: &FsPath, below: PathBuf, listing: &mut Listing<'_>) -> Result<(), Failure> {
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
            listing.print(&file_entry(name.display().to_string(), &meta))?;
        } else if listing.args.recursive {
            folder(root, name, listing)?;
        } else {
            let name = format!("{}/", name.display());
            listing.print(&Entry::Prefix { name })?;
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
