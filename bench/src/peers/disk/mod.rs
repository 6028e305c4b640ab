//! `disk`: hits on the disk tier, beside foyer's hybrid cache and a plain `pread` loop.

mod foyer_cache;
mod ours;
mod pread;
mod worker;

use std::cell::{Cell, RefCell};
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use worker::{CacheName, Figures, Order};
pub(crate) use worker::{WorkerArgs, run_worker};

use super::{Args, Report, Row, Side, alternate};
use crate::Failure;
use crate::process::Process;
use crate::read::{start_origin, with_origin};

const BYWASH: &str = "Bywash";
const FOYER: &str = "foyer";
const PREAD: &str = "pread";
const CACHES: [(&str, CacheName); 3] = [
    (BYWASH, CacheName::Bywash),
    (FOYER, CacheName::Foyer),
    (PREAD, CacheName::Pread),
];

const MEMORY_BYTES: u64 = 64 << 20;
/// Bytes of all values: of 4 KiB, as many as an index in the memory of Bywash has room for.
fn data_bytes(value_bytes: usize) -> u64 {
    MEMORY_BYTES * if value_bytes < 64 << 10 { 8 } else { 20 }
}

/// Bytes of the disk: more than all values take, in pages of 4 KiB with a header each.
fn disk_bytes(cache: CacheName, value_bytes: usize) -> u64 {
    match cache {
        CacheName::Bywash => data_bytes(value_bytes) * 5 / 4,
        CacheName::Foyer | CacheName::Pread => data_bytes(value_bytes) * 3,
    }
}

const VALUE_BYTES: [(usize, &str); 3] =
    [(4 << 10, "4 KiB"), (64 << 10, "64 KiB"), (1 << 20, "1 MiB")];
const READERS: [usize; 2] = [1, 16];
/// Time of a hit above that of a read by `pread`: checksum, index, and the way to a reader thread.
const ALLOWED_US: f64 = 60.0;
/// Share of reads that may miss before a cell means nothing.
const MAX_MISSES: f64 = 0.01;

pub(super) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    report.note(format!(
        "Values of one size, 20 times the memory of {} MiB (of 4 KiB: 8 times), written once and read at random by 1 and 16 readers. All \
         three read by direct I/O: none has the page cache. Bywash is the engine behind its Rust API, with blocks of the \
         size of a value; foyer its hybrid cache with `psync`, its defaults but for writes at insertion, which serve it after a \
         kill; `pread` threads on one file that check nothing. About 1 read in 20 (8) is a hit in memory, but not for `pread`.",
        MEMORY_BYTES >> 20
    ));
    let (_origin, origin) = start_origin(0, 0, None)?;
    for (bytes, name) in VALUE_BYTES {
        if args.begins(name) {
            size(args, origin, bytes, name, report)?;
        }
    }
    Ok(())
}

/// A cache with all values on its disk.
struct Filled {
    name: &'static str,
    cache: CacheName,
    worker: RefCell<Worker>,
    /// Bytes written to the disk by bytes of values.
    amplification: f64,
}

/// All rows of values of one size.
fn size(
    args: &Args,
    origin: SocketAddr,
    bytes: usize,
    name: &str,
    report: &mut Report,
) -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let start = |cache| Worker::start(cache, origin, folder.path(), bytes);
    let fill = |(name, cache)| {
        let mut worker = start(cache)?;
        let figures = worker.order(&Order::Fill)?;
        Ok::<_, Failure>(Filled {
            name,
            cache,
            worker: RefCell::new(worker),
            amplification: figures.disk_bytes as f64 / (figures.values * bytes as u64) as f64,
        })
    };
    let caches = CACHES.into_iter().map(fill);
    let caches = caches.collect::<Result<Vec<_>, _>>()?;
    let mut seed = 0;
    for readers in READERS {
        seed += 1_000_000;
        hits(
            args,
            &format!("{name}, {readers} readers"),
            readers,
            seed,
            &caches,
            report,
        )?;
    }
    let [ours, foyer, _] = &caches[..] else {
        return Err("there are three caches".into());
    };
    let mut info = |what: &str, unit: &str, ours: f64, foyer: f64| {
        let case = format!("{name}, {what}");
        report.rows.push(Row::info(&case, unit, ours, FOYER, foyer));
    };
    let peak = |cache: &Filled| {
        let bytes = cache.worker.borrow().0.peak_bytes()?;
        Ok::<_, Failure>(bytes as f64 / f64::from(1 << 20))
    };
    info("peak memory", "MiB", peak(ours)?, peak(foyer)?);
    info(
        "bytes written a byte",
        "",
        ours.amplification,
        foyer.amplification,
    );
    let restart = |cache: &Filled| restart(&cache.worker, || start(cache.cache));
    let (ours, foyer) = (restart(ours)?, restart(foyer)?);
    info("first hit after a kill", "ms", ours.0, foyer.0);
    info("misses after a kill", "%", ours.1, foyer.1);
    Ok(())
}

