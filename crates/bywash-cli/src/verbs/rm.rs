//! `bywash rm`: deletes objects and files.

use std::iter::Peekable;
use std::path::Path as FsPath;
use std::sync::Arc;

use bywash::LeftOut as Omitted;
use bywash::origin::odd_keys::{is_odd, key_of, path_of_key};
use futures::stream::{self, StreamExt, TryStreamExt};
use object_store::ObjectStore;
use object_store::path::Path;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::address::Address;
use crate::endpoint::{Endpoint, Remote};
use crate::failure::{Failure, Kind};
use crate::filter::Filter;
use crate::interrupt::or_interrupt;
use crate::output::Output;
use crate::transfer::jobs::Failures;
use crate::transfer::left_out::LeftOut;
use crate::transfer::plan::{Entries, Plan};
use crate::transfer::tree::{self, Asides};
use crate::url::Url;

/// Delete objects or files
///
/// All are tried; the exit code is that of the first failure. An object that does not exist counts as deleted, as S3 has it; a
/// file that does not exist is a failure. With --recursive everything is listed first, and nothing is deleted if that fails.
/// s3://bucket/dir/ is the object with this key; all below it needs --recursive, which deletes that object too.
///
/// With --json, one line each: removed, or would_remove with --dry-run.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// s3://bucket/key, gs://bucket/key, az://container/key or a file path
    #[arg(required = true, value_name = "WHAT")]
    locations: Vec<Url>,
    /// Delete everything below these folders or prefixes
    #[arg(long, short)]
    recursive: bool,
    /// With --recursive: also delete a whole bucket
    #[arg(long)]
    force: bool,
    /// Print what would be deleted, and delete nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    filter: Filter,
    #[command(flatten)]
    remote: Remote,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// A file or object to delete.
#[derive(Debug, Serialize, Deserialize)]
struct Deletion {
    /// Index of its location in the arguments.
    location: usize,
    /// Name below that location; `None` for the location itself.
    name: Option<String>,
}

impl Deletion {
    fn of(self, locations: &[Url]) -> Url {
        let location = &locations[self.location];
        match self.name {
            Some(name) => location.join(&name),
            None => location.clone(),
        }
    }
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let endpoint = Endpoint::with_short_deadline(&args.remote);
    // All names are checked, and all trees listed, before anything is deleted.
    let (plan, left) = or_interrupt(find(&args, &endpoint)).await?;
    let count = plan.len();
    let locations: Arc<[Url]> = args.locations.as_slice().into();
    let queue = Queue::new(plan.entries()?, Arc::clone(&locations));
    let mut failures = Failures::new(args.output);
    while let Some(next) = queue.next_if(|_| true) {
        match next? {
            location if args.dry_run => would(&location, args.output)?,
            Url::Object(address) => {
                or_interrupt(delete(
                    &address,
                    &queue,
                    &endpoint,
                    args.output,
                    &mut failures,
                ))
                .await?;
            }
            file => match remove_file(&file) {
                Ok(()) => removed(&file, args.output)?,
                Err(failure) => failures.push(failure),
            },
        }
    }
    for location in locations.iter().filter(|_| args.recursive && !args.dry_run) {
        if let Url::File(folder) = location
            && is_folder(folder)
        {
            tree::remove_empty_folders(folder, &mut |failure| failures.push(failure));
        }
    }
    for failure in left {
        failures.push(failure);
    }
    failures.end(count, "could not be deleted")
}

fn is_folder(path: &FsPath) -> bool {
    path.is_dir() && !path.is_symlink()
}

