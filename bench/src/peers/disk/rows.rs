//! What was measured of all caches, as rows and as a table.

use std::fmt::Write as _;

use super::worker::Figures;
use super::{BYWASH, FOYER, MIB, NGINX, PREAD, READERS, SERVE};
use crate::peers::round::Rounds;
use crate::peers::{Report, Row};

/// Time of a hit above that of a read by `pread`: checksum, index, and the way to a reader thread.
const ALLOWED_US: f64 = 60.0;

/// Figures of a cache that are not taken in rounds.
#[derive(Debug)]
pub(super) struct Once {
    pub(super) name: &'static str,
    pub(super) peak_bytes: u64,
    /// Bytes written to the disk by bytes of values.
    pub(super) amplification: f64,
    /// Milliseconds from a kill to the first value.
    pub(super) first_hit_ms: f64,
    /// Share of values that a kill lost, in percent.
    pub(super) lost: f64,
}

/// Adds the rows of reads at random by so many readers.
pub(super) fn hits(case: &str, readers: usize, rounds: &Rounds<Figures>, report: &mut Report) {
    let p50 = rounds.map(|figures| figures.p50_us);
    let p99 = rounds.map(|figures| figures.p99_us);
    let each = rounds.map(time_a_read);
    let allowed = (p50.median(PREAD) + ALLOWED_US) / p50.median(PREAD);
    // The goals of one reader, and of several.
    let (one, many) = match readers {
        1 => (true, false),
        _ => (false, true),
    };
    for (what, figures, ours, peer, goal) in [
        ("p50", &p50, BYWASH, FOYER, one.then_some(1.0)),
        ("p50", &p50, BYWASH, PREAD, one.then_some(allowed)),
        ("p50", &p50, SERVE, NGINX, None),
        ("p99", &p99, BYWASH, FOYER, None),
        ("p99", &p99, BYWASH, PREAD, one.then_some(2.0)),
        ("p99", &p99, SERVE, NGINX, None),
        ("time a read", &each, BYWASH, FOYER, many.then_some(1.0)),
        (
            "time a read",
            &each,
            BYWASH,
            PREAD,
            many.then_some(1.0 / 0.9),
        ),
        ("time a read", &each, SERVE, NGINX, None),
    ] {
        if figures.of(ours).is_empty() || figures.of(peer).is_empty() {
            continue;
        }
        let case = if ours == SERVE {
            format!("{case}, HTTP, {what}")
        } else {
            format!("{case}, {what}")
        };
        let row = figures.row(&case, "µs", ours, peer);
        report.rows.push(match goal {
            Some(goal) => row.goal(goal),
            None => row,
        });
    }
}

fn time_a_read(figures: &Figures) -> f64 {
    figures.seconds * 1e6 / figures.values as f64
}

/// Adds the rows of memory, writes and the restart.
pub(super) fn once(case: &str, figures: &[Once], report: &mut Report) {
    let of = |name| figures.iter().find(|figures| figures.name == name);
    for (ours, peer) in [(BYWASH, FOYER), (SERVE, NGINX)] {
        let (Some(ours), Some(peer)) = (of(ours), of(peer)) else {
            continue;
        };
        let way = if ours.name == SERVE { ", HTTP" } else { "" };
        let mut info = |what: &str, unit: &str, figure: &dyn Fn(&Once) -> f64| {
            let case = format!("{case}{way}, {what}");
            let row = Row::info(&case, unit, figure(ours), peer.name, figure(peer));
            report.rows.push(row);
        };
        info("peak memory", "MiB", &|once| once.peak_bytes as f64 / MIB);
        info("bytes written a byte", "", &|once| once.amplification);
        info("first hit after a kill", "ms", &|once| once.first_hit_ms);
        info("misses after a kill", "%", &|once| once.lost);
    }
}

/// All caches side by side, each with its ratio to foyer.
pub(super) fn table(case: &str, reads: &[Rounds<Figures>], once: &[Once]) -> String {
    let mut text = format!("{case}, medians (the ratio to foyer behind them):\n\n| cache |");
    for readers in READERS {
        let s = if readers == 1 { "" } else { "s" };
        let _ = write!(
            text,
            " {readers} reader{s}: p50 µs | p99 µs | values a second |"
        );
    }
    text.push_str(
        " peak MiB | written a byte | first hit after a kill, ms | lost by it, % |\n|---|",
    );
    text.push_str(&"--:|".repeat(3 * READERS.len() + 4));
    text.push('\n');
    for once in once {
        let _ = write!(text, "| {} |", once.name);
        for rounds in reads {
            let rates = rounds.map(|figures| 1e6 / time_a_read(figures));
            for figures in [
                rounds.map(|figures| figures.p50_us),
                rounds.map(|figures| figures.p99_us),
                rates,
            ] {
                let row = figures.row("", "", once.name, FOYER);
                let _ = write!(text, " {:.0} ({:.2}) |", row.ours, row.ratio);
            }
        }
        let _ = writeln!(
            text,
            " {:.0} | {:.2} | {:.1} | {:.1} |",
            once.peak_bytes as f64 / MIB,
            once.amplification,
            once.first_hit_ms,
            once.lost,
        );
    }
    text
}
