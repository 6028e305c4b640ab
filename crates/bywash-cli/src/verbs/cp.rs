//! `bywash cp` and `bywash mv`: pairs of sources and destinations.

use std::path::PathBuf;
use std::sync::Arc;

use bywash::ContentDigest;
use http::{HeaderName, HeaderValue};
use object_store::{PutMode, UpdateVersion};

use crate::endpoint::{Endpoint, Remote};
use crate::failure::Failure;
use crate::filter::Filter;
use crate::interrupt::or_interrupt;
use crate::output::Output;
use crate::serve::data_dir::DEFAULT_DATA_DIR;
use crate::transfer::copy::Copier;
use crate::transfer::jobs::Jobs;
use crate::transfer::left_out::LeftOut;
use crate::transfer::listing::{Listing, Markers, Named, Sort, Unplanned, planned};
use crate::transfer::plan::{Copies, CopyPlan, Planned, Roots};
use crate::transfer::run::{all, one};
use crate::transfer::tree::Asides;
use crate::transfer::{After, Pair, below, is_own_marker, root_store, tree, tree_of};
use crate::url::Url;

use self::signed::{Ends, parse_header};

mod signed;

#[derive(Debug, clap::Args)]
pub(crate) struct Transfer {
    /// s3://bucket/key, gs://bucket/key, az://container/key, https://host/path, a file path, or - for standard input
    #[arg(value_name = "SRC", required = true, conflicts_with = "parts")]
    sources: Vec<Url>,
    /// s3://bucket/key, gs://bucket/key, az://container/key, file:///folder/key, a file path, or - for standard output; or an
    /// https:// address that was signed for writing one object. With --parts, this is the source
    #[arg(value_name = "DST")]
    destination: String,
    /// File with signed addresses of the parts of one object, as `bywash presign --parts` prints them: the destination
    #[arg(long, value_name = "FILE", conflicts_with = "recursive")]
    parts: Option<PathBuf>,
    /// Header that a signed destination was signed for; may be repeated
    #[arg(long = "header", value_name = "NAME:VALUE", value_parser = parse_header)]
    headers: Vec<(HeaderName, HeaderValue)>,
    /// Copy everything below a source, a folder or prefix, under the same names below the destination
    #[arg(long, short)]
    recursive: bool,
    #[command(flatten)]
    filter: Filter,
    #[command(flatten)]
    jobs: Jobs,
    /// Follow symbolic links to folders below a destination that is a folder; without it, a file behind one is a failure
    #[arg(long, requires = "recursive")]
    keep_dirlinks: bool,
    /// Fail if the destination exists
    #[arg(long, conflicts_with = "if_match")]
    create_only: bool,
    /// Replace only the version of the object that has this ETag, as `stat` shows it
    #[arg(long, value_name = "ETAG", conflicts_with = "recursive")]
    if_match: Option<String>,
    /// SHA-256 that the object must have, in hexadecimal digits; on a mismatch the destination is not changed
    #[arg(long, value_name = "HEX", value_parser = ContentDigest::parse_sha256, conflicts_with = "recursive")]
    sha256: Option<ContentDigest>,
    /// Data folder, which records open uploads for `bywash uploads resume`
    #[arg(long, value_name = "DIR", env = "BYWASH_DATA_DIR", default_value = DEFAULT_DATA_DIR)]
    data_dir: PathBuf,
    #[command(flatten)]
    remote: Remote,
    #[command(flatten)]
    pub(crate) output: Output,
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
    let ends = Ends::of(&args)?;
    let is_object = matches!(&ends.sources[..], [Url::Object(_)]);
    if args.sha256.is_some() && !is_object {
        return Err(Failure::usage(
            "--sha256 is of one object; name one, as s3://bucket/key",
        ));
    }
    let copier = Copier::new(endpoint, mode, args.output)
        .comparing(args.sha256)
        .of_sources(ends.sources.len());
    let copier = Arc::new(copier);
    if args.recursive {
        let (copies, left_out) = or_interrupt(trees(&args, ends, &copier.endpoint)).await?;
        all(&copier, copies, args.jobs, args.output, after).await?;
        return left_out
            .iter()
            .try_for_each(|(source, left_out)| left_out.outcome(source, after.verb()));
    }
    let mut pairs = singles(&ends)?;
    if pairs.len() > 1 {
        return all(&copier, pairs.into(), args.jobs, args.output, after).await;
    }
    match pairs.pop() {
        Some(pair) => one(&copier, &pair, args.output, after).await,
        None => Ok(()),
    }
}

