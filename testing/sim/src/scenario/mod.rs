//! Runs of the engine drawn from a seed.

mod clients;
mod final_state;
mod plan;

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bywash::{Bucket, Engine, RetryPolicy};
use object_store::path::Path;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::{Instant, sleep};

use crate::fault::FaultKind;
use crate::oracle::{Observation, Oracle, Outcome, Rules, Verdict, Violation};
use crate::origin::SimOrigin;

pub use clients::{Consume, observe};
pub use plan::Plan;

/// Time after which an operation counts as hung: far above every deadline of the engine.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(3600);
/// Time after the last reader until loads without waiters have ended.
const SETTLE_TIME: Duration = Duration::from_secs(600);

/// Creates a single-threaded runtime whose clock advances only while all tasks wait: the same tasks give the same run.
#[must_use]
pub fn paused_runtime() -> tokio::runtime::Runtime {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build();
    runtime.expect("a single-threaded runtime needs only a few descriptors")
}

/// A run drawn from a seed.
#[derive(Debug)]
pub struct Scenario {
    plan: Plan,
}

/// Statistics of a run without violations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Reads that were judged.
    pub reads: u64,
    /// Downloads among them.
    pub downloads: u64,
    /// Reads by lease among them.
    pub leases: u64,
    /// Bytes that the reads returned.
    pub bytes: u64,
    /// Number of reads by verdict (all versions together).
    pub verdicts: BTreeMap<&'static str, u64>,
    /// Number of faults by kind.
    pub faults: BTreeMap<FaultKind, u64>,
    /// Requests to the origin.
    pub origin_requests: u64,
    /// Hash of the log of the origin: all requests, their times and responses.
    pub trace: u64,
}

/// Violations of a run, and the means to reproduce them.
#[derive(Debug)]
pub struct Failure {
    /// Seed of the run.
    pub seed: u64,
    /// Settings of the run.
    pub plan: Box<Plan>,
    /// The violations.
    pub violations: Vec<Violation>,
    /// Log of the origin: one line per request, with its time and response.
    pub requests: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for violation in &self.violations {
            writeln!(f, "{violation}")?;
        }
        write!(
            f,
            "to reproduce: BYWASH_SEED={} cargo test -p bywash --test it simulation",
            self.seed
        )
    }
}

impl std::error::Error for Failure {}

/// State shared by the tasks of a run.
struct RunContext {
    plan: Plan,
    engine: Engine,
    bucket: Bucket,
    origin: SimOrigin,
    oracle: Arc<Oracle>,
    paths: Vec<Path>,
    rules: Rules,
    findings: Mutex<Findings>,
    /// Operations on the bucket. A plain counter, hence relaxed.
    operations: AtomicU64,
}

#[derive(Default)]
struct Findings {
    violations: Vec<Violation>,
    report: Report,
    /// Complete reads of at least one byte.
    nonempty_reads: u64,
}

