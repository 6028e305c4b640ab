//! More things than a table holds: objects, keys of objects that are not there, versions, buckets.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{Case, case};
use crate::Trouble;
use crate::client::Expect;
use crate::field::{Field, body};
use crate::machine::Stopwatch;
use crate::process::Setup;
use crate::record::Record;

pub(super) const CASES: &[Case] = &[
    case!("objects", objects),
    case!("absent-keys", absent_keys),
    case!("versions", versions),
    case!("buckets", buckets),
];

/// Clients that read at once.
const READERS: u64 = 16;
/// Bytes of a small object.
const SMALL: usize = 64;
/// Max latency of 999 requests of 1,000, without the machine's delay.
const MAX_P999: Duration = Duration::from_secs(1);
/// A server that has stopped is not asked 10^5 times: after so many failures a client gives up.
const GIVE_UP: u64 = 3;

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

/// Puts `count` small objects where the server will find them, behind its back.
fn plant(field: &Field, bucket: &str, count: u64) -> Result<(), Trouble> {
    let folder = field.bucket(bucket)?;
    for number in 0..500.min(count) {
        std::fs::create_dir_all(folder.join(format!("{number:03}")))?;
    }
    for number in 0..count {
        let path = folder.join(small_key(number));
        std::fs::write(path, body(field.seed, number, SMALL))?;
    }
    Ok(())
}

/// GETs of so many distinct objects that every table of versions has to drop some, one after another by a few plain clients.
async fn objects(field: &mut Field) -> Result<(), Trouble> {
    let count = field.campaign.keys;
    plant(field, "many", count)?;
    field.serve_load(Setup::default()).await?;
    let latencies = Arc::new(Latencies::default());
    let next = Arc::new(AtomicU64::new(0));
    let began = Instant::now();
    field
        .crowd(READERS, |_| {
            let (mut client, seed) = (field.well(), field.seed);
            let (latencies, next) = (Arc::clone(&latencies), Arc::clone(&next));
            async move {
                let mut failed = 0;
                while failed < GIVE_UP {
                    // Relaxed: each number is taken once, in whatever order.
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
    field.record.figure("GET/s", format!("{rate:.0}"));
    latencies.report(&field.record);
    Ok(())
}

/// HEADs of so many keys that are not there, which a table remembers.
async fn absent_keys(field: &mut Field) -> Result<(), Trouble> {
    let count = field.campaign.keys;
    field.bucket("many")?;
    field.serve_load(Setup::default()).await?;
    let latencies = Arc::new(Latencies::default());
    field
        .crowd(READERS, |reader| {
            let (mut client, latencies) = (field.well(), Arc::clone(&latencies));
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
                    if failed >= GIVE_UP {
                        break;
                    }
                }
            }
        })
        .await;
    latencies.report(&field.record);
    Ok(())
}

/// Overwrites and deletes of a few keys, each followed by a read: only the last write may be seen.
async fn versions(field: &mut Field) -> Result<(), Trouble> {
    let rounds = field.campaign.keys / 80 / READERS;
    field.serve_load(Setup::default()).await?;
    field.make_bucket("few").await?;
    field
        .crowd(READERS, |writer| {
            let (mut client, seed) = (field.well(), field.seed);
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

/// Folders that a server keeps open at once: see MAX_OPEN_FOLDERS.
const OPEN_FOLDERS: u64 = bywash::MAX_OPEN_FOLDERS as u64;

/// A soft limit of descriptors that shells give a program.
const SOFT_DESCRIPTORS: u64 = 1024;

/// More buckets than folders may be open (ten times as many in a whole campaign) and than a shell gives descriptors; each is made,
/// written and read. Those that stay open by design are made before the state is kept to which the server must come back.
async fn buckets(field: &mut Field) -> Result<(), Trouble> {
    field.serve_load(Setup::default()).await?;
    let first = OPEN_FOLDERS + 2 * READERS;
    make_buckets(field, 0..first).await;
    field.settle().await;
    let count = first + field.campaign.past(OPEN_FOLDERS).max(SOFT_DESCRIPTORS);
    make_buckets(field, first..count).await;
    // Each is open once more, after all others were.
    field
        .crowd(READERS, |reader| {
            let (mut client, seed) = (field.well(), field.seed);
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

async fn make_buckets(field: &Field, numbers: Range<u64>) {
    field
        .crowd(READERS, |maker| {
            let (mut client, seed) = (field.well(), field.seed);
            let numbers = numbers.clone().skip(maker as usize);
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
                    if failed >= GIVE_UP {
                        break;
                    }
                }
            }
        })
        .await;
}
