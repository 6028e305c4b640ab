//! `bywash sync`: copies files and objects that a destination lacks or has differently.

mod plan;

use std::path::PathBuf;
use std::sync::Arc;

use object_store::PutMode;

use crate::endpoint::{Endpoint, Remote};
use crate::failure::{Failure, Kind};
use crate::filter::Filter;
use crate::interrupt::or_interrupt;
use crate::output::Output;
use crate::serve::data_dir::DEFAULT_DATA_DIR;
use crate::transfer::copy::Copier;
use crate::transfer::jobs::{self, Failures, Jobs};
use crate::transfer::left_out::LeftOut;
use crate::transfer::listing::{Sort, planned};
use crate::transfer::plan::{Copies, CopyPlan, Entries, Planned, Roots};
use crate::transfer::run::all;
use crate::transfer::{self, After, Pair};
use crate::url::Url;

use plan::{Deletion, Plan, Side};

/// Copy what a destination lacks or has differently
///
/// A file or object is copied if there is none of its name, if their sizes differ, or if the source was written later (to the
/// second). With --delete, names that the source lacks are deleted after all copies succeeded: if a listing or a copy fails,
/// nothing is deleted. Names that the listing of the source left out, because it could not read them or they are no files, are kept
/// with all below them; so are names at the destination that changed since they were listed.
///
/// With --json, one line a copy, as cp has it, one a deletion: removed, and one a name that is kept: kept. With --dry-run: action
/// (copy or delete), source, destination, bytes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A folder, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix
    #[arg(value_name = "SRC")]
    source: Url,
    /// A folder, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///folder
    #[arg(value_name = "DST", value_parser = Url::destination)]
    destination: Url,
    /// Delete names at the destination that the source lacks
    #[arg(long)]
    delete: bool,
    /// Compare bytes instead of times where sizes are the same. Reads both sides
    #[arg(long)]
    checksum: bool,
    /// Follow symbolic links to folders below a destination that is a folder; without it, a file behind one is a failure.
    /// Files behind them are not listed, so they are copied each time
    #[arg(long)]
    keep_dirlinks: bool,
    /// Print what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    filter: Filter,
    #[command(flatten)]
    jobs: Jobs,
    /// Data folder, which records open uploads for `bywash uploads resume`
    #[arg(long, value_name = "DIR", env = "BYWASH_DATA_DIR", default_value = DEFAULT_DATA_DIR)]
    data_dir: PathBuf,
    #[command(flatten)]
    remote: Remote,
    #[command(flatten)]
    pub(crate) output: Output,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let endpoint = Endpoint::new(&args.remote, &args.data_dir);
    (endpoint.places()).refuse_overlap(&args.source, &args.destination)?;
    let copier = Arc::new(Copier::new(endpoint, PutMode::Overwrite, args.output));
    let side = Arc::new(Side::of(&args.destination, &copier.endpoint)?);
    let roots = Arc::new(Roots {
        sources: vec![args.source.clone()],
        destination: args.destination.clone(),
        tree: transfer::tree_of(
            &args.destination,
            std::slice::from_ref(&args.source),
            &args.data_dir,
            args.keep_dirlinks,
        ),
    });
    let plan = planned(|sort| Plan::make(&args, &copier.endpoint, &side, sort));
    let Plan {
        mut to_copy,
        to_compare,
        to_delete,
        kept,
        left_out,
        unchanged,
        sort,
    } = or_interrupt(plan).await?;
    report_kept(&args, kept, &left_out)?;
    compare(&args, &copier, &side, (to_compare, &roots), &mut to_copy).await?;
    let (copies, names) = (to_copy.copies(roots)?, to_delete.len());
    let to_delete = to_delete.entries()?;
    let incomplete = left_out.outcome(&args.source, "synced");
    if args.dry_run {
        print(&args, copies, to_delete)?;
        return incomplete;
    }
    if copies.count > 0 {
        transfer::root_store(&args.destination, &copier.endpoint)?;
        let copied = all(&copier, copies, args.jobs, args.output, After::Keep);
        copied.await.map_err(|failure| undeleted(&args, failure))?;
    }
    let at = (&args, &copier.endpoint, sort);
    or_interrupt(delete(at, &side, to_delete, names)).await?;
    if !args.output.json {
        args.output.line(&(), || {
            format!("{names} deleted, {unchanged} were the same")
        })?;
    }
    incomplete
}

