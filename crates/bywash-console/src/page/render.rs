//! Renders the page as HTML.

use bywash::traffic::RequestKind;
use chrono::{DateTime, Local, Utc};
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::chart::{COLOUR_NAMES, Chart};
use super::format::{NONE, Unit, bytes, count, encoded, lasted, latency, time_label};
use super::range::{Preset, Range, input};
use super::tables;
use super::view::{View, hit_ratio, saved};
use super::{OpenUpload, actions, cluster, disk, local};

/// Max rows of the table under a chart, newest points first.
const POINTS: usize = 24;

fn document(title: &str, body: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="robots" content="noindex";
                title { (title) }
                link rel="icon" href="/assets/icon.svg" type="image/svg+xml";
                link rel="stylesheet" href="/assets/console.css";
            }
            body { (body) }
        }
    }
}

/// Renders the login form.
pub(super) fn login(next: &str, wrong: Option<&str>) -> Markup {
    document(
        "Log in - Bywash",
        &html! {
            main class="login card" {
                h1 { "Bywash" }
                p { "This page requires the server's key. " code { "bywash env" } " prints it." }
                @if let Some(wrong) = wrong {
                    p class="wrong" role="alert" { (wrong) }
                }
                form method="post" action="/login" {
                    input type="hidden" name="next" value=(next);
                    label for="access_key" { "Access key" }
                    input id="access_key" name="access_key" autocomplete="username" autofocus required;
                    label for="secret_key" { "Secret key" }
                    input id="secret_key" name="secret_key" type="password" autocomplete="current-password" required;
                    button type="submit" { "Log in" }
                }
            }
        },
    )
}

/// Renders the page after a button: the outcome, and the way back.
pub(super) fn outcome(done: &Markup, back: &str) -> Markup {
    document(
        "Bywash",
        &html! {
            main class="outcome card" {
                h1 { "Bywash" }
                (done)
                p { a href=(back) { "Back to the page" } }
            }
        },
    )
}

/// Renders the page.
pub(super) fn page(view: &View, anonymous: bool) -> Markup {
    document(
        "Bywash",
        &html! {
            a class="skip" href="#live" { "To the content" }
            header {
                h1 { a href="/" { "Bywash" } }
                (ranges(view))
                div class="end" {
                    span id="status" role="status" {}
                    button id="refresh" type="button" hidden { "Pause" }
                    @if !anonymous {
                        form method="post" action="/logout" { button type="submit" { "Log out" } }
                    }
                }
            }
            main id="live" tabindex="-1" data-at=(Local::now().format("%H:%M:%S")) {
                @if let Some(name) = &view.only {
                    (only(name, view))
                } @else {
                    (overview(view))
                }
            }
            footer {
                "Times are in the server's zone, UTC" (zone()) ". More: "
                a href="/metrics" { "metrics" } ", " a href="/stats" { "stats" } "."
            }
            script src="/assets/console.js" defer {}
        },
    )
}

/// The server's offset from UTC.
fn zone() -> String {
    Local::now().format("%:z").to_string()
}

fn overview(view: &View) -> Markup {
    html! {
        @if let Some(wrong) = &view.wrong_range { p class="wrong" role="alert" { (wrong) } }
        (health(view))
        (tiles(view))
        @if !view.charts.is_empty() {
            h2 { "Charts of " (view.range.words()) ", in UTC" (zone()) }
            div class="charts" { @for (index, chart) in view.charts.iter().enumerate() { (figure(chart, index)) } }
        }
        (tables::buckets(view))
        @if let Some(bucket) = view.bucket.as_ref().filter(|name| view.stats.buckets.contains_key(*name)) {
            (actions::of_bucket(view, bucket))
        }
        (hottest(view))
        // The rest is not counted by bucket.
        @if view.bucket.is_none() {
            (latencies(view))
            (tables::errors(view))
            (tables::memory(view))
            (disk::section(view))
            (cluster::section(view))
            (local::section(view))
            (uploads(view))
            (series(view))
        }
    }
}

/// Renders one series alone.
fn only(name: &str, view: &View) -> Markup {
    html! {
        h2 { (name) }
        @if view.charts.is_empty() {
            p class="empty" { "No series of this name has a point in " (view.range.words()) "." }
        }
        @for (index, chart) in view.charts.iter().enumerate() { (figure(chart, index)) }
        p { a href={ "/?" (view.range.query()) } { "All charts" } }
    }
}

