//! Planning of a synchronisation.

use std::path::PathBuf;

use bywash::Bucket;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::ObjectStore;
use object_store::path::Path;
use serde::{Deserialize, Serialize};

use super::Args;
use crate::endpoint::Endpoint;
use crate::failure::{Failure, Kind};
use crate::transfer::left_out::LeftOut;
use crate::transfer::listing::{Found, Listing, Markers, Merge, Named, Sort, Unplanned};
use crate::transfer::object::Object;
use crate::transfer::part::part_bytes;
use crate::transfer::plan::{CopyPlan, Entries, Planned};
use crate::transfer::removal::{Since, changed, remove_file};
use crate::transfer::source::Source;
use crate::transfer::tree::{self, Asides, Item};
use crate::transfer::version::Version;
use crate::transfer::{self, Pair};
use crate::url::Url;

/// Current state of the destination.
#[derive(Debug)]
pub(super) enum Side {
    Files(PathBuf),
    Store {
        store: Bucket,
        prefix: Path,
    },
    /// A folder that does not exist yet.
    Nothing,
}

/// A name to delete at the destination.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Deletion {
    pub(super) name: String,
    version: Version,
}

impl Named for Deletion {
    fn name(&self) -> &str {
        &self.name
    }

    fn is_empty(&self) -> bool {
        false
    }
}

/// Names deleted by one request, at most as many as S3 allows.
const DELETED_AT_ONCE: usize = 1000;

impl Side {
    pub(super) fn of(destination: &Url, endpoint: &Endpoint) -> Result<Self, Failure> {
        match destination {
            Url::File(folder) => Ok(if folder.exists() {
                Self::Files(folder.clone())
            } else {
                Self::Nothing
            }),
            other @ Url::Stdio => Err(Failure::usage(format!(
                "{other} is no folder; write a folder or s3://bucket/prefix"
            ))),
            Url::Object(address) => Ok(Self::Store {
                store: endpoint.of(address)?,
                prefix: address.path()?,
            }),
            Url::Folder(folder) if !folder.exists() => Ok(Self::Nothing),
            Url::Folder(folder) => {
                let (origin, any) = Url::Folder(folder.join("any")).split()?;
                let mut prefix: Vec<_> = any.parts().collect();
                prefix.pop();
                Ok(Self::Store {
                    store: endpoint.bucket(&origin)?,
                    prefix: prefix.into_iter().collect(),
                })
            }
        }
    }

