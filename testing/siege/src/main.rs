//! Runs the cases of the siege: `bywash-siege --binary PATH [--seed N] [--minutes M] [--keys N] [--case NAME]`.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use bywash_siege::cases::{self, Case};
use bywash_siege::context::{Campaign, CaseContext};
use bywash_siege::judge::judge;
use bywash_siege::record::Record;
use bywash_siege::report::{CaseResult, summary};
use clap::Parser;
use futures::FutureExt;
use tokio::task::JoinHandle;

/// Attacks a real server and judges its behaviour
#[derive(Debug, Parser)]
struct Args {
    /// The server to attack
    #[arg(long)]
    binary: PathBuf,
    /// Seed of all random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Repeat all cases for this time, each round with the next seed
    #[arg(long)]
    minutes: Option<u64>,
    /// Number of distinct objects; other counts depend on it
    #[arg(long)]
    keys: Option<u64>,
    /// Run only these cases
    #[arg(long, value_delimiter = ',')]
    case: Vec<String>,
    /// Run only the cases K, K + N, K + 2N, .. of the list
    #[arg(long, value_name = "K/N", value_parser = shard)]
    shard: Option<(usize, usize)>,
    /// List the cases and exit
    #[arg(long)]
    list: bool,
}

/// Maximum number of servers that recover while the next case runs.
const RECOVERING: usize = 2;
/// Default number of distinct objects.
const KEYS: u64 = 1_000_000;

fn main() -> ExitCode {
    if let Some(code) = local_client() {
        return code;
    }
    let args = Args::parse();
    let chosen: Vec<Case> = cases::all()
        .into_iter()
        .filter(|case| args.case.is_empty() || args.case.iter().any(|name| name == case.name))
        .enumerate()
        .filter(|(index, _)| args.shard.is_none_or(|(first, step)| index % step == first))
        .map(|(_, case)| case)
        .collect();
    if args.list || chosen.is_empty() {
        for case in cases::all() {
            println!("{}", case.name);
        }
        return if args.list {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        };
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("siege: cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    if runtime.block_on(run(&args, &chosen)) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Parses `K/N` of `--shard`.
fn shard(text: &str) -> Result<(usize, usize), String> {
    let numbers = text.split_once('/');
    let numbers = numbers.and_then(|(first, step)| Some((first.parse().ok()?, step.parse().ok()?)));
    numbers
        .filter(|(first, step)| first < step)
        .ok_or_else(|| "write K/N, K less than N, for example 0/3".to_owned())
}

/// Runs as a client of the local door, if this process was started as one.
fn local_client() -> Option<ExitCode> {
    let mut words = std::env::args_os().skip(1);
    if words.next()? != cases::local::CLIENT_ARGUMENT {
        return None;
    }
    let (socket, seed) = (PathBuf::from(words.next()?), words.next()?);
    let seed = seed.to_str()?.parse().ok()?;
    if let Err(error) = cases::local::client(&socket, seed) {
        eprintln!("{error}");
    }
    Some(ExitCode::FAILURE)
}

/// Runs the cases once, or until the time is over. Returns whether all passed.
async fn run(args: &Args, chosen: &[Case]) -> bool {
    let keys = args.keys.unwrap_or(KEYS);
    let binary = std::path::absolute(&args.binary).unwrap_or_else(|_| args.binary.clone());
    println!(
        "siege of {}, seed {}, {keys} keys",
        binary.display(),
        args.seed
    );
    let began = Instant::now();
    let until = args
        .minutes
        .map(|minutes| Duration::from_secs(minutes * 60));
    let over = || until.is_some_and(|until| began.elapsed() > until);
    let mut results = Vec::new();
    let mut seed = args.seed;
    loop {
        let campaign = Campaign {
            binary: binary.clone(),
            seed,
            keys,
        };
        results.extend(round(&campaign, chosen, over).await);
        seed += 1;
        if until.is_none() || over() {
            break;
        }
    }
    println!("\n{}", summary(&results, args.seed, began.elapsed()));
    results.iter().all(|result| result.findings.is_empty())
}

/// Runs each case once until the time is `over`. Then repeats, one after another, the cases whose only findings are of timing.
async fn round(campaign: &Campaign, chosen: &[Case], over: impl Fn() -> bool) -> Vec<CaseResult> {
    let mut results = Vec::new();
    let mut pending = VecDeque::new();
    for case in chosen {
        pending.push_back(start_case(campaign, case).await);
        while pending.len() > RECOVERING {
            results.extend(print_oldest(campaign, &mut pending).await);
        }
        if over() {
            break;
        }
    }
    while !pending.is_empty() {
        results.extend(print_oldest(campaign, &mut pending).await);
    }
    for result in &mut results {
        let case = chosen.iter().find(|case| case.name == result.name);
        let Some(case) = case.filter(|_| result.runs_again()) else {
            continue;
        };
        let mut second = wait_for(start_case(campaign, case).await).await;
        second.before = std::mem::take(&mut result.findings);
        print!("{}", second.lines(&repeat_command(campaign, second.name)));
        *result = second;
    }
    results
}

/// Waits for the oldest running case and prints its result.
async fn print_oldest(
    campaign: &Campaign,
    pending: &mut VecDeque<JoinHandle<CaseResult>>,
) -> Option<CaseResult> {
    let result = wait_for(pending.pop_front()?).await;
    print!("{}", result.lines(&repeat_command(campaign, result.name)));
    Some(result)
}

async fn wait_for(case: JoinHandle<CaseResult>) -> CaseResult {
    match case.await {
        Ok(result) => result,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// Returns the command that repeats a case.
fn repeat_command(campaign: &Campaign, name: &str) -> String {
    format!(
        "cargo xtask siege --seed {} --keys {} --case {name} --binary {}",
        campaign.seed,
        campaign.keys,
        campaign.binary.display()
    )
}

/// Attacks a new server by one case. Returns the task in which the server recovers and the judges run.
async fn start_case(campaign: &Campaign, case: &Case) -> JoinHandle<CaseResult> {
    let began = Instant::now();
    // The seed depends on the name of the case, not on the cases before it.
    let case_seed = case.name.bytes().fold(campaign.seed, |seed, byte| {
        seed.rotate_left(8) ^ u64::from(byte)
    });
    let context = match CaseContext::new(campaign, case_seed) {
        Ok(mut context) => {
            let attack = AssertUnwindSafe((case.attack)(&mut context)).catch_unwind();
            match attack.await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => context.record.finding(error.to_string()),
                Err(_) => context
                    .record
                    .finding("the case panicked; see standard error"),
            }
            Ok(context)
        }
        Err(error) => Err(error),
    };
    let (name, seed, took) = (case.name, campaign.seed, began.elapsed());
    tokio::spawn(async move {
        let facts = match context {
            Ok(context) => context.finish().await.facts(),
            Err(error) => {
                let record = Record::default();
                record.finding(error.to_string());
                record.facts()
            }
        };
        CaseResult {
            name,
            seed,
            took,
            findings: judge(&facts),
            facts,
            before: Vec::new(),
        }
    })
}
