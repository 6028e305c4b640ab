//! Writes, listings, HEAD, DELETE and a mix of them by 8 connections, beside versitygw on a folder of the same disk.

use std::cell::Cell;
use std::path::Path;

use bytes::Bytes;
use reqwest::Method;

use super::super::{Args, Report, Side, alternate};
use super::load::{Extent, SignedRequest, drive};
use super::servers::Server;
use super::{BUCKET, OTHER_BUILD, OTHER_BUILD_GOAL};
use crate::Failure;
use crate::origin::generated_content;
use crate::read::build_server;

const BYWASH: &str = "Bywash";
const VERSITYGW: &str = "versitygw";
const CONNECTIONS: usize = 8;
const SMALL_BYTES: usize = 4 << 10;
const LARGE_BYTES: usize = 16 << 20;
/// Keys of the listed folder, and max keys of a listing.
const LISTED: usize = 1000;
/// Keys that are read.
const HOT: usize = 64;
/// Max ratio of the times of all cases.
const GOAL: f64 = 0.5;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    PutSmall,
    PutLarge,
    List,
    Head,
    Delete,
    Mix,
}

/// A case: what each connection does, and how many requests it sends in a turn, quick and full.
const CASES: [(&str, Work, usize, usize); 6] = [
    ("PUT of 4 KiB", Work::PutSmall, 60, 500),
    ("PUT of 16 MiB", Work::PutLarge, 1, 4),
    ("list of 1,000 keys", Work::List, 4, 25),
    ("HEAD of 4 KiB", Work::Head, 200, 2000),
    ("DELETE of 4 KiB", Work::Delete, 60, 500),
    ("mix of 70/20/10 GET/PUT/DELETE", Work::Mix, 100, 1000),
];

pub(super) fn run(args: &Args, report: &mut Report, folder: &Path) -> Result<(), Failure> {
    let title = |name: &str| format!("{name}, {CONNECTIONS} connections");
    let cases: Vec<_> = CASES
        .into_iter()
        .filter(|(name, ..)| args.wants(&title(name)))
        .collect();
    if cases.is_empty() {
        return Ok(());
    }
    report.note(
        "Writes, listings, HEAD, DELETE and the mix: one client for both servers, signed by headers with an unsigned payload, each \
         server on a folder of its own on the same disk and with its defaults: Bywash syncs the file and its folder before it \
         responds. Objects of the mix, of the listing and of HEAD have 4 KiB. Client and servers share the cores.",
    );
    let folder = folder.join("small");
    let (ours, theirs) = (folder.join("ours"), folder.join("theirs"));
    std::fs::create_dir_all(&ours)?;
    std::fs::create_dir_all(theirs.join(BUCKET))?;
    let data = folder.join("data");
    let (rival, goal) = match &args.against {
        Some(other) => {
            let (buckets, data) = (theirs.join(BUCKET), folder.join("other-data"));
            let server = Server::bywash(other, &buckets, &data, None)?;
            ((OTHER_BUILD, server), OTHER_BUILD_GOAL)
        }
        None => ((VERSITYGW, Server::versitygw(&theirs)?), GOAL),
    };
    let ours = Server::bywash(&build_server()?, &ours, &data, None)?;
    let servers = [(BYWASH, ours), rival];
    let runtime = crate::runtime()?;
    for (_, server) in &servers {
        runtime.block_on(fill(server))?;
    }
    let next = Cell::new(0);
    for (name, work, quick, full) in cases {
        let title = title(name);
        args.begins(&title);
        let count = if args.quick { quick } else { full };
        let turn = |server, count| {
            next.set(next.get() + 1);
            runtime.block_on(turn(server, work, next.get(), count))
        };
        let mut sides = Vec::new();
        for (name, server) in &servers {
            turn(server, count.div_ceil(10))?;
            sides.push(Side::new(*name, || turn(server, count)));
        }
        let rounds = alternate(args.rounds(5), sides)?;
        let row = rounds.row(&title, "µs a request", BYWASH, servers[1].0);
        report.rows.push(row.goal(goal));
    }
    Ok(())
}

/// Writes the objects that are listed and read.
async fn fill(server: &Server) -> Result<(), Failure> {
    let names = (0..LISTED).map(|n| format!("list/{n}"));
    let names: Vec<_> = names.chain((0..HOT).map(|n| format!("hot/{n}"))).collect();
    let lists = names.chunks(names.len().div_ceil(CONNECTIONS));
    let lists = lists.map(|names| {
        names
            .iter()
            .map(|name| put(server, name, SMALL_BYTES))
            .collect()
    });
    let lists = lists.collect::<Result<_, Failure>>()?;
    drive(server.address, None, lists, Extent::Once).await?;
    Ok(())
}

/// Returns the microseconds of a request of all connections together.
async fn turn(server: &Server, work: Work, turn: usize, count: usize) -> Result<f64, Failure> {
    let lists = |work| {
        (0..CONNECTIONS)
            .map(|client| {
                let requests = (0..count).map(|n| request(server, work, turn, client, n));
                requests.collect()
            })
            .collect::<Result<Vec<Vec<_>>, Failure>>()
    };
    if work == Work::Delete {
        // What is deleted is written first, and not counted.
        drive(server.address, None, lists(Work::PutSmall)?, Extent::Once).await?;
    }
    let figures = drive(server.address, None, lists(work)?, Extent::Once).await?;
    Ok(figures.micros_a_request())
}

/// Returns the n-th request of a client in a turn.
fn request(
    server: &Server,
    work: Work,
    turn: usize,
    client: usize,
    n: usize,
) -> Result<SignedRequest, Failure> {
    let own = |n: usize| format!("own/{turn}-{client}-{n}");
    let hot = format!("hot/{}", (client * 7 + n) % HOT);
    let bare = |method, key: &str, query| server.request(&method, key, query, Bytes::new());
    match work {
        Work::PutSmall => put(server, &own(n), SMALL_BYTES),
        // Replaced in each turn, for the sake of the disk.
        Work::PutLarge => put(server, &format!("large/{client}"), LARGE_BYTES),
        Work::List => bare(Method::GET, "", "list-type=2&max-keys=1000&prefix=list%2F"),
        Work::Head => bare(Method::HEAD, &hot, ""),
        Work::Delete => bare(Method::DELETE, &own(n), ""),
        Work::Mix => match step(n) {
            Step::Get => bare(Method::GET, &hot, ""),
            Step::Put => put(server, &own(n), SMALL_BYTES),
            Step::Delete(written) => bare(Method::DELETE, &own(written), ""),
        },
    }
}

fn put(server: &Server, key: &str, bytes: usize) -> Result<SignedRequest, Failure> {
    server.request(&Method::PUT, key, "", generated_content(bytes))
}

/// A request of the mix.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Get,
    Put,
    /// Of what this request wrote.
    Delete(usize),
}

/// Returns the kind of the n-th request of the mix: of ten, two write and the last deletes what the first of them wrote.
fn step(n: usize) -> Step {
    match n % 10 {
        3 | 6 => Step::Put,
        9 => Step::Delete(n - 6),
        _ => Step::Get,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mix_deletes_what_it_wrote_and_has_its_shares() {
        let steps: Vec<Step> = (0..100).map(step).collect();
        let count = |wanted: fn(&Step) -> bool| steps.iter().filter(|step| wanted(step)).count();
        assert_eq!(count(|step| *step == Step::Get), 70);
        assert_eq!(count(|step| *step == Step::Put), 20);
        for (n, step) in steps.iter().enumerate() {
            if let Step::Delete(written) = step {
                assert!(*written < n && steps[*written] == Step::Put);
            }
        }
    }
}
