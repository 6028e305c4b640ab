//! Cases of the local door: processes that are killed while they read leased memory, leases beyond all loans, garbage.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bywash::LocalStats;
use bywash_client::{ByteRange, Client, GetOptions, Object};
use bywash_support::pattern;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::{JoinSet, spawn_blocking};

use super::hold::Hold;
use super::{Case, case};
use crate::CaseError;
use crate::context::{CaseContext, body};
use crate::process::Setup;

pub(super) const CASES: &[Case] = &[
    case!("local-kills", killed_clients),
    case!("local-leases", leases_beyond_the_loans),
    case!("local-garbage", garbage_on_the_socket),
];

/// Processes killed in the gate, and in a full run.
const KILLS: (u64, u64) = (300, 10_000);
/// Processes that run at the same time.
const AT_ONCE: usize = 4;
/// Clients that hold the largest lease, in the gate and in a full run.
const HOLDERS: (usize, usize) = (250, 1_000);
/// Connections that send garbage, in the gate and in a full run.
const GARBAGE: (u64, u64) = (500, 20_000);
/// Maximum time after the last client's death until no frame of it is held.
const RELEASED: Duration = Duration::from_secs(1);
/// Bytes of the object that clients read.
const OBJECT_BYTES: usize = 8 << 20;
const BUCKET: &str = "local";
const KEY: &str = "object";

/// First argument of this program when it is a client that the case `local-kills` kills.
pub const CLIENT_ARGUMENT: &str = "--local-client";

fn socket(context: &CaseContext) -> PathBuf {
    context.data().join("local.sock")
}

/// Creates the object that clients read.
fn object(context: &CaseContext) -> Result<(), CaseError> {
    let path = context.bucket(BUCKET)?.join(KEY);
    Ok(std::fs::write(path, body(0, 0, OBJECT_BYTES))?)
}

/// Reads ranges for ever, holds some of the views and releases others. Prints a line when the first one is there, and ends with an error
/// if a byte is wrong.
pub fn client(socket: &Path, seed: u64) -> Result<(), Box<dyn std::error::Error>> {
    let expected = pattern(0, OBJECT_BYTES);
    let bucket = Client::connect_to(socket)?.bucket(BUCKET);
    let mut random = StdRng::seed_from_u64(seed);
    let mut held: Vec<Object> = Vec::new();
    loop {
        let start = random.random_range(0..OBJECT_BYTES);
        let end = random.random_range(start + 1..=OBJECT_BYTES);
        let read = bucket.get_range(KEY, start as u64..end as u64)?;
        held.push(read);
        for object in &held {
            let mut at = object.range.start as usize;
            for segment in object.bytes.segments() {
                if expected[at..at + segment.len()] != *segment {
                    return Err(format!("wrong bytes at {at}").into());
                }
                at += segment.len();
            }
        }
        if held.len() == 1 {
            println!("reading");
        }
        while held.len() > 4 || (held.len() > 1 && random.random_bool(0.5)) {
            held.swap_remove(random.random_range(0..held.len()));
        }
    }
}

/// Starts a client in a process of its own, and waits until it reads.
fn spawn(socket: &Path, seed: u64) -> Result<Child, CaseError> {
    let mut child = Command::new(std::env::current_exe()?)
        .arg(CLIENT_ARGUMENT)
        .arg(socket)
        .arg(seed.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let output = child.stdout.as_mut().ok_or("a child without output")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    if line.trim() == "reading" {
        return Ok(child);
    }
    Err(ended_by_itself(child))
}

/// The error of a client that ended before it was killed.
fn ended_by_itself(child: Child) -> CaseError {
    let output = child.wait_with_output();
    let said = output.map(|output| String::from_utf8_lossy(&output.stderr).into_owned());
    CaseError(format!(
        "a local client ended by itself: {}",
        said.unwrap_or_default()
    ))
}

/// Writes an object through the S3 endpoint, which serves as before.
async fn endpoint_serves(context: &CaseContext) {
    let object = body(context.seed, 3, 100);
    let path = format!("/{BUCKET}/other");
    context.well_behaved().put(&path, &object).await;
}

/// Kills processes at random moments. No frame stays held, and none of them ever sees a wrong byte.
async fn killed_clients(context: &mut CaseContext) -> Result<(), CaseError> {
    object(context)?;
    context.serve_filled(Setup::default()).await?;
    endpoint_serves(context).await;
    let kills = if context.campaign.is_full() {
        KILLS.1
    } else {
        KILLS.0
    };
    let (socket, seed) = (socket(context), context.seed);
    let killing = spawn_blocking({
        let socket = socket.clone();
        move || kill_clients(&socket, seed, kills)
    });
    killing
        .await
        .map_err(|error| CaseError(error.to_string()))??;
    released(context, &socket).await
}

#[allow(
    clippy::disallowed_methods,
    reason = "the pace of attackers, on a thread of its own"
)]
fn kill_clients(socket: &Path, seed: u64, kills: u64) -> Result<(), CaseError> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut running: Vec<Child> = Vec::new();
    for number in 0..kills {
        running.push(spawn(socket, seed ^ number)?);
        std::thread::sleep(Duration::from_micros(random.random_range(0..3_000)));
        if running.len() == AT_ONCE {
            let mut victim = running.swap_remove(random.random_range(0..AT_ONCE));
            if victim.try_wait()?.is_some() {
                return Err(ended_by_itself(victim));
            }
            victim.kill()?;
            victim.wait()?;
        }
    }
    for mut child in running {
        child.kill()?;
        child.wait()?;
    }
    Ok(())
}

