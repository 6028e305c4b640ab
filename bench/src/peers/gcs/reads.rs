//! Warm reads of one object at the GCS endpoint, by both APIs, beside the S3 endpoint of the same server.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use hyper::header::{AUTHORIZATION, HOST};
use reqwest::Method;

use super::super::serve::{BUCKET, Extent, SignedRequest, drive, request};
use super::super::{Args, Report, Side, alternate};
use super::servers::Server;
use crate::Failure;
use crate::process::cpu_of_family;
use crate::read::build_server;

const JSON: &str = "JSON API";
const XML: &str = "XML API";
const S3: &str = "S3 endpoint";

/// Bytes and names of the objects.
const OBJECTS: [(usize, &str); 3] = [(4 << 10, "4 KiB"), (1 << 20, "1 MiB"), (16 << 20, "16 MiB")];
const CONNECTIONS: usize = 8;
/// Max ratio of time and of processor time.
const GOAL: f64 = 1.1;

/// Costs of a request.
struct Costs {
    us: f64,
    processor_us: f64,
}

/// A request and where it goes.
struct Target {
    address: SocketAddr,
    request: SignedRequest,
}

pub(super) fn run(args: &Args, report: &mut Report, folder: &Path) -> Result<(), Failure> {
    let title = |object: &str, access: &str| format!("warm read, {object}, {access}");
    let accesses = [(true, "anonymous"), (false, "token or signature")];
    let is_wanted = |access| {
        OBJECTS
            .iter()
            .any(|(_, object)| args.wants(&title(object, access)))
    };
    if !accesses.iter().any(|(_, access)| is_wanted(access)) {
        return Ok(());
    }
    report.note(format!(
        "Warm reads: one object read over {CONNECTIONS} kept connections by one client, at the GCS endpoint (`alt=media` of the JSON API, GET of \
         the XML API) and at the S3 endpoint of the same server: all of an anonymous server, or by an access token beside a signature in \
         headers. Both are checked at each request. Processor time is the server's. The client shares the cores, and its price is \
         part of the times."
    ));
    let folder = folder.join("reads");
    let objects = folder.join("objects");
    std::fs::create_dir_all(&objects)?;
    for (bytes, _) in OBJECTS {
        std::fs::write(objects.join(bytes.to_string()), vec![0x5A; bytes])?;
    }
    let program = build_server()?;
    let runtime = crate::runtime()?;
    for (anonymous, access) in accesses {
        if !is_wanted(access) {
            continue;
        }
        let data = folder.join(format!("data-{anonymous}"));
        let server = Server::bywash(&program, &objects, &data, anonymous);
        let server = runtime.block_on(server)?;
        for (bytes, object) in OBJECTS {
            let case = title(object, access);
            if args.begins(&case) {
                cell(args, &case, &bytes.to_string(), &server, &runtime, report)?;
            }
        }
    }
    Ok(())
}

fn cell(
    args: &Args,
    case: &str,
    key: &str,
    server: &Server,
    runtime: &tokio::runtime::Runtime,
    report: &mut Report,
) -> Result<(), Failure> {
    let window = Duration::from_millis(if args.quick { 500 } else { 3000 });
    let turn = |target: &Target, window| {
        let lists = vec![vec![target.request.clone()]; CONNECTIONS];
        let before = cpu_of_family(server.id)?;
        let figures = drive(target.address, None, lists, Extent::Window(window));
        let figures = runtime.block_on(figures)?;
        let took = cpu_of_family(server.id)?.saturating_sub(before);
        Ok::<_, Failure>(Costs {
            us: figures.micros_a_request(),
            processor_us: took.as_secs_f64() * 1e6 / figures.requests,
        })
    };
    let mut sides = Vec::new();
    for (name, target) in targets(server, key)? {
        turn(&target, window / 5)?;
        sides.push(Side::new(name, move || turn(&target, window)));
    }
    let rounds = alternate(args.rounds(7), sides)?;
    for api in [JSON, XML] {
        let mut row = |what: &str, figure: fn(&Costs) -> f64| {
            let case = format!("{case}, {api}, {what}");
            let row = rounds.map(figure).row(&case, "µs a request", api, S3);
            report.rows.push(row.goal(GOAL));
        };
        row("time", |costs| costs.us);
        row("processor", |costs| costs.processor_us);
    }
    Ok(())
}

/// Returns the same read by each API.
fn targets(server: &Server, key: &str) -> Result<[(&'static str, Target); 3], Failure> {
    let s3 = server.s3.ok_or("the server has no S3 endpoint")?;
    let of_google = |target: String| {
        let mut request = Request::get(target).header(HOST, server.gcs.to_string());
        if let Some(token) = &server.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        Ok::<_, Failure>(Target {
            address: server.gcs,
            request: request.body(Full::new(Bytes::new()))?,
        })
    };
    let signed = request(
        s3,
        server.token.is_some(),
        (&Method::GET, key, ""),
        Bytes::new(),
    )?;
    let of_amazon = Target {
        address: s3,
        request: signed,
    };
    Ok([
        (
            JSON,
            of_google(format!("/storage/v1/b/{BUCKET}/o/{key}?alt=media"))?,
        ),
        (XML, of_google(format!("/{BUCKET}/{key}"))?),
        (S3, of_amazon),
    ])
}
