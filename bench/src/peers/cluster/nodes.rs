//! The measured processes: etcd, nodes of the program, and a client of one connection.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use bytes::Bytes;
use bywash_support::cluster::{
    Etcd, Membership, cluster_stats, etcd_program, free_address, hold_all_shards, in_short,
    is_settled, write_key,
};
use bywash_support::process::{BywashProcess, without_settings};
use http_body_util::Full;
use hyper::header::HOST;
use hyper::{Method, Request};
use serde_json::Value;
use tokio::time::Instant;

use crate::Failure;
use crate::peers::serve::{Client, connect, send};
use crate::read::with_origin;

/// Bucket of the nodes and of their origin.
const BUCKET: &str = "bench";
const ORIGIN: &str = "s3://bench";
/// Max time until all shards are held and spread: a claim takes 13 s, and 64 shards a second move.
const SETTLE: Duration = Duration::from_secs(60);

/// One `bywash serve`, in a cluster or alone.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) process: BywashProcess,
    pub(super) s3: SocketAddr,
    admin: SocketAddr,
}

/// How servers of a cell are started.
#[derive(Debug, Clone)]
pub(super) struct ServerSetup {
    pub(super) program: PathBuf,
    pub(super) folder: PathBuf,
    pub(super) origin: SocketAddr,
    pub(super) memory: u64,
    pub(super) drain: Duration,
}

impl ServerSetup {
    fn start(
        &self,
        url: &str,
        name: &str,
        membership: Option<&Membership>,
    ) -> Result<Server, Failure> {
        let mut command = Command::new(&self.program);
        command
            .args(["serve", url, "--anonymous"])
            .args(["--s3-addr=127.0.0.1:0", "--admin-addr=127.0.0.1:0"])
            .args(["--gcs-addr=off", "--no-history"])
            .arg(format!("--memory={}", self.memory))
            .arg("--data-dir")
            .arg(self.folder.join(name))
            .args(membership.map(Membership::arguments).unwrap_or_default());
        with_origin(without_settings(&mut command), self.origin);
        command.env("AWS_ALLOW_HTTP", "true");
        let process = BywashProcess::start(&mut command)?;
        Ok(Server {
            s3: process.addresses.s3_address(),
            admin: process.addresses.admin,
            process,
        })
    }

    /// Starts a server that is in no cluster.
    pub(super) fn alone(&self) -> Result<Server, Failure> {
        self.start(ORIGIN, "alone", None)
    }

    /// Starts a server of the files in a folder, as an origin that takes writes.
    pub(super) fn store(&self, files: &Path) -> Result<Server, Failure> {
        let url = format!("{BUCKET}=file://{}", files.display());
        self.start(&url, "store", None)
    }
}

/// The nodes of a cluster. All end when dropped.
#[derive(Debug)]
pub(super) struct Nodes {
    setup: ServerSetup,
    etcd: Etcd,
    addresses: Vec<SocketAddr>,
    pub(super) servers: Vec<Option<Server>>,
}

impl Nodes {
    /// Starts etcd and so many nodes, and waits until they hold all shards.
    pub(super) async fn start(setup: &ServerSetup, count: usize) -> Result<Self, Failure> {
        let program = etcd_program().ok_or(
            "no etcd: build it by `go build` in testing/clients/etcd and name it by BYWASH_ETCD",
        )?;
        std::fs::create_dir_all(&setup.folder)?;
        write_key(&setup.program, &setup.key_file())?;
        let mut nodes = Self {
            etcd: Etcd::start(&program, &setup.folder.join("etcd"))?,
            setup: setup.clone(),
            addresses: Vec::new(),
            servers: Vec::new(),
        };
        for number in 0..count {
            nodes.addresses.push(free_address()?);
            nodes.servers.push(None);
            nodes.start_again(number)?;
        }
        nodes.settled(count).await?;
        Ok(nodes)
    }

