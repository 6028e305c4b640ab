//! Servers of HTTP with a cache on a disk, over the origin of the benchmarks.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use bywash_support::group::Group;

use super::MEMORY_BYTES;
use crate::Failure;
use crate::peers::serve::{NGINX, listening};
use crate::process::Process;
use crate::read::with_origin;

/// What a server needs to know.
#[derive(Debug, Clone, Copy)]
pub(super) struct Setup<'a> {
    pub(super) group: Option<&'a Group>,
    /// Folder of its files, which a server started again finds.
    pub(super) folder: &'a Path,
    pub(super) address: SocketAddr,
    pub(super) origin: SocketAddr,
    pub(super) disk_bytes: u64,
    pub(super) value_bytes: usize,
}

/// `bywash serve` with a disk tier, in blocks of the size of a value.
pub(super) fn bywash(setup: &Setup<'_>, program: &Path) -> Result<Process, Failure> {
    std::fs::create_dir_all(setup.folder)?;
    let settings = setup.folder.join("bywash.toml");
    let block = setup.value_bytes;
    let text =
        format!("[[bucket]]\nname = \"bench\"\nurl = \"s3://bench\"\nblock-size = \"{block}\"\n");
    std::fs::write(&settings, text)?;
    let (folder, bytes) = (setup.folder.join("tier"), setup.disk_bytes);
    let mut command = Command::new(program);
    command
        .args(["serve", "--anonymous", "--admin-addr=127.0.0.1:0"])
        .arg("--gcs-addr=off")
        .arg(format!("--s3-addr={}", setup.address))
        .arg(format!("--memory={MEMORY_BYTES}"))
        .arg(format!("--disk={}:{bytes}", folder.display()))
        .arg("--data-dir")
        .arg(setup.folder.join("data"))
        .arg("--config")
        .arg(&settings);
    let mut process = Process::start_in(setup.group, with_origin(&mut command, setup.origin))?;
    process.line("ready s3=http://")?;
    Ok(process)
}

/// nginx with `proxy_cache` in slices of 1 MiB, which threads read.
pub(super) fn nginx(setup: &Setup<'_>) -> Result<Process, Failure> {
    let Setup {
        folder,
        address,
        origin,
        disk_bytes,
        ..
    } = setup;
    std::fs::create_dir_all(folder)?;
    let settings = folder.join("nginx.conf");
    let text = format!(
        "daemon off; worker_processes auto; user root; pid {work}/nginx.pid; error_log stderr error;\n\
         events {{ worker_connections 1024; }}\n\
         http {{ access_log off; sendfile on; aio threads; keepalive_requests 1000000000;\n\
         client_body_temp_path {work}; proxy_temp_path {work}; fastcgi_temp_path {work};\n\
         uwsgi_temp_path {work}; scgi_temp_path {work};\n\
         proxy_cache_path {work}/cache levels=1:2 keys_zone=disk:8m max_size={disk_bytes} inactive=7d use_temp_path=off;\n\
         upstream origin {{ server {origin}; keepalive 32; }}\n\
         server {{ listen {address}; location / {{\n\
         slice 1m; proxy_cache disk; proxy_cache_key $uri$slice_range; proxy_cache_valid 200 206 7d;\n\
         proxy_set_header Range $slice_range; proxy_set_header Connection \"\"; proxy_http_version 1.1;\n\
         proxy_pass http://origin; }} }} }}\n",
        work = folder.display(),
    );
    std::fs::write(&settings, text)?;
    let mut command = Command::new("nginx");
    command.arg("-p").arg(folder).arg("-c").arg(&settings);
    listening(setup.group, &mut command, NGINX, *address)
}
