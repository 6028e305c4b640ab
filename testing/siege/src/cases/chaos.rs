//! Faults of the machine: kills, stops, few descriptors, a full disk, clock steps.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::Signal;
use tokio::io::AsyncWriteExt;

use super::mount::Mount;
use super::raw::open;
use super::{Case, case};
use crate::CaseError;
use crate::client::{ClockOffset, Expect};
use crate::context::{CaseContext, body};
use crate::process::Setup;

pub(super) const CASES: &[Case] = &[
    case!("kills", kills),
    case!("dead-staging", dead_staging),
    case!("stops", stops),
    case!("few-descriptors", few_descriptors),
    case!("full-disk", full_disk),
    case!("full-inodes", full_inodes),
    case!("clock-steps", clock_steps),
];

/// Content of object `number` of a writer; lengths and bytes differ between objects.
fn written(seed: u64, number: u64) -> bytes::Bytes {
    let len = [100, 5_000, 300_000, 1 << 20, 3 << 20][number as usize % 5];
    body(seed, number, len)
}

/// Repeated kill -9 during writes: acknowledged objects survive with all their bytes.
async fn kills(context: &mut CaseContext) -> Result<(), CaseError> {
    let kills = (context.campaign.keys / 12_500).clamp(4, 100);
    context.serve_filled(Setup::default()).await?;
    context.create_bucket("kept").await?;
    let acknowledged = Arc::new(Mutex::new(Vec::new()));
    let next = Arc::new(std::sync::atomic::AtomicU64::new(0));
    for round in 0..kills {
        let stop = Arc::new(AtomicBool::new(false));
        let writers: Vec<_> = (0..4)
            .map(|_| {
                let mut client = context.excessive("a kill");
                let (acknowledged, next) = (Arc::clone(&acknowledged), Arc::clone(&next));
                let (stop, seed) = (Arc::clone(&stop), context.seed);
                tokio::spawn(async move {
                    // Relaxed: a writer that misses it writes one more object.
                    while !stop.load(Ordering::Relaxed) {
                        // Relaxed: the numbers only have to be unique.
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        let path = format!("/kept/{number}");
                        if client.put(&path, &written(seed, number)).await {
                            acknowledged.lock().push(number);
                        }
                    }
                })
            })
            .collect();
        // The result must not depend on the random time of the kill.
        let moment = 50 + (context.seed.wrapping_mul(round + 1) >> 7) % 400;
        tokio::time::sleep(Duration::from_millis(moment)).await;
        let killed = context.kill_and_restart().await;
        stop.store(true, Ordering::Relaxed);
        for writer in writers {
            let _ = writer.await;
        }
        killed?;
    }
    let all = std::mem::take(&mut *acknowledged.lock());
    context.record.figure("acknowledged", all.len());
    for number in all {
        let path = format!("/kept/{number}");
        let response = context
            .well_behaved()
            .get(&path, &written(context.seed, number))
            .await;
        if response.is_none_or(|response| response.status != 200) {
            context.record.lost_write(path);
        }
    }
    Ok(())
}

fn bytes_below(folder: &Path) -> u64 {
    let mut total = 0;
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        total += match entry.metadata() {
            Ok(meta) if meta.is_dir() => bytes_below(&entry.path()),
            Ok(meta) => meta.len(),
            Err(_) => 0,
        };
    }
    total
}

/// Bytes of a part that a writer announces, and that it sends before the kill.
const ANNOUNCED: u64 = 64 << 20;
const SENT: usize = 8 << 20;

