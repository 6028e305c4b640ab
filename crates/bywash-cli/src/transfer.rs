//! What `cp` and `mv` share: which sources go to which destinations, and their copies side by side.

pub(crate) mod listing;
pub(crate) mod plan;

use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use bywash::OriginUrl;
use bywash::origin::folder::FolderStore;
use indicatif::ProgressBar;
use object_store::{PutMode, UpdateVersion};

use crate::batch::{self, Jobs};
use crate::beneath::Tree;
use crate::copy::{Copied, Copier, Listed, same_place};
use crate::endpoint::{Endpoint, Remote};
use crate::failure::{Failure, Kind};
use crate::file::Place;
use crate::filter::Filter;
use crate::location::Location;
use crate::output::Output;
use crate::progress::{bar, or_interrupt};
use crate::serve::data_dir::DEFAULT_DATA_DIR;
use crate::target::{Destination, ObjectUrl};
use crate::total::Total;
use crate::tree::{self, Item};

use listing::{Listing, Markers, Named, Sort, Unplanned, planned};
use plan::{Copies, CopyPlan, Planned, Roots};

#[derive(Debug, clap::Args)]
pub(crate) struct Transfer {
    /// s3://bucket/key, gs://bucket/key, az://container/key, https://host/path, a file path, or - for standard input
    #[arg(value_name = "SRC", required = true)]
    sources: Vec<Location>,
    /// s3://bucket/key, gs://bucket/key, az://container/key, file:///folder/key, a file path, or - for standard output
    #[arg(value_name = "DST")]
    destination: Destination,
    /// All that is below a source, a folder or prefix, under the same names below the destination
    #[arg(long, short)]
    recursive: bool,
    #[command(flatten)]
    filter: Filter,
    #[command(flatten)]
    jobs: Jobs,
    /// Follow symbolic links to folders below a destination that is a folder; without it, a file behind one is a failure
    #[arg(long, requires = "recursive")]
    keep_dirlinks: bool,
    /// Replace nothing: a destination that exists is a failure
    #[arg(long, conflicts_with = "if_match")]
    create_only: bool,
    /// Replace only the version of the object that has this ETag, as `stat` shows it
    #[arg(long, value_name = "ETAG", conflicts_with = "recursive")]
    if_match: Option<String>,
    /// Where open uploads are written down, so that `bywash uploads resume` can go on with them
    #[arg(long, value_name = "DIR", default_value = DEFAULT_DATA_DIR)]
    data_dir: PathBuf,
    #[command(flatten)]
    remote: Remote,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// What becomes of the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    Keep,
    Remove,
}

impl After {
    fn verb(self) -> &'static str {
        match self {
            Self::Keep => "copied",
            Self::Remove => "moved",
        }
    }
}

/// One copy to be made.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) source: Location,
    pub(crate) destination: Destination,
    pub(crate) listed: Option<Listed>,
    /// The tree of files that the destination is one of.
    pub(crate) tree: Option<Arc<Tree>>,
}

pub(crate) async fn run(args: Transfer, after: After) -> Result<(), Failure> {
    let mode = match &args.if_match {
        Some(e_tag) => PutMode::Update(UpdateVersion {
            e_tag: Some(e_tag.clone()),
            version: None,
        }),
        None if args.create_only => PutMode::Create,
        None => PutMode::Overwrite,
    };
    let endpoint = Endpoint::new(&args.remote, &args.data_dir);
    let copier = Arc::new(Copier::new(endpoint, mode, args.output));
    if args.recursive {
        let copies = or_interrupt(trees(&args, &copier.endpoint)).await?;
        return all(&copier, copies, args.jobs, args.output, after).await;
    }
    let mut pairs = singles(&args)?;
    if pairs.len() > 1 {
        return all(&copier, pairs.into(), args.jobs, args.output, after).await;
    }
    match pairs.pop() {
        Some(pair) => one(&copier, &pair, args.output, after).await,
        None => Ok(()),
    }
}

/// Each source by itself. A destination that is a folder gives them their names.
fn singles(args: &Transfer) -> Result<Vec<Pair>, Failure> {
    if args.sources.len() > 1 && !is_folder(&args.destination) {
        return Err(Failure::usage(format!(
            "{} sources need a folder to go to; end {} with a slash if it is one",
            args.sources.len(),
            args.destination
        )));
    }
    let pairs = args.sources.iter().map(|source| {
        if let Location::File(path) = source
            && path.is_dir()
        {
            return Err(Failure::usage(format!(
                "{source} is a folder; to copy all below it, add --recursive"
            )));
        }
        Ok(Pair {
            source: source.clone(),
            destination: resolve(&args.destination, source)?,
            listed: None,
            tree: None,
        })
    });
    pairs.collect()
}

