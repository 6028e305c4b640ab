//! Queries and scans over a slow origin: directly, through Bywash cold and warm, through nginx, and on the local files.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use bywash_support::process::BywashProcess;
use serde_json::{Value, json};

use super::super::{Args, Report, Side, alternate};
use super::python::{Figures, Python};
use super::servers::Server;
use super::{BUCKET, MEMORY_BYTES};
use crate::Failure;
use crate::peers::install::target;
use crate::process::Process;
use crate::read::{build_server, counters, start_origin, start_server};

const DIRECT: &str = "direct";
const COLD: &str = "Bywash, cold";
const WARM: &str = "Bywash, warm";
const NGINX: &str = "nginx, sendfile on";
const LOCAL: &str = "local files";

/// Milliseconds to the first byte, and megabytes a second of all bodies together.
const SHAPED: (u64, u64) = (20, 200);

/// Max ratios of cold to direct, and of warm to local files.
const GOALS: (f64, f64) = (1.05, 1.1);

/// First segment of keys at nginx, which has the files under one name only.
const NGINX_NAME: &str = "0";

/// Processes and files of all cells.
struct Scene {
    python: RefCell<Python>,
    files: PathBuf,
    origin: SocketAddr,
    endpoint: SocketAddr,
    nginx: Server,
    runtime: tokio::runtime::Runtime,
    /// Next unused first segment of keys, whose objects are cold.
    next_name: RefCell<u64>,
    _processes: (BywashProcess, Process),
}

/// A job of the Python side.
struct Job {
    case: String,
    job: Value,
    has_goals: bool,
    /// Whether nginx can do it, which lists nothing.
    lists: bool,
    /// Whether `--quick` runs it only once.
    long: bool,
}

/// Costs of a run of a job, and its requests to the origin.
struct JobCosts {
    figures: Figures,
    origin_requests: f64,
    origin_megabytes: f64,
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
        "Queries and scans: the origin responds after {} ms and carries {} MB/s in all. Cold: under names that were not \
         requested before. DuckDB's own cache of files is off on all sides. Seconds are of the whole job once its connections may \
         be opened; the results were the same on all sides. Client, server and origin share the cores.",
        SHAPED.0, SHAPED.1
    ));
    let scene = Scene::start(folder)?;
    for job in jobs {
        args.begins(&job.case);
        scene.cell(args, &job, report)?;
    }
    Ok(())
}

fn jobs() -> Vec<Job> {
    let job = |case: String, job: Value| Job {
        case,
        job,
        has_goals: false,
        lists: false,
        long: false,
    };
    let mut jobs = Vec::new();
    // From the ancestor's benchmark: rows of a table by their ids, and samples of many tables.
    for connections in [1, 10, 20] {
        jobs.push(Job {
            has_goals: true,
            ..job(
                format!("DuckDB, 1000 of 95,000 rows x 194 columns, {connections} connections"),
                json!({"job": "items", "connections": connections}),
            )
        });
    }
    for (files, connections) in [(10, 16), (20, 20), (40, 40)] {
        jobs.push(Job {
            has_goals: true,
            ..job(
                format!("DuckDB, samples of {files} files, {connections} connections"),
                json!({"job": "samples", "files": files, "connections": connections}),
            )
        });
    }
    for (case, name) in [
        ("Polars, scan of a file", "polars"),
        ("pyarrow, scan of a file", "pyarrow"),
        ("DuckDB, glob over 10,000 objects", "glob"),
        ("obstore, 200 shards of 8 MiB in random order", "epoch"),
    ] {
        jobs.push(Job {
            lists: name == "glob",
            long: name == "glob" || name == "epoch",
            ..job(case.to_owned(), json!({"job": name}))
        });
    }
    jobs
}

impl Scene {
    fn start(folder: &Path) -> Result<Self, Failure> {
        let files = target().join("serve-files");
        let mut python = Python::start()?;
        python.run_job(&json!({"job": "make", "folder": files}))?;
        let (origin, at) = start_origin(SHAPED.0, SHAPED.1, Some(&files))?;
        let data = folder.join("data-queries");
        let server = start_server(&build_server()?, at, MEMORY_BYTES, &data)?;
        let root = folder.join("nginx-root");
        std::fs::create_dir_all(root.join(BUCKET))?;
        std::os::unix::fs::symlink(&files, root.join(BUCKET).join(NGINX_NAME))?;
        Ok(Self {
            python: RefCell::new(python),
            files,
            origin: at,
            endpoint: server.addresses.s3_address(),
            nginx: Server::nginx(&root, &folder.join("nginx-queries"), true)?,
            runtime: crate::runtime()?,
            next_name: RefCell::new(0),
            _processes: (server, origin),
        })
    }

