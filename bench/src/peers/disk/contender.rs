//! A cache with its disk: the process that is measured, and the one that reads from it.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use bywash_support::group::Group;

use super::servers::{self, Setup};
use super::worker::{CacheName, Figures, Order};
use super::{GROUP_BYTES, MEMORY_BYTES, data_bytes, disk_bytes};
use crate::Failure;
use crate::peers::serve::free_address;
use crate::process::Process;
use crate::read::with_origin;

/// What all caches of one size of values have in common.
#[derive(Debug)]
pub(super) struct World {
    /// The `bywash` program.
    pub(super) program: PathBuf,
    pub(super) origin: SocketAddr,
    pub(super) folder: tempfile::TempDir,
    pub(super) value_bytes: usize,
}

/// A cache. Processes come before their group, which ends after them.
#[derive(Debug)]
pub(super) struct Contender {
    cache: CacheName,
    /// Reads, and holds the cache if there is no server.
    worker: Process,
    server: Option<Process>,
    address: SocketAddr,
    group: Option<Group>,
}

impl Contender {
    pub(super) fn start(cache: CacheName, world: &World) -> Result<Self, Failure> {
        let address = free_address()?;
        let group = Group::new(GROUP_BYTES);
        let (server, worker) = start(cache, world, address, group.as_ref())?;
        Ok(Self {
            cache,
            worker,
            server,
            address,
            group,
        })
    }

    pub(super) fn is_in_group(&self) -> bool {
        self.group.is_some()
    }

    pub(super) fn order(&mut self, order: &Order) -> Result<Figures, Failure> {
        let orders = self.worker.child.stdin.as_mut();
        let orders = orders.ok_or("a piped input is there")?;
        writeln!(orders, "{}", serde_json::to_string(order)?)?;
        Ok(serde_json::from_str(&self.worker.line("")?)?)
    }

    /// The process with the cache.
    pub(super) fn measured(&self) -> &Process {
        self.server.as_ref().unwrap_or(&self.worker)
    }

    /// Kills the process with the cache and starts another on its folder. Returns the milliseconds until its first value was
    /// read, and the share of values it does not have, in percent.
    pub(super) fn restart(&mut self, world: &World) -> Result<(f64, f64), Failure> {
        self.server
            .as_mut()
            .unwrap_or(&mut self.worker)
            .kill_family()?;
        let begun = Instant::now();
        let group = self.group.as_ref();
        if self.server.is_some() {
            self.server = start_server(self.cache, world, self.address, group)?;
        } else {
            self.worker = start_worker(self.cache, world, self.address, group)?;
        }
        let one = Order::Read {
            readers: 1,
            window_ms: 0,
            seed: 0,
        };
        self.order(&one)?;
        let first = begun.elapsed().as_secs_f64() * 1e3;
        let many = Order::Read {
            readers: 16,
            window_ms: 1000,
            seed: 7,
        };
        let found = self.order(&many)?;
        Ok((first, found.missed as f64 * 100.0 / found.values as f64))
    }
}

fn start(
    cache: CacheName,
    world: &World,
    address: SocketAddr,
    group: Option<&Group>,
) -> Result<(Option<Process>, Process), Failure> {
    let server = start_server(cache, world, address, group)?;
    // A client is no part of the cache.
    let group = group.filter(|_| server.is_none());
    Ok((server, start_worker(cache, world, address, group)?))
}

/// Returns nothing for caches that are not behind a server.
fn start_server(
    cache: CacheName,
    world: &World,
    address: SocketAddr,
    group: Option<&Group>,
) -> Result<Option<Process>, Failure> {
    let setup = Setup {
        group,
        folder: &folder(cache, world),
        address,
        origin: world.origin,
        disk_bytes: disk_bytes(cache, world.value_bytes),
        value_bytes: world.value_bytes,
    };
    match cache {
        CacheName::Serve => servers::bywash(&setup, &world.program).map(Some),
        CacheName::Nginx => servers::nginx(&setup).map(Some),
        CacheName::Bywash | CacheName::Foyer | CacheName::Pread => Ok(None),
    }
}

fn start_worker(
    cache: CacheName,
    world: &World,
    address: SocketAddr,
    group: Option<&Group>,
) -> Result<Process, Failure> {
    let value_bytes = world.value_bytes;
    let values = data_bytes(value_bytes) / value_bytes as u64;
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["disk-worker", "--cache", &name(cache)])
        .arg("--folder")
        .arg(folder(cache, world))
        .arg(format!("--server={address}"))
        .arg(format!("--memory={MEMORY_BYTES}"))
        .arg(format!("--disk={}", disk_bytes(cache, value_bytes)))
        .arg(format!("--value-bytes={value_bytes}"))
        .arg(format!("--values={values}"));
    let mut process = Process::start_in(group, with_origin(&mut command, world.origin))?;
    process.line("ready")?;
    Ok(process)
}

fn name(cache: CacheName) -> String {
    format!("{cache:?}").to_lowercase()
}

fn folder(cache: CacheName, world: &World) -> PathBuf {
    Path::new(world.folder.path()).join(name(cache))
}
