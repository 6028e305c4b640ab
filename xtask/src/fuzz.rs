//! The fuzzers of every parser (`fuzz/`), for as long as one likes. What they find is a seed from then on, and so a test of the
//! gate.

use std::fs;
use std::path::Path;

use crate::proofs::nightly;
use crate::run::{Failure, doing};

/// Where the seeds lie, in a folder a fuzzer.
const SEEDS: &str = "fuzz/seeds";

/// Runs one fuzzer, or all, each for so many seconds from its seeds and from what earlier runs kept in `fuzz/corpus`.
pub(crate) fn run(target: Option<&str>, seconds: u64) -> Result<(), Failure> {
    if !nightly().args(["fuzz", "--version"]).succeeds() {
        return Err(Failure::Missing(
            "cargo-fuzz or a nightly toolchain is missing: rustup toolchain install nightly, then cargo install cargo-fuzz --locked"
                .to_owned(),
        ));
    }
    let targets = match target {
        Some(target) => vec![target.to_owned()],
        None => targets()?,
    };
    for target in targets {
        println!("{target}: {seconds} s");
        let corpus = format!("fuzz/corpus/{target}");
        fs::create_dir_all(&corpus).map_err(doing(format!("make {corpus}")))?;
        // All of it is safe code, so that there is nothing for the address sanitizer to find, and half the time saved.
        nightly()
            .args([
                "fuzz",
                "run",
                "--sanitizer",
                "none",
                "--fuzz-dir",
                "fuzz",
                &target,
            ])
            .args([corpus, format!("{SEEDS}/{target}"), "--".to_owned()])
            .args([
                format!("-max_total_time={seconds}"),
                "-max_len=4096".to_owned(),
            ])
            .args(["-print_final_stats=1"])
            .run()?;
    }
    Ok(())
}

/// Each has seeds.
fn targets() -> Result<Vec<String>, Failure> {
    let folders = fs::read_dir(Path::new(SEEDS)).map_err(doing(format!("list {SEEDS}")))?;
    let mut names: Vec<_> = folders
        .flatten()
        .map(|folder| folder.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    Ok(names)
}
