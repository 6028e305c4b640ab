//! Processor time of the server for a warm GET, signed by headers, beside nginx; and over TLS.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use reqwest::Method;

use super::super::{Args, Report, Side, alternate};
use super::load::{Extent, Tls, drive};
use super::servers::Server;
use super::{BUCKET, OTHER_BUILD, OTHER_BUILD_GOAL};
use crate::Failure;
use crate::process::cpu_of_family;
use crate::read::build_server;

const BYWASH: &str = "Bywash";
const NGINX: &str = "nginx, sendfile off";

/// A row's object, clients and goals.
struct Case {
    name: &'static str,
    bytes: usize,
    connections: usize,
    tls: bool,
    /// Max ratio of processor time.
    processor: f64,
    /// Max ratio of time.
    time: Option<f64>,
}

const fn case(name: &'static str, bytes: usize, connections: usize, processor: f64) -> Case {
    Case {
        name,
        bytes,
        connections,
        tls: false,
        processor,
        time: None,
    }
}

/// At least 0.6 of nginx's requests a second.
const SMALL_TIME: Option<f64> = Some(1.0 / 0.6);

const CASES: [Case; 7] = [
    Case {
        time: SMALL_TIME,
        ..case("4 KiB, 8 connections", 4 << 10, 8, 1.5)
    },
    Case {
        time: SMALL_TIME,
        ..case("4 KiB, 64 connections", 4 << 10, 64, 1.5)
    },
    case("64 KiB, 8 connections", 64 << 10, 8, 1.1),
    case("1 MiB, 1 connection", 1 << 20, 1, 1.0),
    case("1 MiB, 8 connections", 1 << 20, 8, 1.0),
    Case {
        tls: true,
        ..case("1 MiB over TLS, 1 connection", 1 << 20, 1, 1.1)
    },
    Case {
        tls: true,
        ..case("1 MiB over TLS, 8 connections", 1 << 20, 8, 1.1)
    },
];

impl Case {
    fn title(&self) -> String {
        format!("processor of a signed GET, {}", self.name)
    }
}

/// Costs of a request.
struct Costs {
    processor_us: f64,
    us: f64,
}

pub(super) fn run(args: &Args, report: &mut Report, folder: &Path) -> Result<(), Failure> {
    let cases: Vec<_> = CASES
        .iter()
        .filter(|case| args.wants(&case.title()))
        .collect();
    if cases.is_empty() {
        return Ok(());
    }
    report.note(
        "Processor of a signed GET: one warm object read over kept connections by one client for both servers, Bywash with a \
         signature in headers that it checks at each request, nginx without. Processor time is of the server's processes only. \
         Over TLS both have the same certificate and the client offers one suite, TLS_AES_128_GCM_SHA256 of TLS 1.3. The client \
         shares the cores, and its price is part of the times.",
    );
    let (folder, program) = (folder.join("processor"), build_server()?);
    let objects = folder.join("buckets").join(BUCKET);
    std::fs::create_dir_all(&objects)?;
    for case in CASES {
        std::fs::write(objects.join(case.bytes.to_string()), vec![0x5A; case.bytes])?;
    }
    let tls = Tls::create(&folder)?;
    for secure in [false, true] {
        let cases = cases.iter().filter(|case| case.tls == secure);
        let cases: Vec<_> = cases.collect();
        if cases.is_empty() {
            continue;
        }
        let tls = Some(&tls).filter(|_| secure);
        let data = folder.join(format!("data-{secure}"));
        let work = folder.join(format!("nginx-{secure}"));
        let buckets = folder.join("buckets");
        let rival = match &args.against {
            Some(other) => (OTHER_BUILD, Server::bywash(other, &objects, &work, tls)?),
            None => (NGINX, Server::nginx_with(&buckets, &work, false, tls)?),
        };
        let servers = [
            (BYWASH, Server::bywash(&program, &objects, &data, tls)?),
            rival,
        ];
        for case in cases {
            cell(args, case, &servers, tls, report)?;
        }
    }
    Ok(())
}

fn cell(
    args: &Args,
    case: &Case,
    servers: &[(&str, Server)],
    tls: Option<&Tls>,
    report: &mut Report,
) -> Result<(), Failure> {
    let title = case.title();
    args.begins(&title);
    let runtime = crate::runtime()?;
    let window = Duration::from_millis(if args.quick { 500 } else { 3000 });
    let turn = |server: &Server, window| {
        let key = case.bytes.to_string();
        let get = server.request(&Method::GET, &key, "", Bytes::new())?;
        let lists = vec![vec![get]; case.connections];
        let before = cpu_of_family(server.id)?;
        let figures =
            runtime.block_on(drive(server.address, tls, lists, Extent::Window(window)))?;
        let took = cpu_of_family(server.id)?.saturating_sub(before);
        Ok::<_, Failure>(Costs {
            processor_us: took.as_secs_f64() * 1e6 / figures.requests,
            us: figures.micros_a_request(),
        })
    };
    let mut sides = Vec::new();
    for (name, server) in servers {
        turn(server, window / 5)?;
        sides.push(Side::new(*name, || turn(server, window)));
    }
    let rounds = alternate(args.rounds(5), sides)?;
    let processor = rounds.map(|costs| costs.processor_us);
    let rival = servers[1].0;
    let row = processor.row(&title, "µs a request", BYWASH, rival);
    let goal = |goal| args.against.as_ref().map_or(goal, |_| OTHER_BUILD_GOAL);
    report.rows.push(row.goal(goal(case.processor)));
    let time = rounds.map(|costs| costs.us);
    let row = time.row(&format!("{title}, time"), "µs a request", BYWASH, rival);
    report.rows.push(match case.time {
        Some(max) => row.goal(goal(max)),
        None => row,
    });
    Ok(())
}
