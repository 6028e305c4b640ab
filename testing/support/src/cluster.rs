//! Processes of a cluster: etcd, and the arguments by which the program is one of its nodes.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use serde_json::Value;

use crate::http::{Connection, head};
use crate::process::without_settings;

/// Max wait until etcd is healthy: longer than it takes on a busy machine.
const START: Duration = Duration::from_secs(30);
/// Max wait for a response of an admin address, also of a node that is stopped.
const STATS: Duration = Duration::from_secs(2);
/// Time between two looks, and limit of one.
const LOOK: Duration = Duration::from_millis(20);

/// Returns etcd's program, which `BYWASH_ETCD` names; `None` if it is not set.
pub fn etcd_program() -> Option<PathBuf> {
    std::env::var_os("BYWASH_ETCD").map(PathBuf::from)
}

/// Returns an address that was free a moment ago, for programs that cannot report which one they chose.
///
/// # Errors
/// If no port can be bound.
pub fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")?.local_addr()
}

/// A command whose process is killed when the thread that starts it ends, so that no process outlives a test that was killed.
pub fn dying_with_this_thread(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(program);
    command
}

/// One member of etcd, without TLS, on loopback. Killed when dropped.
#[derive(Debug)]
pub struct Etcd {
    program: PathBuf,
    folder: PathBuf,
    client: SocketAddr,
    /// Addresses of all members for each other, and which is this one's.
    peers: Vec<SocketAddr>,
    number: usize,
    child: Option<Child>,
}

impl Drop for Etcd {
    fn drop(&mut self) {
        // There is nothing to do about a failure.
        let _ = self.kill();
    }
}

impl Etcd {
    /// Starts etcd with its data in `folder`, and waits until it is healthy. Blocks the thread.
    ///
    /// # Errors
    /// If it does not start, or is not healthy in time.
    pub fn start(program: &Path, folder: &Path) -> io::Result<Self> {
        let mut members = Self::start_members(program, folder, 1)?;
        members.pop().ok_or_else(|| io::Error::other("no member"))
    }

