//! Random uploads through the writer, to a store with random faults: the exact object or the right error, never a
//! false success. A seed is some uploads to one store, with a random half of the classes of faults.
//!
//! To run one seed with a full report: `BYWASH_SEED=123 cargo test -p bywash --test it upload_servers::seeded`. To run
//! other seeds: `BYWASH_SEEDS=1000..5000`.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bywash::origin::s3::S3Store;
use bywash::upload::{Upload, UploadOptions, UploadResult};
use bywash::{
    Bucket, Consistency, Engine, EngineError, Origin, OriginError, RetryPolicy, StatusError,
};
use bywash_sim::advance_clock_by_ticks;
use bywash_sim::server::gcs::Gcs;
use bywash_sim::server::objects::Objects;
use bywash_sim::server::objects::crc32c;
use bywash_sim::server::s3::S3;
use bywash_sim::server::{
    FaultPlan, LoggedRequest, Protocol, Server, ServerFault, ServerFaultKind,
};
use bywash_support::pattern;
use bywash_support::proof::{Proof, class};
use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use object_store::{Error, PutMode, Result};

use crate::upload_servers::gcs::{UNIT, client};
use crate::upload_servers::plan::{Class, Kind, PART, Plan};

/// The fixed set.
const SEEDS: Range<u64> = 0..75;
/// Maximum failing seeds that are reported.
const FAILURES_SHOWN: usize = 20;
/// Stall limit of a request.
const STALL: Duration = Duration::from_millis(100);

/// A store behind a server.
trait Fake: Protocol {
    fn objects(&self) -> &Objects;
    fn forget(&self);
}

impl Fake for Gcs {
    fn objects(&self) -> &Objects {
        self.objects()
    }

    fn forget(&self) {
        self.forget_sessions();
    }
}

impl Fake for S3 {
    fn objects(&self) -> &Objects {
        self.objects()
    }

    fn forget(&self) {
        self.forget_uploads();
    }
}

/// A server and two processes that upload to it.
struct World {
    fake: Arc<dyn Fake>,
    server: Server,
    buckets: [Bucket; 2],
}

async fn world(kind: Kind) -> World {
    let fake: Arc<dyn Fake> = match kind {
        Kind::Gcs => Gcs::new(),
        Kind::S3 => S3::new().with_limits(2, PART),
        Kind::PlainS3 => S3::plain().with_limits(2, PART),
    };
    let protocol: Arc<dyn Protocol> = Arc::<dyn Fake>::clone(&fake);
    let server = Server::start(protocol).await.unwrap();
    let buckets = [0, 1].map(|_| {
        let retry = RetryPolicy {
            initial_backoff: Duration::from_millis(1),
            max_backoff: Duration::from_millis(4),
            deadline: Duration::from_secs(20),
            stall: STALL,
        };
        let engine = Engine::builder()
            .memory(32 << 20)
            .retry(retry)
            .build()
            .unwrap();
        let store: Arc<dyn Origin> = match kind {
            Kind::Gcs => Arc::new(client(&server)),
            Kind::S3 | Kind::PlainS3 => Arc::new(s3(&server)),
        };
        engine.mount("test", store, Consistency::default()).unwrap()
    });
    World {
        fake,
        server,
        buckets,
    }
}

fn s3(server: &Server) -> S3Store {
    let builder = AmazonS3Builder::new()
        .with_bucket_name("data")
        .with_endpoint(server.url())
        .with_region("us-east-1")
        .with_access_key_id("key")
        .with_secret_access_key("secret");
    let store = S3Store::from_builder(builder, "data", &Path::from("p")).unwrap();
    store.with_joining_time(STALL).with_min_part(PART as u64)
}

async fn upload(plan: &Plan, world: &World) -> Result<UploadResult> {
    let bytes = plan.bytes();
    let options = UploadOptions {
        mode: if plan.create {
            PutMode::Create
        } else {
            PutMode::Overwrite
        },
        length: plan.announced.then_some(plan.length as u64),
        chunk: Some(plan.chunk as u64),
        ..UploadOptions::default()
    };
    let path = Path::from(plan.key());
    let mut upload = world.buckets[0].upload(&path, options).await?;
    let mut at = 0;
    for (nth, write) in plan.writes.iter().enumerate() {
        if plan.hand_over == Some(nth) {
            upload = taken_over(upload, &world.buckets[1]).await?;
        }
        upload.write(bytes.slice(at..at + write)).await?;
        at += write;
    }
    if plan.hand_over == Some(plan.writes.len()) {
        upload = taken_over(upload, &world.buckets[1]).await?;
    }
    upload.finish().await
}

