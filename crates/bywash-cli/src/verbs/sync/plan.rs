//! Planning of a synchronisation.

use std::path::PathBuf;

use bywash::Bucket;
use chrono::{DateTime, Utc};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};

use super::Args;
use crate::endpoint::Endpoint;
use crate::failure::{Failure, Kind};
use crate::transfer::listing::{Found, Listing, Markers, Merge, Named, Sort, Unplanned};
use crate::transfer::object::Object;
use crate::transfer::part::part_bytes;
use crate::transfer::plan::{CopyPlan, Entries, Planned};
use crate::transfer::source::Source;
use crate::transfer::tree::{self, Item};
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

/// An existing name at the destination.
#[derive(Debug)]
struct ExistingItem {
    name: String,
    bytes: u64,
    modified: DateTime<Utc>,
}

impl Named for ExistingItem {
    fn name(&self) -> &str {
        &self.name
    }

    fn is_empty(&self) -> bool {
        self.bytes == 0
    }
}

impl Side {
    pub(super) fn of(destination: &Url, endpoint: &Endpoint) -> Result<Self, Failure> {
        match destination {
            Url::File(folder) => Ok(match folder.exists() {
                true => Self::Files(folder.clone()),
                false => Self::Nothing,
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
    ) -> Result<BoxStream<'static, Result<ExistingItem, Failure>>, Failure> {
        let listed = match self {
            Self::Nothing => return Ok(stream::empty().boxed()),
            Self::Files(folder) => {
                let items = tree::items(&Url::File(folder.clone()), endpoint)?;
                let there = |item: Item| ExistingItem {
                    name: item.name,
                    bytes: item.listed.bytes,
                    modified: item.modified,
                };
                items.map_ok(there).boxed()
            }
            Self::Store { store, prefix } => {
                let there = |(name, meta): (String, ObjectMeta)| ExistingItem {
                    name,
                    bytes: meta.size,
                    modified: meta.last_modified,
                };
                let objects = tree::objects(store.clone(), prefix.clone(), what);
                objects.map_ok(there).boxed()
            }
        };
        let exists = |listed: &Result<ExistingItem, Failure>| {
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

    /// Deletes names. The stream returns each deleted one.
    pub(super) fn delete(
        &self,
        names: Entries<String>,
    ) -> BoxStream<'static, Result<String, Failure>> {
        match self {
            Self::Nothing => stream::empty().boxed(),
            Self::Files(folder) => {
                let folder = folder.clone();
                let deleted = names.map(move |name| delete_file(&folder, name?));
                stream::iter(deleted).boxed()
            }
            Self::Store { store, prefix } => {
                let (prefix, below) = (prefix.clone(), prefix.clone());
                let paths = names.map(move |name| {
                    let name = name.map_err(|failure| object_store::Error::Generic {
                        store: "plan",
                        source: failure.message.into(),
                    })?;
                    let text = format!("{prefix}/{name}");
                    Ok(Path::parse(text.trim_start_matches('/'))?)
                });
                let results = store.delete_stream(stream::iter(paths).boxed());
                let deleted = results.map(move |result| match result {
                    Ok(path) => Ok(tree::name_below(&path, &below)),
                    Err(error) => Err(Failure::store("cannot delete at the destination", &error)),
                });
                deleted.boxed()
            }
        }
    }
}

fn key(prefix: &Path, name: &str) -> Result<Path, Failure> {
    let text = format!("{prefix}/{name}");
    Path::parse(text.trim_start_matches('/'))
        .map_err(|error| Failure::failed(format!("{text:?} cannot be named here: {error}")))
}

/// Deletes a file, and the folders that become empty.
fn delete_file(root: &std::path::Path, name: String) -> Result<String, Failure> {
    let path = root.join(&name);
    std::fs::remove_file(&path)
        .map_err(|error| Failure::io(format!("cannot delete {}", path.display()), &error))?;
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
    pub(super) to_delete: transfer::plan::Plan<String>,
    pub(super) unchanged: u64,
}

impl Plan {
    pub(super) async fn make(
        args: &Args,
        endpoint: &Endpoint,
        side: &Side,
        sort: Sort,
    ) -> Result<Self, Unplanned> {
        let there = side.list(args.destination.to_string(), endpoint)?;
        let mut names = Merge {
            left: Listing::new(tree::items(&args.source, endpoint)?, sort).await?,
            right: Listing::new(there, sort).await?,
        };
        let mut plan = Self {
            to_copy: CopyPlan::new(),
            to_compare: transfer::plan::Plan::new(),
            to_delete: transfer::plan::Plan::new(),
            unchanged: 0,
        };
        let to_files = matches!(args.destination, Url::File(_));
        let mut markers = Markers::new();
        while let Some(found) = names.next().await? {
            let (item, known) = match found {
                Found::Left(item) => (item, None),
                Found::Both(item, there) => (item, Some(there)),
                Found::Right(there) => {
                    if args.delete && args.filter.takes(&there.name) {
                        plan.to_delete.push(&there.name)?;
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
            match item.is_empty() {
                true => markers.hold(item.name.clone(), (need, item)),
                false => plan.add(need, item)?,
            }
        }
        for (need, item) in markers.end() {
            plan.add(need, item)?;
        }
        Ok(plan)
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

fn need(item: &Item, there: Option<ExistingItem>, checksum: bool) -> Change {
    match there {
        None => Change::Copy,
        Some(there) if there.bytes != item.listed.bytes => Change::Copy,
        Some(_) if checksum => Change::Compare,
        // Stores have a resolution of seconds or milliseconds; file systems a finer one.
        Some(there) if item.modified.timestamp() > there.modified.timestamp() => Change::Copy,
        Some(_) => Change::Nothing,
    }
}
