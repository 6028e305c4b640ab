//! The console: more series than memory holds the names of, many queries at once, and a restored copy.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use bywash_support::http;
use bywash_support::sign::{KEY, SECRET};

use super::{Case, case};
use crate::Trouble;
use crate::field::{Field, body};
use crate::process::Setup;
use crate::record::{Class, End};

pub(super) const CASES: &[Case] = &[
    case!("series-names", series_names),
    case!("series-queries", series_queries),
    case!("restored-copy", restored_copy),
];

/// Lines of one request.
const LINES: u64 = 500;
/// Names that a server of 64 MiB takes in any case: a sixteenth of its memory, at some 430 bytes each.
const TAKEN: u64 = 8_000;

/// Sends one request to the console and judges its status.
async fn admin(
    field: &Field,
    class: Class,
    (method, target): (&str, &str),
    body: &[u8],
    good: &[u16],
) -> Option<http::HttpResponse> {
    let token = format!("Token {KEY}:{SECRET}");
    let length = body.len().to_string();
    let headers = [("Authorization", &*token), ("Content-Length", &*length)];
    let mut request = http::head(method, target, &headers).into_bytes();
    request.extend_from_slice(body);
    let time = Duration::from_secs(20);
    let asked = super::raw::ask(field.admin(), method, &request, time).await;
    let reply = asked.ok();
    let end = match &reply {
        Some(reply) if good.contains(&reply.status) => End::Right,
        Some(reply) if reply.status >= 500 => End::Failed(format!("{target}: {}", reply.status)),
        Some(reply) => End::Wrong(format!("{target}: {} {}", reply.status, reply.text())),
        None => End::Failed(format!("{target}: no response")),
    };
    field.record.request(class, end);
    reply
}

fn lines(first: u64) -> String {
    (first..first + LINES)
        .map(|number| format!("siege,name=n{number} value={number}i 1700000000000000000\n"))
        .collect()
}

/// As many names of series as there are keys: those past the memory of names are refused, and the first are there.
async fn series_names(field: &mut Field) -> Result<(), Trouble> {
    field.serve(Setup::default()).await?;
    let mut refused = 0_u64;
    for first in (0..field.campaign.keys).step_by(LINES as usize) {
        let body = lines(first);
        let request = ("POST", "/api/v2/write");
        if first < TAKEN {
            admin(field, Class::Well, request, body.as_bytes(), &[204]).await;
            continue;
        }
        // 422 names the limit, 503 asks for another try.
        let class = Class::Past("memory of names");
        let reply = admin(field, class, request, body.as_bytes(), &[204, 422, 503]).await;
        refused += u64::from(reply.is_some_and(|reply| reply.status == 422));
    }
    field.record.figure("refused", refused);
    if refused == 0 {
        field
            .record
            .found("names past the memory of names were never refused");
    }
    let request = ("GET", &*one_query());
    let reply = admin(field, Class::Well, request, b"", &[200]).await;
    if reply.is_none_or(|reply| !reply.text().contains("n7")) {
        field.record.lost("the row of n7".to_owned());
    }
    Ok(())
}

/// The query of the eighth series, which is among the first written.
fn one_query() -> String {
    query("siege,name=n7", "value")
}

fn query(source: &str, metric: &str) -> String {
    format!(
        "/series/query?source={source}&metric={metric}&start=2023-11-14T00:00:00Z&end=2023-11-16T00:00:00Z"
    )
}

/// 400 queries of every series at once, whose clients go away without reading.
async fn series_queries(field: &mut Field) -> Result<(), Trouble> {
    field.serve_load(Setup::default()).await?;
    for first in (0..TAKEN).step_by(LINES as usize) {
        let request = ("POST", "/api/v2/write");
        admin(field, Class::Well, request, lines(first).as_bytes(), &[204]).await;
    }
    let address = field.admin();
    let token = format!("Token {KEY}:{SECRET}");
    let request = http::head("GET", &query("*", "*"), &[("Authorization", &token)]);
    field
        .crowd(400, |_| {
            let request = request.clone();
            async move {
                let Ok(mut socket) = super::raw::open(address, [127, 0, 0, 1]).await else {
                    return;
                };
                super::raw::push(&mut socket, request.as_bytes()).await;
                super::raw::sip(&mut socket, Duration::from_secs(5)).await;
            }
        })
        .await;
    let request = ("GET", &*one_query());
    admin(field, Class::Well, request, b"", &[200]).await;
    Ok(())
}

/// A server of a copy of a killed server's data folder has its objects and rows, those of files and those of the log.
async fn restored_copy(field: &mut Field) -> Result<(), Trouble> {
    field.serve(Setup::default()).await?;
    field.make_bucket("kept").await?;
    let object = body(field.seed, 1, 100_000);
    field.well().put("/kept/object", &object).await;
    let request = ("POST", "/api/v2/write");
    admin(field, Class::Well, request, lines(0).as_bytes(), &[204]).await;
    // Rows reach the log within a second; the next server flushes them, for they are old.
    tokio::time::sleep(Duration::from_secs(2)).await;
    field.kill_and_restart().await?;
    let files = field.data().join("series/files/files");
    for _ in 0..300 {
        if std::fs::read_dir(&files).is_ok_and(|mut entries| entries.next().is_some()) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let flushed = std::fs::read_dir(&files).map_or(0, Iterator::count);
    field.record.figure("files", flushed);
    if flushed == 0 {
        field.record.found("no row was flushed to a file");
    }
    admin(field, Class::Well, request, lines(LINES).as_bytes(), &[204]).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    field.kill_and_restart_after(replace_by_copy).await?;
    field.well().get("/kept/object", &object).await;
    for number in [7, LINES + 7] {
        let target = query(&format!("siege,name=n{number}"), "value");
        let reply = admin(field, Class::Well, ("GET", &target), b"", &[200]).await;
        if reply.is_none_or(|reply| !reply.text().contains(&format!("n{number}"))) {
            field.record.lost(format!("the row of n{number}"));
        }
    }
    Ok(())
}

/// Replaces a folder by a copy with its owners, modes and times, as a restored backup is.
fn replace_by_copy(folder: &Path) -> Result<(), Trouble> {
    let copy = folder.with_extension("copy");
    let copied = Command::new("cp")
        .arg("-a")
        .args([folder, &copy])
        .status()?;
    if !copied.success() {
        return Err("the data folder was not copied".into());
    }
    std::fs::remove_dir_all(folder)?;
    std::fs::rename(copy, folder)?;
    Ok(())
}
