//! Upload of one large object by Google's Java client, in chunks of a resumable session.

use std::cell::RefCell;
use std::path::Path;

use super::super::upload::Client;
use super::super::{Args, Report, Side, alternate};
use super::servers::Server;
use crate::Failure;
use crate::process::{cpu_with_ended, forget_peak, peak_bytes};
use crate::read::build_server;

const BYWASH: &str = "Bywash";
const FAKE_GCS: &str = "fake-gcs-server";
const BYTES: usize = 1 << 30;
const QUICK_BYTES: usize = 128 << 20;
const MIB: f64 = (1 << 20) as f64;

/// Costs of an upload.
struct Costs {
    seconds: f64,
    server: f64,
    client: f64,
    peak_bytes: f64,
}

pub(super) fn run(args: &Args, report: &mut Report, folder: &Path) -> Result<(), Failure> {
    let bytes = if args.quick { QUICK_BYTES } else { BYTES };
    let case = format!("upload of {} MiB by Google's Java client", bytes >> 20);
    if !args.begins(&case) {
        return Ok(());
    }
    report.note(
        "Upload: one object by `Storage.writer` of google-cloud-storage for Java in chunks of 16 MiB, to a folder. Bywash has a chunk on \
         disk before it acknowledges it; fake-gcs-server holds the upload in its memory, writes the file at its end, and syncs nothing. \
         Each server has a client of its own that keeps running; the first upload of each is not counted. Processor time of the client is \
         that of its process. Google's storage-testbench is left out: it is in no package registry.",
    );
    let folder = folder.join("upload");
    let objects = folder.join("objects");
    std::fs::create_dir_all(&objects)?;
    let runtime = crate::runtime()?;
    let (program, data) = (build_server()?, folder.join("data"));
    let bywash = runtime.block_on(Server::bywash(&program, &objects, &data, true))?;
    let servers = [
        (BYWASH, bywash),
        (FAKE_GCS, Server::fake_gcs(&folder.join("fake"))?),
    ];
    let turn = |server: &Server, client: &RefCell<Client>| {
        forget_peak(server.id)?;
        let before = cpu_with_ended(server.id)?;
        let figures = client.borrow_mut().round(&[bytes])?;
        let took = cpu_with_ended(server.id)?.saturating_sub(before);
        let peak_bytes = peak_bytes(server.id)? as f64;
        runtime.block_on(server.clear())?;
        Ok::<_, Failure>(Costs {
            seconds: figures.seconds,
            server: took.as_secs_f64(),
            client: figures.cpu,
            peak_bytes,
        })
    };
    let mut sides = Vec::new();
    for (name, server) in &servers {
        let client = RefCell::new(Client::java_to(&format!("http://{}", server.gcs), 1)?);
        turn(server, &client)?;
        sides.push(Side::new(*name, move || turn(server, &client)));
    }
    let rounds = alternate(args.rounds(5), sides)?;
    let mut row = |what: &str, unit: &str, figure: fn(&Costs) -> f64| {
        let case = format!("{case}, {what}");
        let rounds = rounds.map(figure);
        report.rows.push(rounds.row(&case, unit, BYWASH, FAKE_GCS));
    };
    row("time", "s", |costs| costs.seconds);
    row("processor of the server", "s", |costs| costs.server);
    row("processor of the client", "s", |costs| costs.client);
    row("peak memory of the server", "MiB", |costs| {
        costs.peak_bytes / MIB
    });
    Ok(())
}
