//! The gate's stage of real clients.

use std::path::Path;
use std::thread;

use crate::counts::Counts;
use crate::package;
use crate::retry;
use crate::run::{Failure, Step, root, target};
use crate::shard::{commit, files_left_out, origin};
use crate::siege;
use crate::tools;
use crate::wide;

/// Which tests run.
#[derive(Debug, Clone, Default)]
pub(crate) struct Selection {
    /// Arguments for pytest.
    pub(crate) pytest: Vec<String>,
    /// All tests: with every S3 server as an origin, and not only the commit's shard of what is slow.
    pub(crate) whole: bool,
}

/// Runs real clients against the server that the stage `unit` has built, or the one that `BYWASH_BIN` names.
pub(crate) fn run(counts: &mut Counts, args: &Selection) -> Result<(), Failure> {
    let tools = tools::ensure()?;
    counts.left_out.extend(tools.left_out());
    let binary = siege::tested_binary()?;
    let series_files = siege::program("series-files")?;
    let built = target().join("debug");
    let package = package::installed(&[&tools.pandas], &built)?;
    let (origin, left_out) = if args.whole {
        ("", Vec::new())
    } else {
        (origin(commit()), files_left_out(commit()))
    };
    println!("left to other commits: {}", left_out.join(", "));
    let left_out = left_out.iter().map(|file| format!("--ignore={file}"));
    let left_out: Vec<String> = left_out.collect();
    let suite = |python: &Path, names: &[String], workers: &str| {
        let mut tests = Step::new(python);
        let servers = [
            ("BYWASH_VERSITYGW", &tools.versitygw),
            ("BYWASH_ETCD", &tools.etcd),
            ("BYWASH_PROMETHEUS", &tools.prometheus),
        ];
        for (name, server) in servers {
            if let Some(server) = server {
                tests = tests.env(name, server);
            }
        }
        let (words, workers) = if names.is_empty() {
            (args.pytest.as_slice(), workers)
        } else {
            (names, "0")
        };
        tests
            .args(["-m", "pytest", "-p", "no:cacheprovider"])
            .args(["--durations=10", "-q"])
            // The tests of a file share its server.
            .args(["-n", workers, "--dist", "loadscope"])
            .args(words)
            .args(&left_out)
            .folder(&root().join("testing/clients"))
            .env("BYWASH_BIN", &binary)
            .env("BYWASH_C", built.join("libbywash_c.so"))
            .env("BYWASH_AWS", &tools.aws)
            .env("BYWASH_AZURITE", &tools.azurite)
            .env("BYWASH_FLIGHTS", &tools.flights)
            .env("BYWASH_S3_ORIGINS", origin)
            .env("BYWASH_SERIES_FILES", &series_files)
            .env("BYWASH_WIDE", &tools.wide)
            .env("BYWASH_WIDE_CLIENTS", wide::in_gate(&tools.missing_clients))
            .env("PYTHONDONTWRITEBYTECODE", "1")
    };
    let run_counted = |python: &Path, workers: &str, counts: &mut Counts| {
        let tests =
            |names: &[String], found: &mut Counts| suite(python, names, workers).run_counted(found);
        retry::run(tests, counts)
    };
    // Each environment runs the files whose client it has: the one of most files beside the others.
    let mut beside = Counts::default();
    let (all, others) = thread::scope(|scope| {
        let others = scope.spawn(|| {
            let mut others = [&tools.s3fs, &tools.old, &package].into_iter();
            others.try_for_each(|python| run_counted(python, "2", &mut beside))
        });
        // Most files wait for time limits of servers.
        let all = run_counted(&tools.python, "4", counts);
        (all, others.join())
    });
    *counts += beside;
    all?;
    others.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