    /// Starts an etcd of so many members, each with its data in a folder of its own below `folder`, and waits until all are healthy.
    /// Blocks the thread.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_members(program: &Path, folder: &Path, count: usize) -> io::Result<Vec<Self>> {
        std::fs::create_dir_all(folder)?;
        let peers = (0..count).map(|_| free_address());
        let peers = peers.collect::<io::Result<Vec<_>>>()?;
        let mut members = Vec::new();
        for number in 0..count {
            let mut member = Self {
                program: program.to_path_buf(),
                folder: folder.join(format!("member-{number}")),
                client: free_address()?,
                peers: peers.clone(),
                number,
                child: None,
            };
            member.restart()?;
            members.push(member);
        }
        for member in &members {
            member.wait_until_healthy()?;
        }
        Ok(members)
    }

    /// Returns the address of its clients.
    pub fn address(&self) -> SocketAddr {
        self.client
    }

    /// Sends a signal, if it runs.
    ///
    /// # Errors
    /// If there is no such process.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        match &self.child {
            Some(child) => Ok(kill_process(Pid::from_child(child), signal)?),
            None => Ok(()),
        }
    }

    /// Kills it as a power failure would, and waits for its end.
    ///
    /// # Errors
    /// If it cannot be waited for.
    pub fn kill(&mut self) -> io::Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Starts it again after [`Self::kill`], with the same data and addresses. Does not wait.
    ///
    /// # Errors
    /// If it cannot be run.
    pub fn restart(&mut self) -> io::Result<()> {
        let log = self.folder.with_extension("log");
        let log = File::options().create(true).append(true).open(log)?;
        let (client, peer) = (self.client, self.peers[self.number]);
        let members = self.peers.iter().enumerate();
        let members = members.map(|(number, peer)| format!("member-{number}=http://{peer}"));
        let members = members.collect::<Vec<_>>().join(",");
        let mut command = dying_with_this_thread(&self.program);
        command
            .args(["--log-level=error", "--unsafe-no-fsync"])
            .arg(format!("--name=member-{}", self.number))
            .arg(format!("--data-dir={}", self.folder.display()))
            .arg(format!("--listen-client-urls=http://{client}"))
            .arg(format!("--advertise-client-urls=http://{client}"))
            .arg(format!("--listen-peer-urls=http://{peer}"))
            .arg(format!("--initial-advertise-peer-urls=http://{peer}"))
            .arg(format!("--initial-cluster={members}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        self.child = Some(command.spawn()?);
        Ok(())
    }

    /// Waits until it has a leader and takes requests. Blocks the thread.
    ///
    /// # Errors
    /// If that takes longer than half a minute.
    #[allow(
        clippy::disallowed_methods,
        reason = "another program, which does not report when it is healthy"
    )]
    pub fn wait_until_healthy(&self) -> io::Result<()> {
        let begun = Instant::now();
        while !self.is_healthy() {
            if begun.elapsed() > START {
                let log = self.folder.with_extension("log");
                return Err(io::Error::other(format!(
                    "etcd is not healthy after {START:?}: {}",
                    log.display()
                )));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    fn is_healthy(&self) -> bool {
        let look = || -> io::Result<String> {
            let mut socket = TcpStream::connect(self.client)?;
            socket.set_read_timeout(Some(10 * LOOK))?;
            socket.write_all(b"GET /health HTTP/1.0\r\n\r\n")?;
            let mut text = String::new();
            socket.read_to_string(&mut text)?;
            Ok(text)
        };
        look().is_ok_and(|text| text.contains("\"health\":\"true\""))
    }
}

/// Writes a new cluster key, by the program's own verb.
///
/// # Errors
/// If the program refuses.
pub fn write_key(bywash: &Path, file: &Path) -> io::Result<()> {
    let mut command = Command::new(bywash);
    command.args(["cluster", "key"]).arg(file);
    let output = without_settings(&mut command).output()?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(io::Error::other(format!("bywash cluster key: {text}")))
}

/// How a server is a node of a cluster.
#[derive(Debug, Clone)]
pub struct Membership {
    /// Addresses of etcd's members, or of links to them.
    pub etcd: Vec<SocketAddr>,
    /// Name of the cluster.
    pub name: String,
    pub key_file: PathBuf,
    /// Address at which the other nodes reach it.
    pub advertise: SocketAddr,
    /// Address at which it listens for them.
    pub listen: SocketAddr,
    pub drain: Duration,
}

impl Membership {
    /// Returns the options of `bywash serve`.
    pub fn arguments(&self) -> Vec<String> {
        let members = self.etcd.iter().map(ToString::to_string);
        let etcd = members.collect::<Vec<_>>().join(",");
        vec![
            format!("--cluster=etcd://{etcd}/{}", self.name),
            format!("--cluster-key-file={}", self.key_file.display()),
            format!("--advertise={}", self.advertise),
            format!("--peer-addr={}", self.listen),
            format!("--drain={}ms", self.drain.as_millis()),
        ]
    }
}

/// Returns the `cluster` object of a node's `/stats`; `None` if it does not respond in time, or is in no cluster.
pub async fn cluster_stats(admin: SocketAddr) -> Option<Value> {
    let look = async {
        let mut connection = Connection::open(admin).await.ok()?;
        let request = head("GET", "/stats", &[]).into_bytes();
        let response = connection.exchange("GET", &request).await.ok()?;
        let mut stats: Value = serde_json::from_slice(&response.body).ok()?;
        stats.get("cluster").filter(|of| of.is_object())?;
        Some(stats["cluster"].take())
    };
    tokio::time::timeout(STATS, look).await.ok()?
}

/// Returns whether these are all nodes, each is up, and they hold all shards together.
pub fn is_settled(seen: &[Option<Value>], nodes: usize) -> bool {
    let is_up = |cluster: &Option<Value>| {
        cluster.as_ref().is_some_and(|cluster| {
            let members = cluster["members"].as_array().map_or(0, Vec::len);
            cluster["state"] == "up" && members == nodes
        })
    };
    seen.len() == nodes && seen.iter().all(is_up) && hold_all_shards(seen)
}

/// Returns whether these nodes hold all shards together.
pub fn hold_all_shards(seen: &[Option<Value>]) -> bool {
    let seen = || seen.iter().flatten();
    let held: u64 = seen()
        .filter_map(|cluster| cluster["shards"].as_u64())
        .sum();
    seen().any(|cluster| cluster["shards_total"].as_u64() == Some(held))
}

/// Describes a node for a message.
pub fn in_short(cluster: Option<&Value>) -> String {
    let Some(cluster) = cluster else {
        return "no response".to_owned();
    };
    let members = cluster["members"].as_array().map_or(0, Vec::len);
    format!(
        "{} with {} shards, {members} members, etcd {}",
        cluster["state"], cluster["shards"], cluster["etcd_answers"]
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(state: &str, shards: u64) -> Option<Value> {
        Some(json!({"state": state, "shards": shards, "shards_total": 10, "members": [{}, {}]}))
    }

    #[test]
    fn cluster_is_settled_when_all_are_up_and_hold_all_shards() {
        assert!(is_settled(&[node("up", 4), node("up", 6)], 2));
        assert!(!is_settled(&[node("up", 4), node("up", 5)], 2));
        assert!(!is_settled(&[node("up", 4), node("leaving", 6)], 2));
        assert!(!is_settled(&[node("up", 10), None], 2));
        assert!(!is_settled(&[node("up", 4), node("up", 6)], 3));
        assert!(hold_all_shards(&[node("leaving", 4), None, node("up", 6)]));
        assert!(!hold_all_shards(&[node("leaving", 4), None]));
    }
}
