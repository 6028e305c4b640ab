//! `bywash du`: sums of objects and bytes.

use std::collections::BTreeMap;

use futures::TryStreamExt;
use serde::Serialize;

use crate::endpoint::{Endpoint, Remote};
use crate::failure::Failure;
use crate::filter::Filter;
use crate::interrupt::or_interrupt;
use crate::output::Output;
use crate::total::Total;
use crate::transfer::left_out::LeftOut;
use crate::transfer::tree::{self, Asides};
use crate::url::Url;

/// Count the objects or files below folders or prefixes, and their bytes
///
/// With --json, one line a folder: name, objects, bytes, and bytes_exceeded: true if they are more than 2^64-1; in text with a > before them.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// s3://bucket, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or a folder
    #[arg(required = true, value_name = "WHERE")]
    locations: Vec<Url>,
    /// Also each folder below, down to this depth
    #[arg(long, short, value_name = "N", default_value_t = 0)]
    depth: usize,
    /// Sizes as 1.50 MiB
    #[arg(long, short = 'H')]
    human: bool,
    #[command(flatten)]
    filter: Filter,
    #[command(flatten)]
    remote: Remote,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Default, Serialize)]
struct Sum {
    objects: u64,
    bytes: Total,
}

#[derive(Serialize)]
struct Line<'a> {
    name: &'a str,
    #[serde(flatten)]
    sum: &'a Sum,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    bytes_exceeded: bool,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let endpoint = Endpoint::with_short_deadline(&args.remote);
    let mut unreadable = Ok(());
    for location in &args.locations {
        let left_out = LeftOut::of(&args.filter);
        for (below, sum) in or_interrupt(sums(location, &args, &endpoint, &left_out)).await? {
            let root = location.to_string();
            let name = match below.as_str() {
                "" => root,
                below => format!("{}/{below}/", root.trim_end_matches('/')),
            };
            args.output.line(
                &Line {
                    name: &name,
                    sum: &sum,
                    bytes_exceeded: sum.bytes.exceeded(),
                },
                || {
                    let size = sum.bytes.shown(args.human);
                    format!("{size:>14} {:>9} {name}", sum.objects)
                },
            )?;
        }
        unreadable = unreadable.and(left_out.outcome(location, "counted"));
    }
    unreadable
}

/// By the name of the folder below the location; empty for all of it.
async fn sums(
    location: &Url,
    args: &Args,
    endpoint: &Endpoint,
    left_out: &LeftOut,
) -> Result<BTreeMap<String, Sum>, Failure> {
    let mut sums = BTreeMap::from([(String::new(), Sum::default())]);
    let mut items = tree::items(location, endpoint, left_out, Asides::LeaveOut)?;
    while let Some(item) = items.try_next().await? {
        if !args.filter.takes(&item.name) {
            continue;
        }
        let folders = item.name.match_indices('/').take(args.depth);
        let folders = folders.map(|(slash, _)| &item.name[..slash]);
        for folder in std::iter::once("").chain(folders) {
            let sum = sums.entry(folder.to_owned()).or_default();
            sum.objects += 1;
            sum.bytes.add(item.bytes);
        }
    }
    Ok(sums)
}
