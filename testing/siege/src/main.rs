//! Runs the siege: `bywash-siege --binary PATH [--seed N] [--minutes M] [--keys N] [--case NAME]`.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use bywash_siege::cases::{self, Case};
use bywash_siege::field::{Campaign, Field};
use bywash_siege::judge::judge;
use bywash_siege::record::Record;
use bywash_siege::report::{CaseResult, summary};
use clap::Parser;
use futures::FutureExt;
use tokio::task::JoinHandle;

/// Attacks a real server and judges what it does
#[derive(Debug, Parser)]
struct Args {
    /// The server to attack
    #[arg(long)]
    binary: PathBuf,
    /// What the attack is drawn from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Go round all cases, each time from the next seed, for so long
    #[arg(long)]
    minutes: Option<u64>,
    /// Distinct objects; other counts follow from it
    #[arg(long)]
    keys: Option<u64>,
    /// Only these cases
    #[arg(long, value_delimiter = ',')]
    case: Vec<String>,
    /// Name the cases and do nothing
    #[arg(long)]
    list: bool,
}

/// Servers that get back to rest while the next case is under way.
const RECOVERING: usize = 2;
/// Distinct objects when neither keys nor minutes are given.
const KEYS: u64 = 1_000_000;

fn main() -> ExitCode {
    let args = Args::parse();
    let chosen: Vec<Case> = cases::all()
        .into_iter()
        .filter(|case| args.case.is_empty() || args.case.iter().any(|name| name == case.name))
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

/// Runs the cases, once or until the time is up; whether all passed.
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

/// Runs each case once until the time is `over`, and then those once more, one after another, whose times alone were too long.
async fn round(campaign: &Campaign, chosen: &[Case], over: impl Fn() -> bool) -> Vec<CaseResult> {
    let mut results = Vec::new();
    let mut pending = VecDeque::new();
    for case in chosen {
        pending.push_back(one(campaign, case).await);
        while pending.len() > RECOVERING {
            results.extend(shown(campaign, &mut pending).await);
        }
        if over() {
            break;
        }
    }
    while !pending.is_empty() {
        results.extend(shown(campaign, &mut pending).await);
    }
    for result in &mut results {
        let case = chosen.iter().find(|case| case.name == result.name);
        let Some(case) = case.filter(|_| result.runs_again()) else {
            continue;
        };
        let mut second = ended(one(campaign, case).await).await;
        second.before = std::mem::take(&mut result.findings);
        print!("{}", second.lines(&repeat(campaign, second.name)));
        *result = second;
    }
    results
}

/// Waits for the oldest of the cases under way and prints how it ended.
async fn shown(
    campaign: &Campaign,
    pending: &mut VecDeque<JoinHandle<CaseResult>>,
) -> Option<CaseResult> {
    let result = ended(pending.pop_front()?).await;
    print!("{}", result.lines(&repeat(campaign, result.name)));
    Some(result)
}

async fn ended(case: JoinHandle<CaseResult>) -> CaseResult {
    match case.await {
        Ok(result) => result,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// The line that runs a case again.
fn repeat(campaign: &Campaign, name: &str) -> String {
    format!(
        "cargo xtask siege --seed {} --keys {} --case {name} --binary {}",
        campaign.seed,
        campaign.keys,
        campaign.binary.display()
    )
}

/// Runs one case on a field of its own. Its server gets back to rest while the next case is under way.
async fn one(campaign: &Campaign, case: &Case) -> JoinHandle<CaseResult> {
    let began = Instant::now();
    // The case's name goes into its seed, so that a case alone draws what it draws among others.
    let drawn = case.name.bytes().fold(campaign.seed, |seed, byte| {
        seed.rotate_left(8) ^ u64::from(byte)
    });
    let field = match Field::new(campaign, drawn) {
        Ok(mut field) => {
            let attack = AssertUnwindSafe((case.attack)(&mut field)).catch_unwind();
            match attack.await {
                Ok(Ok(())) => {}
                Ok(Err(trouble)) => field.record.found(trouble.to_string()),
                Err(_) => field.record.found("the case panicked; see standard error"),
            }
            Ok(field)
        }
        Err(trouble) => Err(trouble),
    };
    let (name, seed, took) = (case.name, campaign.seed, began.elapsed());
    tokio::spawn(async move {
        let facts = match field {
            Ok(field) => field.finish().await.facts(),
            Err(trouble) => {
                let record = Record::default();
                record.found(trouble.to_string());
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
