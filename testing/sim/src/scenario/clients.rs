//! Readers and writers of a run.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use bywash::{Bucket, DownloadOptions, Engine, EngineError, Lease, LeasedRead, PutStreamOptions};
use futures::{StreamExt as _, stream};
use object_store::path::Path;
use object_store::{Error, GetOptions, GetRange, GetResult, ObjectStore, ObjectStoreExt as _};
use rand::RngExt as _;
use rand::rngs::StdRng;
use tokio::io::AsyncReadExt as _;
use tokio::time::{sleep, timeout};

use super::plan::draw_size;
use super::{OPERATION_TIMEOUT, RunContext};
use crate::oracle::{Observation, Oracle, Outcome, Violation, WriteEffect};
use bywash_support::pattern;

/// How a reader consumes a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consume {
    /// Reads all of it.
    All,
    /// Reads all of it, with this pause after each piece.
    Slowly(Duration),
    /// Cancels after a number of bytes.
    Cancel {
        /// Bytes read before the cancellation.
        after: u64,
    },
    /// Cancels after this time, also before the response.
    Timeout(Duration),
}

/// Downloads once and records the result. Bytes from a reader of the download must be those that its end returns.
async fn observe_download(
    bucket: &Bucket,
    oracle: &Oracle,
    path: &Path,
    options: DownloadOptions,
    consume: Consume,
) -> Observation {
    let get_options = GetOptions {
        range: options.range.clone(),
        ..GetOptions::default()
    };
    let mut seen = Observation::begin(oracle, path, get_options);
    let download = async {
        let download = bucket.download(path, options).await?;
        seen.meta = Some(download.meta().clone());
        seen.range = Some(download.range().clone());
        let mut reader = download.reader();
        let mut read = Vec::new();
        let read_result = match consume {
            Consume::Slowly(_) => reader.read_to_end(&mut read).await.map(|_| ()),
            _ => Ok(()),
        };
        let body = download.finish().await?.into_contiguous();
        read_result.expect("a reader of a successful download succeeds");
        assert!(
            read.is_empty() || read == body,
            "the reader got other bytes"
        );
        seen.body.extend_from_slice(&body);
        Ok(Outcome::Complete)
    };
    seen.outcome = Box::pin(outcome(consume, download)).await;
    seen.end = oracle.now();
    seen
}

/// Reads once and records the result.
pub async fn observe(
    store: &dyn ObjectStore,
    oracle: &Oracle,
    path: &Path,
    options: GetOptions,
    consume: Consume,
) -> Observation {
    let mut seen = Observation::begin(oracle, path, options.clone());
    let reading = async {
        let result = store.get_opts(path, options).await?;
        consume_body(result, consume, &mut seen).await
    };
    seen.outcome = outcome(consume, reading).await;
    seen.end = oracle.now();
    seen
}

/// Reads once by lease, as a process that has mapped the engine's memory, and records the result.
async fn observe_lease(
    engine: &Engine,
    bucket: &Bucket,
    oracle: &Oracle,
    path: &Path,
    options: GetOptions,
    consume: Consume,
) -> Observation {
    let mut seen = Observation::begin(oracle, path, options.clone());
    let reading = async {
        match bucket.lease(path, options).await? {
            LeasedRead::Body(result) => consume_body(result, consume, &mut seen).await,
            LeasedRead::Lease(lease) => {
                seen.meta = Some(lease.meta().clone());
                seen.range = lease.ranges().first().cloned();
                if let Consume::Slowly(pause) = consume {
                    sleep(pause).await;
                }
                seen.body = leased_bytes(engine, &lease);
                Ok(match consume {
                    Consume::Cancel { .. } => Outcome::Cancelled,
                    _ => Outcome::Complete,
                })
            }
        }
    };
    seen.outcome = outcome(consume, reading).await;
    seen.end = oracle.now();
    seen
}

/// Reads the bytes that are at the place of a lease now.
fn leased_bytes(engine: &Engine, lease: &Lease) -> Vec<u8> {
    let memory = engine.shared_memory().expect("there is a lease of it");
    let memory = memory.descriptor.try_clone_to_owned();
    let memory = File::from(memory.expect("another descriptor"));
    let mut bytes = Vec::new();
    for part in lease.ranges().iter().flat_map(|range| lease.parts(range)) {
        let begin = bytes.len();
        bytes.resize(begin + part.len as usize, 0);
        let read = memory.read_exact_at(&mut bytes[begin..], part.offset);
        read.expect("a lease is inside the memory");
    }
    bytes
}

