//! The disk tier below an origin: kills, limits, a full disk, files changed under the server, more blocks than its index has
//! room for.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bywash_sim::server::Server;
use bywash_sim::server::web::{Tag, Web, WebServerOptions};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::mount::Mount;
use super::raw::admin;
use super::working_set::{Objects, READERS, Readers, WINDOW, read_window};
use super::{Case, case};
use crate::CaseError;
use crate::context::{CaseContext, body};
use crate::process::Setup;
use crate::record::Class;
use crate::watch::allocated;

pub(super) const CASES: &[Case] = &[
    case!("disk-kills", kills),
    case!("disk-limits", limits),
    case!("disk-tenant", tenant),
    case!("disk-files", files),
    case!("disk-names", names),
    case!("disk-clients", clients),
];

/// Bytes of a disk with room for a window.
const DISK: u64 = 100 << 20;
/// Max time for what the server does in the background.
const SETTLE: Duration = Duration::from_secs(20);

/// Starts a server over the objects.
async fn serve(
    context: &mut CaseContext,
    objects: &Objects,
    setup: Setup,
) -> Result<(), CaseError> {
    let setup = setup.arg(objects.origin());
    context.serve(setup).await?;
    Ok(())
}

/// The disk tier in a server's `/stats`.
struct Disk(String);

impl Disk {
    async fn of(context: &CaseContext) -> Self {
        let request = ("GET", "/stats");
        let response = admin(context, Class::WellBehaved, request, b"", &[200]).await;
        let text = response.map(|response| response.text()).unwrap_or_default();
        let disk = text.split_once("\"disk\":").map_or("", |(_, disk)| disk);
        Self(disk.to_owned())
    }

    fn field(&self, name: &str) -> &str {
        let name = format!("\"{name}\":");
        let rest = self.0.split_once(&name).map_or("", |(_, rest)| rest);
        rest.split([',', '}'])
            .next()
            .unwrap_or("")
            .trim_matches('"')
    }

    fn number(&self, name: &str) -> u64 {
        self.field(name).parse().unwrap_or(0)
    }
}

/// Waits until the disk is as expected; reads from a window of objects meanwhile, which are the disk's probes.
async fn wait_until(
    context: &CaseContext,
    objects: &Arc<Objects>,
    what: &str,
    is_so: impl Fn(&Disk) -> bool,
) {
    let began = Instant::now();
    for pass in 0.. {
        let disk = Disk::of(context).await;
        if is_so(&disk) {
            return;
        }
        if began.elapsed() > SETTLE {
            let disk: String = disk.0.chars().take(900).collect();
            context.record.finding(format!("not {what}: {disk}"));
            return;
        }
        // Each window more than once: a full disk takes what comes back.
        read_window(context, objects, pass / 3 * WINDOW).await;
    }
}

/// kill -9 while segments are written and used again, with objects replaced meanwhile: every byte afterwards is that of the
/// version at the origin.
async fn kills(context: &mut CaseContext) -> Result<(), CaseError> {
    let kills = (context.campaign.keys / 30_000).clamp(3, 30);
    let objects = Objects::start(context.seed, 3 * WINDOW).await?;
    let setup = Setup {
        disk: DISK,
        ..Setup::default()
    };
    serve(context, &objects, setup).await?;
    let mut random = StdRng::seed_from_u64(context.seed);
    let (mut recycled, mut hits) = (0, 0);
    for round in 0..kills {
        let first = round * WINDOW;
        let readers = Readers::start(context, &objects, first, Class::Excessive("a kill"));
        // The result must not depend on the random time of the kill.
        let moment = random.random_range(900..1400);
        tokio::time::sleep(Duration::from_millis(moment)).await;
        recycled += Disk::of(context).await.number("recycled_segments");
        let address = context.kill().await?;
        readers.stop().await;
        for number in (0..objects.count()).filter(|number| number % 5 == round % 5) {
            objects.replace(number);
        }
        context.restart(address).await?;
        read_window(context, &objects, first).await;
        hits += Disk::of(context).await.number("hits");
    }
    context.record.figure("segments used again", recycled);
    context.record.figure("hits after kills", hits);
    if recycled == 0 || hits == 0 {
        let text = format!("{recycled} segments used again, {hits} blocks found after kills");
        context.record.finding(text);
    }
    Ok(())
}

