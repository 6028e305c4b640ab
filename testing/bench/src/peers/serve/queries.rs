//! Queries and scans over a slow origin: directly, through Bywash cold and warm, and on the local files.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::Path;

use serde_json::{Value, json};

use super::super::{Args, Report, Side, alternate};
use super::MEMORY_BYTES;
use super::python::Python;
use crate::Failure;
use crate::process::Process;
use crate::read::{build_server, counters, start_origin, start_server};

const DIRECT: &str = "direct";
const COLD: &str = "Bywash, cold";
const WARM: &str = "Bywash, warm";
const LOCAL: &str = "local files";

/// Milliseconds to the first byte, and megabytes a second of all bodies together.
const SHAPED: (u64, u64) = (20, 200);

/// Everything a cell needs.
struct Scene<'a> {
    python: RefCell<Python>,
    files: &'a Path,
    origin: SocketAddr,
    endpoint: SocketAddr,
    /// Names that were never used are cold.
    next_name: RefCell<u64>,
    _processes: [Process; 2],
}

/// A job of the Python side, and the most it may take cold and warm, if there is a goal.
struct Job {
    case: String,
    job: Value,
    goals: Option<(f64, f64)>,
    rounds: usize,
}

pub(super) fn run(args: &Args, report: &mut Report, folder: &Path) -> Result<(), Failure> {
    let jobs: Vec<Job> = jobs()
        .into_iter()
        .filter(|job| args.wants(&job.case))
        .collect();
    if jobs.is_empty() {
        return Ok(());
    }
    report.note(format!(
        "Queries and scans: the origin answers after {} ms and carries {} MB/s in all. Cold: under names nobody asked for \
         before. DuckDB's own cache of files is off on all sides. Seconds are of the whole job.",
        SHAPED.0, SHAPED.1
    ));
    let files = folder.join("files");
    let mut python = Python::start()?;
    python.ask(&json!({"job": "make", "folder": files}))?;
    let (origin, at) = start_origin(SHAPED.0, SHAPED.1, Some(&files))?;
    let (server, endpoint) = start_server(
        &build_server()?,
        at,
        MEMORY_BYTES,
        &folder.join("data-queries"),
    )?;
    let scene = Scene {
        python: RefCell::new(python),
        files: &files,
        origin: at,
        endpoint,
        next_name: RefCell::new(0),
        _processes: [server, origin],
    };
    let runtime = crate::runtime()?;
    for job in jobs {
        args.begins(&job.case);
        scene.cell(args, &job, &runtime, report)?;
    }
    Ok(())
}

fn jobs() -> Vec<Job> {
    // Of the seed's benchmark: a table's rows by their ids, and samples of many tables.
    const SEED: Option<(f64, f64)> = Some((1.05, 1.1));
    let mut jobs = Vec::new();
    for connections in [1, 10, 20] {
        jobs.push(Job {
            case: format!("DuckDB, 1000 of 95,000 rows x 194 columns, {connections} connections"),
            job: json!({"job": "items", "connections": connections}),
            goals: SEED,
            rounds: 3,
        });
    }
    for (files, connections) in [(10, 16), (20, 20), (40, 40)] {
        jobs.push(Job {
            case: format!("DuckDB, samples of {files} files, {connections} connections"),
            job: json!({"job": "samples", "files": files, "connections": connections}),
            goals: SEED,
            rounds: 3,
        });
    }
    for (case, job) in [
        ("Polars, scan of a file", "polars"),
        ("pyarrow, scan of a file", "pyarrow"),
        ("glob over 10,000 objects", "glob"),
        ("200 shards of 8 MiB in random order", "epoch"),
    ] {
        jobs.push(Job {
            case: case.to_owned(),
            job: json!({"job": job}),
            goals: None,
            rounds: if job == "polars" || job == "pyarrow" {
                3
            } else {
                1
            },
        });
    }
    jobs
}

impl Scene<'_> {
    fn cell(
        &self,
        args: &Args,
        job: &Job,
        runtime: &tokio::runtime::Runtime,
        report: &mut Report,
    ) -> Result<(), Failure> {
        let warm = self.fresh();
        self.ask(job, Some(self.endpoint), &warm)?;
        let before = runtime.block_on(counters(self.origin))?;
        self.ask(job, Some(self.endpoint), &self.fresh())?;
        let cold = runtime.block_on(counters(self.origin))?;
        self.ask(job, Some(self.origin), &self.fresh())?;
        let direct = runtime.block_on(counters(self.origin))?;
        report.note(format!(
            "{}: {} requests to the origin cold through Bywash, {} direct.",
            job.case,
            cold.requests - before.requests,
            direct.requests - cold.requests
        ));
        let local = self.files.display().to_string();
        let rounds = alternate(
            args.rounds(job.rounds).min(job.rounds),
            vec![
                Side::new(DIRECT, || self.ask(job, Some(self.origin), &self.fresh())),
                Side::new(COLD, || self.ask(job, Some(self.endpoint), &self.fresh())),
                Side::new(WARM, || self.ask(job, Some(self.endpoint), &warm)),
                Side::new(LOCAL, || self.ask(job, None, &local)),
            ],
        )?;
        for (ours, peer, at) in [(COLD, DIRECT, 0), (WARM, LOCAL, 1)] {
            let case = format!("{}, {}", job.case, if at == 0 { "cold" } else { "warm" });
            let row = rounds.row(&case, "s", ours, peer);
            report.rows.push(match job.goals {
                Some((cold, warm)) => row.goal([cold, warm][at]),
                None => row,
            });
        }
        Ok(())
    }

    fn fresh(&self) -> String {
        let mut next = self.next_name.borrow_mut();
        *next += 1;
        next.to_string()
    }

    /// Seconds of a job on objects under a name, or in a folder.
    fn ask(&self, job: &Job, endpoint: Option<SocketAddr>, name: &str) -> Result<f64, Failure> {
        let mut order = job.job.clone();
        order["endpoint"] = endpoint.map(|at| at.to_string()).into();
        order["root"] = match endpoint {
            Some(_) => format!("s3://{}/{name}", super::BUCKET),
            None => name.to_owned(),
        }
        .into();
        Ok(self.python.borrow_mut().ask(&order)?.seconds)
    }
}
