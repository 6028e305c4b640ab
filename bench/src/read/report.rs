//! Output: a table, and the same rows as JSON.

use std::fmt::Write as _;
use std::path::Path;

use super::load::{Cell, median};
use super::{Measured, medians, rate};
use crate::Failure;
use crate::machine::Machine;

/// One subject in one cell: medians over the rounds.
#[derive(Debug, serde::Serialize)]
pub(super) struct Row {
    face: &'static str,
    origin: String,
    size_bytes: u64,
    cold: bool,
    clients: usize,
    /// Number of rounds; fewer for large cells.
    rounds: usize,
    /// `None` if it was skipped, because one round would take too long.
    numbers: Option<Numbers>,
}

#[derive(Debug, serde::Serialize)]
struct Numbers {
    /// `requests/s` or `MB/s` (10^6 bytes).
    unit: &'static str,
    bywash: f64,
    direct: f64,
    /// Median of the rounds' ratios, not ratio of the medians.
    ratio: f64,
    first_byte_p50_ms: f64,
    direct_first_byte_p50_ms: f64,
    /// GETs and HEADs at the origin per read.
    origin_requests_a_read: f64,
    peak_rss_bytes: u64,
}

impl Row {
    pub(super) fn left_out(origin: &str, cell: &Cell) -> Self {
        Self::empty("both", origin, cell)
    }

    pub(super) fn new(
        face: &'static str,
        origin: &str,
        cell: &Cell,
        ours: &[Measured],
        direct: &[Measured],
    ) -> Self {
        let rate = |measured: &Measured| rate(cell.size, &measured.load);
        let numbers = Numbers {
            unit: if cell.size <= 64 << 10 {
                "requests/s"
            } else {
                "MB/s"
            },
            bywash: medians(ours, rate),
            direct: medians(direct, rate),
            ratio: median(
                ours.iter()
                    .zip(direct)
                    .map(|(ours, direct)| rate(ours) / rate(direct))
                    .collect(),
            ),
            first_byte_p50_ms: medians(ours, |measured| measured.load.first_byte_p50_ms),
            direct_first_byte_p50_ms: medians(direct, |measured| measured.load.first_byte_p50_ms),
            origin_requests_a_read: medians(ours, |measured| measured.origin_requests_a_read),
            peak_rss_bytes: ours
                .iter()
                .filter_map(|measured| measured.peak_bytes)
                .max()
                .unwrap_or_default(),
        };
        Self {
            rounds: ours.len(),
            numbers: Some(numbers),
            ..Self::empty(face, origin, cell)
        }
    }

    fn empty(face: &'static str, origin: &str, cell: &Cell) -> Self {
        Self {
            face,
            origin: origin.to_owned(),
            size_bytes: cell.size,
            cold: cell.cold,
            clients: cell.clients,
            rounds: 0,
            numbers: None,
        }
    }
}

pub(super) fn write_json(
    path: &Path,
    machine: &Machine,
    memory_mib: u64,
    rounds: usize,
    rows: &[Row],
) -> Result<(), Failure> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let all = serde_json::json!({
        "machine": machine,
        "memory_mib": memory_mib,
        "rounds": rounds,
        "endpoint_authentication": "anonymous",
        "rows": rows,
    });
    Ok(std::fs::write(path, serde_json::to_vec_pretty(&all)?)?)
}

pub(super) fn markdown(machine: &Machine, memory_mib: u64, rounds: usize, rows: &[Row]) -> String {
    let mut text = String::new();
    let Machine {
        command,
        cpu,
        cores,
        commit,
        build,
        ..
    } = machine;
    let _ = writeln!(
        text,
        "`{command}` on {cpu}, {cores} cores, {build} build of {commit}; --memory {memory_mib} MiB; medians of {rounds} \
         alternating rounds (1 where a round moves over 1 GiB). Every byte read is looked at. Consistency revalidate=1s. Direct reads of the same origin in the same run: through object_store beside the Rust \
         API, over plain HTTP beside the S3 endpoint (anonymous). Client, server and origin share the cores.\n"
    );
    text.push_str(
        "| origin | object | | clients | through | Bywash | direct | ratio | first byte p50 (direct) | origin requests a read | peak RSS |\n\
         |---|---|---|--:|---|--:|--:|--:|--:|--:|--:|\n",
    );
    for row in rows {
        let size = match row.size_bytes {
            bytes if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
            bytes => format!("{} KiB", bytes >> 10),
        };
        let Row {
            origin,
            clients,
            face,
            ..
        } = row;
        let temperature = if row.cold { "cold" } else { "warm" };
        let _ = write!(
            text,
            "| {origin} | {size} | {temperature} | {clients} | {face} | "
        );
        let _ = match &row.numbers {
            None => writeln!(text, "left out: too long | | | | | |"),
            Some(n) => writeln!(
                text,
                "{:.0} {unit} | {:.0} {unit} | {:.2} | {:.2} ms ({:.2} ms) | {:.2} | {} MiB |",
                n.bywash,
                n.direct,
                n.ratio,
                n.first_byte_p50_ms,
                n.direct_first_byte_p50_ms,
                n.origin_requests_a_read,
                n.peak_rss_bytes >> 20,
                unit = n.unit,
            ),
        };
    }
    text
}