/// Rows of reads at random by so many readers.
fn hits(
    args: &Args,
    case: &str,
    readers: usize,
    seed: u64,
    caches: &[Filled],
    report: &mut Report,
) -> Result<(), Failure> {
    let seed = Cell::new(seed);
    let sides = caches.iter().map(|cache| {
        let seed = &seed;
        Side::new(cache.name, move || {
            seed.set(seed.get() + 1000);
            read(&mut cache.worker.borrow_mut(), readers, args, seed.get())
        })
    });
    let rounds = alternate(args.rounds(7), sides.collect())?;
    let p50 = rounds.map(|figures| figures.p50_us);
    let p99 = rounds.map(|figures| figures.p99_us);
    let each = rounds.map(|figures| figures.seconds * 1e6 / figures.values as f64);
    let allowed = (p50.median(PREAD) + ALLOWED_US) / p50.median(PREAD);
    // The goals of one reader, and of several.
    let (one, many) = match readers {
        1 => (true, false),
        _ => (false, true),
    };
    for (what, figures, peer, goal) in [
        ("p50", &p50, FOYER, one.then_some(1.0)),
        ("p50", &p50, PREAD, one.then_some(allowed)),
        ("p99", &p99, FOYER, None),
        ("p99", &p99, PREAD, one.then_some(2.0)),
        ("time a read", &each, FOYER, many.then_some(1.0)),
        ("time a read", &each, PREAD, many.then_some(1.0 / 0.9)),
    ] {
        let row = figures.row(&format!("{case}, {what}"), "µs", BYWASH, peer);
        report.rows.push(match goal {
            Some(goal) => row.goal(goal),
            None => row,
        });
    }
    Ok(())
}

fn read(worker: &mut Worker, readers: usize, args: &Args, seed: u64) -> Result<Figures, Failure> {
    let figures = worker.order(&Order::Read {
        readers,
        window_ms: if args.quick { 150 } else { 500 },
        seed,
    })?;
    if figures.missed as f64 > figures.values as f64 * MAX_MISSES {
        return Err(format!("too few hits: {figures:?}").into());
    }
    Ok(figures)
}

/// Kills the process and starts another on its folder. Returns the milliseconds until its first value was read, and the share
/// of values it does not have, in percent.
fn restart(
    worker: &RefCell<Worker>,
    start: impl FnOnce() -> Result<Worker, Failure>,
) -> Result<(f64, f64), Failure> {
    let mut worker = worker.borrow_mut();
    worker.0.child.kill()?;
    worker.0.child.wait()?;
    let begun = Instant::now();
    *worker = start()?;
    let one = Order::Read {
        readers: 1,
        window_ms: 0,
        seed: 0,
    };
    worker.order(&one)?;
    let first = begun.elapsed().as_secs_f64() * 1e3;
    let many = Order::Read {
        readers: 16,
        window_ms: 1000,
        seed: 7,
    };
    let found = worker.order(&many)?;
    Ok((first, found.missed as f64 * 100.0 / found.values as f64))
}

/// A cache in a process of its own.
#[derive(Debug)]
struct Worker(Process);

impl Worker {
    fn start(
        cache: CacheName,
        origin: SocketAddr,
        folder: &Path,
        value_bytes: usize,
    ) -> Result<Self, Failure> {
        let name = format!("{cache:?}").to_lowercase();
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["disk-worker", "--cache", &name])
            .arg("--folder")
            .arg(folder.join(&name))
            .arg(format!("--memory={MEMORY_BYTES}"))
            .arg(format!("--disk={}", disk_bytes(cache, value_bytes)))
            .arg(format!("--value-bytes={value_bytes}"))
            .arg(format!(
                "--values={}",
                data_bytes(value_bytes) / value_bytes as u64
            ));
        let mut process = Process::start(with_origin(&mut command, origin))?;
        process.line("ready")?;
        Ok(Self(process))
    }

    fn order(&mut self, order: &Order) -> Result<Figures, Failure> {
        let orders = self.0.child.stdin.as_mut();
        let orders = orders.ok_or("a piped input is there")?;
        writeln!(orders, "{}", serde_json::to_string(order)?)?;
        Ok(serde_json::from_str(&self.0.line("")?)?)
    }
}
