//! `upload`: many objects at once to one store, beside plain PUTs and Google's own clients; then to a server of S3 beside boto3
//! and rclone.

mod client;
mod server;
mod worker;

use std::cell::RefCell;

pub(super) use client::Client;
use client::{Figures, Store};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
pub(crate) use server::run as run_server;
pub(crate) use worker::{WorkerArgs, run as run_worker};

use super::round::Rounds;
use super::{Args, Report, Row, Side, alternate};
use crate::Failure;

const OBJECTS: usize = 32;
const AT_ONCE: usize = 16;
/// Bytes that every client holds. Objects are slices of them, so this is the max size of an object.
const CONTENT_BYTES: usize = 64 << 20;
const SMALLEST_BYTES: f64 = 128.0 * 1024.0;
/// Bytes of a chunk in all clients.
const CHUNK_BYTES: usize = 16 << 20;
/// Max memory of the process besides the chunks of its uploads.
const REST_BYTES: usize = 32 << 20;
const GIB: f64 = (1_u64 << 30) as f64;
const MIB: f64 = (1 << 20) as f64;

const PIECES: &str = "Bywash, 64 KiB writes";
const WHOLE: &str = "Bywash, whole objects";
const PLAIN: &str = "plain PUT";
const JAVA: &str = "google-cloud-storage Java";
const PYTHON: &str = "google-cloud-storage Python";
const OURS: [&str; 2] = [PIECES, WHOLE];
const S3: &str = "Bywash to S3";
const BOTO3: &str = "boto3 transfer manager";
const RCLONE: &str = "rclone";

/// Sizes spread evenly over their logarithms, about 1 GiB in all; the same in every run.
fn sizes() -> Vec<usize> {
    let mut dice = StdRng::seed_from_u64(616);
    let span = (CONTENT_BYTES as f64 / SMALLEST_BYTES).ln();
    let mut sizes: Vec<usize> = (0..OBJECTS)
        .map(|_| {
            (SMALLEST_BYTES * (span * dice.random_range(0.0..=1.0_f64).sqrt().sqrt()).exp())
                as usize
        })
        .collect();
    sizes[0] = CONTENT_BYTES;
    sizes
}

pub(super) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let sizes = sizes();
    if OURS.iter().any(|ours| args.wants(ours)) {
        to_gcs(args, &sizes, report)?;
    }
    if args.wants(S3) {
        to_s3(args, &sizes, report)?;
    }
    Ok(())
}

