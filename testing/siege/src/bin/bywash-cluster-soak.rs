//! Runs the judged soak of a cluster: `bywash-cluster-soak --binary PATH --etcd PATH [--seed N] [--ops N] [--faults KIND] [--controls]`.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use bywash_siege::CaseError;
use bywash_siege::cluster::controls::{CONTROLS, checked_strangers, run_control, strangers};
use bywash_siege::cluster::{CHECKER, Faults, Judging, Plan, Report, run};
use clap::{Parser, ValueEnum as _};

/// Soaks a cluster of real processes and judges each result
#[derive(Debug, Parser)]
struct Args {
    /// The program of the nodes
    #[arg(long)]
    binary: PathBuf,
    /// etcd's program
    #[arg(long, env = "BYWASH_ETCD")]
    etcd: PathBuf,
    /// Seed of all random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Operations of all clients together
    #[arg(long, default_value_t = 10_000)]
    ops: u64,
    /// Operations a second, as far as nodes and faults allow
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    rate: u64,
    /// Clients, each with one operation at a time
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    clients: u64,
    /// Faults: drawn from the seed, none, or one scenario again and again
    #[arg(long, value_enum, default_value = "drawn")]
    faults: Faults,
    /// Nodes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=9))]
    nodes: u64,
    /// Leave out one rule after the other, of a binary that is built for it: each must be found
    #[arg(long)]
    controls: bool,
    /// Judge histories of one server, of the cluster without faults and under drawn ones, and of nodes that do not know each other, by the
    /// checker of linearizability alone
    #[arg(long, env = CHECKER, conflicts_with = "controls")]
    linearizability: Option<PathBuf>,
    /// Only these rules
    #[arg(long, value_delimiter = ',', requires = "controls")]
    rule: Vec<String>,
    /// Operations of each scenario with all rules, at least; 0 for none
    #[arg(long, default_value_t = 3_000, requires = "controls")]
    with_rules: u64,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let done = match runtime {
        Ok(runtime) if args.controls => runtime.block_on(controls(&args)),
        Ok(runtime) if args.linearizability.is_some() => runtime.block_on(histories(&args)),
        Ok(runtime) => runtime.block_on(soak(&args)),
        Err(error) => Err(error.into()),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bywash-cluster-soak: {error}");
            ExitCode::FAILURE
        }
    }
}

fn absolute(path: &PathBuf) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.clone())
}

async fn soak(args: &Args) -> Result<bool, CaseError> {
    let plan = Plan {
        ops: args.ops,
        rate: args.rate,
        clients: args.clients,
        nodes: args.nodes as usize,
        faults: args.faults,
        ..Plan::new(
            absolute(&args.binary),
            Some(absolute(&args.etcd)),
            args.seed,
        )
    };
    let (seed, ops, nodes) = (args.seed, args.ops, args.nodes);
    println!("seed {seed}: {ops} operations at {nodes} nodes");
    let report = run(&plan).await?;
    println!("{report}");
    if report.violation.is_some() {
        let (rate, clients) = (args.rate, args.clients);
        let faults = args.faults.to_possible_value();
        let faults = faults.map_or_else(String::new, |of| of.get_name().to_owned());
        println!(
            "repeat it: cargo xtask soak cluster --seed {seed} --ops {ops} --nodes {nodes} --rate {rate} --clients {clients} \
             --faults {faults}"
        );
    }
    Ok(report.violation.is_none())
}

async fn controls(args: &Args) -> Result<bool, CaseError> {
    let (binary, etcd) = (absolute(&args.binary), absolute(&args.etcd));
    let wanted = |rule: &str| args.rule.is_empty() || args.rule.iter().any(|name| name == rule);
    let mut all_right = true;
    if wanted("strangers") {
        let report = strangers(binary.clone(), 3, args.seed).await?;
        all_right &= report.violation.is_some();
        print_result("nodes without a cluster", &report);
        let alone = strangers(binary.clone(), 1, args.seed).await?;
        all_right &= alone.violation.is_none();
        println!("one node without a cluster: {alone}");
    }
    for control in CONTROLS.iter().filter(|control| wanted(control.rule)) {
        let numbers = (args.seed, args.with_rules);
        let etcd = Some(etcd.clone());
        let result = run_control(*control, binary.clone(), etcd, numbers).await?;
        all_right &= result.is_right();
        print_result(control.rule, &result.without);
        if let Some(violation) = result.with.and_then(|with| with.violation) {
            println!("  WRONG with all rules: {violation}");
        }
    }
    Ok(all_right)
}

/// Histories that the checker judges alone. Nodes that do not know each other must be found wrong.
async fn histories(args: &Args) -> Result<bool, CaseError> {
    let Some(checker) = args.linearizability.as_ref().map(absolute) else {
        return Ok(true);
    };
    let binary = absolute(&args.binary);
    let plan = Plan {
        ops: args.ops,
        rate: args.rate,
        clients: args.clients,
        nodes: args.nodes as usize,
        ..Plan::new(binary.clone(), Some(absolute(&args.etcd)), args.seed)
    };
    let calm = Plan {
        faults: Faults::None,
        behind: 0,
        judging: Some(Judging {
            is_strict: true,
            ..plan.judging_by(checker.clone())
        }),
        ..plan.clone()
    };
    let faults = Plan {
        judging: Some(plan.judging_by(checker.clone())),
        ..plan
    };
    let mut all_right = true;
    let one = checked_strangers(binary.clone(), 1, args.seed, checker.clone()).await?;
    all_right &= print_verdict("one server, strictly", &one);
    all_right &= print_verdict("cluster without faults, strictly", &run(&calm).await?);
    all_right &= print_verdict("cluster under drawn faults", &run(&faults).await?);
    let strangers = checked_strangers(binary, 3, args.seed, checker).await?;
    all_right &= !print_verdict("three nodes without a cluster (must be wrong)", &strangers);
    Ok(all_right)
}

/// Prints the checker's verdict. Returns whether the history is right.
fn print_verdict(name: &str, report: &Report) -> bool {
    let of_checker = report.figures.iter().find(|(name, _)| *name == "porcupine");
    let words = of_checker.map_or("no verdict", |(_, words)| words.as_str());
    println!("{name}: {words}");
    report.violation.is_none()
}

fn print_result(name: &str, report: &Report) {
    let (ops, took) = (report.ops, report.took);
    match &report.violation {
        Some(text) => {
            println!("{name}: found after {ops} operations, {took:.1?}: {text}");
            let figures = report.figures.iter();
            for (name, value) in figures.filter(|(name, _)| *name == "nodes at the end") {
                println!("  {name}: {value}");
            }
        }
        None => println!("{name}: NOT FOUND in {ops} operations, {took:.1?}\n{report}"),
    }
}
