//! Copies through the server, which read and write at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use bywash_support::http::HttpResponse;
use tokio::task::JoinHandle;

use super::raw::exchange;
use super::{Case, case};
use crate::CaseError;
use crate::client::{Client, Expect, RESPONSE_TIMEOUT};
use crate::context::{CaseContext, body};
use crate::process::Setup;
use crate::record::{Class, Outcome};

pub(super) const CASES: &[Case] = &[
    case!("copies", copies),
    case!("metadata-changes", metadata_changes),
    case!("self-copies", self_copies),
];

/// Clients that copy at the same time; each object is a chunk of a server of 64 MiB.
const COPIES: u64 = 40;
const OBJECT: usize = 8 << 20;
/// Clients of `metadata-changes`, each with an object of its own.
const CHANGERS: u64 = 20;
/// Changes that each of them makes.
const CHANGES: u64 = 10;
/// Objects of `self-copies`, and the writes that each gets.
const WRITTEN: u64 = 8;
const WRITES: u64 = 40;
/// Clients that copy one of them onto itself.
const COPIERS: u64 = 3;

/// Starts a client that reads the object `background` and lists its bucket. Runs until it is aborted.
fn read_and_list(context: &CaseContext) -> JoinHandle<()> {
    let expected = body(context.seed, 1, 100_000);
    let mut reader = context.well_behaved();
    tokio::spawn(async move {
        loop {
            reader.get("/data/background", &expected).await;
            let listed = Expect::Status(&[200]);
            let list = ("GET", "/data", "list-type=2");
            reader.send(list, &[], b"", &listed).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
}

/// More copies than the memory has room for, beside readers and listings: each copy has other metadata, so its bytes pass through the
/// server.
async fn copies(context: &mut CaseContext) -> Result<(), CaseError> {
    let folder = context.bucket("data")?;
    for number in 0..COPIES {
        // Few files with many names, to save disk; each name is an object of the server.
        let path = folder.join(format!("from-{number}"));
        match number % 10 {
            0 => std::fs::write(path, body(context.seed, number, OBJECT))?,
            rest => std::fs::hard_link(folder.join(format!("from-{}", number - rest)), path)?,
        }
    }
    std::fs::write(folder.join("background"), body(context.seed, 1, 100_000))?;
    context.serve_filled(Setup::default()).await?;
    let background = read_and_list(context);
    let copied = context.run_concurrently(COPIES, |number| {
        let mut client = context.excessive("MAX_COPIES_MEMORY_DIVISOR");
        async move {
            let source = format!("/data/from-{number}");
            let headers = [
                ("x-amz-copy-source", source.as_str()),
                ("x-amz-metadata-directive", "REPLACE"),
                ("x-amz-meta-copy", "1"),
            ];
            let request = ("PUT", &*format!("/data/to-{number}"), "");
            let good = Expect::Status(&[200, 503]);
            let response = client.send(request, &headers, b"", &good).await;
            response.is_some_and(|response| response.status == 200)
        }
    });
    let copied = copied.await;
    background.abort();
    let done = (0..COPIES).zip(copied).filter(|(_, copied)| *copied);
    let done: Vec<u64> = done.map(|(number, _)| number).collect();
    context.record.figure("copied", done.len());
    for number in done {
        let source = number - number % 10;
        let expected = body(context.seed, source, OBJECT);
        let path = format!("/data/to-{number}");
        context.well_behaved().get(&path, &expected).await;
    }
    Ok(())
}

/// Copies an object onto itself with other metadata, and returns the status.
async fn copy_onto_itself(client: &mut Client, path: &str, mark: u64) -> Option<u16> {
    let mark = mark.to_string();
    let headers = [
        ("x-amz-copy-source", path),
        ("x-amz-metadata-directive", "REPLACE"),
        ("x-amz-meta-mark", mark.as_str()),
    ];
    let good = Expect::Status(&[200, 409, 412, 503]);
    let response = client.send(("PUT", path, ""), &headers, b"", &good).await;
    response.map(|response| response.status)
}

/// Twenty clients that change the metadata of an object of 8 MiB each, by PATCH of Google's API and by a copy onto itself of S3's, while
/// another client reads and lists.
async fn metadata_changes(context: &mut CaseContext) -> Result<(), CaseError> {
    let folder = context.bucket("data")?;
    for number in 0..CHANGERS {
        let path = folder.join(format!("own-{number}"));
        std::fs::write(path, body(context.seed, number, OBJECT))?;
    }
    std::fs::write(folder.join("background"), body(context.seed, 1, 100_000))?;
    let setup = Setup {
        gcs: true,
        anonymous: true,
        ..Setup::default()
    };
    context.serve_filled(setup).await?;
    let gcs = context.gcs()?;
    let background = read_and_list(context);
    let record = Arc::clone(&context.record);
    let changed = context.run_concurrently(CHANGERS, |number| {
        let mut client = context.excessive("MAX_COPIES_MEMORY_DIVISOR");
        let record = Arc::clone(&record);
        async move {
            let mut done = 0;
            for change in 0..CHANGES {
                if number % 2 == 0 {
                    let path = format!("/data/own-{number}");
                    let status = copy_onto_itself(&mut client, &path, change).await;
                    done += u64::from(status == Some(200));
                    continue;
                }
                let document = format!("{{\"metadata\":{{\"mark\":\"{change}\"}}}}");
                let request = format!(
                    "PATCH /storage/v1/b/data/o/own-{number} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n\
                     Content-Length: {}\r\n\r\n{document}",
                    document.len()
                );
                let response = exchange(gcs, "PATCH", request.as_bytes(), RESPONSE_TIMEOUT).await;
                let outcome = match response.map(|response| response.status) {
                    Ok(200) => Outcome::Correct,
                    Ok(429 | 503) => Outcome::SlowDown,
                    Ok(status) => Outcome::Failed(format!("PATCH: {status}")),
                    Err(error) => Outcome::Failed(format!("PATCH: {error}")),
                };
                done += u64::from(matches!(outcome, Outcome::Correct));
                record.request(Class::Excessive("MAX_COPIES_MEMORY_DIVISOR"), outcome);
            }
            done
        }
    });
    let changed: u64 = changed.await.into_iter().sum();
    background.abort();
    context.record.figure("changed", changed);
    if changed == 0 {
        context.record.finding("no change of metadata succeeded");
    }
    for number in 0..CHANGERS {
        let expected = body(context.seed, number, OBJECT);
        let path = format!("/data/own-{number}");
        context.well_behaved().get(&path, &expected).await;
    }
    Ok(())
}

/// Body of a write: its number, and bytes that depend on it.
fn numbered(seed: u64, write: u64, len: usize) -> Bytes {
    let mut bytes = write.to_be_bytes().to_vec();
    bytes.extend_from_slice(&body(seed, write, len));
    bytes.into()
}

/// Says what a read after the acknowledged write number `acknowledged` shows of a lost write. A response that is no object's, such as a
/// SlowDown, shows nothing.
fn lost(seed: u64, len: usize, acknowledged: u64, read: Option<&HttpResponse>) -> Option<String> {
    let read = read.filter(|read| acknowledged > 0 && matches!(read.status, 200 | 404))?;
    let stated = read.body.first_chunk();
    let stated = stated.map(|first| u64::from_be_bytes(*first));
    let whole = stated.is_some_and(|of| read.body == numbered(seed, of, len));
    (stated < Some(acknowledged) || !whole)
        .then(|| format!("is {stated:?} after {acknowledged}, whole: {whole}"))
}

/// Copies of objects onto themselves while each has one writer: no read is older than the last acknowledged write, nor mixed.
async fn self_copies(context: &mut CaseContext) -> Result<(), CaseError> {
    context.bucket("data")?;
    context.serve_filled(Setup::default()).await?;
    let ended = Arc::new(AtomicBool::new(false));
    let seed = context.seed;
    let copiers: Vec<JoinHandle<u64>> = (0..WRITTEN * COPIERS)
        .map(|number| {
            let mut client = context.excessive("copies of an object onto itself");
            let (path, ended) = (
                format!("/data/key-{}", number % WRITTEN),
                Arc::clone(&ended),
            );
            tokio::spawn(async move {
                let mut copied = 0;
                // Relaxed: only the end of the loop depends on it.
                while !ended.load(Ordering::Relaxed) {
                    let good = Expect::Status(&[200, 404]);
                    let head = client.send(("HEAD", &path, ""), &[], b"", &good).await;
                    if head.is_some_and(|head| head.status == 200) {
                        let status = copy_onto_itself(&mut client, &path, copied).await;
                        copied += u64::from(status == Some(200));
                    }
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                copied
            })
        })
        .collect();
    let record = Arc::clone(&context.record);
    let written = context.run_concurrently(WRITTEN, |number| {
        let mut client = context.well_behaved();
        // A read that meets two replacements before its first byte is SlowDown, as one of an object that changes all the time.
        let mut reader = context.excessive("copies of an object onto itself");
        let record = Arc::clone(&record);
        // Of one chunk, and of several frames.
        let len = if number % 2 == 0 { 64 << 10 } else { 2 << 20 };
        async move {
            let path = format!("/data/key-{number}");
            let mut acknowledged = 0;
            for write in 1..=WRITES {
                if client.put(&path, &numbered(seed, write, len)).await {
                    acknowledged = write;
                }
                let good = Expect::Status(&[200, 404]);
                let read = reader.send(("GET", &path, ""), &[], b"", &good).await;
                if let Some(text) = lost(seed, len, acknowledged, read.as_ref()) {
                    record.lost_write(format!("{path} {text}"));
                }
            }
            acknowledged
        }
    });
    let written: u64 = written.await.into_iter().sum();
    // Relaxed as above.
    ended.store(true, Ordering::Relaxed);
    let mut copied = 0;
    for copier in copiers {
        copied += copier.await.unwrap_or(0);
    }
    context.record.figure("writes", written);
    context.record.figure("copies", copied);
    if copied == 0 || written == 0 {
        context.record.finding("nothing was copied or written");
    }
    Ok(())
}