fn is_folder(destination: &Destination) -> bool {
    match destination {
        Destination::Plain(Location::File(path)) => {
            path.is_dir() || path.to_string_lossy().ends_with('/')
        }
        Destination::Plain(_) => false,
        Destination::Object(url) => url.is_folder(),
    }
}

/// Gives a destination that is a folder the source's name.
fn resolve(destination: &Destination, source: &Location) -> Result<Destination, Failure> {
    if !is_folder(destination) {
        return Ok(destination.clone());
    }
    let name = source.file_name().ok_or_else(|| {
        Failure::usage(format!(
            "{destination} is a folder, and {source} has no name to give; write the whole name"
        ))
    })?;
    below(destination, &name)
}

/// The place of a name below a destination.
pub(crate) fn below(destination: &Destination, name: &str) -> Result<Destination, Failure> {
    match destination {
        Destination::Plain(Location::File(path)) => {
            Ok(Destination::Plain(Location::File(path.join(name))))
        }
        Destination::Plain(other) => Err(Failure::usage(format!(
            "{other} is no folder; write a folder or s3://bucket/prefix"
        ))),
        Destination::Object(url) => Ok(Destination::Object(url.join(name))),
    }
}

/// Plans the copies of all that is below the sources.
async fn trees(args: &Transfer, endpoint: &Endpoint) -> Result<Copies, Failure> {
    for source in &args.sources {
        if same_place(source, &args.destination) {
            return Err(Failure::usage(format!(
                "{source} would be copied onto itself"
            )));
        }
    }
    let roots = Arc::new(Roots {
        sources: args.sources.clone(),
        destination: args.destination.clone(),
        tree: tree_of(&args.destination, &args.data_dir, args.keep_dirlinks),
    });
    let plan = planned(|sort| plan_trees(args, endpoint, &roots, sort)).await?;
    root_store(&args.destination, endpoint)?;
    plan.copies(roots)
}

async fn plan_trees(
    args: &Transfer,
    endpoint: &Endpoint,
    roots: &Roots,
    sort: Sort,
) -> Result<CopyPlan, Unplanned> {
    let mut plan = CopyPlan::new();
    for (index, source) in roots.sources.iter().enumerate() {
        let mut items = Listing::new(tree::items(source, endpoint)?, sort).await?;
        let mut markers = Markers::new();
        while let Some(item) = items.next().await? {
            for planned in markers.reach(&item.name) {
                plan.push(&planned)?;
            }
            if !args.filter.takes(&item.name) || roots.tree.is_some() && is_own_marker(&item) {
                continue;
            }
            match item.is_empty() {
                true => markers.hold(item.name.clone(), Planned::new(index, item)),
                false => plan.push(&Planned::new(index, item))?,
            }
        }
        for planned in markers.end() {
            plan.push(&planned)?;
        }
    }
    Ok(plan)
}

/// The tree of files at a destination, if that is a folder of files.
pub(crate) fn tree_of(
    destination: &Destination,
    data_dir: &FsPath,
    keep_dirlinks: bool,
) -> Option<Arc<Tree>> {
    match destination {
        Destination::Plain(Location::File(folder)) => {
            Some(Arc::new(Tree::new(folder, data_dir, keep_dirlinks)))
        }
        _ => None,
    }
}

/// Returns whether an object is empty and has a name of Bywash's own: it marks a folder of an endpoint, and is left out.
pub(crate) fn is_own_marker(item: &Item) -> bool {
    let name = item.name.rsplit('/').next().unwrap_or_default();
    item.listed.bytes == 0 && FolderStore::is_own_name(name)
}

/// Makes the folder that a tree goes to one store, rather than each folder below it.
pub(crate) fn root_store(destination: &Destination, endpoint: &Endpoint) -> Result<(), Failure> {
    let Destination::Object(ObjectUrl::Folder(folder)) = destination else {
        return Ok(());
    };
    std::fs::create_dir_all(folder)
        .map_err(|error| Failure::io(format!("cannot write {destination}"), &error))?;
    let (origin, _): (OriginUrl, _) = ObjectUrl::Folder(folder.join("any")).split()?;
    endpoint.bucket(&origin).map(drop)
}

