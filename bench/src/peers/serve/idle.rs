//! Servers at rest, and with many idle connections: what each costs, and what a busy one then pays. Beside nginx.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use futures::future::try_join_all;
use reqwest::Method;

use super::super::{Args, Report, Row};
use super::BUCKET;
use super::load::{Client, Extent, connect, drive, send};
use super::servers::Server;
use crate::Failure;
use crate::process::{cpu_of_family, resident_bytes_of_family};
use crate::read::build_server;

const NGINX: &str = "nginx, sendfile off";
const KEY: &str = "4096";
/// Connections beside the idle ones: the busy one, and those that are closing.
const SPARE: usize = 64;
/// Connections that are opened at once.
const BATCH: usize = 32;

/// Figures of a server.
struct Figures {
    rest_mib: f64,
    rest_cpu_ms_a_second: f64,
    /// Of the connections that were opened.
    closed: f64,
    kib_a_connection: f64,
    busy_alone_us: f64,
    busy_us: f64,
}

pub(super) fn run(args: &Args, report: &mut Report, folder: &Path) -> Result<(), Failure> {
    let count = if args.quick { 1000 } else { 10_000 };
    let case = format!("{count} idle connections");
    if !args.begins(&case) {
        return Ok(());
    }
    report.note(
        "Idle connections: each has read an object of 4 KiB before, and is still open when memory is measured. Memory is resident, \
         without the kernel's buffers of sockets. The busy connection reads that object. A server that closes idle connections at \
         a limit keeps fewer: see how many it closed. Bywash has a default limit of 1,024, and is given `--max-connections` for all of them. \
         At rest: a server just started, without clients.",
    );
    let folder = folder.join("idle");
    let buckets = folder.join("buckets");
    let objects = buckets.join(BUCKET);
    std::fs::create_dir_all(&objects)?;
    std::fs::write(objects.join(KEY), vec![0x5A; 4096])?;
    let runtime = crate::runtime()?;
    let measured = |server: Server| runtime.block_on(measure(args, &server, count));
    let data = folder.join("data");
    let program = build_server()?;
    let limit = [format!("--max-connections={}", count + SPARE)];
    let ours = measured(Server::bywash_with(
        &program, &objects, &data, None, &limit,
    )?)?;
    let theirs = measured(Server::nginx(&buckets, &folder.join("nginx"), false)?)?;
    let mut row = |what: &str, unit: &str, figure: fn(&Figures) -> f64| {
        let (ours, theirs) = (figure(&ours), figure(&theirs));
        report.rows.push(Row::info(what, unit, ours, NGINX, theirs));
    };
    row("at rest, memory", "MiB", |figures| figures.rest_mib);
    row("at rest, processor", "ms a second", |figures| {
        figures.rest_cpu_ms_a_second
    });
    row(&format!("{case}, memory of each"), "KiB", |figures| {
        figures.kib_a_connection
    });
    row(&format!("{case}, a busy one"), "µs a request", |figures| {
        figures.busy_us
    });
    row(
        &format!("{case}, the busy one before"),
        "µs a request",
        |figures| figures.busy_alone_us,
    );
    row(&format!("{case}, closed by the server"), "", |figures| {
        figures.closed
    });
    Ok(())
}

async fn measure(args: &Args, server: &Server, count: usize) -> Result<Figures, Failure> {
    let rest = Duration::from_secs(if args.quick { 1 } else { 10 });
    let before = cpu_of_family(server.id)?;
    tokio::time::sleep(rest).await;
    let cpu = cpu_of_family(server.id)?.saturating_sub(before);
    let rest_bytes = resident_bytes_of_family(server.id)?;
    let busy_alone_us = busy(args, server).await?;
    let empty = resident_bytes_of_family(server.id)?;
    let mut idle: Vec<Client> = Vec::new();
    while idle.len() < count {
        let opened = (0..BATCH.min(count - idle.len())).map(|_| open(server));
        idle.extend(try_join_all(opened).await?);
    }
    let busy_us = busy(args, server).await?;
    let full = resident_bytes_of_family(server.id)?;
    let held = idle.iter().filter(|client| !client.is_closed()).count();
    if held == 0 {
        return Err(format!("{} keeps no idle connection", server.address).into());
    }
    Ok(Figures {
        rest_mib: rest_bytes as f64 / f64::from(1 << 20),
        rest_cpu_ms_a_second: cpu.as_secs_f64() * 1e3 / rest.as_secs_f64(),
        closed: (count - held) as f64,
        kib_a_connection: full.saturating_sub(empty) as f64 / 1024.0 / held as f64,
        busy_alone_us,
        busy_us,
    })
}

/// Opens a connection that has read the object.
async fn open(server: &Server) -> Result<Client, Failure> {
    let mut client = connect(server.address, None).await?;
    let get = server.request(&Method::GET, KEY, "", Bytes::new())?;
    send(&mut client, get).await?;
    Ok(client)
}

/// Returns the microseconds of a GET of one connection.
async fn busy(args: &Args, server: &Server) -> Result<f64, Failure> {
    let window = Duration::from_millis(if args.quick { 300 } else { 2000 });
    let get = server.request(&Method::GET, KEY, "", Bytes::new())?;
    let lists = vec![vec![get]];
    let figures = drive(server.address, None, lists, Extent::Window(window)).await?;
    Ok(figures.micros_a_request())
}
