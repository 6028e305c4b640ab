//! Many concurrent, slow or stalled clients: readers, listings, request bodies, heads, connections.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::hold::Hold;
use super::raw::{
    closed_within, exchange, head_of, open, read_slowly, send_available, unsigned_payload,
};
use super::{Case, case};
use crate::CaseError;
use crate::client::Expect;
use crate::context::{CaseContext, body};
use crate::process::Setup;
use crate::record::{Class, Outcome};

pub(super) const CASES: &[Case] = &[
    case!("listings", listings),
    case!("request-xml", request_xml),
    case!("slow-readers", slow_readers),
    case!("tls", tls),
    case!("stalled-puts", stalled_puts),
    case!("dribbled-puts", dribbled_puts),
    case!("slow-clients", slow_clients),
    case!("heads", heads),
    case!("half-open", half_open),
    case!("connections", connections),
    case!("small-ranges", small_ranges),
    case!("metadata", metadata),
    case!("access-keys", access_keys),
];

/// Number of readers of `slow-readers`, each of an object of 4 MiB.
const SLOW_READERS: u64 = 500;
/// Readers of `tls`: handshakes of more at once would measure the siege's own processor.
const TLS_READERS: u64 = 60;
/// Clients of `tls` whose handshakes do not go on.
const STALLED_HANDSHAKES: u64 = 300;
/// Clients of `dribbled-puts`: three times as many as have memory at 64 MiB.
const DRIBBLERS: u64 = 20;
/// Time between two bytes of their bodies: less than the silence for which a body loses its memory.
const DRIBBLE: Duration = Duration::from_secs(4);
/// Bytes of a body that needs the memory of a chunk.
const LARGE: usize = 8 << 20;
/// Number of such writes while they dribble. None gets SlowDown, which a request for memory gets after 10 s.
const LARGE_WRITES: u64 = 3;
/// Number of silent connections of `connections`: ten times as many as the server accepts.
const SILENT: u64 = 10_240;
/// Source address of attackers in cases on the limit of connections by address.
const ATTACKER: [u8; 4] = [127, 0, 0, 2];
const LOCAL: [u8; 4] = [127, 0, 0, 1];
/// Maximum time of a head, with a margin for a busy machine.
const HEAD_TIME: Duration = Duration::from_secs(20);
/// Maximum time of a response: requests wait for memory for some seconds.
const RESPONSE_TIME: Duration = Duration::from_secs(60);

/// Sends `count` requests and reads at most a few bytes of their responses.
async fn hold_requests(
    context: &CaseContext,
    count: u64,
    from: [u8; 4],
    request: impl Fn(u64) -> Vec<u8>,
) {
    let address = context.address();
    let hold = Hold::new(count);
    let attack = context.run_concurrently(count, |number| {
        let (bytes, hold) = (request(number), Arc::clone(&hold));
        async move {
            let Ok(mut socket) = open(address, from).await else {
                hold.during(async {}).await;
                return false;
            };
            send_available(&mut socket, &bytes).await;
            hold.during(read_slowly(&mut socket)).await;
            true
        }
    });
    let (held, ()) = tokio::join!(attack, hold.end(context));
    let held = held.into_iter().filter(|held| *held).count();
    context.record.figure("held", held);
}

