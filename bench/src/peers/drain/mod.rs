//! `drain`: blobs downloaded to durable files, beside the two designs of Kraken in Go.

mod worker;

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::process::Command;

use rustix::fs::sync;
use sha2::{Digest as _, Sha256};
pub(crate) use worker::{WorkerArgs, run_worker};

use super::round::Rounds;
use super::{Args, Go, Report, Side, alternate};
use crate::Failure;
use crate::origin::generated_content;
use crate::read::{start_origin, with_origin};

const FILE: &str = "Bywash, to a file";
const READ: &str = "Bywash, read first";
const MEMORY: &str = "Kraken in Go, memory first";
const DISK: &str = "Kraken in Go, disk first";
const AT_ONCE: [usize; 3] = [1, 16, 96];
const BLOBS: usize = 64;
const BLOB_BYTES: usize = 16 << 20;
/// Memory for blobs: half of all.
const MEMORY_BYTES: usize = BLOBS * BLOB_BYTES / 2;
/// Blobs that `--quick` downloads, and their bytes.
const QUICK: (usize, usize) = (16, 4 << 20);

/// What one round took.
#[derive(Debug, Clone, Copy)]
struct Figures {
    /// Seconds until all bytes of all blobs could be read, and until all were durable.
    usable: f64,
    durable: f64,
    /// The same of a blob from the start of its download, medians in milliseconds.
    blob_usable: f64,
    blob_durable: f64,
    peak_bytes: f64,
}

pub(super) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let (blobs, bytes) = if args.quick {
        QUICK
    } else {
        (BLOBS, BLOB_BYTES)
    };
    report.note(format!(
        "Drain: {blobs} blobs of {} MiB from an origin on loopback that makes them up, to files below the folder for temporary files; \
         each is compared with its SHA-256. Usable: all bytes can be read, from memory or from a file; durable: fsync, rename and \
         fsync of the folder. At most {} MiB of memory for blobs on all sides. \"To a file\" is `Bucket::download_to` alone, which \
         makes a blob usable and durable at once for its caller, though readers of the cache have its bytes as they arrive. \"Read \
         first\" reads a blob through the cache, and ten tasks then download it to a file, from memory. Memory first: a blob is \
         downloaded into a buffer and is usable there, unverified; ten workers write it to a file, and then release it; a blob \
         without room goes straight to a file. Disk first: to a temporary file, usable when complete. Unlike Kraken, both sync, \
         compare the bytes as they are written instead of reading them back, and drain without a pause of 100 ms between blobs, \
         so they do less or the same. 96 at once are all {blobs}. No side has a connection before a round.",
        bytes >> 20,
        memory_bytes(args) >> 20,
    ));
    let (_origin, origin) = start_origin(0, 0, None)?;
    let digest = Sha256::digest(generated_content(bytes));
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let world = World {
        origin,
        blobs,
        bytes,
        memory_bytes: memory_bytes(args),
        digest,
        round: Cell::new(0),
    };
    let go = RefCell::new(Go::start("drain")?);
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["drain-worker", &format!("--memory={}", world.memory_bytes)]);
    let ours = RefCell::new(Go::start_as(with_origin(&mut command, origin))?);
    for at_once in AT_ONCE {
        let case = format!("{at_once} at once");
        if !args.begins(&case) {
            continue;
        }
        let sides = [FILE, READ, MEMORY, DISK].map(|which| {
            let (world, ours, go) = (&world, &ours, &go);
            Side::new(which, move || match which {
                FILE => world.turn(&mut ours.borrow_mut(), "file", at_once),
                READ => world.turn(&mut ours.borrow_mut(), "read", at_once),
                MEMORY => world.turn(&mut go.borrow_mut(), "memory", at_once),
                _ => world.turn(&mut go.borrow_mut(), "disk", at_once),
            })
        });
        let rounds = alternate(args.rounds(5), sides.into())?;
        rows(&case, &rounds, report);
    }
    Ok(())
}

fn memory_bytes(args: &Args) -> usize {
    if args.quick {
        QUICK.0 * QUICK.1 / 2
    } else {
        MEMORY_BYTES
    }
}

fn rows(case: &str, rounds: &Rounds<Figures>, report: &mut Report) {
    let mut row = |what: &str, unit: &str, figure: fn(&Figures) -> f64| {
        let figures = rounds.map(figure);
        for (ours, peer) in [(FILE, DISK), (READ, MEMORY), (FILE, MEMORY)] {
            let case = format!("{case}, {what}, {ours}");
            report.rows.push(figures.row(&case, unit, ours, peer));
        }
    };
    row("all usable", "s", |figures| figures.usable);
    row("all durable", "s", |figures| figures.durable);
    row("a blob usable", "ms", |figures| figures.blob_usable);
    row("a blob durable", "ms", |figures| figures.blob_durable);
    row("peak memory", "MiB", |figures| {
        figures.peak_bytes / f64::from(1 << 20)
    });
}

struct World {
    origin: SocketAddr,
    blobs: usize,
    bytes: usize,
    memory_bytes: usize,
    digest: String,
    /// Each round has blobs of its own, which no cache has seen.
    round: Cell<usize>,
}

impl World {
    fn turn(&self, side: &mut Go, design: &str, at_once: usize) -> Result<Figures, Failure> {
        let Self {
            origin,
            blobs,
            bytes,
            memory_bytes,
            digest,
            round,
        } = self;
        round.set(round.get() + 1);
        let folder = tempfile::tempdir()?;
        // What the round before left to be written is no work of this one.
        sync();
        let url = format!("http://{origin}/bench/s{bytes}/{}-", round.get());
        let at_once = at_once.min(*blobs);
        let case = format!(
            "{design} {url} {} {blobs} {bytes} {at_once} {memory_bytes} {digest}",
            folder.path().display()
        );
        let [usable, durable, blob_usable, blob_durable, peak_bytes] = side.run_case(&case)?;
        self.check(folder.path())?;
        Ok(Figures {
            usable,
            durable,
            blob_usable,
            blob_durable,
            peak_bytes,
        })
    }

    /// Whether all files are there, under their names only.
    fn check(&self, folder: &std::path::Path) -> Result<(), Failure> {
        for blob in 0..self.blobs {
            let length = std::fs::metadata(folder.join(blob.to_string()))?.len();
            if length != self.bytes as u64 {
                return Err(format!("blob {blob} has {length} bytes").into());
            }
        }
        let files = std::fs::read_dir(folder)?.count();
        (files == self.blobs)
            .then_some(())
            .ok_or_else(|| format!("{files} files of {} blobs", self.blobs).into())
    }
}
