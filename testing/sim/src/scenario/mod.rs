//! A whole run from one seed.

mod clients;
mod ends;
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

/// No operation takes longer, whatever the origin does: far above every deadline of the engine.
const LONGEST: Duration = Duration::from_secs(3600);
/// After the last reader left, loads nobody waits for have ended by then.
const SETTLE: Duration = Duration::from_secs(600);

/// A runtime of one thread whose clock moves only when all tasks wait: the same tasks give the
/// same run.
#[must_use]
pub fn paused_runtime() -> tokio::runtime::Runtime {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build();
    runtime.expect("a runtime of one thread needs no more than a few descriptors")
}

/// A run drawn from a seed.
#[derive(Debug)]
pub struct Scenario {
    plan: Plan,
}

/// What happened in a run, all of it right.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Reads that were judged.
    pub reads: u64,
    /// Those of them that were downloads.
    pub downloads: u64,
    /// Bytes they got.
    pub bytes: u64,
    /// How many reads got which verdict (versions are counted together).
    pub verdicts: BTreeMap<&'static str, u64>,
    /// How often each fault hit.
    pub faults: BTreeMap<FaultKind, u64>,
    /// Requests the origin got.
    pub origin_requests: u64,
    /// A hash of everything the origin was asked, when, and what it answered.
    pub trace: u64,
}

/// A run that broke promises.
#[derive(Debug)]
pub struct Failure {
    /// Its seed.
    pub seed: u64,
    /// Its settings.
    pub plan: Box<Plan>,
    /// What was broken.
    pub violations: Vec<Violation>,
    /// What the origin was asked, when, and what it answered, a line each.
    pub requests: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for violation in &self.violations {
            writeln!(f, "{violation}")?;
        }
        write!(
            f,
            "to repeat: BYWASH_SEED={} cargo test -p bywash --test it simulation",
            self.seed
        )
    }
}

impl std::error::Error for Failure {}

/// What the tasks of a run share.
struct Run {
    plan: Plan,
    engine: Engine,
    bucket: Bucket,
    origin: SimOrigin,
    oracle: Arc<Oracle>,
    paths: Vec<Path>,
    rules: Rules,
    findings: Mutex<Findings>,
    /// Operations asked of the bucket. Only counted, hence relaxed.
    operations: AtomicU64,
}

#[derive(Default)]
struct Findings {
    violations: Vec<Violation>,
    report: Report,
    /// Bytes of complete reads that had any, and how many there were.
    filled_reads: u64,
}

impl Scenario {
    /// Draws the run of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            plan: Plan::draw(seed),
        }
    }

    /// Its settings.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Runs it, on a clock of its own; blocks until the end.
    ///
    /// # Errors
    ///
    /// What was broken, and the line that repeats it.
    pub fn run(&self) -> Result<Report, Failure> {
        let runtime = paused_runtime();
        let (report, violations, requests) = runtime.block_on(self.play());
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

    async fn play(&self) -> (Report, Vec<Violation>, Vec<String>) {
        let begun = Instant::now();
        let run = Arc::new(Run::new(self.plan.clone()));
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
        tasks.spawn(clients::meddle(
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
        sleep(SETTLE).await;
        run.check_end();
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

impl Run {
    fn new(plan: Plan) -> Self {
        let origin = SimOrigin::new(plan.seed, plan.weather.clone());
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
            // Pauses are drawn from the thread's own generator; without them a seed repeats.
            .retry(RetryPolicy {
                initial_backoff: Duration::ZERO,
                ..RetryPolicy::default()
            })
            .build()
            .expect("every drawn setting is in its range");
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
            findings.filled_reads += 1;
        }
        let name = match verdict {
            Ok(Verdict::Read(_)) => "read",
            Ok(Verdict::Nothing) => "left",
            Ok(Verdict::Absent) => "absent",
            Ok(Verdict::Condition) => "condition",
            Ok(Verdict::Range) => "range",
            Ok(Verdict::Excused) => "excused error",
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