/// Runs a read for as long as its consumer waits.
async fn outcome(
    consume: Consume,
    reading: impl Future<Output = Result<Outcome, Error>>,
) -> Outcome {
    let limit = match consume {
        Consume::Timeout(limit) => limit,
        _ => OPERATION_TIMEOUT,
    };
    match (timeout(limit, reading).await, consume) {
        (Ok(Ok(outcome)), _) => outcome,
        (Ok(Err(error)), _) => Outcome::Failed(error),
        (Err(_), Consume::Timeout(_)) => Outcome::Cancelled,
        (Err(_), _) => Outcome::Hung,
    }
}

async fn consume_body(
    result: GetResult,
    consume: Consume,
    seen: &mut Observation,
) -> Result<Outcome, Error> {
    seen.meta = Some(result.meta.clone());
    seen.range = Some(result.range.clone());
    let mut body = result.into_stream();
    loop {
        if matches!(consume, Consume::Cancel { after } if seen.body.len() as u64 >= after) {
            return Ok(Outcome::Cancelled);
        }
        let Some(piece) = body.next().await else {
            return Ok(Outcome::Complete);
        };
        seen.body.extend_from_slice(&piece?);
        if let Consume::Slowly(pause) = consume {
            sleep(pause).await;
        }
    }
}

/// Pauses between operations: often not at all, so that tasks overlap; sometimes for longer than the window.
async fn pause(rng: &mut StdRng) {
    match rng.random_range(0..10) {
        0..5 => {}
        5..8 => sleep(Duration::from_millis(rng.random_range(1..300))).await,
        _ => sleep(Duration::from_millis(rng.random_range(300..4_000))).await,
    }
}

pub(super) async fn read(run: Arc<RunContext>, mut rng: StdRng) {
    for _ in 0..run.plan.reads {
        pause(&mut rng).await;
        let path = run.any_path(&mut rng);
        let (options, consume) = (
            run.draw_options(&path, &mut rng),
            run.draw_consume(&mut rng),
        );
        let seen = if run.plan.downloads && rng.random_bool(0.3) {
            let part_size = rng.random_range(1..4 * run.plan.block_size as u64);
            let download = DownloadOptions {
                range: options.range,
                part_size,
                parallel: rng.random_range(1..5),
                digest: None,
                cached: true,
            };
            run.findings.lock().report.downloads += 1;
            observe_download(&run.bucket, &run.oracle, &path, download, consume).await
        } else if run.plan.leases && rng.random_bool(0.5) {
            run.findings.lock().report.leases += 1;
            let (engine, bucket) = (&run.engine, &run.bucket);
            observe_lease(engine, bucket, &run.oracle, &path, options, consume).await
        } else {
            observe(&run.bucket, &run.oracle, &path, options, consume).await
        };
        run.judge(&seen);
    }
}

pub(super) async fn list(run: Arc<RunContext>, mut rng: StdRng) {
    for _ in 0..2 {
        sleep(Duration::from_millis(rng.random_range(0..3_000))).await;
        run.operations
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let mut entries = run.bucket.list(None);
        // Its result depends on the faults; reads judge the metadata that it cached.
        let all = async { while let Some(Ok(_)) = entries.next().await {} };
        if timeout(OPERATION_TIMEOUT, all).await.is_err() {
            run.report(Violation::Hung {
                what: "LIST".into(),
            });
        }
    }
}

pub(super) async fn write(run: Arc<RunContext>, mut rng: StdRng, id: u64) {
    for round in 0..run.plan.writes as u64 {
        pause(&mut rng).await;
        let path = run.any_path(&mut rng);
        let size = draw_size(&mut rng, run.plan.block_size);
        let body = pattern(run.plan.seed ^ (id << 48) ^ (round << 32) ^ 0xB0D4, size);
        let start = run.oracle.now();
        run.operations
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let (operation, wrote) = match rng.random_range(0..10) {
            0..4 => (0, WriteEffect::Body(&body)),
            4..8 => (1, WriteEffect::Body(&body)),
            8 => (2, WriteEffect::Deleted),
            _ => (3, WriteEffect::Unknown),
        };
        let from = run.any_path(&mut rng);
        let done = timeout(
            OPERATION_TIMEOUT,
            run.do_write(operation, &path, &from, &body, &mut rng),
        )
        .await;
        match done {
            Ok(Ok(())) => {
                if let Err(violation) = run.oracle.acknowledge(&path, start, wrote) {
                    run.report(violation);
                }
            }
            Ok(Err(error)) => run.judge_write_error(&path, &from, &error),
            Err(_) => run.report(Violation::Hung {
                what: format!("write of {path}"),
            }),
        }
    }
}

