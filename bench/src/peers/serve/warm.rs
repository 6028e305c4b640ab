//! Warm GETs of one object by `wrk`, over presigned URLs.

use std::path::Path;
use std::process::Command;

use super::super::round::Rounds;
use super::super::{Args, Report, Side, alternate};
use super::BUCKET;
use super::servers::Server;
use crate::Failure;
use crate::read::build_server;

const BYWASH: &str = "Bywash";
const NGINX: &str = "nginx, sendfile off";
const SENDFILE: &str = "nginx, sendfile on";
const VERSITYGW: &str = "versitygw";

/// Bytes and names of the objects.
const OBJECTS: [(usize, &str); 4] = [
    (4 << 10, "4 KiB"),
    (64 << 10, "64 KiB"),
    (1 << 20, "1 MiB"),
    (16 << 20, "16 MiB"),
];
const CONNECTIONS: [usize; 3] = [1, 8, 64];

pub(super) fn run(args: &Args, report: &mut Report, folder: &Path) -> Result<(), Failure> {
    let cell = |name: &str, connections| format!("warm GET, {name}, {connections} connections");
    let cells = OBJECTS
        .iter()
        .flat_map(|object| CONNECTIONS.map(|connections| (object, connections)));
    let cells: Vec<_> = cells
        .filter(|((_, name), connections)| args.wants(&cell(name, *connections)))
        .collect();
    if cells.is_empty() {
        return Ok(());
    }
    report.note(
        "Warm GETs: one object read repeatedly by wrk over kept connections, from files that every server had read \
         before; Bywash and versitygw by presigned URLs whose signature they check at each request, nginx without. Client \
         and server share the cores.",
    );
    // One folder per bucket for versitygw and nginx; the same files for Bywash.
    let buckets = folder.join("buckets");
    let objects = buckets.join(BUCKET);
    std::fs::create_dir_all(&objects)?;
    for (bytes, _) in OBJECTS {
        std::fs::write(objects.join(bytes.to_string()), vec![0x5A; bytes])?;
    }
    let runtime = crate::runtime()?;
    let _entered = runtime.enter();
    let servers = [
        (
            BYWASH,
            Server::bywash(&build_server()?, &objects, &folder.join("data"), None)?,
        ),
        (
            NGINX,
            Server::nginx(&buckets, &folder.join("nginx-off"), false)?,
        ),
        (
            SENDFILE,
            Server::nginx(&buckets, &folder.join("nginx-on"), true)?,
        ),
        (VERSITYGW, Server::versitygw(&buckets)?),
    ];
    for ((bytes, name), connections) in cells {
        let case = cell(name, connections);
        args.begins(&case);
        let mut sides = Vec::new();
        for (server, at) in &servers {
            let url = runtime.block_on(at.url(&bytes.to_string()))?;
            wrk(&url, connections, WARM_UP_SECONDS)?;
            let seconds = if args.quick { 1 } else { 3 };
            sides.push(Side::new(*server, move || wrk(&url, connections, seconds)));
        }
        rows(&case, *bytes, &alternate(args.rounds(5), sides)?, report);
    }
    Ok(())
}

const WARM_UP_SECONDS: u32 = 1;

fn rows(case: &str, bytes: usize, rounds: &Rounds, report: &mut Report) {
    for peer in [NGINX, SENDFILE, VERSITYGW] {
        let row = rounds.row(case, "µs a request", BYWASH, peer);
        report.rows.push(match (peer, bytes) {
            (NGINX, 0x10_0000) => row.goal(1.0),
            (VERSITYGW, 0x1000) => row.goal(1.0 / 3.0),
            _ => row,
        });
    }
}

/// Returns the microseconds per request of all connections together.
fn wrk(url: &str, connections: usize, seconds: u32) -> Result<f64, Failure> {
    let output = Command::new("wrk")
        .arg(format!("-t{}", connections.min(2)))
        .arg(format!("-c{connections}"))
        .arg(format!("-d{seconds}s"))
        .arg(url)
        .output()
        .map_err(|error| format!("start wrk: {error}; apt-get install wrk"))?;
    per_request(&String::from_utf8_lossy(&output.stdout))
}

/// Parses wrk's report. Fails if it has a refused or failed request.
fn per_request(report: &str) -> Result<f64, Failure> {
    let value = |name: &str| {
        let line = report
            .lines()
            .find_map(|line| line.trim().strip_prefix(name));
        line.map(str::trim)
    };
    let rate = value("Requests/sec:").and_then(|rate| rate.parse::<f64>().ok());
    match rate {
        Some(rate)
            if rate > 0.0 && value("Non-2xx").is_none() && value("Socket errors:").is_none() =>
        {
            Ok(1e6 / rate)
        }
        _ => Err(format!("wrk did not get what it requested:\n{report}").into()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::per_request;

    #[test]
    fn report_with_failed_requests_yields_no_figure() {
        let good = "  1000 requests in 1.00s\nRequests/sec:   1000.00\nTransfer/sec:  1MB\n";
        assert!((per_request(good).unwrap() - 1000.0).abs() < 1e-9);
        assert!(per_request(&format!("{good}  Non-2xx or 3xx responses: 5\n")).is_err());
        assert!(per_request("Requests/sec:  0.00\n").is_err());
        assert!(per_request("").is_err());
    }
}
