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

async fn admin(
    field: &Field,
    class: Class,
    method: &str,
    target: &str,
    body: &[u8],
    good: &[u16],
) -> Option<http::Reply> {
    admin_at(
        field.admin(),
        &field.record,
        class,
        (method, target),
        body,
        good,
    )
    .await
}

/// Sends one request to the console and judges its status.
async fn admin_at(
    address: std::net::SocketAddr,
    record: &crate::record::Record,
    class: Class,
    (method, target): (&str, &str),
    body: &[u8],
    good: &[u16],
) -> Option<http::Reply> {
    let token = format!("Token {KEY}:{SECRET}");
    let headers = [("Authorization", token.as_str())];
    let mut headers = headers.to_vec();
    let length = body.len().to_string();
    headers.push(("Content-Length", &length));
    let mut request = http::head(method, target, &headers).into_bytes();
    request.extend_from_slice(body);
    let time = Duration::from_secs(20);
    let reply = super::raw::ask(address, method, &request, time).await.ok();
    let end = match &reply {
        Some(reply) if good.contains(&reply.status) => End::Right,
        Some(reply) if reply.status >= 500 => End::Failed(format!("{target}: {}", reply.status)),
        Some(reply) => End::Wrong(format!("{target}: {} {}", reply.status, reply.text())),
        None => End::Failed(format!("{target}: no response")),
    };
    record.request(class, end);
    reply
}

fn lines(first: u64) -> String {
    (first..first + LINES)
        .map(|number| format!("siege,name=n{number} value={number}i 1700000000000000000\n"))
        .collect()
}

/// As many names of series as there are keys, and then those written first are there.
async fn series_names(field: &mut Field) -> Result<(), Trouble> {
    field.serve(Setup::default()).await?;
    let count = field.campaign.keys;
    for first in (0..count).step_by(LINES as usize) {
        // Past the memory that names may take, a refusal is right; 507 and 413 are the console's words for it.
        let class = Class::Past("memory of names");
        let good = [204, 413, 429, 503, 507];
        admin(
            field,
            class,
            "POST",
            "/api/v2/write",
            lines(first).as_bytes(),
            &good,
        )
        .await;
    }
    let target = "/series/query?source=siege,name=n7&metric=value&start=2023-11-14T00:00:00Z&end=2023-11-16T00:00:00Z";
    let reply = admin(field, Class::Well, "GET", target, b"", &[200]).await;
    if reply.is_none_or(|reply| !reply.text().contains('7')) {
        field.record.lost("the row of n7".to_owned());
    }
    Ok(())
}

/// 400 queries of every series at once, whose clients go away without reading.
async fn series_queries(field: &mut Field) -> Result<(), Trouble> {
    field.serve_load(Setup::default()).await?;
    for first in (0..20_000).step_by(LINES as usize) {
        admin(
            field,
            Class::Well,
            "POST",
            "/api/v2/write",
            lines(first).as_bytes(),
            &[204],
        )
        .await;
    }
    let address = field.admin();
    let token = format!("Token {KEY}:{SECRET}");
    let target =
        "/series/query?source=*&metric=*&start=2023-11-14T00:00:00Z&end=2023-11-16T00:00:00Z";
    let request = http::head("GET", target, &[("Authorization", &token)]);
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
    let one = "/series/query?source=siege,name=n7&metric=value&start=2023-11-14T00:00:00Z&end=2023-11-16T00:00:00Z";
    admin(field, Class::Well, "GET", one, b"", &[200]).await;
    Ok(())
}
