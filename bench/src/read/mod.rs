//! `read`: cold and warm reads of three sizes, through the Rust API and the S3 endpoint, beside direct reads.

mod child;
pub(crate) mod http;
pub(crate) mod load;
mod report;

use std::net::SocketAddr;
use std::path::PathBuf;

use bywash_support::process::BywashProcess;
use child::Worker;
pub(crate) use child::{build_server, start_origin, start_server, with_origin};
pub(crate) use http::{Connection, connect, counters};
use load::{Cell, Load, median};
use report::Row;

use crate::Failure;
use crate::machine::Machine;
use crate::process::{Process, forget_peak, peak_bytes};

/// Milliseconds to the first byte, and megabytes a second of all bodies together, when shaped.
const SHAPED: (u64, u64) = (20, 200);
/// Max bytes of a round of one subject; larger cells are skipped, and reported as skipped.
const ROUND_LIMIT_BYTES: u64 = 17 << 30;
/// The same for the shaped origin: 21 s at its rate.
const SHAPED_ROUND_LIMIT_BYTES: u64 = 4 << 30;
/// The same for `--quick`: one client of the largest object.
const QUICK_ROUND_LIMIT_BYTES: u64 = 1 << 30;
/// Bytes of a round above which a cell is measured once.
const ONE_ROUND_BYTES: u64 = 1 << 30;

/// Settings of the benchmark.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// Run for about a minute: fewer clients, one round, short windows
    #[arg(long)]
    quick: bool,
    /// Rounds; each measures all subjects in turn [default: 5, quick 1; cells that move over 1 GiB a round: 1]
    #[arg(long)]
    rounds: Option<usize>,
    /// The memory ceiling of the engine, in MiB
    #[arg(long, default_value_t = 1024)]
    memory_mib: u64,
    /// The `bywash` program to measure [default: built from this workspace]
    #[arg(long)]
    bywash: Option<PathBuf>,
    /// File for the results as JSON
    #[arg(long, default_value = "target/bench/read.json")]
    json: PathBuf,
}

/// The four subjects, which read the same objects, in the order of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    StoreDirect,
    Bucket,
    HttpDirect,
    Endpoint,
}

const SUBJECTS: [Subject; 4] = [
    Subject::StoreDirect,
    Subject::Bucket,
    Subject::HttpDirect,
    Subject::Endpoint,
];

/// Measurement of one subject in one round.
#[derive(Debug, Clone)]
struct Measured {
    load: Load,
    origin_requests_a_read: f64,
    peak_bytes: Option<u64>,
}

struct Bench {
    runtime: tokio::runtime::Runtime,
    origin: SocketAddr,
    worker: Worker,
    server: BywashProcess,
    endpoint: SocketAddr,
    /// Processes that keep running. Fields are dropped in this order.
    _origin: Process,
    next_tag: u64,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let program = match &args.bywash {
        Some(program) => program.clone(),
        None => build_server()?,
    };
    let rounds = args.rounds.unwrap_or(if args.quick { 1 } else { 5 }).max(1);
    let clients: &[usize] = if args.quick { &[1, 8] } else { &[1, 8, 64] };
    let window_ms = if args.quick { 250 } else { 1000 };
    let memory = args.memory_mib << 20;
    let mut rows = Vec::new();
    for (name, shape) in [("loopback", (0, 0)), ("20 ms, 200 MB/s", SHAPED)] {
        let data_dir = tempfile::tempdir()?;
        let mut bench = Bench::start(&program, shape, memory, data_dir.path())?;
        for size in [4 << 10, 1 << 20, 256 << 20] {
            for cold in [true, false] {
                for &clients in clients {
                    let cell = Cell {
                        size,
                        cold,
                        clients,
                        window_ms,
                        tag: String::new(),
                        fill: false,
                    };
                    let shaped = shape != (0, 0);
                    if !fits(&cell, shaped, args.quick) {
                        rows.push(Row::left_out(name, &cell));
                        continue;
                    }
                    eprintln!("{name}: {size} bytes, cold {cold}, {clients} clients");
                    rows.extend(bench.cell(name, &cell, rounds)?);
                }
            }
        }
    }
    let machine = Machine::look()?;
    report::write_json(&args.json, &machine, args.memory_mib, rounds, &rows)?;
    print!(
        "{}",
        report::markdown(&machine, args.memory_mib, rounds, &rows)
    );
    Ok(())
}