    /// Starts a node that has ended, with its data folder and address.
    pub(super) fn start_again(&mut self, number: usize) -> Result<(), Failure> {
        let address = self.addresses[number];
        let membership = Membership {
            etcd: vec![self.etcd.address()],
            name: "bench".to_owned(),
            key_file: self.setup.key_file(),
            advertise: address,
            listen: address,
            drain: self.setup.drain,
        };
        let server = self
            .setup
            .start(ORIGIN, &format!("node-{number}"), Some(&membership))?;
        self.servers[number] = Some(server);
        Ok(())
    }

    pub(super) fn running(&self) -> impl Iterator<Item = &Server> {
        self.servers.iter().flatten()
    }

    pub(super) fn server(&self, number: usize) -> Result<&Server, Failure> {
        let server = self.servers[number].as_ref();
        server.ok_or_else(|| format!("node {number} does not run").into())
    }

    /// Waits until the nodes that run are these many and hold all shards, none of them less than half of an even share. Returns
    /// how long that took.
    pub(super) async fn settled(&self, count: usize) -> Result<Duration, Failure> {
        let has_a_share = |node: &Option<Value>| {
            let of = |name: &str| node.as_ref().and_then(|node| node[name].as_u64());
            let share = of("shards_total").unwrap_or(0) / (2 * count as u64);
            of("shards").is_some_and(|held| held >= share)
        };
        self.wait_until(|seen| is_settled(seen, count) && seen.iter().all(has_a_share))
            .await
    }

    /// Waits until the nodes that run hold all shards, whatever other members there are. Returns how long that took.
    pub(super) async fn held_by_the_rest(&self) -> Result<Duration, Failure> {
        self.wait_until(hold_all_shards).await
    }

    async fn wait_until(
        &self,
        reached: impl Fn(&[Option<Value>]) -> bool,
    ) -> Result<Duration, Failure> {
        let begun = Instant::now();
        loop {
            let mut seen = Vec::new();
            for server in self.running() {
                seen.push(cluster_stats(server.admin).await);
            }
            if reached(&seen) {
                return Ok(begun.elapsed());
            }
            if begun.elapsed() > SETTLE {
                let short: Vec<String> = seen.iter().map(|node| in_short(node.as_ref())).collect();
                return Err(format!("shards are not held: {}", short.join("; ")).into());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl ServerSetup {
    fn key_file(&self) -> PathBuf {
        self.folder.join("cluster.key")
    }

    /// The same in another folder.
    pub(super) fn below(&self, folder: &Path, name: &str) -> Self {
        Self {
            folder: folder.join(name),
            ..self.clone()
        }
    }
}

impl Server {
    /// Returns the `cluster` object of its counters.
    pub(super) async fn stats(&self) -> Result<Value, Failure> {
        let stats = cluster_stats(self.admin).await;
        stats.ok_or_else(|| "a node does not show its counters".into())
    }

    pub(super) async fn client(&self) -> Result<SmallClient, Failure> {
        SmallClient::connect(self.s3).await
    }
}

/// A client that sends one request at a time.
pub(super) struct SmallClient {
    address: SocketAddr,
    client: Client,
}

impl SmallClient {
    pub(super) async fn connect(address: SocketAddr) -> Result<Self, Failure> {
        Ok(Self {
            address,
            client: connect(address, None).await?,
        })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    async fn send(&mut self, method: Method, key: &str, body: Bytes) -> Result<u64, Failure> {
        let request = Request::builder()
            .method(method)
            .uri(format!("/{BUCKET}/{key}"))
            .header(HOST, self.address.to_string())
            .body(Full::new(body))?;
        send(&mut self.client, request).await
    }

    /// Reads an object. Returns its bytes and the time.
    pub(super) async fn get(&mut self, key: &str) -> Result<(u64, Duration), Failure> {
        let begun = Instant::now();
        let bytes = self.send(Method::GET, key, Bytes::new()).await?;
        Ok((bytes, begun.elapsed()))
    }

    pub(super) async fn put(&mut self, key: &str, body: Bytes) -> Result<Duration, Failure> {
        let begun = Instant::now();
        self.send(Method::PUT, key, body).await?;
        Ok(begun.elapsed())
    }
}