    /// Lists the destination; one without a name yet is empty.
    fn list(
        &self,
        what: String,
        endpoint: &Endpoint,
    ) -> Result<BoxStream<'static, Result<Item, Failure>>, Failure> {
        let listed = match self {
            Self::Nothing => return Ok(stream::empty().boxed()),
            Self::Files(folder) => {
                // Names that cannot be read at the destination are neither replaced nor deleted.
                let left_out = LeftOut::default();
                tree::items(
                    &Url::File(folder.clone()),
                    endpoint,
                    &left_out,
                    Asides::LeaveOut,
                )?
            }
            Self::Store { store, prefix } => {
                let objects = tree::objects(store.clone(), prefix.clone(), what);
                objects.map_ok(Item::from).boxed()
            }
        };
        let exists = |listed: &Result<Item, Failure>| {
            let gone = matches!(listed, Err(failure) if failure.kind == Kind::NotFound);
            std::future::ready(!gone)
        };
        Ok(listed.take_while(exists).boxed())
    }

    /// Whether the destination has the bytes of the source. Their lengths are equal.
    pub(super) async fn has_same(
        &self,
        name: &str,
        pair: &Pair,
        endpoint: &Endpoint,
    ) -> Result<bool, Failure> {
        let bytes = pair.listed.as_ref().map(|listed| listed.bytes);
        let mut there = match self {
            Self::Nothing => return Ok(false),
            Self::Files(folder) => {
                let file = Url::File(folder.join(name));
                Source::open(&file, None, bytes, endpoint).await?
            }
            Self::Store { store, prefix } => {
                let shown = pair.destination.to_string();
                let object = Object::at(&shown, store.clone(), key(prefix, name)?).await?;
                endpoint.make_room(part_bytes(object.meta.size))?;
                Source::of_object(object, &shown, None)?
            }
        };
        let mut here = Source::open(&pair.source, None, None, endpoint).await?;
        // Equal lengths, so equal parts.
        loop {
            match (here.next().await?, there.next().await?) {
                (None, None) => return Ok(true),
                (one, other) if one == other => {}
                _ => return Ok(false),
            }
        }
    }

    /// Deletes the names that still have the version of the plan, and passes each outcome to `done`. A store is listed again for that,
    /// and its objects are deleted in requests of many.
    pub(super) async fn delete(
        &self,
        planned: Entries<Deletion>,
        (args, endpoint, sort): (&Args, &Endpoint, Sort),
        mut done: impl FnMut(Result<String, Failure>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        match self {
            Self::Nothing => Ok(()),
            Self::Files(folder) => {
                for deletion in planned {
                    let (folder, deletion) = (folder.clone(), deletion?);
                    let deleted =
                        tokio::task::spawn_blocking(move || delete_file(&folder, deletion));
                    let failed = |error| Failure::failed(format!("cannot delete: {error}"));
                    done(deleted.await.map_err(failed).flatten())?;
                }
                Ok(())
            }
            Self::Store { store, prefix } => {
                let there = self.list(args.destination.to_string(), endpoint)?;
                let unsorted = |unplanned| match unplanned {
                    Unplanned::Failed(failure) => failure,
                    Unplanned::Unordered => {
                        Failure::failed("the destination lists in another order now; try again")
                    }
                };
                let mut names = Merge {
                    left: Listing::new(stream::iter(planned).boxed(), Sort::Listed).await?,
                    right: Listing::new(there, sort).await?,
                };
                let mut paths = Vec::new();
                while let Some(found) = names.next().await.map_err(unsorted)? {
                    match found {
                        Found::Both(planned, now) if is_same(&planned.version, &now.version) => {
                            paths.push(key(prefix, &planned.name));
                        }
                        Found::Both(planned, _) => {
                            let shown = transfer::below(&args.destination, &planned.name)?;
                            done(Err(changed(&shown.to_string(), Since::Listed)))?;
                        }
                        // Deleted by another program.
                        Found::Left(planned) => done(Ok(planned.name))?,
                        Found::Right(_) => {}
                    }
                    if paths.len() == DELETED_AT_ONCE {
                        delete_objects((store, prefix), &mut paths, &mut done).await?;
                    }
                }
                delete_objects((store, prefix), &mut paths, &mut done).await
            }
        }
    }
}