/// Whether one round of a direct reader is within the limits of a run.
fn fits(cell: &Cell, shaped: bool, quick: bool) -> bool {
    let limit = match (quick, shaped) {
        (true, _) => QUICK_ROUND_LIMIT_BYTES,
        (false, true) => SHAPED_ROUND_LIMIT_BYTES,
        (false, false) => ROUND_LIMIT_BYTES,
    };
    cell.least_bytes() <= limit
}

impl Bench {
    fn start(
        program: &std::path::Path,
        shape: (u64, u64),
        memory: u64,
        data_dir: &std::path::Path,
    ) -> Result<Self, Failure> {
        let (process, origin) = start_origin(shape.0, shape.1, None)?;
        let server = start_server(program, origin, memory, data_dir)?;
        Ok(Self {
            runtime: crate::runtime()?,
            origin,
            worker: Worker::start(origin, memory)?,
            endpoint: server.addresses.s3_address(),
            server,
            _origin: process,
            next_tag: 0,
        })
    }

    /// Runs all rounds of a cell. Returns one row per subject.
    fn cell(&mut self, origin: &str, cell: &Cell, rounds: usize) -> Result<Vec<Row>, Failure> {
        let mut measured: Vec<Vec<Measured>> = vec![Vec::new(); SUBJECTS.len()];
        let rounds = if cell.least_bytes() > ONE_ROUND_BYTES {
            1
        } else {
            rounds
        };
        for _ in 0..rounds {
            for (subject, into) in SUBJECTS.into_iter().zip(&mut measured) {
                into.push(self.measure(subject, cell)?);
            }
        }
        Ok(vec![
            Row::new("Rust API", origin, cell, &measured[1], &measured[0]),
            Row::new("S3 endpoint", origin, cell, &measured[3], &measured[2]),
        ])
    }

    fn measure(&mut self, subject: Subject, cell: &Cell) -> Result<Measured, Failure> {
        self.next_tag += 1;
        let mut cell = cell.clone();
        cell.tag = self.next_tag.to_string();
        if !cell.cold && matches!(subject, Subject::Bucket | Subject::Endpoint) {
            // Filled before the origin's counters are read, so that they count only warm reads.
            let fill = Cell {
                fill: true,
                clients: 1,
                ..cell.clone()
            };
            self.load(subject, &fill)?;
        }
        let process = match subject {
            Subject::Bucket => Some(self.worker.0.child.id()),
            Subject::Endpoint => Some(self.server.id()),
            _ => None,
        };
        process.map(forget_peak).transpose()?;
        let before = self.runtime.block_on(http::counters(self.origin))?.requests;
        let load = self.load(subject, &cell)?;
        let asked = self.runtime.block_on(http::counters(self.origin))?.requests - before;
        Ok(Measured {
            origin_requests_a_read: asked as f64 / load.reads as f64,
            peak_bytes: process.map(peak_bytes).transpose()?,
            load,
        })
    }

    fn load(&mut self, subject: Subject, cell: &Cell) -> Result<Load, Failure> {
        match subject {
            Subject::StoreDirect => self.worker.load(cell, true),
            Subject::Bucket => self.worker.load(cell, false),
            Subject::HttpDirect => self.runtime.block_on(http::load(self.origin, cell)),
            Subject::Endpoint => self.runtime.block_on(http::load(self.endpoint, cell)),
        }
    }
}

/// Reads a second for small objects, else megabytes (10^6) a second.
fn rate(size: u64, load: &Load) -> f64 {
    if size <= 64 << 10 {
        load.reads as f64 / load.seconds
    } else {
        load.bytes as f64 / 1e6 / load.seconds
    }
}

fn medians(measured: &[Measured], of: impl Fn(&Measured) -> f64) -> f64 {
    median(measured.iter().map(of).collect())
}