async fn taken_over(upload: Upload, bucket: &Bucket) -> Result<Upload> {
    let token = upload.capture();
    let position = upload.position();
    drop(upload);
    let upload = bucket.restore_upload(&token).await?;
    assert_eq!(upload.position(), position);
    Ok(upload)
}

/// Sums over many uploads.
#[derive(Debug, Default)]
struct Report {
    outcomes: BTreeMap<&'static str, u64>,
    faults: BTreeMap<ServerFaultKind, u64>,
    taken_over: u64,
    bytes: u64,
    /// Bytes that reached the server beyond the bytes of the objects.
    extra_bytes: u64,
}

impl Report {
    fn add(&mut self, other: Self) {
        for (outcome, count) in other.outcomes {
            *self.outcomes.entry(outcome).or_default() += count;
        }
        for (fault, count) in other.faults {
            *self.faults.entry(fault).or_default() += count;
        }
        self.taken_over += other.taken_over;
        self.bytes += other.bytes;
        self.extra_bytes += other.extra_bytes;
    }
}

/// Plays one upload; `Err` describes the broken promise.
async fn play(plan: &Plan, world: &World) -> std::result::Result<Report, String> {
    let before = pattern(!plan.seed, 10);
    let objects = world.fake.objects();
    if plan.conflict {
        let put = objects.put(
            "data",
            &stored_key(plan),
            before.clone(),
            BTreeMap::new(),
            |_| true,
        );
        assert!(put.is_some());
    }
    let faults = FaultPlan::seeded(plan.seed, &plan.chances, plan.most_faults);
    world.server.set_fault_plan(faults);
    let _ = world.server.take_log();
    let outcome = upload(plan, world).await;
    let log = world.server.take_log();
    world.server.set_fault_plan(FaultPlan::none());
    let verdict = judge(plan, world, &outcome, &log);
    objects.delete("data", &stored_key(plan));
    world.fake.forget();
    verdict.map_err(|broken| {
        let mut text = format!("{broken}; outcome {outcome:?}");
        for one in &log {
            let line = one.line.split('?').next().unwrap_or_default();
            let range = one.content_range.as_deref().unwrap_or("-");
            text.push_str(&format!(
                "\n    {line} {range}: {} bytes, {:?}, {:?}",
                one.received, one.status, one.fault
            ));
        }
        text
    })
}

fn stored_key(plan: &Plan) -> String {
    format!("p/{}", plan.key())
}

fn judge(
    plan: &Plan,
    world: &World,
    outcome: &Result<UploadResult>,
    log: &[LoggedRequest],
) -> std::result::Result<Report, String> {
    let ensure = |held: bool, broken: &str| if held { Ok(()) } else { Err(broken.to_owned()) };
    let bytes = plan.bytes();
    let stored = world.fake.objects().get("data", &stored_key(plan));
    let new = stored.as_ref().is_some_and(|stored| stored.bytes == bytes);
    let old = match &stored {
        None => !plan.conflict,
        Some(stored) => plan.conflict && stored.bytes == pattern(!plan.seed, 10),
    };
    let damaged = outcome.as_ref().is_err_and(|error| {
        let found = OriginError::find(error);
        matches!(found, Some(OriginError::UploadDamaged { .. }))
    });
    // The object of a store that corrupts whole objects is there; the checksum in its response makes it an error.
    let corrupt = log.iter().any(|one| {
        let whole = one.line.starts_with("PUT") && !one.line.contains("upload");
        whole && one.fault == Some(ServerFault::FlipBit)
    });
    ensure(
        new || old || (damaged && corrupt),
        "an object exists that was never uploaded",
    )?;
    let name = match outcome {
        Ok(done) => {
            ensure(!plan.conflict, "an object was replaced that must not be")?;
            ensure(new, "a success without the object")?;
            ensure(
                done.length == bytes.len() as u64,
                "the result has another length",
            )?;
            ensure(
                done.crc32c == crc32c(&bytes),
                "the result has another checksum",
            )?;
            let generation = stored.map(|stored| stored.generation.to_string());
            ensure(
                done.put.version.is_none() || done.put.version == generation,
                "the result has another generation",
            )?;
            "object"
        }
        Err(error) => {
            let text = format!("{error} {error:?}");
            ensure(
                !text.contains("SECRET"),
                "an error shows a session's address",
            )?;
            right_error(plan, error, log)?
        }
    };
    // A request carries a chunk at most, and after each failure the status is requested.
    let received: u64 = log.iter().map(|one| one.received).sum();
    let asked = log
        .iter()
        .filter(|one| one.content_range.as_deref() == Some("bytes */*"))
        .count();
    let failed = log.iter().filter(|one| one.fault.is_some()).count();
    let times = (1 + asked + failed) * plan.chunk + 64 * 1024;
    let most = (bytes.len() + times) as u64;
    ensure(
        received <= most,
        "more was sent again than failures explain",
    )?;
    let mut report = Report {
        bytes: bytes.len() as u64,
        extra_bytes: received.saturating_sub(bytes.len() as u64),
        taken_over: u64::from(plan.hand_over.is_some()),
        ..Report::default()
    };
    report.outcomes.insert(name, 1);
    for fault in log.iter().filter_map(|one| one.fault) {
        *report.faults.entry(fault.kind()).or_default() += 1;
    }
    Ok(report)
}

