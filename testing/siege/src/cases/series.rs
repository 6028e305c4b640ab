//! The console: more names of series than anyone has, and many queries at once.

use std::time::Duration;

use bywash_support::http;
use bywash_support::sign::{KEY, SECRET};

use super::{Case, case};
use crate::Trouble;
use crate::field::Field;
use crate::process::Setup;
use crate::record::{Class, End};

pub(super) const CASES: &[Case] = &[
    case!("series-names", series_names),
    case!("series-queries", series_queries),
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
) -> Option<http::Reply> {
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
