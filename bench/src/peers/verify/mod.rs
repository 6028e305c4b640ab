//! `verify`: the price of comparing reads with the digest of the object: `--verify whole` and `always` beside `off`.

mod worker;

use std::cell::{Cell, RefCell};
use std::process::Command;

pub(crate) use worker::{WorkerArgs, run_worker};

use super::round::Rounds;
use super::{Args, Go, Report, Side, alternate};
use crate::Failure;
use crate::read::{start_origin, with_origin};

const OFF: &str = "off";
const WHOLE: &str = "whole";
const ALWAYS: &str = "always";
/// Names, and the beginning of the names of objects that have the digest.
const DIGESTS: [(&str, &str); 3] = [("CRC32C", "crc32c"), ("MD5", "md5"), ("SHA-256", "sha256")];
/// Name, bytes of an object, and objects of a turn.
const SIZES: [(&str, usize, usize); 2] = [("4 MiB", 4 << 20, 16), ("64 MiB", 64 << 20, 2)];
const MEMORY_BYTES: u64 = 256 << 20;
const MIB: f64 = (1 << 20) as f64;

pub(super) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    report.note(format!(
        "Verify: cold reads through the Rust API, of objects with a digest from an origin on loopback that makes them up, by one \
         reader. Bywash is `--verify whole` or `always`, beside `off`; each is an engine with {} MiB of memory, all in one process, \
         whose processor time counts and not that of the origin. CRC32C and SHA-256 are stated as by S3, with a response that has \
         all of the object (for larger ones a HEAD more); MD5 with every response, as the ETag of S3. Ranges are of 64 KiB: the first \
         one of an object, and then one of another block.",
        MEMORY_BYTES >> 20
    ));
    let (_origin, origin) = start_origin(0, 0, None)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("verify-worker");
    let worker = RefCell::new(Go::start_as(with_origin(&mut command, origin))?);
    let bench = Bench {
        worker,
        tag: Cell::new(0),
    };
    // Memory that no engine has touched yet costs its first reads.
    for verify in [OFF, WHOLE, ALWAYS] {
        bench.ask::<2>(&format!("whole {verify}"), "plain", (64 << 20, 8))?;
    }
    for (size, bytes, objects) in SIZES {
        for (digest, kind) in DIGESTS {
            let case = format!("{size}, {digest}");
            if args.begins(&case) {
                let objects = if args.quick { 1 } else { objects };
                bench.cell(args, &case, kind, (bytes, objects), report)?;
            }
        }
    }
    Ok(())
}

struct Bench {
    worker: RefCell<Go>,
    tag: Cell<usize>,
}

impl Bench {
    /// Asks for reads of objects that no engine has seen.
    fn ask<const N: usize>(
        &self,
        what: &str,
        kind: &str,
        (bytes, objects): (usize, usize),
    ) -> Result<[f64; N], Failure> {
        self.tag.set(self.tag.get() + 1);
        let order = format!("{what} s{bytes}/{kind}-{} {objects}", self.tag.get());
        self.worker.borrow_mut().run_case(&order)
    }

    fn cell(
        &self,
        args: &Args,
        case: &str,
        kind: &str,
        reads: (usize, usize),
        report: &mut Report,
    ) -> Result<(), Failure> {
        let sides = [WHOLE, OFF].map(|verify| {
            Side::new(verify, move || {
                self.ask::<2>(&format!("whole {verify}"), kind, reads)
            })
        });
        let whole = alternate(args.rounds(7), sides.into())?;
        let case_whole = format!("whole object of {case}");
        let mib = reads.0 as f64 / MIB;
        let time = whole.map(|[seconds, _]| seconds * 1e3);
        let processor = whole.map(|[_, cpu]| cpu * 1e3);
        push(report, &time, &case_whole, "ms", WHOLE);
        push(report, &processor, &case_whole, "processor ms", WHOLE);
        let more = processor.median(WHOLE) - processor.median(OFF);
        report.note(format!(
            "{case_whole}: {:.3} ms of processor time a MiB.",
            more / mib
        ));
        let sides = [ALWAYS, OFF].map(|verify| {
            Side::new(verify, move || {
                self.ask::<4>(&format!("ranges {verify}"), kind, reads)
            })
        });
        let ranges = alternate(args.rounds(7), sides.into())?;
        for (which, at) in [("first range", 0), ("second range", 2)] {
            let case = format!("{which} of {case}");
            let time = ranges.map(|figures| figures[at] * 1e3);
            let processor = ranges.map(|figures| figures[at + 1] * 1e3);
            push(report, &time, &case, "ms", ALWAYS);
            push(report, &processor, &case, "processor ms", ALWAYS);
        }
        Ok(())
    }
}

fn push(report: &mut Report, figures: &Rounds, case: &str, unit: &str, ours: &str) {
    let case = format!("{case}, {ours}");
    report.rows.push(figures.row(&case, unit, ours, OFF));
}