/// Uploads the objects to a store with Google's protocol.
fn to_gcs(args: &Args, sizes: &[usize], report: &mut Report) -> Result<(), Failure> {
    let total: usize = sizes.iter().sum();
    report.note(format!(
        "{OBJECTS} objects of 128 KiB to 64 MiB, {:.0} MiB in all, {AT_ONCE} at a time in chunks of 16 MiB, to one store on \
         loopback that speaks the resumable protocol and throws the bytes away, a process of its own beside every client. \
         Figures are by GiB; the first round of each client warms up and is not counted. Every client holds 64 MiB that all \
         objects are slices of; they are taken off the resident memory. Python sends without checksums.",
        total as f64 / MIB
    ));
    let store = Store::start()?;
    let clients: [(_, Start<'_>); 5] = [
        (PIECES, &|| Client::ours(&store, "pieces", false)),
        (WHOLE, &|| Client::ours(&store, "whole", false)),
        (PLAIN, &|| Client::ours(&store, "plain", false)),
        (JAVA, &|| Client::java(&store)),
        (PYTHON, &|| Client::python(&store)),
    ];
    let mut wanted = clients.to_vec();
    wanted.retain(|(name, _)| args.wants(name));
    let rounds = beside(args.rounds(5), &wanted, sizes)?;
    rows(&rounds, total as f64 / GIB, report);
    for (name, how) in [(PIECES, "pieces"), (WHOLE, "whole")] {
        let mut client = Client::ours(&store, how, true)?;
        client.round(sizes)?;
        let allocated = client.round(sizes)?.allocated / total as f64;
        let case = format!("allocated bytes a payload byte, {name}");
        report
            .rows
            .push(Row::at_most(&case, "bytes", allocated, 0.01));
    }
    Ok(())
}

/// Starts a client.
type Start<'a> = &'a dyn Fn() -> Result<Client, Failure>;

/// Runs rounds of these clients, each warmed up.
fn beside(
    rounds: usize,
    clients: &[(&'static str, Start<'_>)],
    sizes: &[usize],
) -> Result<Rounds<Figures>, Failure> {
    let mut warm = Vec::new();
    for (name, start) in clients {
        eprintln!("{name}");
        let client = RefCell::new(start()?);
        client.borrow_mut().round(sizes)?;
        warm.push((*name, client));
    }
    let sides = warm
        .iter()
        .map(|(name, client)| Side::new(*name, || client.borrow_mut().round(sizes)));
    alternate(rounds, sides.collect())
}

/// Uploads the same objects to moto. It is slower than any client, so processor time and memory are more meaningful than time.
fn to_s3(args: &Args, sizes: &[usize], report: &mut Report) -> Result<(), Failure> {
    let gib = sizes.iter().sum::<usize>() as f64 / GIB;
    report.note(format!(
        "To S3: the same objects to moto (Python, one process), {AT_ONCE} at a time in parts of 16 MiB, {} side by side an object. \
         Ours and boto3 upload from 64 MiB that are part of their memory, rclone files that are in the page cache, by a process a \
         round.",
        client::PARTS_AT_ONCE
    ));
    let store = Store::moto()?;
    let clients: [(_, Start<'_>); 3] = [
        (S3, &|| Client::ours(&store, "s3", false)),
        (BOTO3, &|| Client::boto3(&store)),
        (RCLONE, &|| Client::rclone(&store)),
    ];
    let rounds = beside(args.rounds(3), &clients, sizes)?;
    for (what, unit, rounds) in [
        ("time", "s/GiB", rounds.map(|figures| figures.seconds / gib)),
        (
            "processor",
            "s/GiB",
            rounds.map(|figures| figures.cpu / gib),
        ),
        (
            "peak memory",
            "MiB",
            rounds.map(|figures| figures.peak_bytes / MIB),
        ),
    ] {
        for peer in [BOTO3, RCLONE] {
            let row = rounds.row(&format!("{what}, {S3}"), unit, S3, peer);
            report.rows.push(row);
        }
    }
    Ok(())
}

fn rows(rounds: &Rounds<Figures>, gib: f64, report: &mut Report) {
    let seconds = rounds.map(|figures| figures.seconds / gib);
    let cpu = rounds.map(|figures| figures.cpu / gib);
    let resident = rounds.map(|figures| (figures.peak_bytes - CONTENT_BYTES as f64) / MIB);
    let allocated = rounds.map(|figures| figures.allocated / (gib * GIB));
    let max = (AT_ONCE * CHUNK_BYTES + REST_BYTES) as f64 / MIB;
    for ours in OURS {
        let case = |what: &str| format!("{what}, {ours}");
        // At least 0.9 of its speed.
        report.rows.push(
            seconds
                .row(&case("time"), "s/GiB", ours, PLAIN)
                .goal(1.0 / 0.9),
        );
        report
            .rows
            .push(cpu.row(&case("processor"), "s/GiB", ours, JAVA).goal(0.33));
        let peak = resident.median(ours);
        report
            .rows
            .push(Row::at_most(&case("peak memory"), "MiB", peak, max));
        for peer in [JAVA, PYTHON] {
            report
                .rows
                .push(seconds.row(&case("time"), "s/GiB", ours, peer));
            report
                .rows
                .push(resident.row(&case("peak memory"), "MiB", ours, peer));
        }
        for peer in [PLAIN, PYTHON] {
            report
                .rows
                .push(cpu.row(&case("processor"), "s/GiB", ours, peer));
        }
    }
    report.note(format!(
        "Java allocated {:.2} bytes a payload byte.",
        allocated.median(JAVA)
    ));
}