/// Returns the objects and files to delete, and a failure for each location with objects that
/// cannot be deleted.
async fn find(args: &Args, endpoint: &Endpoint) -> Result<(Plan<Deletion>, Vec<Failure>), Failure> {
    let (mut plan, mut left) = (Plan::new(), Vec::new());
    for (index, location) in args.locations.iter().enumerate() {
        let mut add = |name| {
            plan.push(&Deletion {
                location: index,
                name,
            })
        };
        let is_tree = match location {
            Url::File(path) | Url::Folder(path) => is_folder(path),
            Url::Object(address) if !args.recursive => {
                named(address)?;
                false
            }
            Url::Object(_) => true,
            Url::Stdio => {
                return Err(Failure::usage(
                    "- cannot be deleted; write s3://bucket/key or a file path",
                ));
            }
        };
        if !is_tree {
            add(None)?;
            continue;
        }
        if !args.recursive {
            return Err(Failure::usage(format!(
                "{location} is a folder; to delete all below it, add --recursive"
            )));
        }
        guard(location, args.force)?;
        if let Url::Object(address) = location {
            let mut take = |name: String| {
                if args.filter.takes(&name) {
                    add(Some(name))
                } else {
                    Ok(())
                }
            };
            let omitted = find_objects(address, endpoint, &mut take).await?;
            left.extend(unnamed(location, &args.filter, omitted));
            continue;
        }
        let left_out = LeftOut::of(&args.filter);
        let mut items = tree::items(location, endpoint, &left_out, Asides::LeaveOut)?;
        while let Some(item) = items.try_next().await? {
            if args.filter.takes(&item.name) {
                add(Some(item.name))?;
            }
        }
        left_out.outcome(location, "kept too: nothing was deleted")?;
    }
    Ok((plan, left))
}

/// Keys of one request for a page of a listing.
const PAGE_KEYS: usize = 1000;

/// Passes the names of all objects below a folder or prefix to `take`. Returns names that no URL can have.
async fn find_objects(
    address: &Address,
    endpoint: &Endpoint,
    take: &mut impl FnMut(String) -> Result<(), Failure>,
) -> Result<Omitted, Failure> {
    let (store, what) = (endpoint.reader(address)?, address.to_string());
    let (mut items, omissions) = tree::objects_noting(&store, address.path()?, what.clone());
    loop {
        match items.try_next().await {
            Ok(Some((name, _))) => take(name)?,
            Ok(None) => break,
            // Only keys that end with `/` begin with it.
            Err(failure) if failure.kind == Kind::NotFound && omissions.left_out().count > 0 => {
                break;
            }
            Err(failure) => return Err(failure),
        }
    }
    let omitted = omissions.left_out();
    if omitted.count == 0 || !store.reads_odd_keys() {
        return Ok(omitted);
    }
    // Pages have the other keys too.
    let root = root_of(address);
    let (mut after, mut omitted) = (None::<String>, Omitted::default());
    loop {
        let page = store.list_page(&root, after.as_deref(), PAGE_KEYS).await;
        let page = page.map_err(|error| Failure::store(format!("cannot list {what}"), &error))?;
        omitted.count += page.left_out.count;
        if omitted.named.is_empty() {
            omitted.named = page.left_out.named;
        }
        for meta in page.objects.iter().filter(|meta| is_odd(&meta.location)) {
            let key = key_of(&meta.location);
            take(key.strip_prefix(&root).unwrap_or(&key).to_owned())?;
        }
        match page.objects.last().filter(|_| page.more) {
            Some(last) => after = Some(key_of(&last.location).into_owned()),
            None => return Ok(omitted),
        }
    }
}

/// The common prefix of the keys below an address.
fn root_of(address: &Address) -> String {
    match address.key.trim_end_matches('/') {
        "" => String::new(),
        folder => format!("{folder}/"),
    }
}

/// The failure to delete objects whose keys cannot be named here.
fn unnamed(location: &Url, filter: &Filter, mut omitted: Omitted) -> Option<Failure> {
    let all = omitted.named.len();
    let root = match location {
        Url::Object(address) => root_of(address),
        _ => String::new(),
    };
    omitted
        .named
        .retain(|(key, _)| filter.takes(key.strip_prefix(&root).unwrap_or(key)));
    let count = omitted.count - (all - omitted.named.len()) as u64;
    let example = omitted.named.first().map_or(String::new(), |(key, _)| {
        format!(", the first with the key {key:?}")
    });
    (count > 0).then(|| {
        Failure::failed(format!(
            "{count} objects below {location} are left{example}: keys with an empty segment, `.` or `..` cannot be named here; delete \
             them with another client, as aws s3api delete-object"
        ))
    })
}

