//! Tables of the page: buckets, memory by owner, errors by status.

use axum::http::StatusCode;
use bywash::traffic::Latencies;
use maud::{Markup, html};

use super::format::{NONE, Unit, bytes, count, encoded, latency};
use super::render::more;
use super::view::{ROWS, View, saved};

fn share(part: u64, all: u64) -> String {
    match all {
        0 => NONE.to_owned(),
        all => Unit::Share.text(part as f64 / all as f64),
    }
}

/// The median and the 99th percentile.
fn p50_p99(latencies: &Latencies) -> String {
    let [p50, p99] = [0.5, 0.99].map(|share| latencies.quantile(share));
    match (p50, p99) {
        (Some(p50), Some(p99)) => format!("{} / {}", latency(p50), latency(p99)),
        _ => NONE.to_owned(),
    }
}

/// Renders a row for each bucket, or for the one in the page's address.
pub(super) fn buckets(view: &View) -> Markup {
    let names = [
        "Bucket",
        "Requests",
        "last minute",
        "Reads from memory",
        "Bytes saved",
        "Hits 50 / 99 %",
        "Misses 50 / 99 %",
        "Read",
        "From the origin",
        "Origin requests",
        "Repeated",
        "Hedged",
        "Origin errors",
    ];
    html! {
        h2 id="buckets" { "Buckets, since the start" }
        @if view.stats.buckets.is_empty() {
            p class="empty" { "There is no bucket yet." }
        } @else {
            div class="card" {
                table class="dense" aria-labelledby="buckets" {
                    thead { tr { @for name in names { th scope="col" { (name) } } } }
                    tbody { @for name in view.shown_buckets().take(ROWS) { (bucket(view, name)) } }
                }
            }
            (more(view.shown_buckets().count(), ROWS))
        }
        @if view.bucket.is_some() {
            p { a href={ "/?" (view.range.query()) } { "All buckets" } }
        }
    }
}

fn bucket(view: &View, name: &str) -> Markup {
    let counters = view.stats.buckets.get(name).copied().unwrap_or_default();
    let reads = view.reads.get(name).cloned().unwrap_or_default();
    let (hits, misses) = (reads.hits.count(), reads.misses.count());
    let minute = view.minute.bucket(name, &counters);
    let rate = minute.map_or(NONE.to_owned(), |grown| {
        Unit::Rate.text(view.minute.rate(grown.requests, 0))
    });
    let errors = view.origins.get(name).map_or(NONE.to_owned(), |stats| {
        let kinds = stats.errors.iter();
        let kinds =
            kinds.map(|(kind, errors)| format!("{} {}", count(*errors as f64), kind.name()));
        kinds.collect::<Vec<_>>().join(", ")
    });
    html! {
        tr {
            th scope="row" { a href={ "/?" (view.range.query()) "&bucket=" (encoded(name)) } { (name) } }
            td { (count(counters.requests as f64)) }
            td { (rate) }
            td { (share(hits, hits + misses)) }
            td { (share(saved(&counters), counters.bytes)) }
            td { (p50_p99(&reads.hits)) }
            td { (p50_p99(&reads.misses)) }
            td { (bytes(counters.bytes as f64)) }
            td { (bytes(counters.origin_bytes as f64)) }
            td { (count(counters.origin_requests as f64)) }
            td { (count(counters.retries as f64)) }
            td { (count(counters.hedges as f64)) }
            td { (errors) }
        }
    }
}

/// Renders the memory in use by owner.
pub(super) fn memory(view: &View) -> Markup {
    let (budget, pool) = (&view.stats.budget, &view.stats.pool);
    let loading = budget.downloads.saturating_sub(pool.resident_bytes);
    let rows = [
        ("Blocks in memory", pool.resident_bytes),
        ("Loads, downloads and responses", loading),
        ("Writes, uploads and tables", budget.uploads),
        ("Free frames", budget.idle),
    ];
    html! {
        h2 id="memory" { "Memory now" }
        div class="card" {
            table aria-labelledby="memory" {
                thead { tr { th scope="col" { "Held by" } th scope="col" { "Bytes" } th scope="col" { "Of the limit" } } }
                tbody {
                    @for (owner, held) in rows {
                        tr { th scope="row" { (owner) } td { (bytes(held as f64)) } td { (share(held, budget.limit)) } }
                    }
                }
            }
        }
    }
}

/// Renders the number of error responses, and of clients that left before one.
pub(super) fn errors(view: &View) -> Markup {
    let errors: Vec<_> = view
        .statuses
        .iter()
        .filter(|(status, _)| *status == 0 || *status >= 400)
        .collect();
    html! {
        h2 id="errors" { "Errors by status" }
        @if errors.is_empty() {
            p class="empty" { "No request failed." }
        } @else {
            div class="card" {
                table aria-labelledby="errors" {
                    thead { tr { th scope="col" { "Status" } th scope="col" { "Last minute" } th scope="col" { "Since the start" } } }
                    tbody {
                        @for (status, total) in errors {
                            tr {
                                th scope="row" { (status_name(*status)) }
                                td { (count(total.saturating_sub(view.minute.before.status(*status)) as f64)) }
                                td { (count(*total as f64)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn status_name(status: u16) -> String {
    let code = StatusCode::from_u16(status).ok();
    match code.and_then(|code| code.canonical_reason()) {
        Some(reason) => format!("{status} {reason}"),
        None if status == 0 => "The client left".to_owned(),
        None => status.to_string(),
    }
}