/// The limit is lowered and raised while clients read.
async fn limits(context: &mut CaseContext) -> Result<(), CaseError> {
    let objects = Objects::start(context.seed, 2 * WINDOW).await?;
    let setup = Setup {
        disk: DISK,
        ..Setup::default()
    };
    serve(context, &objects, setup).await?;
    let mut random = StdRng::seed_from_u64(context.seed);
    let readers = Readers::start(context, &objects, 0, Class::WellBehaved);
    let mut lowest = u64::MAX;
    for step in 0..6 {
        let size = match step % 2 {
            0 => DISK,
            _ => random.random_range(34..80) << 20,
        };
        if step % 2 == 0 {
            context.set_disk(size);
        }
        let change = format!("{{\"disk\": {size}}}");
        let request = ("POST", "/cache/limit");
        admin(
            context,
            Class::WellBehaved,
            request,
            change.as_bytes(),
            &[200],
        )
        .await;
        let began = Instant::now();
        while allocated(&context.disk_folder()) > size {
            if began.elapsed() > SETTLE {
                let bytes = allocated(&context.disk_folder());
                let text = format!("{bytes} bytes on the disk; the limit is {size}");
                context.record.finding(text);
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        context.set_disk(size);
        tokio::time::sleep(Duration::from_millis(500)).await;
        lowest = lowest.min(size);
    }
    readers.stop().await;
    context.record.figure("lowest limit MiB", lowest >> 20);
    read_window(context, &objects, 0).await;
    Ok(())
}

/// Bytes of a file system that the disk tier shares with another tenant.
const SHARED_DISK: u64 = 160 << 20;

/// Fills a file system but for some bytes.
fn fill(path: &Path, rest: u64) -> std::io::Result<()> {
    let mut free = 0;
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)?;
    for shift in (16..28).rev() {
        while rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), free, 1 << shift)
            .is_ok()
        {
            free += 1 << shift;
        }
    }
    file.set_len(free.saturating_sub(rest))
}

/// Another tenant fills the disk before the tier has a segment, and while it has some.
async fn tenant(context: &mut CaseContext) -> Result<(), CaseError> {
    let shared = context.path().join("shared-disk");
    let mount = match Mount::image(shared.clone(), SHARED_DISK).await {
        Ok(mount) => mount,
        Err(error) => {
            context.record.skipped(error.to_string());
            return Ok(());
        }
    };
    let objects = Objects::start(context.seed, 2 * WINDOW).await?;
    let tenant = shared.join("tenant");
    fill(&tenant, 1 << 20)?;
    let setup = Setup {
        disk: DISK,
        disk_folder: Some(shared.join("tier")),
        ..Setup::default()
    };
    serve(context, &objects, setup).await?;
    let is_full = |disk: &Disk| disk.field("state") == "read-only";
    wait_until(context, &objects, "read-only on a full disk", is_full).await;
    fs::remove_file(&tenant)?;
    let is_back = |disk: &Disk| disk.field("state") == "on" && disk.number("blocks") > 40;
    wait_until(context, &objects, "written again", is_back).await;
    fill(&tenant, 0)?;
    let before = Disk::of(context).await.number("written_bytes");
    let grows = |disk: &Disk| disk.number("written_bytes") > before;
    wait_until(context, &objects, "written to its own segments", grows).await;
    let taken = allocated(&context.disk_folder()) >> 20;
    context.record.figure("tier MiB beside the tenant", taken);
    context.kill_and_restart().await?;
    read_window(context, &objects, 0).await;
    drop(mount);
    Ok(())
}

/// A change of files that the server has open.
const CHANGES: u32 = 7;

fn segments(folder: &Path) -> Result<Vec<PathBuf>, CaseError> {
    let files = fs::read_dir(folder)?.flatten().map(|entry| entry.path());
    let is_segment = |path: &PathBuf| path.extension().is_some_and(|name| name == "seg");
    let mut segments: Vec<_> = files.filter(is_segment).collect();
    segments.sort();
    Ok(segments)
}

/// Changes one segment.
fn change(folder: &Path, kind: u32, random: &mut StdRng) -> Result<(), CaseError> {
    let segments = segments(folder)?;
    if segments.is_empty() {
        return Ok(());
    }
    let mut any = || segments[random.random_range(0..segments.len())].clone();
    let (path, other) = (any(), any());
    let length = fs::metadata(&path)?.len();
    match kind {
        0 => fs::remove_file(&path)?,
        1 => File::options()
            .write(true)
            .open(&path)?
            .set_len(length / 2)?,
        2 => File::options().write(true).open(&path)?.set_len(0)?,
        3 => fs::set_permissions(&path, fs::Permissions::from_mode(0o000))?,
        4 => {
            fs::remove_file(&path)?;
            fs::write(&path, "another program's")?;
        }
        5 => {
            let part = vec![0xa5; 100];
            let file = File::options().write(true).open(&path)?;
            for _ in 0..64 {
                file.write_all_at(&part, random.random_range(0..length.max(1)))?;
            }
        }
        _ if path != other => {
            let bytes = fs::read(&other)?;
            File::options()
                .write(true)
                .open(&path)?
                .write_all_at(&bytes, 0)?;
        }
        _ => {}
    }
    Ok(())
}