/// Reports names at the destination that are kept because they may be copies of names that the
/// listing of the source left out.
fn report_kept(
    args: &Args,
    kept: transfer::plan::Plan<String>,
    left_out: &LeftOut,
) -> Result<(), Failure> {
    let (count, destination) = (kept.len(), &args.destination);
    if count == 0 {
        return Ok(());
    }
    if left_out.is_incomplete() {
        tracing::warn!(
            "nothing is deleted, and {count} names at {destination} are kept: the listing of {} left out names that cannot be compared",
            args.source
        )
    } else {
        tracing::warn!(
            "{count} names at {destination} are kept: the listing of {} left out {}",
            args.source,
            left_out.shown()
        )
    }
    for name in kept.entries()?.filter(|_| args.output.json) {
        let kept = transfer::below(destination, &name?)?.to_string();
        args.output
            .line(&serde_json::json!({ "kept": kept }), String::new)?;
    }
    Ok(())
}

/// Adds "nothing was deleted" to the failure of a copy.
fn undeleted(args: &Args, mut failure: Failure) -> Failure {
    if args.delete && failure.kind != Kind::ReaderGone {
        failure.message = format!("{}; nothing was deleted", failure.message);
    }
    failure
}

/// Plans copies of files that differ in their bytes.
async fn compare(
    args: &Args,
    copier: &Arc<Copier>,
    side: &Arc<Side>,
    (to_compare, roots): (transfer::plan::Plan<Planned>, &Arc<Roots>),
    to_copy: &mut CopyPlan,
) -> Result<(), Failure> {
    let compared = jobs::each(
        args.jobs,
        args.output,
        "comparisons failed; nothing was copied",
        to_compare.len(),
        to_compare.entries()?,
        |planned| {
            let (copier, side, roots) = (Arc::clone(copier), Arc::clone(side), Arc::clone(roots));
            async move {
                let (name, pair) = (planned.name.clone(), roots.pair(planned.clone())?);
                let compared = Box::pin(side.has_same(&name, &pair, &copier.endpoint));
                let same = or_interrupt(compared).await?;
                Ok((!same).then_some(planned))
            }
        },
        |different: Option<Planned>| match different {
            Some(planned) => to_copy.push(&planned),
            None => Ok(()),
        },
    );
    compared.await.map_err(|failure| undeleted(args, failure))
}

fn print(args: &Args, copies: Copies, to_delete: Entries<Deletion>) -> Result<(), Failure> {
    for pair in copies.pairs {
        let Pair {
            source,
            destination,
            listed,
            ..
        } = pair?;
        let bytes = listed.map(|listed| listed.bytes);
        let line = serde_json::json!({
            "action": "copy", "source": source.to_string(), "destination": destination.to_string(), "bytes": bytes
        });
        args.output
            .line(&line, || format!("would copy {source} to {destination}"))?;
    }
    for deletion in to_delete {
        let destination = transfer::below(&args.destination, &deletion?.name)?;
        let line = serde_json::json!({"action": "delete", "destination": destination.to_string()});
        args.output
            .line(&line, || format!("would delete {destination}"))?;
    }
    Ok(())
}

/// Deletes `count` names at the destination.
async fn delete(
    at: (&Args, &Endpoint, Sort),
    side: &Side,
    planned: Entries<Deletion>,
    count: usize,
) -> Result<(), Failure> {
    let (args, mut failures) = (at.0, Failures::new(at.0.output));
    if count == 0 {
        return Ok(());
    }
    let done = |outcome: Result<String, Failure>| {
        match outcome {
            Ok(name) if args.output.json => {
                let removed = transfer::below(&args.destination, &name)?.to_string();
                args.output
                    .line(&serde_json::json!({ "removed": removed }), String::new)?;
            }
            Ok(_) => {}
            Err(failure) => failures.push(failure),
        }
        Ok(())
    };
    side.delete(planned, at, done).await?;
    failures.end(count, "deletions failed")
}