impl Scenario {
    /// Draws the run of `seed`, with a random half of the kinds of faults.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            plan: Plan::draw(seed),
        }
    }

    /// Draws the run of `seed` without faults, in which no error is excused.
    #[must_use]
    pub fn calm(seed: u64) -> Self {
        Self {
            plan: Plan::draw_calm(seed),
        }
    }

    /// Returns the settings of the run.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Executes the run on a paused clock of its own; blocks until its end.
    ///
    /// # Errors
    ///
    /// The violations, with the command that reproduces them.
    pub fn run(&self) -> Result<Report, Failure> {
        let runtime = paused_runtime();
        let (report, violations, requests) = runtime.block_on(self.execute());
        if violations.is_empty() {
            return Ok(report);
        }
        Err(Failure {
            seed: self.plan.seed,
            plan: Box::new(self.plan.clone()),
            violations,
            requests,
        })
    }

    async fn execute(&self) -> (Report, Vec<Violation>, Vec<String>) {
        let begun = Instant::now();
        let run = Arc::new(RunContext::new(self.plan.clone()));
        let mut rng = StdRng::seed_from_u64(self.plan.seed ^ 0x5EED);
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..self.plan.readers {
            tasks.spawn(clients::read(
                Arc::clone(&run),
                StdRng::seed_from_u64(rng.random()),
            ));
        }
        for id in 0..self.plan.writers as u64 {
            tasks.spawn(clients::write(
                Arc::clone(&run),
                StdRng::seed_from_u64(rng.random()),
                id,
            ));
        }
        tasks.spawn(clients::write_behind_bucket(
            Arc::clone(&run),
            StdRng::seed_from_u64(rng.random()),
        ));
        tasks.spawn(clients::list(
            Arc::clone(&run),
            StdRng::seed_from_u64(rng.random()),
        ));
        while let Some(ended) = tasks.join_next().await {
            if let Err(error) = ended {
                run.report(Violation::Panic {
                    detail: error.to_string(),
                });
            }
        }
        sleep(SETTLE_TIME).await;
        run.check_final_state();
        let mut findings = std::mem::take(&mut *run.findings.lock());
        findings.report.trace = trace(&run.origin, begun);
        findings.report.origin_requests = run.origin.requests();
        for request in run.origin.log() {
            for fault in &request.faults {
                *findings.report.faults.entry(fault.kind()).or_default() += 1;
            }
        }
        let requests = run
            .origin
            .log()
            .iter()
            .map(|request| request.line(begun))
            .collect();
        (findings.report, findings.violations, requests)
    }
}

impl RunContext {
    fn new(plan: Plan) -> Self {
        let origin = SimOrigin::new(plan.seed, plan.fault_profile.clone());
        let paths: Vec<_> = (0..plan.objects.len())
            .map(|index| Path::from(format!("dir/object-{index}")))
            .collect();
        for (path, (validators, size)) in paths.iter().zip(&plan.objects) {
            origin.set_validators_of(path, *validators);
            if let Some(size) = size {
                origin.write(path, *size);
            }
        }
        let engine = Engine::builder()
            .memory(plan.memory)
            .block_size(plan.block_size)
            .chunk_size(plan.chunk_size)
            .shared_memory(plan.leases)
            // Backoff uses the thread's random generator; without it, a seed gives the same run.
            .retry(RetryPolicy {
                initial_backoff: Duration::ZERO,
                ..RetryPolicy::default()
            })
            .build()
            .expect("every drawn setting is valid");
        let bucket = engine.mount("sim", Arc::new(origin.clone()), plan.consistency);
        Self {
            bucket: bucket.expect("a new engine has no such bucket"),
            engine,
            oracle: origin.oracle(),
            origin,
            paths,
            rules: Rules {
                window: plan.consistency.max_age(),
                tight_memory: plan.tight_memory,
            },
            plan,
            findings: Mutex::default(),
            operations: AtomicU64::new(0),
        }
    }

    fn note_read(&self, seen: &Observation, verdict: Result<Verdict, Violation>) {
        let mut findings = self.findings.lock();
        findings.report.reads += 1;
        findings.report.bytes += seen.body.len() as u64;
        if matches!(seen.outcome, Outcome::Complete) && !seen.body.is_empty() {
            findings.nonempty_reads += 1;
        }
        let name = match verdict {
            Ok(Verdict::Read(_)) => "read",
            Ok(Verdict::NoResponse) => "cancelled",
            Ok(Verdict::Absent) => "absent",
            Ok(Verdict::Condition) => "condition",
            Ok(Verdict::Range) => "range",
            Ok(Verdict::Explained) => "explained error",
            Err(violation) => {
                findings.violations.push(violation);
                "violation"
            }
        };
        *findings.report.verdicts.entry(name).or_default() += 1;
    }

    fn operations(&self) -> u64 {
        self.operations.load(Ordering::Relaxed)
    }
}

fn trace(origin: &SimOrigin, begun: Instant) -> u64 {
    let mut hasher = DefaultHasher::new();
    for request in origin.log() {
        request.line(begun).hash(&mut hasher);
    }
    hasher.finish()
}