fn ranges(view: &View) -> Markup {
    let kept = [("series", &view.only), ("bucket", &view.bucket)];
    let kept: Vec<_> = kept
        .into_iter()
        .filter_map(|(name, value)| Some((name, value.as_deref()?)))
        .collect();
    let rest: String = kept
        .iter()
        .map(|(name, value)| format!("&{name}={}", encoded(value)))
        .collect();
    let (from, to) = view.inputs;
    html! {
        nav aria-label="Range" {
            ul {
                @for preset in Preset::ALL {
                    li {
                        a id={ "range-" (preset.name) } href={ "/?range=" (preset.name) (rest) }
                            aria-current=[(view.range == Range::Last(preset)).then_some("true")] { (preset.label) }
                    }
                }
            }
            details id="between" {
                summary aria-current=[matches!(view.range, Range::Between(..)).then_some("true")] {
                    @match view.range { Range::Between(..) => (view.range.words()), Range::Last(_) => "Other range" }
                }
                form method="get" action="/" {
                    @for (name, value) in kept { input type="hidden" name=(name) value=(value); }
                    @for (name, label, at) in [("from", "From", from), ("to", "To", to)] {
                        label for=(name) { (label) }
                        input id=(name) name=(name) type="datetime-local" step="1" required value=(input(at));
                    }
                    span { "UTC" (zone()) }
                    button type="submit" { "Show" }
                }
            }
        }
    }
}

/// Renders a chart: its picture, a description, and its newest points as a table.
fn figure(chart: &Chart, index: usize) -> Markup {
    let unit = chart.unit;
    html! {
        figure {
            h3 { (chart.title) }
            @if chart.is_empty() {
                p class="none" { "Nothing in this range." }
            } @else {
                ul class="legend" {
                    @for (line, colour) in chart.lines.iter().zip(COLOUR_NAMES) {
                        @if let Some((_, last)) = line.points.last() {
                            li {
                                svg viewBox="0 0 18 10" aria-hidden="true" { path d="M0 5h18" stroke=(colour) stroke-width="3" {} }
                                (line.label) ": " (unit.text(*last))
                            }
                        }
                    }
                    @if let Some(start) = chart.last_start() {
                        li {
                            svg viewBox="0 0 18 10" aria-hidden="true" { path d="M9 0v10" stroke="#555552" stroke-width="2" {} }
                            "server started: " (start)
                        }
                    }
                }
                div class="plot" id={ "plot-" (index) } role="img" aria-label={ (chart.title) ": " (chart.words()) }
                    data-labels=(chart.labels()) data-points=(chart.points_of_pixels()) {
                    (PreEscaped(chart.svg()))
                }
                details id={ "table-" (index) } {
                    summary { "As a table" }
                    (points(chart))
                }
            }
        }
    }
}

fn points(chart: &Chart) -> Markup {
    html! {
        table {
            thead { tr { th scope="col" { "Time" } @for line in &chart.lines { th scope="col" { (line.label) } } } }
            tbody {
                @for (at, values) in chart.newest(POINTS) {
                    tr {
                        th scope="row" { (time_label(at, chart.span)) }
                        @for value in values { td { (value.map_or(NONE.to_owned(), |value| chart.unit.text(value))) } }
                    }
                }
            }
        }
    }
}

fn tile(name: &str, value: &str, note: &Markup) -> Markup {
    html! {
        div {
            dt { (name) }
            dd { div class="value" { (value) } div class="note" { (note) } }
        }
    }
}

/// Renders the health of the server, with the reasons for which it is degraded.
fn health(view: &View) -> Markup {
    let version = env!("CARGO_PKG_VERSION");
    let process = format!(" Bywash {version}, up {}.", lasted(view.uptime));
    html! {
        section class={ "health " @if view.reasons.is_empty() { "well" } @else { "degraded" } } aria-label="Health" {
            @if view.reasons.is_empty() {
                p { strong { "The server is well." } (process) }
            } @else {
                p { strong { "The server is degraded." } (process) }
                ul { @for reason in &view.reasons { li { (reason) } } }
            }
        }
    }
}

/// Renders rates of the last minute, and current levels.
fn tiles(view: &View) -> Markup {
    let (minute, now) = (&view.minute, &view.stats);
    let (grown, before) = (&view.grown, &minute.before.counted);
    let rate = |now, before| Unit::Rate.text(minute.rate(now, before));
    let share = hit_ratio(grown).map_or(NONE.to_owned(), |ratio| Unit::Share.text(ratio));
    let of_bucket = html! {
        (tile("Hit ratio", &share, &html! { (count(grown.hits as f64)) " of " (count((grown.hits + grown.misses) as f64)) " blocks" }))
        (tile("Bytes saved", &Unit::ByteRate.text(minute.rate(saved(grown), 0)), &html! { "of " (Unit::ByteRate.text(minute.rate(grown.bytes, 0))) " read" }))
        (tile("Origin requests", &rate(grown.origin_requests, 0), &html! { (rate(grown.origin_data_requests, 0)) " for data" }))
    };
    if let Some(bucket) = &view.bucket {
        return html! {
            h2 { "The last minute, bucket " (bucket) }
            dl class="tiles" { (of_bucket) }
        };
    }
    let reads = RequestKind::Read as usize;
    let reads = view.latencies[reads].1.since(&before.latencies[reads]);
    let reads = reads.quantile(0.99).map_or(NONE.to_owned(), latency);
    let (traffic, budget) = (&view.traffic, &now.budget);
    html! {
        h2 { "The last minute" }
        dl class="tiles" {
            (of_bucket)
            (tile("Requests", &rate(traffic.requests, before.traffic.requests), &html! { (count(traffic.failed.saturating_sub(before.traffic.failed) as f64)) " failed" }))
            (tile("Read latency", &reads, &html! { "99 % of reads begin within" }))
            (tile("Evictions", &rate(now.pool.evictions, before.stats.pool.evictions), &html! { (count(now.pool.resident_blocks as f64)) " blocks in memory now" }))
            (tile("Memory now", &bytes(budget.used as f64), &html! {
                meter min="0" max=(budget.limit) value=(budget.used) aria-label="Memory used" {}
                "of " (bytes(budget.limit as f64))
            }))
            (tile("Waiting for memory now", &count(budget.waiting as f64), &html! { "requests" }))
            (tile("Connections now", &count(traffic.connections as f64), &html! { (count(traffic.in_flight as f64)) " requests in flight" }))
        }
    }
}