    fn cell(&self, args: &Args, job: &Job, report: &mut Report) -> Result<(), Failure> {
        let local = self.files.display().to_string();
        // Not counted: the first run of each side that is not cold fills the page cache and pools of connections.
        let (_, expected) = self.run_job(job, None, &local)?;
        let checked = |side: &str, at, name: &str| {
            let (costs, result) = self.run_job(job, at, name)?;
            same(&job.case, side, &expected, &result)?;
            Ok(costs)
        };
        let warm = self.fresh();
        checked(WARM, Some(self.endpoint), &warm)?;
        let mut sides = vec![
            Side::new(DIRECT, || checked(DIRECT, Some(self.origin), &self.fresh())),
            Side::new(COLD, || checked(COLD, Some(self.endpoint), &self.fresh())),
            Side::new(WARM, || checked(WARM, Some(self.endpoint), &warm)),
            Side::new(LOCAL, || checked(LOCAL, None, &local)),
        ];
        if !job.lists {
            let nginx = || checked(NGINX, Some(self.nginx.address), NGINX_NAME);
            sides.push(Side::new(NGINX, nginx));
        }
        let usual = if args.quick && job.long { 1 } else { 5 };
        let rounds = alternate(args.rounds(usual), sides)?;
        let mut row =
            |what: &str, unit, ours, peer, figure: fn(&JobCosts) -> f64, goal: Option<f64>| {
                let case = format!("{}, {what}", job.case);
                let row = rounds.map(figure).row(&case, unit, ours, peer);
                report.rows.push(match goal.filter(|_| job.has_goals) {
                    Some(goal) => row.goal(goal),
                    None => row,
                });
            };
        let seconds = |costs: &JobCosts| costs.figures.seconds;
        let cpu = |costs: &JobCosts| costs.figures.cpu;
        row("cold", "s", COLD, DIRECT, seconds, Some(GOALS.0));
        row("warm", "s", WARM, LOCAL, seconds, Some(GOALS.1));
        if !job.lists {
            row("warm", "s", WARM, NGINX, seconds, None);
        }
        row("warm, client's processor", "s", WARM, LOCAL, cpu, None);
        for (what, ours) in [("cold", COLD), ("warm", WARM)] {
            let mut count = |of: &str, figure| {
                row(&format!("{what}, {of}"), "", ours, DIRECT, figure, None);
            };
            count("requests to the origin", |costs| costs.origin_requests);
            count("MB from the origin", |costs| costs.origin_megabytes);
        }
        Ok(())
    }

    fn fresh(&self) -> String {
        let mut next = self.next_name.borrow_mut();
        *next += 1;
        next.to_string()
    }

    /// Runs a job on objects under a name, or in a folder. Returns its costs and its result.
    fn run_job(
        &self,
        job: &Job,
        endpoint: Option<SocketAddr>,
        name: &str,
    ) -> Result<(JobCosts, Value), Failure> {
        let mut order = job.job.clone();
        order["folder"] = self.files.display().to_string().into();
        order["endpoint"] = endpoint.map(|at| at.to_string()).into();
        order["root"] = match endpoint {
            Some(_) => format!("s3://{BUCKET}/{name}"),
            None => name.to_owned(),
        }
        .into();
        let before = self.runtime.block_on(counters(self.origin))?;
        let (figures, result) = self.python.borrow_mut().run_job(&order)?;
        let after = self.runtime.block_on(counters(self.origin))?;
        let costs = JobCosts {
            figures,
            origin_requests: (after.requests - before.requests) as f64,
            origin_megabytes: (after.bytes - before.bytes) as f64 / 1e6,
        };
        Ok((costs, result))
    }
}

/// Fails on a result unlike that of the local files, whose figures would mean nothing.
fn same(case: &str, side: &str, expected: &Value, result: &Value) -> Result<(), Failure> {
    if result.is_null() || result != expected {
        return Err(format!("{case}: {side} gave {result}, the local files {expected}").into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_unlike_the_local_files_is_a_failure() {
        let made = json!({"tables": 1, "rows as made": 1000});
        assert!(same("case", COLD, &made, &made).is_ok());
        assert!(
            same(
                "case",
                COLD,
                &made,
                &json!({"tables": 1, "rows as made": 999})
            )
            .is_err()
        );
        assert!(same("case", COLD, &Value::Null, &Value::Null).is_err());
    }
}