/// Starts a well-behaved client that reads an object repeatedly during the attack.
async fn read_in_background(
    context: &CaseContext,
    path: &'static str,
    expected: Bytes,
) -> tokio::task::JoinHandle<()> {
    let mut client = context.well_behaved();
    tokio::spawn(async move {
        loop {
            client.get(path, &expected).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
}

/// Starts a server with an object that well-behaved clients read during the attack.
async fn serve(context: &mut CaseContext, setup: Setup) -> Result<(), CaseError> {
    let folder = context.bucket("data")?;
    std::fs::write(folder.join("background"), body(context.seed, 1, 100_000))?;
    std::fs::write(folder.join("large"), body(context.seed, 2, 4 << 20))?;
    context.serve_filled(setup).await?;
    Ok(())
}

/// 900 readers of a page of 3 MB, with a read-only key.
async fn listings(context: &mut CaseContext) -> Result<(), CaseError> {
    let folder = context.bucket("long")?;
    for number in 0..1000 {
        // Escaped characters triple the length of the response.
        let part = |length: usize| "+".repeat(length);
        let folder = folder.join(part(240)).join(part(240)).join(part(240));
        if number == 0 {
            std::fs::create_dir_all(&folder)?;
        }
        std::fs::write(folder.join(format!("{}{number:04}", part(230))), "x")?;
    }
    let keys = "[[key]]\naccess-key = \"reader\"\nsecret-key = \"only-reads\"\nread-only = true\n";
    serve(context, Setup::default().config(keys)).await?;
    let background =
        read_in_background(context, "/data/background", body(context.seed, 1, 100_000)).await;
    let reader = CaseContext::account("reader", "only-reads");
    let query = "encoding-type=url&list-type=2&max-keys=1000";
    hold_requests(context, 900, LOCAL, |_| {
        head_of(&reader, ("GET", "/long", query), None)
    })
    .await;
    background.abort();
    Ok(())
}

/// 300 clients that send 4 MiB of XML except for its last bytes.
async fn request_xml(context: &mut CaseContext) -> Result<(), CaseError> {
    serve(context, Setup::default()).await?;
    let background =
        read_in_background(context, "/data/background", body(context.seed, 1, 100_000)).await;
    let length = (4 << 20) - 1;
    let xml = format!("<Delete>{}", " ".repeat(length - 100));
    hold_requests(context, 300, LOCAL, |_| {
        let mut request = unsigned_payload(("POST", "/data", "delete="), Some(length as u64));
        request.extend_from_slice(xml.as_bytes());
        request
    })
    .await;
    background.abort();
    Ok(())
}

/// 500 readers at a few bytes a second, each of a different object: 30 times the server's memory, so that no two
/// readers share a block.
async fn slow_readers(context: &mut CaseContext) -> Result<(), CaseError> {
    read_by_all(context, Setup::default(), SLOW_READERS).await
}

/// `slow-readers` over TLS, next to clients whose handshakes do not go on.
async fn tls(context: &mut CaseContext) -> Result<(), CaseError> {
    let setup = Setup {
        tls: true,
        ..Setup::default()
    };
    read_by_all(context, setup, TLS_READERS).await?;
    let address = context.bare_address();
    // Nothing; the head of a client hello without its rest; a request in plain text.
    let sent: [&[u8]; 3] = [b"", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n\r\n"];
    let handshakes = context.run_concurrently(STALLED_HANDSHAKES, |number| async move {
        let Ok(mut socket) = open(address, ATTACKER).await else {
            // It was never open.
            return true;
        };
        send_available(&mut socket, sent[number as usize % sent.len()]).await;
        closed_within(&mut socket, 2 * HEAD_TIME).await.is_some()
    });
    let reading = async {
        let mut client = context.well_behaved();
        for _ in 0..20 {
            client
                .get("/data/background", &body(context.seed, 1, 100_000))
                .await;
        }
    };
    let (closed, ()) = tokio::join!(handshakes, reading);
    let open = closed.iter().filter(|closed| !**closed).count();
    context.record.figure("still open", open);
    if open > 0 {
        let text = format!("{open} connections without a handshake stay open");
        context.record.finding(text);
    }
    Ok(())
}

async fn read_by_all(
    context: &mut CaseContext,
    setup: Setup,
    readers: u64,
) -> Result<(), CaseError> {
    let folder = context.bucket("data")?;
    for number in 0..readers {
        let path = folder.join(format!("slow-{number}"));
        // Few files with many names, to save disk; each name is an object of the server.
        match number % 50 {
            0 => std::fs::write(path, body(context.seed, number, 4 << 20))?,
            rest => std::fs::hard_link(folder.join(format!("slow-{}", number - rest)), path)?,
        }
    }
    serve(context, setup).await?;
    let background =
        read_in_background(context, "/data/background", body(context.seed, 1, 100_000)).await;
    hold_requests(context, readers, LOCAL, |number| {
        let path = format!("/data/slow-{number}");
        unsigned_payload(("GET", &path, ""), None)
    })
    .await;
    background.abort();
    Ok(())
}

/// 900 writers that stall within their bodies.
async fn stalled_puts(context: &mut CaseContext) -> Result<(), CaseError> {
    serve(context, Setup::default()).await?;
    let background =
        read_in_background(context, "/data/background", body(context.seed, 1, 100_000)).await;
    let half = body(context.seed, 3, 300_000);
    hold_requests(context, 900, LOCAL, |number| {
        let path = format!("/data/stalled-{number}");
        let mut request = unsigned_payload(("PUT", &path, ""), Some(1 << 20));
        request.extend_from_slice(&half);
        request
    })
    .await;
    background.abort();
    for number in (0..900).step_by(90) {
        let path = format!("/data/stalled-{number}");
        let absent = Expect::Status(&[404]);
        context
            .well_behaved()
            .send(("HEAD", &path, ""), &[], b"", &absent)
            .await;
    }
    Ok(())
}

/// PUTs that send one byte every 4 s and hold the memory of a chunk each, while another client writes objects of a chunk.
async fn dribbled_puts(context: &mut CaseContext) -> Result<(), CaseError> {
    serve(context, Setup::default()).await?;
    let background =
        read_in_background(context, "/data/background", body(context.seed, 1, 100_000)).await;
    let begun = body(context.seed, 3, 20_000);
    let address = context.address();
    let mut senders = JoinSet::new();
    for number in 0..DRIBBLERS {
        let path = format!("/data/dribbled-{number}");
        let mut request = unsigned_payload(("PUT", &path, ""), Some(LARGE as u64));
        request.extend_from_slice(&begun);
        senders.spawn(async move {
            let Ok(mut socket) = open(address, LOCAL).await else {
                return;
            };
            send_available(&mut socket, &request).await;
            while socket.write_all(b"x").await.is_ok() {
                tokio::time::sleep(DRIBBLE).await;
            }
        });
    }
    // Each holds memory by then, or waits for it.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let large = body(context.seed, 4, LARGE);
    let mut client = context.well_behaved();
    let (mut longest, mut acknowledged) = (Duration::ZERO, 0);
    for number in 0..LARGE_WRITES {
        let begun = Instant::now();
        let path = format!("/data/large-{number}");
        acknowledged += u64::from(client.put(&path, &large).await);
        longest = longest.max(begun.elapsed());
    }
    senders.shutdown().await;
    background.abort();
    let seconds = longest.as_secs_f64();
    context
        .record
        .figure("slowest write of 8 MiB, s", format!("{seconds:.1}"));
    if acknowledged < LARGE_WRITES {
        context.record.finding(format!(
            "{acknowledged} of {LARGE_WRITES} writes of 8 MiB were acknowledged while {DRIBBLERS} senders dribbled"
        ));
    }
    Ok(())
}

/// All operations, by clients that send or read a few bytes a second.
async fn slow_clients(context: &mut CaseContext) -> Result<(), CaseError> {
    serve(context, Setup::default()).await?;
    let background =
        read_in_background(context, "/data/background", body(context.seed, 1, 100_000)).await;
    let (s3, admin) = (context.address(), context.admin());
    let operations: [(&str, &str, &str, Option<u64>); 9] = [
        ("GET", "/data/large", "", None),
        ("HEAD", "/data/large", "", None),
        ("PUT", "/data/slow", "", Some(100_000)),
        ("GET", "/data", "list-type=2", None),
        ("POST", "/data", "delete=", Some(100_000)),
        ("POST", "/data/parts", "uploads=", Some(0)),
        (
            "PUT",
            "/data/parts",
            "partNumber=1&uploadId=none",
            Some(100_000),
        ),
        ("POST", "/data/parts", "uploadId=none", Some(100_000)),
        ("GET", "/", "", None),
    ];
    let count = 40 * (operations.len() as u64 + 1);
    let hold = Hold::new(count);
    let attack = context.run_concurrently(count, |number| {
        let which = number as usize % (operations.len() + 1);
        let hold = Arc::clone(&hold);
        async move {
            let (address, request) = match operations.get(which) {
                Some(&(method, path, query, length)) => {
                    (s3, unsigned_payload((method, path, query), length))
                }
                None => (
                    admin,
                    b"GET /stats HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".to_vec(),
                ),
            };
            let Ok(mut socket) = open(address, LOCAL).await else {
                return hold.during(async {}).await;
            };
            // Even numbers send their head slowly, odd ones read the response slowly.
            if number % 2 == 0 {
                let slowly = async {
                    for piece in request.chunks(16) {
                        send_available(&mut socket, piece).await;
                        tokio::time::sleep(Duration::from_millis(200)).await;
                    }
                };
                hold.during(slowly).await;
            } else {
                send_available(&mut socket, &request).await;
                hold.during(read_slowly(&mut socket)).await;
            }
        }
    });
    tokio::join!(attack, hold.end(context));
    background.abort();
    Ok(())
}

/// Starts a well-behaved client that repeatedly sends 15 KB, its head and its body by one write. Each request has a
/// response: it is served, or gets SlowDown.
fn post_in_background(context: &CaseContext) -> tokio::task::JoinHandle<()> {
    let (address, record) = (context.address(), Arc::clone(&context.record));
    let body = body(context.seed, 2, 15_000);
    tokio::spawn(async move {
        loop {
            let head = unsigned_payload(("PUT", "/data/posted", ""), Some(body.len() as u64));
            let request = [&head, &*body].concat();
            let outcome = match exchange(address, "PUT", &request, RESPONSE_TIME).await {
                Ok(response) if response.status == 200 => Outcome::Correct,
                Ok(response) if response.status == 503 => Outcome::SlowDown,
                Ok(response) => Outcome::Failed(format!("15 KB: {}", response.status)),
                Err(error) => Outcome::Failed(format!("15 KB: no response: {error}")),
            };
            record.request(Class::WellBehaved, outcome);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
}

/// 1,000 heads of 60 KB that never end: each connection is closed at its deadline, or gets SlowDown.
async fn heads(context: &mut CaseContext) -> Result<(), CaseError> {
    serve(context, Setup::default()).await?;
    let background =
        read_in_background(context, "/data/background", body(context.seed, 1, 100_000)).await;
    let posts = post_in_background(context);
    let head = format!(
        "GET /data/background HTTP/1.1\r\nHost: 127.0.0.1\r\nx-long: {}",
        "a".repeat(60_000)
    );
    let address = context.address();
    let closed = context
        .run_concurrently(1000, |_| {
            let head = head.clone();
            async move {
                let mut socket = open(address, ATTACKER).await.ok()?;
                send_available(&mut socket, head.as_bytes()).await;
                closed_within(&mut socket, HEAD_TIME).await
            }
        })
        .await;
    background.abort();
    posts.abort();
    let open = closed.iter().filter(|closed| closed.is_none()).count();
    context.record.figure("still open", open);
    if open > 0 {
        let seconds = HEAD_TIME.as_secs();
        context.record.finding(format!(
            "{open} of 1000 unfinished heads are open after {seconds} s"
        ));
    }
    Ok(())
}

/// As many half-open connections from one address as the server accepts: other addresses are still accepted.
async fn half_open(context: &mut CaseContext) -> Result<(), CaseError> {
    serve(context, Setup::default()).await?;
    let background =
        read_in_background(context, "/data/background", body(context.seed, 1, 100_000)).await;
    hold_requests(context, 1100, ATTACKER, |_| {
        b"GET /data/background HTTP/1.1\r\nHost:".to_vec()
    })
    .await;
    background.abort();
    Ok(())
}

/// Ten times as many silent connections as the server accepts.
async fn connections(context: &mut CaseContext) -> Result<(), CaseError> {
    serve(context, Setup::default()).await?;
    let background =
        read_in_background(context, "/data/background", body(context.seed, 1, 100_000)).await;
    let address = context.address();
    // Connections in the backlog of the listener count as well.
    let hold = Hold::new(SILENT);
    let attack = context.run_concurrently(SILENT, |_| {
        let hold = Arc::clone(&hold);
        async move {
            let socket = open(address, ATTACKER).await;
            hold.during(std::future::pending::<()>()).await;
            socket.is_ok()
        }
    });
    let (opened, ()) = tokio::join!(attack, hold.end(context));
    background.abort();
    let opened = opened.into_iter().filter(|opened| *opened).count();
    context.record.figure("opened", opened);
    Ok(())
}

/// Small ranges of large objects, from the first byte to past the last.
async fn small_ranges(context: &mut CaseContext) -> Result<(), CaseError> {
    serve(context, Setup::default()).await?;
    let (seed, count) = (context.seed, context.campaign.keys / 5 / 16);
    let large = body(seed, 2, 4 << 20);
    context
        .run_concurrently(16, |reader| {
            let (mut client, large) = (context.well_behaved(), large.clone());
            async move {
                for round in 0..count {
                    let offset = (reader * 7919 + round * 104_729) as usize % large.len();
                    let end = (offset + 100).min(large.len());
                    let range = format!("bytes={offset}-{}", end - 1);
                    let headers = [("range", range.as_str())];
                    let expect = Expect::Bytes(large.slice(offset..end));
                    client
                        .send(("GET", "/data/large", ""), &headers, b"", &expect)
                        .await;
                }
            }
        })
        .await;
    Ok(())
}

/// Objects with the maximum metadata of S3, and with one byte more.
async fn metadata(context: &mut CaseContext) -> Result<(), CaseError> {
    serve(context, Setup::default()).await?;
    let (seed, count) = (context.seed, context.campaign.keys / 50 / 16);
    context
        .run_concurrently(16, |writer| {
            let (mut client, mut past) = (
                context.well_behaved(),
                context.excessive("MAX_METADATA_BYTES"),
            );
            async move {
                // The name without its prefix counts as well.
                let (value, more) = ("v".repeat(2047), "v".repeat(2048));
                for round in 0..count {
                    let path = format!("/data/meta/{writer}/{round}");
                    let small = body(seed, round, 10);
                    let headers = [("x-amz-meta-a", value.as_str())];
                    let good = Expect::Status(&[200]);
                    client
                        .send(("PUT", &path, ""), &headers, &small, &good)
                        .await;
                    client.get(&path, &small).await;
                }
                let refused = Expect::Status(&[400]);
                let headers = [("x-amz-meta-a", more.as_str())];
                past.send(("PUT", "/data/past", ""), &headers, b"", &refused)
                    .await;
            }
        })
        .await;
    Ok(())
}

/// A thousand valid keys, and ten thousand invalid ones.
async fn access_keys(context: &mut CaseContext) -> Result<(), CaseError> {
    let keys: String = (0..1000)
        .map(|number| format!("[[key]]\naccess-key = \"key-{number}\"\nsecret-key = \"secret-{number}\"\nread-only = true\n"))
        .collect();
    serve(context, Setup::default().config(keys)).await?;
    let (seed, count) = (context.seed, context.campaign.tenfold(1000));
    context
        .run_concurrently(16, |task| {
            let (mut known, mut unknown) =
                (context.well_behaved(), context.excessive("an unknown key"));
            async move {
                for number in (task..count).step_by(16) {
                    let refused = Expect::Status(&[403]);
                    unknown.account = CaseContext::account(&format!("no-{number}"), "none");
                    unknown
                        .send(("GET", "/data/background", ""), &[], b"", &refused)
                        .await;
                    if number % 10 == 0 {
                        let key = number / 10;
                        known.account =
                            CaseContext::account(&format!("key-{key}"), &format!("secret-{key}"));
                        known.get("/data/background", &body(seed, 1, 100_000)).await;
                        known
                            .send(("PUT", "/data/no", ""), &[], b"x", &refused)
                            .await;
                    }
                }
            }
        })
        .await;
    Ok(())
}