pub(super) async fn write_behind_bucket(run: Arc<RunContext>, mut rng: StdRng) {
    for _ in 0..run.plan.writes_behind_bucket {
        sleep(Duration::from_millis(rng.random_range(0..2_000))).await;
        let path = run.any_path(&mut rng);
        if rng.random_bool(0.15) {
            run.origin.remove(&path);
        } else {
            let same = run.oracle.current(&path).map(|version| version.body.len());
            let size = draw_size(&mut rng, run.plan.block_size);
            run.origin
                .write(&path, same.filter(|_| rng.random_bool(0.5)).unwrap_or(size));
        }
    }
}

impl RunContext {
    fn any_path(&self, rng: &mut StdRng) -> Path {
        self.paths[rng.random_range(0..self.paths.len())].clone()
    }

    fn draw_consume(&self, rng: &mut StdRng) -> Consume {
        match rng.random_range(0..10) {
            0 => Consume::Slowly(Duration::from_millis(rng.random_range(1..500))),
            1 | 2 if self.plan.cancelling_readers => Consume::Cancel {
                after: rng.random_range(0..3 * self.plan.block_size as u64),
            },
            3 | 4 if self.plan.cancelling_readers => {
                Consume::Timeout(Duration::from_millis(rng.random_range(0..60)))
            }
            _ => Consume::All,
        }
    }

    fn draw_options(&self, path: &Path, rng: &mut StdRng) -> GetOptions {
        let current = self.oracle.current(path);
        let size = current
            .as_ref()
            .map_or(0, |version| version.body.len() as u64);
        let block = self.plan.block_size as u64;
        let mut point = || match rng.random_range(0..8) {
            0 => 0,
            1 => block - 1,
            2 => block,
            3 => block + 1,
            4 => size.saturating_sub(1),
            5 => size,
            6 => size + 1,
            _ => rng.random_range(0..size + 1),
        };
        let (a, b) = (point(), point());
        let range = match rng.random_range(0..10) {
            0..3 => None,
            3..7 => Some(GetRange::Bounded(a.min(b)..a.max(b).max(a.min(b) + 1))),
            7 | 8 => Some(GetRange::Offset(a)),
            _ => Some(GetRange::Suffix(a.max(1))),
        };
        let mut options = GetOptions {
            range,
            ..GetOptions::default()
        };
        let e_tag = current.and_then(|version| version.meta.e_tag.clone());
        match rng.random_range(0..20) {
            0 => (options.head, options.range) = (true, None),
            1 => options.if_none_match = e_tag,
            2 => options.if_match = e_tag,
            _ => {}
        }
        options
    }

    async fn do_write(
        &self,
        operation: u8,
        path: &Path,
        from: &Path,
        body: &Bytes,
        rng: &mut StdRng,
    ) -> Result<(), Error> {
        match operation {
            0 => self.bucket.put(path, body.clone().into()).await.map(|_| ()),
            1 => {
                let piece = rng.random_range(1..2 * self.plan.block_size);
                let pieces: Vec<_> = body
                    .chunks(piece)
                    .map(Bytes::copy_from_slice)
                    .map(Ok)
                    .collect();
                let options = PutStreamOptions {
                    length: rng.random_bool(0.5).then_some(body.len() as u64),
                    ..PutStreamOptions::default()
                };
                self.bucket
                    .put_stream(path, options, stream::iter(pieces).boxed())
                    .await
                    .map(|_| ())
            }
            2 => self.bucket.delete(path).await,
            _ => self.bucket.copy(from, path).await,
        }
    }

    /// Reports an error of a write that no fault and no change of the object explains.
    fn judge_write_error(&self, path: &Path, from: &Path, error: &Error) {
        let slow_down = matches!(EngineError::find(error), Some(EngineError::SlowDown { .. }))
            && self.plan.tight_memory;
        // The source of a copy or the object of a delete may be absent.
        let missing = matches!(error, Error::NotFound { .. });
        let explained = slow_down || missing || !self.plan.fault_profile.faults.is_empty();
        if !explained {
            self.report(Violation::WrongError {
                what: format!("write of {path} (or copy from {from})"),
                error: error.to_string(),
            });
        }
    }

    fn judge(&self, seen: &Observation) {
        self.operations
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.note_read(seen, self.oracle.judge(seen, &self.rules));
        let budget = self.engine.stats().budget;
        if budget.used > budget.limit {
            self.report(Violation::Budget {
                detail: format!("{} bytes used of a limit of {}", budget.used, budget.limit),
            });
        }
    }

    pub(super) fn report(&self, violation: Violation) {
        self.findings.lock().violations.push(violation);
    }
}
