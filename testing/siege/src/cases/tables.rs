//! More entries than a table holds: objects, absent keys, versions, buckets.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{Case, case};
use crate::CaseError;
use crate::client::Expect;
use crate::context::{CaseContext, body};
use crate::machine::Stopwatch;
use crate::process::Setup;
use crate::record::Record;

pub(super) const CASES: &[Case] = &[
    case!("objects", objects),
    case!("absent-keys", absent_keys),
    case!("versions", versions),
    case!("buckets", buckets),
];

/// Number of concurrent clients.
const READERS: u64 = 16;
/// Length of a small object, in bytes.
const SMALL: usize = 64;
/// Maximum 99.9th percentile of latencies, without the machine's delay.
const MAX_P999: Duration = Duration::from_secs(1);
/// Number of failures after which a client stops: a dead server would fail 10^5 requests.
const MAX_FAILURES: u64 = 3;

/// Latencies of a case's requests.
#[derive(Debug, Default)]
struct Latencies(Mutex<Vec<u32>>);

impl Latencies {
    fn add(&self, waited: Duration) {
        let micros = u32::try_from(waited.as_micros()).unwrap_or(u32::MAX);
        self.0.lock().push(micros);
    }

    fn report(&self, record: &Record) {
        let mut all = std::mem::take(&mut *self.0.lock());
        all.sort_unstable();
        let Some(last) = all.len().checked_sub(1) else {
            return;
        };
        let p999 = Duration::from_micros(all[last * 999 / 1000].into());
        record.figure("p99.9 ms", p999.as_millis());
        if p999 > MAX_P999 {
            record.late(format!(
                "the 99.9th percentile is {p999:?}; max {MAX_P999:?}"
            ));
        }
    }
}

fn small_key(number: u64) -> String {
    format!("{:03}/{number:07}", number % 500)
}

/// Creates `count` small objects in a bucket's folder, bypassing the server.
fn plant(context: &CaseContext, bucket: &str, count: u64) -> Result<(), CaseError> {
    let folder = context.bucket(bucket)?;
    for number in 0..500.min(count) {
        std::fs::create_dir_all(folder.join(format!("{number:03}")))?;
    }
    for number in 0..count {
        let path = folder.join(small_key(number));
        std::fs::write(path, body(context.seed, number, SMALL))?;
    }
    Ok(())
}

/// GETs of more distinct objects than the table of versions holds, by a few sequential clients.
async fn objects(context: &mut CaseContext) -> Result<(), CaseError> {
    let count = context.campaign.keys;
    plant(context, "many", count)?;
    context.serve_filled(Setup::default()).await?;
    let latencies = Arc::new(Latencies::default());
    let next = Arc::new(AtomicU64::new(0));
    let began = Instant::now();
    context
        .run_concurrently(READERS, |_| {
            let (mut client, seed) = (context.well_behaved(), context.seed);
            let (latencies, next) = (Arc::clone(&latencies), Arc::clone(&next));
            async move {
                let mut failed = 0;
                while failed < MAX_FAILURES {
                    // Relaxed: the numbers only have to be unique.
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        break;
                    }
                    let path = format!("/many/{}", small_key(number));
                    let wait = Stopwatch::start();
                    let got = client.get(&path, &body(seed, number, SMALL)).await;
                    latencies.add(wait.counted());
                    failed += u64::from(got.is_none());
                }
            }
        })
        .await;
    let rate = count as f64 / began.elapsed().as_secs_f64();
    context.record.figure("GET/s", format!("{rate:.0}"));
    latencies.report(&context.record);
    Ok(())
}