/// Items still to be deleted, in the order of the plan.
#[derive(Clone)]
struct Queue {
    entries: Arc<Mutex<Peekable<Entries<Deletion>>>>,
    locations: Arc<[Url]>,
}

impl Queue {
    fn new(entries: Entries<Deletion>, locations: Arc<[Url]>) -> Self {
        Self {
            entries: Arc::new(Mutex::new(entries.peekable())),
            locations,
        }
    }

    /// Returns the next item, or the failure to read it, if `takes` accepts the argument that it belongs to.
    fn next_if(&self, takes: impl Fn(&Url) -> bool) -> Option<Result<Url, Failure>> {
        let next = self.entries.lock().next_if(|next| match next {
            Ok(deletion) => takes(&self.locations[deletion.location]),
            Err(_) => true,
        })?;
        Some(next.map(|deletion| deletion.of(&self.locations)))
    }
}

/// Rejects deleting a whole bucket or disk without `--force`.
fn guard(location: &Url, force: bool) -> Result<(), Failure> {
    let whole = match location {
        Url::Stdio => false,
        Url::Object(address) => address.key.is_empty(),
        Url::File(path) | Url::Folder(path) => path
            .canonicalize()
            .is_ok_and(|path| path.parent().is_none()),
    };
    if whole && !force {
        Err(Failure::usage(format!(
            "{location} is a whole bucket or disk; to delete everything in it, add --force"
        )))
    } else {
        Ok(())
    }
}

fn would(name: &Url, output: Output) -> Result<(), Failure> {
    let line = serde_json::json!({ "would_remove": name.to_string() });
    output.line(&line, || format!("would delete {name}"))
}

fn remove_file(file: &Url) -> Result<(), Failure> {
    let Url::File(path) = file else {
        return Ok(());
    };
    std::fs::remove_file(path).map_err(|error| Failure::io(format!("cannot delete {file}"), &error))
}

/// Deletes an object and the next ones in the queue that are in its bucket, in as few requests as the protocol allows.
async fn delete(
    first: &Address,
    queue: &Queue,
    endpoint: &Endpoint,
    output: Output,
    failures: &mut Failures,
) -> Result<(), Failure> {
    let store = endpoint.of(first)?;
    let (queue, bucket) = (queue.clone(), first.clone());
    let in_bucket = move |location: &Url| matches!(location, Url::Object(address) if (address.scheme, &address.bucket) == (bucket.scheme, &bucket.bucket));
    let rest = std::iter::from_fn(move || queue.next_if(&in_bucket));
    let paths = std::iter::once(Ok(Url::Object(first.clone()))).chain(rest);
    let paths = paths.map(|location| path(location?));
    let paths = paths.map(|path: Result<_, Failure>| {
        path.map_err(|failure| object_store::Error::Generic {
            store: "plan",
            source: failure.message.into(),
        })
    });
    let mut outcomes = store.delete_stream(stream::iter(paths).boxed());
    while let Some(outcome) = outcomes.next().await {
        match outcome {
            Ok(path) => removed(&Url::Object(first.sibling(&path)), output)?,
            Err(error) => failures.push(Failure::store(
                format!(
                    "cannot delete in {}://{}",
                    first.scheme.name(),
                    first.bucket
                ),
                &error,
            )),
        }
    }
    Ok(())
}

fn path(location: Url) -> Result<Path, Failure> {
    match location {
        Url::Object(address) => named(&address),
        other => Err(Failure::failed(format!("{other} is no object"))),
    }
}

/// The path of one object, whose key may end with `/`.
fn named(address: &Address) -> Result<Path, Failure> {
    let path = path_of_key(&address.key);
    if is_odd(&path) && !address.key.is_empty() {
        return Ok(path);
    }
    address.object()
}

fn removed(name: &Url, output: Output) -> Result<(), Failure> {
    if output.json {
        output.line(
            &serde_json::json!({"removed": name.to_string()}),
            String::new,
        )?;
    }
    Ok(())
}