/// Plans a copy of each source. Below a destination that is a folder, copies get the names of their sources.
fn singles(ends: &Ends) -> Result<Vec<Pair>, Failure> {
    if ends.sources.len() > 1 && !ends.destination.is_folder() {
        return Err(Failure::usage(format!(
            "{} sources need a folder to go to; end {} with a slash if it is one",
            ends.sources.len(),
            ends.destination
        )));
    }
    let pairs = ends.sources.iter().map(|source| {
        if let Url::File(path) = source
            && path.is_dir()
        {
            return Err(Failure::usage(format!(
                "{source} is a folder; to copy all below it, add --recursive"
            )));
        }
        Ok(Pair {
            source: source.clone(),
            destination: resolve(&ends.destination, source)?,
            listed: None,
            tree: None,
            signed: ends.signed.clone(),
        })
    });
    pairs.collect()
}

/// Appends the source's name to a destination that is a folder.
fn resolve(destination: &Url, source: &Url) -> Result<Url, Failure> {
    if !destination.is_folder() {
        return Ok(destination.clone());
    }
    let name = source.file_name().ok_or_else(|| {
        Failure::usage(format!(
            "{destination} is a folder, and {source} has no name to give; write the whole name"
        ))
    })?;
    below(destination, &name)
}

/// Names that the listings of sources left out.
type LeftOutOf = Vec<(Url, LeftOut)>;

/// Plans the copies of everything below the sources.
async fn trees(
    args: &Transfer,
    ends: Ends,
    endpoint: &Endpoint,
) -> Result<(Copies, LeftOutOf), Failure> {
    for source in &ends.sources {
        endpoint
            .places()
            .refuse_overlap(source, &ends.destination)?;
    }
    let roots = Arc::new(Roots {
        tree: tree_of(
            &ends.destination,
            &ends.sources,
            &args.data_dir,
            args.keep_dirlinks,
        ),
        sources: ends.sources,
        destination: ends.destination,
    });
    let (plan, left_out) = planned(|sort| plan_trees(args, endpoint, &roots, sort)).await?;
    root_store(&roots.destination, endpoint)?;
    Ok((plan.copies(roots)?, left_out))
}

async fn plan_trees(
    args: &Transfer,
    endpoint: &Endpoint,
    roots: &Roots,
    sort: Sort,
) -> Result<(CopyPlan, LeftOutOf), Unplanned> {
    let (mut plan, mut all_left_out) = (CopyPlan::new(), Vec::new());
    for (index, source) in roots.sources.iter().enumerate() {
        let left_out = LeftOut::of(&args.filter);
        let items = tree::items(source, endpoint, &left_out, Asides::PutBack)?;
        let mut items = Listing::new(items, sort).await?;
        let mut markers = Markers::new();
        while let Some(item) = items.next().await? {
            for planned in markers.reach(&item.name) {
                plan.push(&planned)?;
            }
            if !args.filter.takes(&item.name) || roots.tree.is_some() && is_own_marker(&item) {
                continue;
            }
            if item.is_empty() {
                markers.hold(item.name.clone(), Planned::new(index, item))
            } else {
                plan.push(&Planned::new(index, item))?
            }
        }
        for planned in markers.end() {
            plan.push(&planned)?;
        }
        all_left_out.push((source.clone(), left_out));
    }
    Ok((plan, all_left_out))
}