/// Returns the name of the error if the plan explains it.
fn right_error(
    plan: &Plan,
    error: &Error,
    log: &[LoggedRequest],
) -> std::result::Result<&'static str, String> {
    let small = plan.length <= plan.chunk;
    let struck = log.iter().any(|one| one.fault.is_some());
    let unproven = matches!(
        EngineError::find(error),
        Some(EngineError::UploadUnproven { .. })
    );
    match (error, OriginError::find(error)) {
        (Error::AlreadyExists { .. }, _) if plan.conflict => Ok("conflict"),
        // A conditional put is tried once: a retry could find its own object and take it for another's.
        _ if plan.create && small && struck => Ok("one try"),
        // Without a checksum of the whole object, a lost response to the completion leaves one that cannot be
        // verified.
        _ if unproven && plan.kind != Kind::Gcs && struck => Ok("unproven"),
        _ if plan.passes() => {
            Err("an error, though all that went wrong would have passed".to_owned())
        }
        (_, Some(OriginError::UploadLost { .. })) => Ok("lost"),
        (_, Some(OriginError::UploadDamaged { .. })) => Ok("damaged"),
        // The store's own check of the whole object's hash.
        (Error::Generic { .. }, None)
            if StatusError::find(error).is_some_and(|found| found.status == 400) =>
        {
            Ok("refused by hash")
        }
        _ => Err("an error that does not say what happened".to_owned()),
    }
}

/// A worker's runs: its own runtime, server and clients, so that no worker waits for another's faults.
fn work(kinds: &[Kind], proof: &Proof) -> (Report, Vec<(u64, String)>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        // Otherwise a pause of the machine would count as a stall of the store.
        advance_clock_by_ticks();
        let (mut report, mut broken) = (Report::default(), Vec::new());
        let mut worlds = Vec::new();
        for played in 0.. {
            let Some(mut trial) = proof.next() else {
                break;
            };
            let seed = trial.seed();
            if played % 25 == 0 {
                // A store never forgets that a session existed.
                worlds.clear();
                for kind in kinds {
                    worlds.push(world(*kind).await);
                }
            }
            let nth = usize::try_from(seed % kinds.len() as u64).unwrap();
            for plan in Plan::draw_all(kinds[nth], seed) {
                match play(&plan, &worlds[nth]).await {
                    Ok(one) => {
                        trial.operations(1);
                        for (kind, hits) in &one.faults {
                            trial.fault(class(kind), *hits);
                        }
                        trial.fault(Class::TakenOver.name(), one.taken_over);
                        trial.fault(Class::Conflict.name(), u64::from(plan.conflict));
                        report.add(one);
                    }
                    Err(text) => {
                        trial.fail();
                        broken.push((seed, format!("{text}\n    {plan:?}")));
                    }
                }
            }
        }
        (report, broken)
    })
}

/// Plays the seeds for each kind of store; returns the sums if it is the fixed set.
fn play_all(kinds: &[Kind], proof: &Proof) -> Option<Report> {
    // More than processors: some wait for stalls.
    let workers = 4 * thread::available_parallelism().map_or(2, usize::from);
    let done: Vec<_> = thread::scope(|scope| {
        let workers: Vec<_> = (0..workers)
            .map(|_| scope.spawn(|| work(kinds, proof)))
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap())
            .collect()
    });
    let (mut total, mut broken) = (Report::default(), Vec::new());
    for (report, more) in done {
        total.add(report);
        broken.extend(more);
    }
    println!("uploads to {kinds:?}: {total:#?}");
    broken.sort();
    for (seed, text) in broken.iter().take(FAILURES_SHOWN) {
        eprintln!("seed {seed}: {text}");
    }
    assert!(broken.is_empty(), "{} uploads broke promises", broken.len());
    proof.is_fixed().then_some(total)
}

fn proof(name: &'static str, repeat: &'static str) -> Proof {
    let classes = Class::all().into_iter().map(Class::name);
    Proof::new(name, repeat, SEEDS, &classes.collect::<Vec<_>>())
}