/// Staged parts of killed writers are swept by the next server while it runs.
async fn dead_staging(context: &mut CaseContext) -> Result<(), CaseError> {
    let folder = context.bucket("staged")?;
    context.serve(Setup::default()).await?;
    let part = vec![7; SENT];
    for _ in 0..2 {
        let mut sockets = Vec::new();
        for number in 0..3 {
            let path = format!("/staged/{number}");
            let begun = Expect::Status(&[200]);
            let response = context
                .well_behaved()
                .send(("POST", &path, "uploads="), &[], b"", &begun)
                .await;
            let text = response.map(|response| response.text()).unwrap_or_default();
            let upload = text
                .split_once("<UploadId>")
                .and_then(|(_, rest)| rest.split_once("</UploadId>"))
                .map(|(id, _)| id.to_owned())
                .ok_or("no upload was begun")?;
            let query = format!("partNumber=1&uploadId={upload}");
            let mut request = super::raw::unsigned_payload(("PUT", &path, &query), Some(ANNOUNCED));
            request.extend_from_slice(&part);
            let mut socket = open(context.address(), [127, 0, 0, 1]).await?;
            let sending = socket.write_all(&request);
            let _ = tokio::time::timeout(Duration::from_secs(20), sending).await;
            sockets.push(socket);
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        context.kill_and_restart().await?;
    }
    let mut left = bytes_below(&folder);
    context.record.figure("left MiB", left >> 20);
    if left < 1 << 20 {
        context.record.finding("no killed writer had staged bytes");
    }
    // A server sweeps the buckets it has opened: the first request opens one.
    let new = body(context.seed, 1, 1000);
    context.well_behaved().put("/staged/new", &new).await;
    // A sweep runs every ten seconds and removes files of that age; a minute covers a slow disk.
    for _ in 0..300 {
        if left < 1 << 20 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        left = bytes_below(&folder);
    }
    if left >= 1 << 20 {
        context.record.finding(format!(
            "{} MiB of dead writes are left in the bucket's folder",
            left >> 20
        ));
    }
    context.well_behaved().get("/staged/new", &new).await;
    Ok(())
}

/// SIGSTOP and SIGCONT under load: no response is wrong, and the server continues.
async fn stops(context: &mut CaseContext) -> Result<(), CaseError> {
    context.serve_filled(Setup::default()).await?;
    context.create_bucket("data").await?;
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..8_u64)
        .map(|client_number| {
            let (mut client, seed, stop) =
                (context.well_behaved(), context.seed, Arc::clone(&stop));
            tokio::spawn(async move {
                let mut round = 0;
                // Relaxed: one more request is harmless.
                while !stop.load(Ordering::Relaxed) {
                    let path = format!("/data/{client_number}");
                    let bytes = written(seed, client_number << 32 | round);
                    if client.put(&path, &bytes).await {
                        client.get(&path, &bytes).await;
                    }
                    round += 1;
                }
            })
        })
        .collect();
    for _ in 0..4 {
        tokio::time::sleep(Duration::from_millis(300)).await;
        context.pause().await;
        context.signal(Signal::STOP)?;
        tokio::time::sleep(Duration::from_millis(1200)).await;
        context.signal(Signal::CONT)?;
        context.resume();
    }
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        let _ = client.await;
    }
    Ok(())
}

/// A hard limit of 256 descriptors and more clients than that: admitted ones are served, and afterwards all are.
async fn few_descriptors(context: &mut CaseContext) -> Result<(), CaseError> {
    let setup = Setup {
        descriptors: (128, 256),
        ..Setup::default()
    };
    let folder = context.bucket("data")?;
    std::fs::write(folder.join("background"), body(context.seed, 1, 100_000))?;
    context.serve_filled(setup).await?;
    let address = context.address();
    // From another address: the server reserves descriptors for the other addresses.
    context
        .run_concurrently(400, |_| async move {
            let socket = open(address, [127, 0, 0, 2]).await;
            tokio::time::sleep(Duration::from_secs(3)).await;
            drop(socket);
        })
        .await;
    for _ in 0..20 {
        context
            .well_behaved()
            .get("/data/background", &body(context.seed, 1, 100_000))
            .await;
    }
    Ok(())
}