fn latencies(view: &View) -> Markup {
    let quantile = |of: &bywash::traffic::Latencies, share| {
        of.quantile(share).map_or(NONE.to_owned(), latency)
    };
    html! {
        h2 id="latency" { "Time to the first byte of a response, since the start" }
        div class="card" {
            table aria-labelledby="latency" {
                thead { tr { th scope="col" { "Requests that" } th scope="col" { "Count" } th scope="col" { "Half within" } th scope="col" { "90 %" } th scope="col" { "99 %" } } }
                tbody {
                    @for (kind, of) in &view.latencies {
                        tr {
                            th scope="row" { (kind.name()) }
                            td { (count(of.count() as f64)) }
                            @for share in [0.5, 0.9, 0.99] { td { (quantile(of, share)) } }
                        }
                    }
                }
            }
        }
    }
}

/// Renders the number of rows that are not shown.
pub(super) fn more(all: usize, shown: usize) -> Markup {
    html! {
        @if all > shown { p class="empty" { "and " (all - shown) " more" } }
    }
}

fn uploads(view: &View) -> Markup {
    html! {
        h2 id="uploads" { "Open uploads" }
        @if view.uploads.newest.is_empty() {
            p class="empty" { "No upload is open." }
        } @else {
            div class="card" {
                table aria-labelledby="uploads" {
                    thead { tr { @for name in ["Object", "Progress", "Safe", "Of", "Began", "By", ""] { th scope="col" { (name) } } } }
                    tbody { @for (index, upload) in view.uploads.newest.iter().enumerate() { (upload_row(upload, index)) } }
                }
            }
            (more(view.uploads.total, view.uploads.newest.len()))
        }
        @if view.uploads.partial {
            p class="empty" { "Of the uploads that the nodes of the cluster share, some are missing here." }
        }
    }
}

fn upload_row(upload: &OpenUpload, index: usize) -> Markup {
    html! {
        tr {
            th scope="row" { (upload.target) }
            td {
                @if let (Some(length), Some(bytes)) = (upload.length, upload.bytes) {
                    progress max=(length.max(1)) value=(bytes) aria-label={ "Progress of " (upload.target) } {}
                } @else { (NONE) }
            }
            td { (upload.bytes.map_or(NONE.to_owned(), |stored| bytes(stored as f64))) }
            td { (upload.length.map_or(NONE.to_owned(), |length| bytes(length as f64))) }
            td { (upload.began.map_or(NONE.to_owned(), clock)) }
            td { (upload.note) }
            td { @if let Some(client) = &upload.client { (actions::of_upload(client, index)) } }
        }
    }
}

fn clock(at: DateTime<Utc>) -> String {
    at.with_timezone(&Local)
        .format("%Y-%m-%d %H:%M:%S")
        .to_string()
}

fn hottest(view: &View) -> Markup {
    html! {
        h2 id="hottest" { "Hottest objects" }
        @if view.hottest.is_empty() {
            p class="empty" { "No object was read of late." }
        } @else {
            div class="card" {
                table aria-labelledby="hottest" {
                    thead { tr { @for name in ["Object", "Reads of late", "Bytes"] { th scope="col" { (name) } } } }
                    tbody {
                        @for object in &view.hottest {
                            tr {
                                th scope="row" {
                                    a href={ "/?bucket=" (encoded(&object.bucket)) "&why=" (encoded(&object.key)) "#memory-of-bucket" } {
                                        (object.bucket) "/" (object.key)
                                    }
                                }
                                td { (count(object.requests as f64)) }
                                td { (bytes(object.bytes as f64)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn series(view: &View) -> Markup {
    html! {
        h2 { "Series" }
        @if view.series.is_empty() {
            p { "Write a value, and it is drawn here:" }
            pre class="card" { code { "curl -u KEY:SECRET --data-binary 'weather,place=garden temperature=21.5' http://" (view.address) "/write" } }
        } @else {
            ul class="names card" {
                @for name in &view.series {
                    @let name = format!("{}/{}", name.source, name.metric);
                    li { a href={ "/?" (view.range.query()) "&series=" (encoded(&name)) } { (name) } }
                }
            }
            @if view.more_series { p class="empty" { "and more; " code { "/series/list" } " has all" } }
        }
    }
}
