//! Cold GETs of objects that no client has read before, beside nginx with `proxy_cache` in front of the same origin.

use std::cell::Cell as Counter;
use std::path::Path;

use super::super::{Args, Report, Side, alternate};
use super::MEMORY_BYTES;
use super::servers::Server;
use crate::Failure;
use crate::read::http::load;
use crate::read::load::Cell;
use crate::read::{build_server, start_origin, start_server};

const BYWASH: &str = "Bywash";
const NGINX: &str = "nginx proxy_cache";
const OBJECTS: [(u64, &str); 3] = [
    (4 << 10, "4 KiB"),
    (1 << 20, "1 MiB"),
    (256 << 20, "256 MiB"),
];
const CLIENTS: [usize; 3] = [1, 8, 64];
/// Max bytes of objects of a turn with `--quick`.
const QUICK_BYTES: u64 = 512 << 20;
/// Max ratio of the time of a byte: at least 1.3 of nginx's throughput.
const TIME_GOAL: f64 = 1.0 / 1.3;
/// Max ratio of the time to the first byte.
const FIRST_BYTE_GOAL: f64 = 1.0;

/// Figures of a turn.
struct Figures {
    us_a_kib: f64,
    first_byte_ms: f64,
}

pub(super) fn run(args: &Args, report: &mut Report, folder: &Path) -> Result<(), Failure> {
    let title = |name: &str, clients| format!("cold GET, {name}, {clients} clients");
    let cells = OBJECTS
        .iter()
        .flat_map(|object| CLIENTS.map(|clients| (object, clients)));
    let cells: Vec<_> = cells
        .filter(|((bytes, name), clients)| {
            let fits = !args.quick || bytes * *clients as u64 <= QUICK_BYTES;
            fits && args.wants(&title(name, *clients))
        })
        .collect();
    if cells.is_empty() {
        return Ok(());
    }
    report.note(
        "Cold GETs: each object is read once, unsigned, from an origin on loopback that makes it up, by one client for both \
         servers. nginx has `proxy_cache` without slices and a connection pool to the origin; each turn of it begins with an empty \
         cache on the disk and ends with its removal. Bywash keeps what it read in memory. With --quick, the cells of 256 MiB are \
         those of one client. Origin, client and servers share the cores.",
    );
    let folder = folder.join("cold");
    std::fs::create_dir_all(&folder)?;
    let (_origin, origin) = start_origin(0, 0, None)?;
    let data = folder.join("data");
    let ours = start_server(&build_server()?, origin, MEMORY_BYTES, &data)?;
    let runtime = crate::runtime()?;
    let next = Counter::new(0);
    for ((bytes, name), clients) in cells {
        let case = title(name, clients);
        args.begins(&case);
        let turn = |address, window_ms| {
            next.set(next.get() + 1);
            let cell = |size, window_ms, name: &str| Cell {
                size,
                cold: true,
                clients,
                window_ms,
                tag: format!("{name}{}", next.get()),
                fill: false,
            };
            // Opens the server's connections to the origin.
            runtime.block_on(load(address, &cell(4 << 10, 0, "first")))?;
            let load = runtime.block_on(load(address, &cell(*bytes, window_ms, "")))?;
            Ok::<_, Failure>(Figures {
                us_a_kib: load.seconds * 1e6 / (load.bytes as f64 / 1024.0),
                first_byte_ms: load.first_byte_p50_ms,
            })
        };
        let window_ms = if args.quick { 200 } else { 1000 };
        let sides = vec![
            Side::new(BYWASH, || turn(ours.addresses.s3_address(), window_ms)),
            Side::new(NGINX, || {
                let work = tempfile::tempdir_in(&folder)?;
                let nginx = Server::nginx_proxy(origin, work.path())?;
                turn(nginx.address, window_ms)
            }),
        ];
        let rounds = alternate(args.rounds(5), sides)?;
        let time = rounds.map(|figures| figures.us_a_kib);
        let row = time.row(&case, "µs a KiB", BYWASH, NGINX);
        report.rows.push(row.goal(TIME_GOAL));
        let first = rounds.map(|figures| figures.first_byte_ms);
        let row = first.row(&format!("{case}, first byte"), "ms", BYWASH, NGINX);
        report.rows.push(row.goal(FIRST_BYTE_GOAL));
    }
    Ok(())
}