/// Writes until the disk is full, and further. Writes fail with an error, nothing acknowledged is lost, and deletes
/// free space.
async fn full(
    context: &mut CaseContext,
    options: &str,
    len: usize,
    count: u64,
) -> Result<(), CaseError> {
    let data = context.path().join("small-disk");
    let mount = match Mount::memory(data.clone(), options).await {
        Ok(mount) => mount,
        Err(error) => {
            context.record.skipped(error.to_string());
            return Ok(());
        }
    };
    // The probe's objects are on the other disk.
    let probe = data.join("buckets").join("disk");
    std::fs::create_dir_all(&probe)?;
    context
        .serve(
            Setup::default()
                .arg(format!("disk=file://{}", probe.display()))
                .arg("--no-history"),
        )
        .await?;
    let seed = context.seed;
    let mut acknowledged = Vec::new();
    let mut refused = 0;
    for number in 0..count {
        let path = format!("/disk/{number}");
        // A full disk is an error of the server.
        let mut client = context.excessive("the disk");
        let good = Expect::Status(&[200, 500, 503, 507]);
        let body = body(seed, number, len);
        let response = client.send(("PUT", &path, ""), &[], &body, &good).await;
        match response {
            Some(response) if response.status == 200 => acknowledged.push(number),
            _ => refused += 1,
        }
    }
    context.record.figure("acknowledged", acknowledged.len());
    context.record.figure("refused", refused);
    if refused == 0 || acknowledged.is_empty() {
        context.record.finding("the disk was never full, or always");
    }
    for number in &acknowledged {
        let path = format!("/disk/{number}");
        let response = context
            .well_behaved()
            .get(&path, &body(seed, *number, len))
            .await;
        if response.is_none_or(|response| response.status != 200) {
            context.record.lost_write(path);
        }
    }
    for number in acknowledged.iter().take(acknowledged.len() / 2) {
        let gone = Expect::Status(&[204]);
        let path = format!("/disk/{number}");
        context
            .well_behaved()
            .send(("DELETE", &path, ""), &[], b"", &gone)
            .await;
    }
    let again = body(seed, 1 << 50, len);
    if context.well_behaved().put("/disk/again", &again).await {
        context.well_behaved().get("/disk/again", &again).await;
    }
    drop(mount);
    Ok(())
}

async fn full_disk(context: &mut CaseContext) -> Result<(), CaseError> {
    full(context, "size=24m", 1 << 20, 40).await
}

async fn full_inodes(context: &mut CaseContext) -> Result<(), CaseError> {
    full(context, "size=64m,nr_inodes=200", 1000, 300).await
}

/// Debian's path of libfaketime on any architecture; `None` if it is not installed.
fn faketime() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").ok()?.flatten();
    folders
        .map(|folder| folder.path().join("faketime/libfaketime.so.1"))
        .find(|path| path.exists())
}

/// The server's wall clock steps by hours, forward and back, together with its clients' signatures.
async fn clock_steps(context: &mut CaseContext) -> Result<(), CaseError> {
    static STEP: AtomicI64 = AtomicI64::new(0);
    let Some(library) = faketime() else {
        context
            .record
            .skipped("no libfaketime: apt-get install libfaketime");
        return Ok(());
    };
    let clock = context.path().join("clock");
    std::fs::write(&clock, "+0s\n")?;
    let setup = Setup::default()
        .env("LD_PRELOAD", library.display().to_string())
        .env("FAKETIME_TIMESTAMP_FILE", clock.display().to_string())
        .env("FAKETIME_NO_CACHE", "1")
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    STEP.store(0, Ordering::Relaxed);
    context.clock_offset = ClockOffset(&STEP);
    context.serve(setup).await?;
    context.create_bucket("data").await?;
    let seed = context.seed;
    for (round, step) in [0_i64, 3600, -3600, 40 * 86_400, -86_400, 0]
        .into_iter()
        .enumerate()
    {
        // No request is in progress while the two clocks differ.
        context.pause().await;
        let staged = context.path().join("clock.new");
        std::fs::write(&staged, format!("{step:+}s\n"))?;
        std::fs::rename(&staged, &clock)?;
        // Relaxed: the pause orders it.
        STEP.store(step, Ordering::Relaxed);
        context.resume();
        for number in 0..50_u64 {
            let path = format!("/data/{}", number % 5);
            let bytes = body(seed, (round as u64) << 32 | number, 3000);
            let mut client = context.well_behaved();
            if client.put(&path, &bytes).await {
                client.get(&path, &bytes).await;
            }
        }
        // At least one probe runs under each step.
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    Ok(())
}