async fn delete_objects(
    (store, prefix): (&Bucket, &Path),
    paths: &mut Vec<Result<Path, Failure>>,
    done: &mut impl FnMut(Result<String, Failure>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut known = Vec::with_capacity(paths.len());
    for path in paths.drain(..) {
        match path {
            Ok(path) => known.push(Ok(path)),
            Err(failure) => done(Err(failure))?,
        }
    }
    let mut results = store.delete_stream(stream::iter(known).boxed());
    while let Some(result) = results.next().await {
        done(match result {
            Ok(path) => Ok(tree::name_below(&path, prefix)),
            Err(error) => Err(Failure::store("cannot delete at the destination", &error)),
        })?;
    }
    Ok(())
}

fn is_same(planned: &Version, now: &Version) -> bool {
    match (planned, now) {
        (Version::Object(planned), Version::Object(now)) => planned.is(now),
        _ => planned == now,
    }
}

fn key(prefix: &Path, name: &str) -> Result<Path, Failure> {
    let text = format!("{prefix}/{name}");
    Path::parse(text.trim_start_matches('/'))
        .map_err(|error| Failure::failed(format!("{text:?} cannot be named here: {error}")))
}

/// Deletes a file that is still the listed one, and the folders that become empty. Blocks.
fn delete_file(
    root: &std::path::Path,
    Deletion { name, version }: Deletion,
) -> Result<String, Failure> {
    let path = root.join(&name);
    match &version {
        Version::File(version) => remove_file(&path, version, Since::Listed)?,
        Version::Object(_) => {
            return Err(Failure::failed(format!("{} is no file", path.display())));
        }
    }
    let above = path.ancestors().skip(1);
    for folder in above.take_while(|folder| *folder != root) {
        // Fails for a folder that is not empty, and would for all above it.
        if std::fs::remove_dir(folder).is_err() {
            break;
        }
    }
    Ok(name)
}

/// The required changes, from two complete listings.
pub(super) struct Plan {
    pub(super) to_copy: CopyPlan,
    /// Equal lengths, so the bytes must be compared.
    pub(super) to_compare: transfer::plan::Plan<Planned>,
    /// Names at the destination.
    pub(super) to_delete: transfer::plan::Plan<Deletion>,
    /// Names at the destination that the source may have: its listing left them out, or a folder above them.
    pub(super) kept: transfer::plan::Plan<String>,
    pub(super) left_out: LeftOut,
    pub(super) unchanged: u64,
    /// How the listings got their order.
    pub(super) sort: Sort,
}

impl Plan {
    pub(super) async fn make(
        args: &Args,
        endpoint: &Endpoint,
        side: &Side,
        sort: Sort,
    ) -> Result<Self, Unplanned> {
        let left_out = LeftOut::of(&args.filter);
        let here = tree::items(&args.source, endpoint, &left_out, Asides::PutBack)?;
        let there = side.list(args.destination.to_string(), endpoint)?;
        let mut names = Merge {
            left: Listing::new(here, sort).await?,
            right: Listing::new(there, sort).await?,
        };
        let mut plan = Self {
            to_copy: CopyPlan::new(),
            to_compare: transfer::plan::Plan::new(),
            to_delete: transfer::plan::Plan::new(),
            kept: transfer::plan::Plan::new(),
            left_out,
            unchanged: 0,
            sort,
        };
        let to_files = matches!(args.destination, Url::File(_));
        let mut markers = Markers::new();
        while let Some(found) = names.next().await? {
            let (item, known) = match found {
                Found::Left(item) => (item, None),
                Found::Both(item, there) => (item, Some(there)),
                Found::Right(there) => {
                    if args.delete && args.filter.takes(&there.name) {
                        let Item { name, version, .. } = there;
                        plan.to_delete.push(&Deletion { name, version })?;
                    }
                    continue;
                }
            };
            for (need, item) in markers.reach(&item.name) {
                plan.add(need, item)?;
            }
            if !args.filter.takes(&item.name) || to_files && transfer::is_own_marker(&item) {
                continue;
            }
            let need = need(&item, known, args.checksum);
            if item.is_empty() {
                markers.hold(item.name.clone(), (need, item))
            } else {
                plan.add(need, item)?
            }
        }
        for (need, item) in markers.end() {
            plan.add(need, item)?;
        }
        plan.keep_left_out()?;
        Ok(plan)
    }

    /// Keeps names that the source may have, although its listing does not: known only after the
    /// whole listing.
    fn keep_left_out(&mut self) -> Result<(), Failure> {
        if self.left_out.count() == 0 {
            return Ok(());
        }
        let planned = std::mem::replace(&mut self.to_delete, transfer::plan::Plan::new());
        let keeps_all = self.left_out.is_incomplete();
        for deletion in planned.entries()? {
            let deletion = deletion?;
            if keeps_all || self.left_out.covers(&deletion.name) {
                self.kept.push(&deletion.name)?
            } else {
                self.to_delete.push(&deletion)?
            }
        }
        Ok(())
    }

    fn add(&mut self, need: Change, item: Item) -> Result<(), Failure> {
        match need {
            Change::Copy => self.to_copy.push(&Planned::new(0, item)),
            Change::Compare => self.to_compare.push(&Planned::new(0, item)),
            Change::Nothing => {
                self.unchanged += 1;
                Ok(())
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Change {
    Copy,
    Compare,
    Nothing,
}

fn need(item: &Item, there: Option<Item>, checksum: bool) -> Change {
    match there {
        None => Change::Copy,
        Some(there) if there.bytes != item.bytes => Change::Copy,
        Some(_) if checksum => Change::Compare,
        // Stores have a resolution of seconds or milliseconds; file systems a finer one.
        Some(there) if item.modified.timestamp() > there.modified.timestamp() => Change::Copy,
        Some(_) => Change::Nothing,
    }
}
