//! `sort`: the example's external merge sort on scratch, beside DuckDB's own sort of the same file in as much memory.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::install::{peers, python_in, target};
use super::{Args, Report, Side, alternate};
use crate::Failure;

const OURS: &str = "Bywash, scratch";
const DUCKDB: &str = "DuckDB";
/// Name, bytes of records and of memory, and whether `--quick` runs the case.
const CASES: [(&str, u64, u64, bool); 2] = [
    ("512 MiB in 128 MiB", 512 << 20, 128 << 20, true),
    ("4 GiB in 256 MiB", 4 << 30, 256 << 20, false),
];
const ROUNDS: usize = 3;
/// Times that DuckDB gets twice the memory when it ends with an error for too little.
const MAX_DUCKDB_DOUBLINGS: usize = 3;

/// Costs of one run.
#[derive(Debug, Clone, Copy)]
struct Figures {
    seconds: f64,
    cpu: f64,
    peak_bytes: f64,
}

/// Programs and files of a case.
struct Files {
    sorter: PathBuf,
    python: PathBuf,
    folder: tempfile::TempDir,
}

impl Files {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn script(&self) -> Command {
        let mut command = Command::new(&self.python);
        command.arg(peers().join("sort-python/sort_peer.py"));
        command
    }

    /// Runs the example with a verb. Returns its output.
    fn example(&self, arguments: &[&str]) -> Result<String, Failure> {
        output(Command::new(&self.sorter).args(arguments))
    }

    /// Sorts in `memory`, and in twice as much while DuckDB says that it is too little.
    fn sort_in(&self, which: &str, memory: &Cell<u64>, checksum: &str) -> Result<Figures, Failure> {
        let mut doublings = 0;
        loop {
            let sorted = self.sort(which, memory.get(), checksum);
            match &sorted {
                Err(failure)
                    if which == DUCKDB
                        && doublings < MAX_DUCKDB_DOUBLINGS
                        && failure.to_string().contains("OutOfMemoryException") =>
                {
                    doublings += 1;
                    memory.set(memory.get() * 2);
                }
                _ => return sorted,
            }
        }
    }

    /// Sorts, and compares the output with the records of the input.
    fn sort(&self, which: &str, memory: u64, checksum: &str) -> Result<Figures, Failure> {
        let (input, sorted) = (self.path("rows.txt"), self.path("sorted.txt"));
        let scratch = self.path("scratch");
        let mut command = self.script();
        command.arg("run");
        match which {
            OURS => command.arg(&self.sorter).arg("sort"),
            _ => command
                .arg(&self.python)
                .arg(peers().join("sort-python/sort_peer.py"))
                .arg("duckdb"),
        };
        command.arg(input).arg(&sorted).arg(memory.to_string());
        let figures: Value = serde_json::from_str(&output(command.arg(&scratch))?)?;
        let checked = self.example(&["check", &sorted.to_string_lossy()])?;
        if checked != format!("{checksum}, in order: true") {
            return Err(format!("{which} wrote {checked}, and the input has {checksum}").into());
        }
        for left in [&sorted, &scratch] {
            remove(left)?;
        }
        let figure = |name: &str| figures[name].as_f64().unwrap_or(f64::NAN);
        Ok(Figures {
            seconds: figure("seconds"),
            cpu: figure("cpu"),
            peak_bytes: figure("peak_bytes"),
        })
    }
}

fn remove(path: &Path) -> Result<(), Failure> {
    if path.is_dir() {
        std::fs::remove_dir_all(path)?;
    } else if path.exists() {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

fn output(command: &mut Command) -> Result<String, Failure> {
    let output = command.output();
    let output = output.map_err(|error| format!("start {:?}: {error}", command.get_program()))?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(format!("{command:?} failed: {error}").into());
    }
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// Returns the path of the example, built first so that it is current.
fn build_example() -> Result<PathBuf, Failure> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args([
        "build",
        "--quiet",
        "-p",
        "bywash",
        "--example",
        "external_sort",
    ]);
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    super::install::done(&mut command)?;
    Ok(std::env::current_exe()?.with_file_name("examples/external_sort"))
}

pub(super) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    report.note(
        "Sort: records of 100 bytes in a text file, by their first ten bytes, into another file. Each side is a process with as much \
         memory limit of the case, of which DuckDB counts only a part; peak: largest resident memory of the process. Temporary \
         files are below `target/peers`, and as far as memory allows in the page cache. What came out was checked: order, and a \
         checksum of all records.",
    );
    let sorter = build_example()?;
    let python = python_in("sort-python")?;
    std::fs::create_dir_all(target())?;
    for (case, bytes, memory, quick) in CASES {
        let case = format!("sort of {case}");
        if (args.quick && !quick) || !args.begins(&case) {
            continue;
        }
        let files = Files {
            sorter: sorter.clone(),
            python: python.clone(),
            folder: tempfile::tempdir_in(target())?,
        };
        let input = files.path("rows.txt").to_string_lossy().into_owned();
        files.example(&["make", &bytes.to_string(), &input])?;
        let checked = files.example(&["check", &input])?;
        let (checksum, _) = checked.split_once(", in order").ok_or("no checksum")?;
        let [our_memory, duckdb_memory] = [memory; 2].map(Cell::new);
        let sides = [(OURS, &our_memory), (DUCKDB, &duckdb_memory)].map(|(which, memory)| {
            let files = &files;
            Side::new(which, move || files.sort_in(which, memory, checksum))
        });
        let took = alternate(args.rounds(ROUNDS), sides.into())?;
        if duckdb_memory.get() > memory {
            report.note(format!(
                "{case}: DuckDB ended with `Out of Memory Error` in less than {} MiB, and had that.",
                duckdb_memory.get() >> 20
            ));
        }
        for (unit, figures) in [
            ("s", took.map(|figures| figures.seconds)),
            ("processor s", took.map(|figures| figures.cpu)),
            (
                "peak MiB",
                took.map(|figures| figures.peak_bytes / 1_048_576.0),
            ),
        ] {
            report.rows.push(figures.row(&case, unit, OURS, DUCKDB));
        }
    }
    Ok(())
}
