//! The console: more names of series than fit in memory, many concurrent queries, and a restored copy.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use bywash_support::http;
use bywash_support::sign::{KEY, SECRET};

use super::hold::Hold;
use super::raw::{admin, exchange};
use super::{Case, case};
use crate::CaseError;
use crate::context::{CaseContext, body};
use crate::process::Setup;
use crate::record::{Class, Outcome};

pub(super) const CASES: &[Case] = &[
    case!("series-names", series_names),
    case!("series-queries", series_queries),
    case!("series-apart", series_apart),
    case!("restored-copy", restored_copy),
];

/// Lines of one request.
const LINES: u64 = 500;
/// Number of names that a server of 64 MiB always accepts: a sixteenth of its memory, at about 430 bytes each.
const ACCEPTED_NAMES: u64 = 8_000;

/// Maximum time of a query of every name.
const QUERY_TIME: Duration = Duration::from_secs(120);

fn lines(first: u64) -> String {
    (first..first + LINES)
        .map(|number| format!("siege,name=n{number} value={number}i 1700000000000000000\n"))
        .collect()
}

/// As many names of series as distinct objects: requests with names that do not fit in memory wait until others have left it, and
/// the rows of the first are kept.
async fn series_names(context: &mut CaseContext) -> Result<(), CaseError> {
    context.serve(Setup::default()).await?;
    let mut refused = 0_u64;
    for first in (0..context.campaign.keys).step_by(LINES as usize) {
        let body = lines(first);
        let request = ("POST", "/api/v2/write");
        if first < ACCEPTED_NAMES {
            admin(
                context,
                Class::WellBehaved,
                request,
                body.as_bytes(),
                &[204],
            )
            .await;
            continue;
        }
        // 503 requests a retry.
        let class = Class::Excessive("memory of names");
        let response = admin(context, class, request, body.as_bytes(), &[204, 503]).await;
        refused += u64::from(response.is_some_and(|response| response.status == 503));
    }
    context.record.figure("refused", refused);
    read_all_names(context).await;
    let request = ("GET", &*one_query());
    let response = admin(context, Class::WellBehaved, request, b"", &[200]).await;
    if response.is_none_or(|response| !response.text().contains("n7")) {
        context.record.lost_write("the row of n7".to_owned());
    }
    Ok(())
}

/// Four queries of every series at once, then four lists of them, then four reads of the counters: names in files are charged before they
/// are decoded, so each has a response or a 503.
async fn read_all_names(context: &CaseContext) {
    let (address, token) = (context.admin(), format!("Token {KEY}:{SECRET}"));
    let all = query("*", "*");
    let list = all.replacen("query", "list", 1);
    let class = Class::Excessive("memory of a query");
    for target in [&*all, &*list, "/metrics"] {
        let request = http::head("GET", target, &[("Authorization", &token)]);
        let ended = context.run_concurrently(4, |_| {
            let request = request.clone();
            async move { exchange(address, "GET", request.as_bytes(), QUERY_TIME).await }
        });
        for (number, response) in ended.await.into_iter().enumerate() {
            let end = match response.as_ref().map(|response| response.status) {
                Ok(200 | 503) => Outcome::Correct,
                Ok(status) => Outcome::Failed(format!("{target}: {status}")),
                Err(error) => Outcome::Failed(format!("{target}: {error}")),
            };
            let status = response.map_or(0, |response| response.status);
            context.record.figure(&format!("{target} {number}"), status);
            context.record.request(class, end);
        }
    }
}

/// Returns the query of the eighth series, which is among the first written.
fn one_query() -> String {
    query("siege,name=n7", "value")
}

fn query(source: &str, metric: &str) -> String {
    format!(
        "/series/query?source={source}&metric={metric}&start=2023-11-14T00:00:00Z&end=2023-11-16T00:00:00Z"
    )
}

