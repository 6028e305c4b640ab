//! `bywash rm`: objects and files away.

use std::collections::BTreeMap;

use futures::stream::{self, StreamExt, TryStreamExt};
use object_store::path::Path;

use crate::address::{Address, Scheme};
use crate::batch::Failures;
use crate::failure::Failure;
use crate::filter::Filter;
use crate::location::{Location, Remote};
use crate::output::Output;
use crate::progress::or_interrupt;
use crate::serve::data_dir::DEFAULT_DATA_DIR;
use crate::stores::Stores;
use crate::tree;

/// Delete objects or files
///
/// All are tried; the exit code is that of the first failure. An object that does not exist counts as deleted, as S3 has it; a
/// file that does not exist is a failure. With --recursive everything is listed first, and nothing is deleted if that fails.
///
/// With --json, one line each: removed, or would_remove with --dry-run.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// s3://bucket/key, gs://bucket/key, az://container/key or a file path
    #[arg(required = true, value_name = "WHAT")]
    locations: Vec<Location>,
    /// All that is below these folders or prefixes
    #[arg(long, short)]
    recursive: bool,
    /// With --recursive: also all of a bucket
    #[arg(long)]
    force: bool,
    /// Tell what would be deleted, and delete nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    filter: Filter,
    #[command(flatten)]
    remote: Remote,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// What goes: files, and the keys of each bucket.
#[derive(Debug, Default)]
struct Doomed {
    files: Vec<Location>,
    /// Emptied folders, the deepest last; one that has something left stays.
    folders: Vec<std::path::PathBuf>,
    objects: BTreeMap<(Scheme, String), (Address, Vec<Path>)>,
    count: usize,
}

impl Doomed {
    fn add(&mut self, location: &Location) -> Result<(), Failure> {
        self.count += 1;
        match location {
            Location::Stdio => Err(Failure::usage(
                "- cannot be deleted; write s3://bucket/key or a file path",
            )),
            Location::File(_) => {
                self.files.push(location.clone());
                Ok(())
            }
            Location::Object(address) => {
                let key = (address.scheme, address.bucket.clone());
                let bucket = self.objects.entry(key);
                let (_, paths) = bucket.or_insert_with(|| (address.clone(), Vec::new()));
                paths.push(address.object()?);
                Ok(())
            }
        }
    }
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let stores = Stores::new(&args.remote, DEFAULT_DATA_DIR.as_ref());
    // All names are checked, and all trees listed, before anything is deleted.
    let doomed = or_interrupt(find(&args, &stores)).await?;
    if args.dry_run {
        return tell(&args, &doomed);
    }
    let (count, mut failures) = (doomed.count, Failures::new(args.output));
    for file in doomed.files {
        let Location::File(path) = &file else {
            continue;
        };
        match std::fs::remove_file(path) {
            Ok(()) => removed(&file, args.output)?,
            Err(error) => failures.push(Failure::io(format!("cannot delete {file}"), &error)),
        }
    }
    for folder in doomed.folders.iter().rev() {
        if let Err(error) = std::fs::remove_dir(folder)
            && error.kind() != std::io::ErrorKind::DirectoryNotEmpty
        {
            let what = format!("cannot delete {}", folder.display());
            failures.push(Failure::io(what, &error));
        }
    }
    for (address, paths) in doomed.objects.into_values() {
        or_interrupt(delete(&address, paths, &stores, args.output, &mut failures)).await?;
    }
    failures.end(count, "could not be deleted")
}

async fn find(args: &Args, stores: &Stores) -> Result<Doomed, Failure> {
    let mut doomed = Doomed::default();
    for location in &args.locations {
        let is_tree = match location {
            Location::File(path) => path.is_dir() && !path.is_symlink(),
            _ => true,
        };
        if !args.recursive || !is_tree {
            if let (true, Location::File(_)) = (is_tree, location) {
                return Err(Failure::usage(format!(
                    "{location} is a folder; to delete all below it, add --recursive"
                )));
            }
            doomed.add(location)?;
            continue;
        }
        guard(location, args.force)?;
        let mut items = tree::items(location, stores)?;
        while let Some(item) = items.try_next().await? {
            if args.filter.takes(&item.name) {
                doomed.add(&item.location)?;
            }
        }
        if let Location::File(folder) = location {
            tree::folders(folder, &mut doomed.folders)?;
        }
    }
    Ok(doomed)
}

/// Refuses to empty a whole bucket or disk by a slip of the hand.
fn guard(location: &Location, force: bool) -> Result<(), Failure> {
    let whole = match location {
        Location::Stdio => false,
        Location::Object(address) => address.key.is_empty(),
        Location::File(path) => path
            .canonicalize()
            .is_ok_and(|path| path.parent().is_none()),
    };
    match whole && !force {
        true => Err(Failure::usage(format!(
            "{location} is all there is; to delete everything in it, add --force"
        ))),
        false => Ok(()),
    }
}

fn tell(args: &Args, doomed: &Doomed) -> Result<(), Failure> {
    let would = |name: &str| {
        let line = serde_json::json!({ "would_remove": name });
        args.output.line(&line, || format!("would delete {name}"))
    };
    for file in &doomed.files {
        would(&file.to_string())?;
    }
    for (address, paths) in doomed.objects.values() {
        for path in paths {
            would(&address.sibling(path).to_string())?;
        }
    }
    Ok(())
}

/// Deletes in as few requests as the protocol allows.
async fn delete(
    address: &Address,
    paths: Vec<Path>,
    stores: &Stores,
    output: Output,
    failures: &mut Failures,
) -> Result<(), Failure> {
    let store = stores.of(address)?;
    let mut outcomes = store.delete_stream(stream::iter(paths.into_iter().map(Ok)).boxed());
    while let Some(outcome) = outcomes.next().await {
        match outcome {
            Ok(path) => removed(&Location::Object(address.sibling(&path)), output)?,
            Err(error) => failures.push(Failure::store(
                format!(
                    "cannot delete in {}://{}",
                    address.scheme.name(),
                    address.bucket
                ),
                &error,
            )),
        }
    }
    Ok(())
}

fn removed(name: &Location, output: Output) -> Result<(), Failure> {
    if output.json {
        output.line(
            &serde_json::json!({"removed": name.to_string()}),
            String::new,
        )?;
    }
    Ok(())
}