async fn one(copier: &Copier, pair: &Pair, output: Output, after: After) -> Result<(), Failure> {
    // Its length is told when the source is open.
    let length = (pair.source != Location::Stdio).then_some(0);
    let bar = bar(length, pair.destination.to_string(), output);
    let copied = Box::pin(transfer(copier, pair, &bar, after)).await;
    match copied {
        Ok(_) => bar.finish(),
        Err(_) => bar.abandon(),
    }
    let copied = copied.map_err(|failure| or_a_tree(failure, &pair.source))?;
    match pair.destination {
        Destination::Plain(Location::Stdio) => output.summary(&copied),
        _ if output.json => output.line(&copied, String::new),
        _ => Ok(()),
    }
}

/// An object that is not there may be what people call a folder.
fn or_a_tree(mut failure: Failure, source: &Location) -> Failure {
    let lists = matches!(source, Location::Object(address) if address.scheme.is_writable());
    if lists && failure.kind == Kind::NotFound {
        failure.message += "; to copy all below it, add --recursive";
    }
    failure
}

/// Makes all copies, and tells how many they were.
pub(crate) async fn all(
    copier: &Arc<Copier>,
    copies: Copies,
    jobs: Jobs,
    output: Output,
    after: After,
) -> Result<(), Failure> {
    let start = Instant::now();
    let Copies {
        count,
        bytes: total,
        pairs,
    } = copies;
    let bar = bar(Some(total.bytes()), format!("{count} files"), output);
    let what = format!("copies failed; those that ended well were {}", after.verb());
    let (mut done, mut bytes) = (0_u64, Total::default());
    let outcome = batch::each(
        jobs,
        output,
        &what,
        count,
        pairs,
        |pair| {
            let (copier, bar) = (Arc::clone(copier), bar.clone());
            async move {
                let listed = pair.listed.as_ref().map(|listed| listed.bytes);
                match Box::pin(transfer(&copier, &pair, &bar, after)).await {
                    Ok(copied) => Ok(Some((listed.or(copied.bytes), copied))),
                    // Listings do not tell the marker `dir/` of an empty folder from an object `dir`.
                    Err(failure) if failure.kind == Kind::NotFound && listed == Some(0) => {
                        tracing::warn!(
                            "{} is no object, but marks a folder, or is gone",
                            pair.source
                        );
                        Ok(None)
                    }
                    Err(failure) => Err(failure),
                }
            }
        },
        |copied: Option<(Option<u64>, Copied)>| {
            let Some((length, copied)) = copied else {
                return Ok(());
            };
            done += 1;
            bytes.add(length.unwrap_or(0));
            match output.json {
                true => output.line(&copied, String::new),
                false => Ok(()),
            }
        },
    )
    .await;
    bar.finish_and_clear();
    if outcome.is_ok() && !output.json {
        let seconds = start.elapsed().as_secs_f64();
        output.line(&(), || {
            format!(
                "{done} {}, {}, {seconds:.1} s",
                after.verb(),
                bytes.shown(true)
            )
        })?;
    }
    outcome
}

/// One copy, and what becomes of its source.
async fn transfer(
    copier: &Copier,
    pair: &Pair,
    bar: &ProgressBar,
    after: After,
) -> Result<Copied, Failure> {
    let Pair {
        source,
        destination,
        ..
    } = pair;
    if after == After::Remove {
        can_move(pair)?;
    }
    if after == After::Remove && !copier.keeps_existing() && renamed(pair) {
        return Ok(Copied::renamed(source, destination));
    }
    let copied = copier.copy(pair, bar).await?;
    if after == After::Remove {
        copier
            .remove(source, copied.source_e_tag.as_deref())
            .await?;
    }
    Ok(copied)
}

/// Moves a file by its name alone, if it stays on its file system.
fn renamed(pair: &Pair) -> bool {
    match (&pair.source, &pair.destination) {
        (Location::File(from), Destination::Plain(Location::File(to))) => {
            // What fails here is copied, and tells then what is wrong.
            let place = Place::prepare(to, &PutMode::Overwrite, pair.tree.as_deref());
            place.is_ok() && from.is_file() && std::fs::rename(from, to).is_ok()
        }
        _ => false,
    }
}

/// Refuses what cannot be deleted afterwards, or would be gone.
fn can_move(pair: &Pair) -> Result<(), Failure> {
    let Pair {
        source,
        destination,
        ..
    } = pair;
    match (source, destination) {
        (Location::Stdio, _) | (_, Destination::Plain(Location::Stdio)) => Err(Failure::usage(
            "standard input and output are no places to move from or to; copy with cp",
        )),
        (Location::Object(address), _) if !address.scheme.is_writable() => Err(Failure::usage(
            format!("{source} can be read only; copy it with cp"),
        )),
        _ if same_place(source, destination) => Err(Failure::usage(format!(
            "{source} would be moved onto itself"
        ))),
        _ => Ok(()),
    }
}
