//! `disk`: hits on the disk tier, beside foyer's hybrid cache and a plain `pread` loop; and over HTTP, beside nginx's
//! `proxy_cache`.
//!
//! mountpoint-s3's `DiskDataCache` is left out: its crate, `mountpoint-s3-fs` 0.9.3, builds only where libclang and the headers of
//! libfuse are installed.

mod contender;
mod foyer_cache;
mod http_cache;
mod ours;
mod pread;
mod rows;
mod servers;
mod worker;

use std::cell::{Cell, RefCell};

use contender::{Contender, World};
use rows::Once;
use worker::{CacheName, Figures, Order};
pub(crate) use worker::{WorkerArgs, run_worker};

use super::{Args, Report, Side, alternate};
use crate::Failure;
use crate::read::{build_server, start_origin};

const BYWASH: &str = "Bywash";
const FOYER: &str = "foyer";
const PREAD: &str = "pread";
const SERVE: &str = "Bywash serve";
const NGINX: &str = "nginx proxy_cache";
const CACHES: [(&str, CacheName); 5] = [
    (BYWASH, CacheName::Bywash),
    (FOYER, CacheName::Foyer),
    (PREAD, CacheName::Pread),
    (SERVE, CacheName::Serve),
    (NGINX, CacheName::Nginx),
];

const MIB: f64 = (1 << 20) as f64;
const MEMORY_BYTES: u64 = 64 << 20;
/// Limit of the control group of each cache: its memory, what else it takes, and the page cache of its files.
const GROUP_BYTES: u64 = 256 << 20;

/// Bytes of all values: of 4 KiB, as many as an index in the memory of Bywash has room for.
fn data_bytes(value_bytes: usize) -> u64 {
    MEMORY_BYTES * if value_bytes < 64 << 10 { 8 } else { 20 }
}

/// Bytes of the disk: more than all values take, in pages of 4 KiB with a header each.
fn disk_bytes(cache: CacheName, value_bytes: usize) -> u64 {
    match cache {
        CacheName::Bywash | CacheName::Serve => data_bytes(value_bytes) * 5 / 4,
        CacheName::Foyer | CacheName::Pread | CacheName::Nginx => data_bytes(value_bytes) * 3,
    }
}

const VALUE_BYTES: [(usize, &str); 3] =
    [(4 << 10, "4 KiB"), (64 << 10, "64 KiB"), (1 << 20, "1 MiB")];
const READERS: [usize; 2] = [1, 16];
/// Share of reads that may miss before a cell means nothing.
const MAX_MISSES: f64 = 0.01;

pub(super) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let mib = |bytes| bytes / (1 << 20);
    report.note(format!(
        "Values of one size, 20 times the memory of {} MiB (of 4 KiB: 8 times), written once and read at random by 1 and 16 readers; \
         19 reads in 20 (of 4 KiB: 7 in 8) are the first hit of a value that is not in memory. Bywash is the engine behind its Rust \
         API, with blocks of the size of a value; foyer its hybrid cache with `psync`, its defaults but for writes at insertion, \
         which serve it after a kill; `pread` threads on one file that check nothing and keep nothing in memory. These three read by \
         direct I/O and have no page cache.",
        mib(MEMORY_BYTES)
    ));
    report.note(
        "Over HTTP on loopback, by one client for both: `bywash serve --disk`, and nginx with `proxy_cache`, `slice 1m` and \
         `aio threads`, over the same origin and objects. nginx has no memory cache of its own and cannot read its cache by direct \
         I/O: it has the page cache. Its memory is the sum over its processes, what they share counted in each. Processor time \
         of the client is part of their times.",
    );
    let program = build_server()?;
    for (bytes, name) in VALUE_BYTES {
        if args.begins(name) {
            // An origin each, whose counters are of these values only.
            let (_origin, origin) = start_origin(0, 0, None)?;
            let world = World {
                program: program.clone(),
                origin,
                folder: tempfile::tempdir()?,
                value_bytes: bytes,
            };
            size(args, &world, name, report)?;
        }
    }
    Ok(())
}

/// A cache with all values on its disk.
struct Filled {
    name: &'static str,
    contender: RefCell<Contender>,
    /// Bytes written to the disk by bytes of values.
    amplification: f64,
}

impl Filled {
    fn new(name: &'static str, cache: CacheName, world: &World) -> Result<Self, Failure> {
        let mut contender = Contender::start(cache, world)?;
        contender.order(&Order::Fill)?;
        let written = contender.measured().written_bytes_of_family()?;
        Ok(Self {
            name,
            contender: RefCell::new(contender),
            amplification: written as f64 / data_bytes(world.value_bytes) as f64,
        })
    }

    fn read(&self, readers: usize, args: &Args, seed: u64) -> Result<Figures, Failure> {
        let figures = self.contender.borrow_mut().order(&Order::Read {
            readers,
            window_ms: if args.quick { 150 } else { 500 },
            seed,
        })?;
        if figures.missed as f64 > figures.values as f64 * MAX_MISSES {
            return Err(format!("{}: too few hits: {figures:?}", self.name).into());
        }
        Ok(figures)
    }

    /// What is left to measure of it.
    fn once(&self, world: &World) -> Result<Once, Failure> {
        let mut contender = self.contender.borrow_mut();
        let peak_bytes = contender.measured().peak_bytes_of_family()?;
        let (first_hit_ms, lost) = contender.restart(world)?;
        Ok(Once {
            name: self.name,
            peak_bytes,
            amplification: self.amplification,
            first_hit_ms,
            lost,
        })
    }
}

/// All rows of values of one size.
fn size(args: &Args, world: &World, name: &str, report: &mut Report) -> Result<(), Failure> {
    let mut caches = Vec::new();
    for (peer, cache) in CACHES {
        match Filled::new(peer, cache, world) {
            Ok(filled) => caches.push(filled),
            Err(error) if peer == NGINX => {
                report.note(format!("{name}: {NGINX} is left out: {error}."));
            }
            Err(error) => return Err(format!("{peer}: {error}").into()),
        }
    }
    report.note(if caches.iter().all(|cache| cache.contender.borrow().is_in_group()) {
        format!(
            "{name}: each cache ran in a memory control group of its own with a limit of {} MiB, page cache included.",
            GROUP_BYTES / (1 << 20)
        )
    } else {
        format!("{name}: no control group could be created: the page cache had all memory of the machine.")
    });
    let seed = Cell::new(0);
    let mut reads = Vec::new();
    for readers in READERS {
        let sides = caches.iter().map(|cache| {
            let seed = &seed;
            Side::new(cache.name, move || {
                seed.set(seed.get() + 1000);
                cache.read(readers, args, seed.get())
            })
        });
        let rounds = alternate(args.rounds(7), sides.collect())?;
        rows::hits(
            &format!("{name}, {readers} readers"),
            readers,
            &rounds,
            report,
        );
        reads.push(rounds);
    }
    let once = caches.iter().map(|cache| cache.once(world));
    let once = once.collect::<Result<Vec<_>, _>>()?;
    rows::once(name, &once, report);
    report.note(rows::table(name, &reads, &once));
    Ok(())
}
