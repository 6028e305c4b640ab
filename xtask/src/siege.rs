//! The siege of a released server: `cargo xtask siege`, and the gate's stage of that name.

use std::path::PathBuf;

use crate::cluster;
use crate::counts::Counts;
use crate::run::{Failure, Step, target};
use crate::shard::{SHARDS, commit};
use crate::tools;

/// Distinct objects of the gate's siege, whose server has the checks of a debug build; the verb's own default is fifty times as many.
const GATE_KEYS: u64 = 20_000;

/// Arguments of `cargo xtask siege`.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// Seed of the attack
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Repeat all cases for this long, each round from the next seed
    #[arg(long)]
    minutes: Option<u64>,
    /// Distinct objects of the cases on tables, from which other counts follow [default: 1,000,000]
    #[arg(long)]
    keys: Option<u64>,
    /// Only these cases
    #[arg(long, value_delimiter = ',')]
    case: Vec<String>,
    /// Only the cases K, K + N, K + 2N, .. of the list
    #[arg(long, value_name = "K/N")]
    shard: Option<String>,
    /// Another build of bywash to attack [default: the released binary, built first]
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// Builds the released binary, or takes the one that `BYWASH_BIN` names, and returns its path.
pub(crate) fn released_binary() -> Result<PathBuf, Failure> {
    if let Some(given) = std::env::var_os("BYWASH_BIN") {
        return Ok(PathBuf::from(given));
    }
    Step::cargo(["build", "--quiet", "--release", "-p", "bywash-cli"]).run()?;
    Ok(target().join("release").join("bywash"))
}

/// Returns the server that the stage `unit` has built, or the one that `BYWASH_BIN` names. It has the checks of a debug build: freed frames are
/// overwritten under each client.
pub(crate) fn tested_binary() -> Result<PathBuf, Failure> {
    std::env::var_os("BYWASH_BIN").map_or_else(|| program("bywash"), |given| Ok(given.into()))
}

/// Builds a program of the workspace with the gate's profile, beside all libraries, and returns its path. The libraries are those of the stage
/// `unit`: cargo gives a library the features that all chosen packages need, and what a test of theirs needs if a test or an example is chosen.
/// With its own package alone the program would have each library built once more, in 290 s and a gigabyte.
pub(crate) fn program(name: &str) -> Result<PathBuf, Failure> {
    Step::linting_cargo(["build", "--quiet", "--workspace", "--exclude", "xtask"])
        .args(["--exclude", "bywash-bench"])
        .args(["--lib", "--bin", name, "--example", "blocking_writer"])
        .run()?;
    Ok(target().join("debug").join(name))
}

/// Runs the siege of the verb, with the size and duration of its arguments.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let mut words = vec![format!("--seed={}", args.seed)];
    let minutes = args.minutes.map(|minutes| format!("--minutes={minutes}"));
    let keys = args.keys.map(|keys| format!("--keys={keys}"));
    words.extend(minutes.into_iter().chain(keys));
    words.extend(args.shard.iter().map(|shard| format!("--shard={shard}")));
    words.extend(args.case.iter().map(|name| format!("--case={name}")));
    let binary = args.binary.clone().map_or_else(released_binary, Ok)?;
    attack(binary, &words, &mut Counts::default())
}

/// Runs the siege of the gate: a shard of the cases once, or with `whole` all, small, from the same seed each time.
pub(crate) fn gate(counts: &mut Counts, whole: bool) -> Result<(), Failure> {
    let mut words = vec!["--seed=1".to_owned(), format!("--keys={GATE_KEYS}")];
    if !whole {
        words.push(format!("--shard={}/{SHARDS}", commit() % SHARDS));
    }
    attack(tested_binary()?, &words, counts)
}

fn attack(binary: PathBuf, words: &[String], counts: &mut Counts) -> Result<(), Failure> {
    let mut siege = Step::new(program("bywash-siege")?);
    if let Some(etcd) = cluster::etcd()? {
        siege = siege.env("BYWASH_ETCD", etcd);
    }
    if let Some(checker) = tools::linearizability(&tools::cache()?)? {
        siege = siege.env("BYWASH_LINEARIZABILITY", checker);
    }
    siege
        .args(["--binary".as_ref(), binary.as_os_str()])
        .args(words)
        .run_counted(counts)
}