#[test]
fn seeded_uploads() {
    let repeat = "cargo test -p bywash --test it seeded_uploads -- --exact upload_servers::seeded::seeded_uploads";
    let proof = proof("uploads", repeat);
    if let Some(total) = play_all(&[Kind::Gcs], &proof) {
        let outcomes = ["conflict", "lost", "damaged", "refused by hash"];
        check_coverage(&total, &outcomes);
    }
}

#[test]
fn seeded_uploads_in_parts() {
    let kinds = [Kind::S3, Kind::PlainS3];
    let repeat = "cargo test -p bywash --test it seeded_uploads_in_parts";
    let proof = proof("uploads-in-parts", repeat);
    if let Some(total) = play_all(&kinds, &proof) {
        check_coverage(&total, &["conflict", "lost", "damaged"]);
    }
}

/// Checks that the runs covered their purpose: a change of the generator that empties them must not pass.
fn check_coverage(total: &Report, outcomes: &[&str]) {
    let count = |outcome: &str| total.outcomes.get(outcome).copied().unwrap_or(0);
    assert!(count("object") > 300, "{total:?}");
    for outcome in outcomes {
        assert!(count(outcome) > 1, "{outcome}: {total:?}");
    }
    assert!(total.taken_over > 90, "{total:?}");
    for kind in ServerFaultKind::TRANSIENT
        .into_iter()
        .chain(ServerFaultKind::PERMANENT)
    {
        let struck = total.faults.get(&kind).copied().unwrap_or(0);
        assert!(struck > 0, "{kind:?} hardly ever struck: {total:?}");
    }
}

/// Makes the line that reproduces a failure meaningful: the same requests meet the same faults.
#[tokio::test]
async fn seed_reproduces_its_upload() {
    advance_clock_by_ticks();
    for plan in (0..2).flat_map(|seed| Plan::draw_all(Kind::Gcs, seed)) {
        let mut runs = Vec::new();
        for _ in 0..2 {
            let world = world(Kind::Gcs).await;
            let report = play(&plan, &world).await.unwrap();
            runs.push((report.outcomes, report.faults, report.extra_bytes));
        }
        assert_eq!(runs[0], runs[1], "{plan:?}");
    }
}

/// A plan without faults, of some chunks.
fn calm(seed: u64) -> Plan {
    Plan {
        chunk: UNIT,
        length: 3 * UNIT + 1,
        writes: vec![3 * UNIT + 1],
        create: false,
        announced: false,
        most_faults: u64::MAX,
        ..Plan::draw(Kind::Gcs, seed)
    }
}

/// Tests the judge: it must detect a success without the object, a wrong object, and an unjustified error.
#[tokio::test]
async fn the_judge_catches_a_false_success() {
    advance_clock_by_ticks();
    let world = world(Kind::Gcs).await;
    let plan = calm(1);
    assert!(play(&plan, &world).await.is_ok());
    let done = upload(&plan, &world).await;
    assert!(judge(&plan, &world, &done, &[]).is_ok());
    world.fake.objects().delete("data", &stored_key(&plan));
    let broken = judge(&plan, &world, &done, &[]).unwrap_err();
    assert_eq!(broken, "a success without the object");
    let damaged = pattern(9, plan.length);
    let objects = world.fake.objects();
    objects.put("data", &stored_key(&plan), damaged, BTreeMap::new(), |_| {
        true
    });
    let broken = judge(&plan, &world, &done, &[]).unwrap_err();
    assert_eq!(broken, "an object exists that was never uploaded");
    objects.delete("data", &stored_key(&plan));
    let error = Err(Error::Generic {
        store: "test",
        source: "nothing".into(),
    });
    let broken = judge(&plan, &world, &error, &[]).unwrap_err();
    assert_eq!(
        broken,
        "an error, though all that went wrong would have passed"
    );
}

/// A store that reports more than it stored, each time, in each way: always detected.
#[tokio::test]
async fn a_store_that_acknowledges_too_much_is_always_caught() {
    advance_clock_by_ticks();
    let world = world(Kind::Gcs).await;
    for kinds in [
        vec![(ServerFaultKind::AcknowledgeMore, 1.0)],
        vec![
            (ServerFaultKind::StoreAtMost, 0.5),
            (ServerFaultKind::AcknowledgeMore, 1.0),
        ],
    ] {
        for seed in 0..20 {
            let plan = Plan {
                chances: kinds.clone(),
                ..calm(seed)
            };
            let report = play(&plan, &world).await.unwrap();
            assert_eq!(
                report.outcomes.keys().copied().collect::<Vec<_>>(),
                ["damaged"]
            );
        }
    }
}
