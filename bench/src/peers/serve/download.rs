//! Downloads of one large object in shards, by the library and by third-party transfer managers.

use std::cell::RefCell;
use std::io::{BufRead as _, Write as _};
use std::net::SocketAddr;
use std::process::Command;
use std::time::Instant;

use bytes::Buf as _;
use bywash::{Bucket, Consistency, DownloadOptions, Engine, OriginUrl};
use object_store::path::Path;
use serde_json::json;

use super::super::{Args, Go, Report, Side, alternate};
use super::python::{Figures, Python};
use crate::Failure;
use crate::process::Process;
use crate::read::{start_origin, with_origin};

const BYWASH: &str = "Bywash, download";
const GO: &str = "Go transfermanager";
const BOTO3: &str = "boto3 transfer manager";
const OBSTORE: &str = "obstore";
const CASE: &str = "download of 1 GiB";
const OBJECT_BYTES: u64 = 1 << 30;
/// Bytes of a ranged GET, and number of concurrent GETs, of every client.
const SHARD_BYTES: u64 = 8 << 20;
const PARALLEL: usize = 4;

pub(super) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    if !args.begins(CASE) {
        return Ok(());
    }
    report.note(format!(
        "Download: one object of 1 GiB in shards of {} MiB, {PARALLEL} at once, from an origin on loopback that makes it up; into \
         memory that is looked at no further. Figures are of the client's process; its first download is not counted. Waits: how \
         often its threads went to sleep, for a lock or for bytes (voluntary context switches).",
        SHARD_BYTES >> 20
    ));
    let (_origin, origin) = start_origin(0, 0, None)?;
    let ours = RefCell::new(Worker::start(origin)?);
    let go = RefCell::new(Go::start_apart(
        "download-go",
        &[("STORAGE_EMULATOR_HOST", &origin.to_string())],
    )?);
    let (boto3, obstore) = (Python::start()?, Python::start()?);
    let (boto3, obstore) = (RefCell::new(boto3), RefCell::new(obstore));
    let name = RefCell::new(0);
    let fresh = || {
        *name.borrow_mut() += 1;
        format!("s{OBJECT_BYTES}/{}", name.borrow())
    };
    let python = |client: &RefCell<Python>, job: &str| {
        let order = json!({"job": job, "endpoint": origin.to_string(), "key": fresh(),
            "bytes": OBJECT_BYTES, "shard": SHARD_BYTES, "parallel": PARALLEL});
        let (figures, bytes) = client.borrow_mut().run_job(&order)?;
        (bytes == OBJECT_BYTES)
            .then_some(figures)
            .ok_or_else(|| Failure::from(format!("{job} brought {bytes} bytes")))
    };
    let side = |which: &str| match which {
        BYWASH => ours.borrow_mut().download(&fresh()),
        GO => {
            let case = format!("{} {OBJECT_BYTES} {SHARD_BYTES} {PARALLEL}", fresh());
            let [seconds, cpu, peak_bytes, sleeps] = go.borrow_mut().run_case(&case)?;
            Ok(Figures {
                seconds,
                cpu,
                sleeps,
                peak_bytes,
            })
        }
        BOTO3 => python(&boto3, "boto3"),
        _ => python(&obstore, "obstore"),
    };
    let all = [BYWASH, GO, BOTO3, OBSTORE];
    for which in all {
        side(which)?;
    }
    let sides = all.map(|which| Side::new(which, move || side(which)));
    let rounds = alternate(args.rounds(5), sides.into())?;
    for peer in [GO, BOTO3, OBSTORE] {
        let mut row = |what: &str, unit: &str, figure: fn(&Figures) -> f64| {
            let figures = rounds.map(figure);
            let case = format!("{CASE}, {what}");
            report.rows.push(figures.row(&case, unit, BYWASH, peer));
        };
        row("time", "s", |figures| figures.seconds);
        row("processor", "s", |figures| figures.cpu);
        row("waits", "", |figures| figures.sleeps);
        row("peak memory", "MiB", |figures| {
            figures.peak_bytes / f64::from(1 << 20)
        });
    }
    Ok(())
}

/// The library in a separate process.
#[derive(Debug)]
struct Worker(Process);

impl Worker {
    fn start(origin: SocketAddr) -> Result<Self, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut process = Process::start(with_origin(command.arg("download-worker"), origin))?;
        process.line("ready")?;
        Ok(Self(process))
    }

    fn download(&mut self, key: &str) -> Result<Figures, Failure> {
        self.0.forget_peak()?;
        let orders = self.0.child.stdin.as_mut();
        writeln!(orders.ok_or("a piped input is there")?, "{key}")?;
        let line = self.0.line("")?;
        let figures: Result<Vec<f64>, _> = line.split_whitespace().map(str::parse).collect();
        let [seconds, cpu, sleeps] = figures
            .ok()
            .and_then(|figures| figures.first_chunk().copied())
            .ok_or_else(|| format!("the worker printed {line:?}"))?;
        Ok(Figures {
            seconds,
            cpu,
            sleeps,
            peak_bytes: self.0.peak_bytes()? as f64,
        })
    }
}

/// Downloads the objects named in its input (started by `peers serve`).
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct WorkerArgs;

pub(crate) fn run_worker(_: &WorkerArgs) -> Result<(), Failure> {
    let runtime = crate::runtime()?;
    let _entered = runtime.enter();
    let engine = Engine::builder().memory(OBJECT_BYTES * 3 / 2).build()?;
    let url: OriginUrl = "s3://bench".parse()?;
    let bucket = engine.mount_url("bench", &url, Consistency::default())?;
    println!("ready");
    for key in std::io::stdin().lock().lines() {
        let key = Path::from(key?);
        let sleeps = crate::process::sleeps()?;
        let (begun, cpu) = (Instant::now(), crate::process::cpu_time());
        runtime.block_on(download(&bucket, &key))?;
        let cpu = crate::process::cpu_time().saturating_sub(cpu);
        let seconds = begun.elapsed().as_secs_f64();
        let sleeps = crate::process::sleeps()?.saturating_sub(sleeps);
        println!("{seconds} {} {sleeps}", cpu.as_secs_f64());
        std::io::stdout().flush()?;
    }
    Ok(())
}

async fn download(bucket: &Bucket, key: &Path) -> Result<(), Failure> {
    let options = DownloadOptions {
        part_size: SHARD_BYTES,
        parallel: PARALLEL,
        ..DownloadOptions::default()
    };
    let segments = bucket.download(key, options).await?.finish().await?;
    (segments.remaining() as u64 == OBJECT_BYTES)
        .then_some(())
        .ok_or_else(|| format!("{key} came with {} bytes", segments.remaining()).into())
}