/// Files of the tier are removed, cut off, closed to all, replaced, damaged and swapped, and its folder is moved away, under the
/// server and while it is down: each byte that a client gets is right, and the tier comes back.
async fn files(context: &mut CaseContext) -> Result<(), CaseError> {
    let objects = Objects::start(context.seed, 2 * WINDOW).await?;
    let setup = Setup {
        disk: DISK,
        ..Setup::default()
    };
    serve(context, &objects, setup).await?;
    let folder = context.disk_folder();
    let is_filled = |disk: &Disk| disk.number("blocks") > 60;
    wait_until(context, &objects, "filled", is_filled).await;
    let mut random = StdRng::seed_from_u64(context.seed);
    let readers = Readers::start(context, &objects, 0, Class::WellBehaved);
    for kind in 0..CHANGES {
        change(&folder, kind, &mut random)?;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let away = context.path().join("away");
    fs::rename(&folder, &away)?;
    tokio::time::sleep(Duration::from_millis(400)).await;
    fs::rename(&away, &folder)?;
    readers.stop().await;
    let is_on = |disk: &Disk| disk.field("state") == "on";
    wait_until(context, &objects, "on with its folder back", is_on).await;
    let mismatches = Disk::of(context).await.number("mismatches");
    context.record.figure("mismatches", mismatches);
    let damage = |_: &Path| (0..CHANGES).try_for_each(|kind| change(&folder, kind, &mut random));
    context.kill_and_restart_after(damage).await?;
    for first in [0, WINDOW] {
        read_window(context, &objects, first).await;
    }
    Ok(())
}

/// Bytes of a small object.
const SMALL: usize = 100;
/// Memory of a server whose index has room for few blocks.
const SMALL_MEMORY: u64 = 32 << 20;

/// More objects, each a block and a version, than the index has room for.
async fn names(context: &mut CaseContext) -> Result<(), CaseError> {
    let count = (context.campaign.keys / 7).clamp(14_000, 40_000);
    let store = Arc::new(Web::new(WebServerOptions::default()));
    let server = Server::start(Arc::<Web>::clone(&store)).await?;
    let seed = context.seed;
    for number in 0..count {
        let path = format!("/data/{number}");
        store.put(&path, body(seed, number, SMALL));
    }
    let setup = Setup {
        memory: SMALL_MEMORY,
        disk: 2 * DISK,
        ..Setup::default()
    };
    let setup = setup.arg(format!("web={}/data", server.url()));
    context.serve(setup).await?;
    for round in 0..2 {
        let step = if round == 0 { 1 } else { 20 };
        context
            .run_concurrently(4 * READERS, |reader| {
                let mut client = context.well_behaved();
                async move {
                    let numbers = (reader..count).step_by(4 * READERS as usize);
                    for number in numbers.step_by(step) {
                        let path = format!("/web/{number}");
                        client.get(&path, &body(seed, number, SMALL)).await;
                    }
                }
            })
            .await;
        let disk = Disk::of(context).await;
        if round == 0 {
            context.record.figure("blocks", disk.number("blocks"));
            if disk.number("blocks") >= count {
                context.record.finding("the index was never full");
            }
            context.kill_and_restart().await?;
        }
    }
    Ok(())
}

/// Objects of [`clients`].
const CLIENT_OBJECTS: u64 = 40;

/// Two buckets of one address with other credentials: after a kill neither reads blocks that the other brought.
async fn clients(context: &mut CaseContext) -> Result<(), CaseError> {
    let store = Arc::new(Web::new(WebServerOptions {
        tag: Tag::Strong,
        ..WebServerOptions::default()
    }));
    let seed = context.seed;
    let content = |number| body(seed, number, 10_000);
    for number in 0..CLIENT_OBJECTS {
        store.put(&format!("/dir/{number}"), content(number));
    }
    let origin = Server::start(Arc::<Web>::clone(&store)).await?;
    let bucket = |name: &str| {
        format!(
            "[[bucket]]\nname = \"{name}\"\nurl = \"{}/dir\"\nheaders = {{ Authorization = \"Bearer {name}\" }}\n",
            origin.url()
        )
    };
    let config = bucket("first") + &bucket("second");
    context.serve(Setup::default().config(config)).await?;
    let mut client = context.well_behaved();
    for number in 0..CLIENT_OBJECTS {
        client
            .get(&format!("/first/{number}"), &content(number))
            .await;
    }
    let began = Instant::now();
    while Disk::of(context).await.number("blocks") < CLIENT_OBJECTS {
        if began.elapsed() > SETTLE {
            context
                .record
                .finding("the objects are not on the disk".to_owned());
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    context.kill_and_restart().await?;
    let _ = origin.take_log();
    let mut client = context.well_behaved();
    for number in 0..CLIENT_OBJECTS {
        client
            .get(&format!("/second/{number}"), &content(number))
            .await;
    }
    let log = origin.take_log();
    let own = log.iter().filter(|request| {
        let header = request.headers.get("authorization");
        request.line.starts_with("GET ") && header.is_some_and(|value| value == "Bearer second")
    });
    let own = own.count() as u64;
    context
        .record
        .figure("objects requested with the own credentials", own);
    if own < CLIENT_OBJECTS {
        let others = CLIENT_OBJECTS - own;
        let text = format!("{others} objects were read from blocks of other credentials");
        context.record.finding(text);
    }
    Ok(())
}
