//! Planning of a synchronisation.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::ObjectStore;
use object_store::path::Path;

use super::Args;
use crate::failure::{Failure, Kind};
use crate::location::Location;
use crate::object::Object;
use crate::source::PART_MIN_BYTES;
use crate::source::Source;
use crate::stores::Stores;
use crate::target::{Destination, ObjectUrl};
use crate::transfer::{self, Pair, below};
use crate::tree::{self, Item};

/// Current state of the destination.
#[derive(Debug)]
pub(super) enum Side {
    Files(PathBuf),
    Store {
        store: Arc<dyn ObjectStore>,
        prefix: Path,
    },
    /// A folder that does not exist yet.
    Nothing,
}

/// An existing name at the destination.
#[derive(Debug, Clone, Copy)]
struct There {
    bytes: u64,
    modified: DateTime<Utc>,
}

impl Side {
    pub(super) fn of(destination: &Destination, stores: &Stores) -> Result<Self, Failure> {
        match destination {
            Destination::Plain(Location::File(folder)) => Ok(match folder.exists() {
                true => Self::Files(folder.clone()),
                false => Self::Nothing,
            }),
            Destination::Plain(other) => Err(Failure::usage(format!(
                "{other} is no folder; write a folder or s3://bucket/prefix"
            ))),
            Destination::Object(ObjectUrl::Store(address)) => Ok(Self::Store {
                store: stores.of(address)?,
                prefix: address.path()?,
            }),
            Destination::Object(ObjectUrl::Folder(folder)) if !folder.exists() => Ok(Self::Nothing),
            Destination::Object(ObjectUrl::Folder(folder)) => {
                let (origin, any) = ObjectUrl::Folder(folder.join("any")).split()?;
                let mut prefix: Vec<_> = any.parts().collect();
                prefix.pop();
                Ok(Self::Store {
                    store: Arc::new(stores.bucket(&origin, PART_MIN_BYTES)?),
                    prefix: prefix.into_iter().collect(),
                })
            }
        }
    }

    async fn list(
        &self,
        what: String,
        stores: &Stores,
    ) -> Result<BTreeMap<String, There>, Failure> {
        let listed: Result<_, Failure> = match self {
            Self::Nothing => Ok(BTreeMap::new()),
            Self::Files(folder) => {
                let items = tree::items(&Location::File(folder.clone()), stores)?;
                let there = |item: Item| {
                    let there = There {
                        bytes: item.listed.bytes,
                        modified: item.modified,
                    };
                    (item.name, there)
                };
                items.map_ok(there).try_collect().await
            }
            Self::Store { store, prefix } => {
                let there = |(name, meta): (String, object_store::ObjectMeta)| {
                    let there = There {
                        bytes: meta.size,
                        modified: meta.last_modified,
                    };
                    (name, there)
                };
                let objects = tree::objects(Arc::clone(store), prefix.clone(), what);
                objects.map_ok(there).try_collect().await
            }
        };
        match listed {
            Err(failure) if failure.kind == Kind::NotFound => Ok(BTreeMap::new()),
            listed => listed,
        }
    }

    /// Whether the destination has the bytes of the source. Their lengths are equal.
    pub(super) async fn has_same(
        &self,
        name: &str,
        pair: &Pair,
        stores: &Stores,
    ) -> Result<bool, Failure> {
        let bytes = pair.listed.as_ref().map(|listed| listed.bytes);
        let mut there = match self {
            Self::Nothing => return Ok(false),
            Self::Files(folder) => {
                let file = Location::File(folder.join(name));
                Source::open(&file, None, bytes, stores).await?
            }
            Self::Store { store, prefix } => {
                let shown = pair.destination.to_string();
                let object = Object::at(&shown, Arc::clone(store), key(prefix, name)?).await?;
                Source::of_object(object, &shown, None)?
            }
        };
        let mut here = Source::open(&pair.source, None, None, stores).await?;
        // Equal lengths, so equal parts.
        loop {
            match (here.next().await?, there.next().await?) {
                (None, None) => return Ok(true),
                (one, other) if one == other => {}
                _ => return Ok(false),
            }
        }
    }

    /// Deletes names; yields each deleted one.
    pub(super) fn delete(
        &self,
        names: BoxStream<'static, String>,
    ) -> BoxStream<'static, Result<String, Failure>> {
        match self {
            Self::Nothing => futures::stream::empty().boxed(),
            Self::Files(folder) => {
                let folder = folder.clone();
                names.map(move |name| delete_file(&folder, name)).boxed()
            }
            Self::Store { store, prefix } => {
                let (prefix, below) = (prefix.clone(), prefix.clone());
                let unnamed = |error: object_store::path::Error| object_store::Error::from(error);
                let paths = names.map(move |name| {
                    let text = format!("{prefix}/{name}");
                    Path::parse(text.trim_start_matches('/')).map_err(unnamed)
                });
                let deleted = store.delete_stream(paths.boxed());
                let told = deleted.map(move |outcome| match outcome {
                    Ok(path) => Ok(tree::name_below(&path, &below)),
                    Err(error) => Err(Failure::store("cannot delete at the destination", &error)),
                });
                told.boxed()
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
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) to_copy: Vec<Pair>,
    /// By name: equal lengths, so the bytes must be compared.
    pub(super) to_compare: Vec<(String, Pair)>,
    pub(super) to_delete: Vec<String>,
    pub(super) unchanged: u64,
}

impl Plan {
    pub(super) async fn make(args: &Args, stores: &Stores, side: &Side) -> Result<Self, Failure> {
        let items = tree::items(&args.source, stores)?.try_collect().await?;
        let mut there = side.list(args.destination.to_string(), stores).await?;
        let mut plan = Self::default();
        let tree = transfer::tree_of(&args.destination, &args.data_dir, args.keep_dirlinks);
        for item in tree::without_markers(items) {
            let known = there.remove(&item.name);
            if !args.filter.takes(&item.name) {
                continue;
            }
            if tree.is_some() && transfer::is_own_marker(&item) {
                continue;
            }
            let needed = need(&item, known, args.checksum);
            let pair = Pair {
                destination: below(&args.destination, &item.name)?,
                source: item.location,
                listed: Some(item.listed),
                tree: tree.clone(),
            };
            match needed {
                Need::Copy => plan.to_copy.push(pair),
                Need::Compare => plan.to_compare.push((item.name, pair)),
                Need::Nothing => plan.unchanged += 1,
            }
        }
        if args.delete {
            let left = there.into_keys().filter(|name| args.filter.takes(name));
            plan.to_delete = left.collect();
        }
        Ok(plan)
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Need {
    Copy,
    Compare,
    Nothing,
}

fn need(item: &Item, there: Option<There>, checksum: bool) -> Need {
    match there {
        None => Need::Copy,
        Some(there) if there.bytes != item.listed.bytes => Need::Copy,
        Some(_) if checksum => Need::Compare,
        // Stores have a resolution of seconds or milliseconds; file systems a finer one.
        Some(there) if item.modified.timestamp() > there.modified.timestamp() => Need::Copy,
        Some(_) => Need::Nothing,
    }
}