/// 400 concurrent queries of every series, whose clients disconnect without reading.
async fn series_queries(context: &mut CaseContext) -> Result<(), CaseError> {
    context.serve_filled(Setup::default()).await?;
    for first in (0..ACCEPTED_NAMES).step_by(LINES as usize) {
        let request = ("POST", "/api/v2/write");
        admin(
            context,
            Class::WellBehaved,
            request,
            lines(first).as_bytes(),
            &[204],
        )
        .await;
    }
    let address = context.admin();
    let token = format!("Token {KEY}:{SECRET}");
    let request = http::head("GET", &query("*", "*"), &[("Authorization", &token)]);
    let hold = Hold::new(400);
    let attack = context.run_concurrently(400, |_| {
        let (request, hold) = (request.clone(), Arc::clone(&hold));
        async move {
            let Ok(mut socket) = super::raw::open(address, [127, 0, 0, 1]).await else {
                return hold.during(async {}).await;
            };
            super::raw::send_available(&mut socket, request.as_bytes()).await;
            hold.during(super::raw::read_slowly(&mut socket)).await;
        }
    });
    tokio::join!(attack, hold.end(context));
    let request = ("GET", &*one_query());
    admin(context, Class::WellBehaved, request, b"", &[200]).await;
    Ok(())
}

/// One client's rows two hours apart over sixteen years, and then the values of another client, which are accepted.
async fn series_apart(context: &mut CaseContext) -> Result<(), CaseError> {
    const ROWS: u64 = 70_000;
    const OF_REQUEST: u64 = 5_000;
    context.serve(Setup::default()).await?;
    let request = ("POST", "/api/v2/write?precision=h");
    for first in (0..ROWS).step_by(OF_REQUEST as usize) {
        let lines: String = (first..first + OF_REQUEST)
            .map(|number| format!("apart value={number}i {}\n", 2 * number))
            .collect();
        let class = Class::Excessive("memory of rows");
        admin(context, class, request, lines.as_bytes(), &[204, 503]).await;
        let own = format!("siege,name=n7 value={first}i 472222\n");
        admin(context, Class::WellBehaved, request, own.as_bytes(), &[204]).await;
    }
    for number in 0..30 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let own = format!("siege,name=n7 value={number}i 472222\n");
        admin(context, Class::WellBehaved, request, own.as_bytes(), &[204]).await;
    }
    let request = ("GET", &*one_query());
    let response = admin(context, Class::WellBehaved, request, b"", &[200]).await;
    if response.is_none_or(|response| !response.text().contains("n7")) {
        context.record.lost_write("the row of n7".to_owned());
    }
    Ok(())
}

/// A server on a copy of a killed server's data folder has its objects and rows, both of files and of the log.
async fn restored_copy(context: &mut CaseContext) -> Result<(), CaseError> {
    context.serve(Setup::default()).await?;
    context.create_bucket("kept").await?;
    let object = body(context.seed, 1, 100_000);
    context.well_behaved().put("/kept/object", &object).await;
    let request = ("POST", "/api/v2/write");
    admin(
        context,
        Class::WellBehaved,
        request,
        lines(0).as_bytes(),
        &[204],
    )
    .await;
    // Rows reach the log within a second. The next server flushes them because they are old.
    tokio::time::sleep(Duration::from_secs(2)).await;
    context.kill_and_restart().await?;
    let files = context.data().join("series/files/files");
    for _ in 0..300 {
        if std::fs::read_dir(&files).is_ok_and(|mut entries| entries.next().is_some()) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let flushed = std::fs::read_dir(&files).map_or(0, Iterator::count);
    context.record.figure("files", flushed);
    if flushed == 0 {
        context.record.finding("no row was flushed to a file");
    }
    admin(
        context,
        Class::WellBehaved,
        request,
        lines(LINES).as_bytes(),
        &[204],
    )
    .await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    context.kill_and_restart_after(replace_by_copy).await?;
    context.well_behaved().get("/kept/object", &object).await;
    for number in [7, LINES + 7] {
        let target = query(&format!("siege,name=n{number}"), "value");
        let response = admin(context, Class::WellBehaved, ("GET", &target), b"", &[200]).await;
        if response.is_none_or(|response| !response.text().contains(&format!("n{number}"))) {
            context.record.lost_write(format!("the row of n{number}"));
        }
    }
    Ok(())
}

/// Replaces a folder by a copy with the same owners, modes and times, like a restored backup.
fn replace_by_copy(folder: &Path) -> Result<(), CaseError> {
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
