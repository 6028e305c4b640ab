//! Runs copies: one, or many concurrently.

use std::sync::Arc;
use std::time::Instant;

use indicatif::ProgressBar;
use object_store::PutMode;

use crate::failure::{Failure, Kind};
use crate::interrupt::or_interrupt;
use crate::output::Output;
use crate::progress::bar;
use crate::total::Total;
use crate::url::Url;

use super::copy::{Copied, Copier};
use super::doubt::Doubt;
use super::file::FileTarget;
use super::jobs::{self, Jobs};
use super::place::Places;
use super::plan::Copies;
use super::removal::Kept;
use super::{After, Pair};

/// Runs one copy with a progress bar.
pub(crate) async fn one(
    copier: &Copier,
    pair: &Pair,
    output: Output,
    after: After,
) -> Result<(), Failure> {
    // The length is known once the source is open.
    let length = (pair.source != Url::Stdio).then_some(0);
    let bar = bar(length, pair.destination.to_string(), output);
    let copied = Box::pin(transfer(copier, pair, &bar, after)).await;
    match copied {
        Ok(_) => bar.finish(),
        Err(_) => bar.abandon(),
    }
    let copied = copied.map_err(|failure| or_a_tree(failure, &pair.source))?;
    match pair.destination {
        Url::Stdio => output.summary(&copied),
        _ if output.json => output.line(&copied, String::new),
        _ => Ok(()),
    }
}

/// Adds a hint to "not found": the user may mean all keys below the name.
fn or_a_tree(mut failure: Failure, source: &Url) -> Failure {
    let lists = matches!(source, Url::Object(address) if address.scheme.is_writable());
    if lists && failure.kind == Kind::NotFound {
        failure.message += "; to copy all below it, add --recursive";
    }
    failure
}

/// Runs all copies, and prints their number.
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
    let what = format!("copies failed; the completed ones were {}", after.verb());
    let (mut done, mut bytes) = (0_u64, Total::default());
    let outcome = jobs::each(
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
                    // In listings the marker `dir/` of an empty folder looks like an object `dir`.
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
            if output.json {
                output.line(&copied, String::new)
            } else {
                Ok(())
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

/// Runs one copy, and deletes its source if it is a move.
async fn transfer(
    copier: &Copier,
    pair: &Pair,
    bar: &ProgressBar,
    after: After,
) -> Result<Copied, Failure> {
    if after == After::Remove {
        can_move(pair, copier.endpoint.places())?;
    }
    if let Some(claims) = copier.claims() {
        claims.take(pair)?;
    }
    let copied = copied(copier, pair, bar, after).await;
    if let (Err(_), Some(claims)) = (&copied, copier.claims()) {
        claims.release(pair);
    }
    let (copied, doubt) = copied?;
    if let Some(doubt) = doubt {
        remove(copier, pair, &copied, doubt).await?;
    }
    Ok(copied)
}

/// Runs one copy. Returns with it how to delete its source, if that is still there and to be deleted.
async fn copied(
    copier: &Copier,
    pair: &Pair,
    bar: &ProgressBar,
    after: After,
) -> Result<(Copied, Option<Doubt>), Failure> {
    if after == After::Keep {
        return Ok((copier.copy(pair, bar).await?, None));
    }
    if !copier.keeps_existing() && renamed(pair) {
        return Ok((Copied::renamed(&pair.source, &pair.destination), None));
    }
    let doubt = or_interrupt(copier.doubt(pair)).await?;
    Ok((copier.copy(pair, bar).await?, Some(doubt)))
}

/// Deletes the source of a move, unless the copy changed it: then it is the destination.
async fn remove(
    copier: &Copier,
    pair: &Pair,
    copied: &Copied,
    doubt: Doubt,
) -> Result<(), Failure> {
    let Pair {
        source,
        destination,
        ..
    } = pair;
    if doubt == Doubt::Unseen {
        or_interrupt(async {
            copier.wait_for_write().await;
            Ok(())
        })
        .await?;
    }
    let failed = |error| Failure::io(format!("cannot delete {source}"), &error);
    let kept = match destination {
        Url::File(path) if doubt == Doubt::File => Some(Kept::new(path).map_err(failed)?),
        _ => None,
    };
    let removed = copier.remove(source, copied.version.as_ref()).await;
    if let Some(kept) = kept
        && kept.end().map_err(failed)?
    {
        return Err(Failure::failed(format!(
            "{source} is {destination} by another address, and is left; there is nothing to move"
        )));
    }
    removed
}

/// Moves a file by a rename, if it stays on its file system. Returns whether it did.
fn renamed(pair: &Pair) -> bool {
    match (&pair.source, &pair.destination) {
        (Url::File(from), Url::File(to)) => {
            // After a failure the file is copied instead, and the copy reports the reason.
            let target = FileTarget::prepare(to, &PutMode::Overwrite, pair.tree.as_deref());
            target.is_ok() && from.is_file() && std::fs::rename(from, to).is_ok()
        }
        _ => false,
    }
}

/// Rejects moves from a source that cannot be deleted, and of a source onto itself.
fn can_move(pair: &Pair, places: &Places) -> Result<(), Failure> {
    let Pair {
        source,
        destination,
        ..
    } = pair;
    match (source, destination) {
        (Url::Stdio, _) | (_, Url::Stdio) => Err(Failure::usage(
            "standard input and output cannot be moved; copy with cp",
        )),
        (Url::Object(address), _) if !address.scheme.is_writable() => Err(Failure::usage(format!(
            "{source} can be read only; copy it with cp"
        ))),
        _ if pair.signed.is_none() && places.are_one(source, destination) => Err(Failure::usage(
            format!("{source} would be moved onto itself"),
        )),
        (Url::File(path) | Url::Folder(path), _)
            if path.metadata().is_ok_and(|meta| !meta.is_file()) =>
        {
            Err(Failure::usage(format!(
                "{source} is no regular file, so its copy cannot be compared with it; copy it with cp"
            )))
        }
        _ => Ok(()),
    }
}