/// Checks that the server soon holds nothing for clients.
#[allow(
    clippy::disallowed_methods,
    reason = "polls a server, on a thread of its own"
)]
async fn released(context: &CaseContext, socket: &Path) -> Result<(), CaseError> {
    let (socket, record) = (socket.to_owned(), std::sync::Arc::clone(&context.record));
    let checked = spawn_blocking(move || -> Result<(), CaseError> {
        let failed = |error: bywash_client::Error| CaseError(error.to_string());
        let began = Instant::now();
        let client = Client::connect_to(&socket).map_err(failed)?;
        loop {
            let status = client.status().map_err(failed)?;
            let stats: LocalStats =
                serde_json::from_str(&status).map_err(|error| CaseError(error.to_string()))?;
            if stats.leased_bytes == 0 {
                return Ok(());
            }
            if began.elapsed() > RELEASED {
                record.finding(format!(
                    "{} bytes are leased {} ms after the last client's death",
                    stats.leased_bytes,
                    RELEASED.as_millis()
                ));
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    checked
        .await
        .map_err(|error| CaseError(error.to_string()))?
}

/// Many clients each hold all that they can get, while others are served. Then the limit is lowered.
async fn leases_beyond_the_loans(context: &mut CaseContext) -> Result<(), CaseError> {
    object(context)?;
    context.serve_filled(Setup::default()).await?;
    endpoint_serves(context).await;
    let holders = if context.campaign.is_full() {
        HOLDERS.1
    } else {
        HOLDERS.0
    };
    let socket = socket(context);
    let hold = Hold::new(holders as u64);
    let mut clients = JoinSet::new();
    for _ in 0..holders {
        let (socket, hold) = (socket.clone(), std::sync::Arc::clone(&hold));
        clients.spawn(async move {
            let read = spawn_blocking(move || -> Result<_, bywash_client::Error> {
                let bucket = Client::connect_to(socket)?.bucket(BUCKET);
                let object = bucket.get_with(KEY, ByteRange::Whole(()), &GetOptions::default());
                object.map(|object| (bucket, object))
            });
            let held = read.await;
            // Beyond the limit of connections a client is refused by its reason.
            hold.during(async {
                let _held = held;
                std::future::pending::<()>().await;
            })
            .await;
        });
    }
    hold.end(context).await;
    while clients.join_next().await.is_some() {}
    released(context, &socket).await
}

/// Bytes that are not of the protocol, whole and cut messages, silent connections.
async fn garbage_on_the_socket(context: &mut CaseContext) -> Result<(), CaseError> {
    object(context)?;
    context.serve_filled(Setup::default()).await?;
    endpoint_serves(context).await;
    let count = if context.campaign.is_full() {
        GARBAGE.1
    } else {
        GARBAGE.0
    };
    let (socket, seed) = (socket(context), context.seed);
    let sending = spawn_blocking({
        let socket = socket.clone();
        move || send_garbage(&socket, seed, count)
    });
    sending
        .await
        .map_err(|error| CaseError(error.to_string()))??;
    released(context, &socket).await
}

fn send_garbage(socket: &Path, seed: u64, count: u64) -> Result<(), CaseError> {
    const HELLO: &[u8] = b"\x11\0\0\0\x01\0\0\0\x01\0\0\0\x01BYWL\x01\0\x06\0\0\0hostil";
    let mut random = StdRng::seed_from_u64(seed);
    let mut silent = Vec::new();
    for _ in 0..count {
        // Refused while as many as the server allows are open.
        let Ok(mut stream) = UnixStream::connect(socket) else {
            continue;
        };
        let len = random.random_range(0..2_000);
        let mut bytes: Vec<u8> = (0..len).map(|_| random.random()).collect();
        if random.random_bool(0.7) {
            let mut valid = HELLO.to_vec();
            if random.random_bool(0.5) {
                // A head that announces a request of any length.
                let len: u32 = random.random_range(0..5 << 20);
                valid.extend(len.to_le_bytes());
                valid.extend([2, 0, 0, 0, 1, 0, 0, 0]);
            }
            valid.append(&mut bytes);
            bytes = valid;
        }
        // The server may have closed the connection.
        let _ = stream.write_all(&bytes);
        if random.random_bool(0.2) {
            silent.push(stream);
        }
        if silent.len() > 100 {
            silent.swap_remove(random.random_range(0..100));
        }
    }
    Ok(())
}