/// HEADs of more absent keys than the table of absent keys holds.
async fn absent_keys(context: &mut CaseContext) -> Result<(), CaseError> {
    let count = context.campaign.keys;
    context.bucket("many")?;
    context.serve_filled(Setup::default()).await?;
    let latencies = Arc::new(Latencies::default());
    context
        .run_concurrently(READERS, |reader| {
            let (mut client, latencies) = (context.well_behaved(), Arc::clone(&latencies));
            async move {
                let mut failed = 0;
                for number in (reader..count).step_by(READERS as usize) {
                    let path = format!("/many/absent/{number}");
                    let wait = Stopwatch::start();
                    let request = ("HEAD", &*path, "");
                    let expect = Expect::Status(&[404]);
                    let got = client.send(request, &[], b"", &expect).await;
                    latencies.add(wait.counted());
                    failed += u64::from(got.is_none());
                    if failed >= MAX_FAILURES {
                        break;
                    }
                }
            }
        })
        .await;
    latencies.report(&context.record);
    Ok(())
}

/// Overwrites and deletes of a few keys, each followed by a read, which must return the last write.
async fn versions(context: &mut CaseContext) -> Result<(), CaseError> {
    let rounds = context.campaign.keys / 80 / READERS;
    context.serve_filled(Setup::default()).await?;
    context.create_bucket("few").await?;
    context
        .run_concurrently(READERS, |writer| {
            let (mut client, seed) = (context.well_behaved(), context.seed);
            async move {
                for round in 0..rounds {
                    let path = format!("/few/{writer}-{}", round % 3);
                    let written =
                        body(seed, writer << 32 | round, 1 + (round as usize * 37) % 5000);
                    if client.put(&path, &written).await {
                        client.get(&path, &written).await;
                    }
                    if round % 7 == 6 {
                        let gone = Expect::Status(&[204]);
                        client.send(("DELETE", &path, ""), &[], b"", &gone).await;
                        let absent = Expect::Status(&[404]);
                        client.send(("GET", &path, ""), &[], b"", &absent).await;
                    }
                }
            }
        })
        .await;
    Ok(())
}

/// Maximum number of folders that a server keeps open.
const OPEN_FOLDERS: u64 = bywash::MAX_OPEN_FOLDERS as u64;

/// Usual soft limit of descriptors in a shell.
const SOFT_DESCRIPTORS: u64 = 1024;

/// More buckets than open folders (ten times as many in a full run) and than the usual limit of descriptors; each is created,
/// written and read. As many as may stay open are created before the state before the attack is recorded.
async fn buckets(context: &mut CaseContext) -> Result<(), CaseError> {
    context.serve_filled(Setup::default()).await?;
    let first = OPEN_FOLDERS + 2 * READERS;
    create_buckets(context, 0..first).await;
    context.fill_and_sample().await;
    let count = first + context.campaign.beyond(OPEN_FOLDERS).max(SOFT_DESCRIPTORS);
    create_buckets(context, first..count).await;
    // Opens some of them again, after all others.
    context
        .run_concurrently(READERS, |reader| {
            let (mut client, seed) = (context.well_behaved(), context.seed);
            async move {
                for number in (reader..count).step_by(READERS as usize * 10) {
                    let path = format!("/bucket-{number}/key");
                    client.get(&path, &body(seed, number, SMALL)).await;
                }
            }
        })
        .await;
    Ok(())
}

async fn create_buckets(context: &CaseContext, numbers: Range<u64>) {
    context
        .run_concurrently(READERS, |writer| {
            let (mut client, seed) = (context.well_behaved(), context.seed);
            let numbers = numbers.clone().skip(writer as usize);
            async move {
                let mut failed = 0;
                for number in numbers.step_by(READERS as usize) {
                    let bucket = format!("/bucket-{number}");
                    let key = format!("{bucket}/key");
                    let written = body(seed, number, SMALL);
                    let good = client.put(&bucket, &bytes::Bytes::new()).await
                        && client.put(&key, &written).await
                        && client.get(&key, &written).await.is_some();
                    failed += u64::from(!good);
                    if failed >= MAX_FAILURES {
                        break;
                    }
                }
            }
        })
        .await;
}
