//! The buttons of the page: warm, drop, abort an upload. They are HTML forms, so that they need no script.
//!
//! A page of another site can send a form as well. Three things keep it out: the browser's `Origin` header must name this server, the
//! session's cookie is `SameSite=Strict`, and no page may frame this one.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Form, Router, middleware};
use bywash::{CacheChange, CacheExplanation};
use maud::{Markup, html};

use super::format::{bytes, count, encoded};
use super::render::outcome;
use super::view::View;
use super::{ClientUpload, html};
use crate::cache::{CacheTarget, Refusal, dropped, warmed};
use crate::{Shared, body, csrf};

/// Failures that are named after a button.
const NAMED: usize = 10;

pub(crate) fn routes() -> Router<Shared> {
    Router::new()
        .route("/actions/warm", body::small(post(warm)))
        .route("/actions/drop", body::small(post(drop_objects)))
        .route("/actions/abort", body::small(post(abort)))
        .route_layer(middleware::from_fn(csrf::require_own_page))
}

async fn warm(State(shared): State<Shared>, Form(target): Form<CacheTarget>) -> Response {
    let back = bucket_page(&target.bucket);
    let changed = warmed(&shared.engine, &target).await;
    respond(
        changed.map(|change| changed_text("Read into memory", &change)),
        &back,
    )
}

async fn drop_objects(State(shared): State<Shared>, Form(target): Form<CacheTarget>) -> Response {
    let back = bucket_page(&target.bucket);
    let changed = dropped(&shared.engine, target).await;
    respond(
        changed.map(|change| changed_text("Dropped from memory", &change)),
        &back,
    )
}

async fn abort(State(shared): State<Shared>, Form(upload): Form<ClientUpload>) -> Response {
    let target = format!("{}/{}", upload.bucket, upload.key);
    let aborted = (shared.uploads.abort)(upload).await;
    let aborted = aborted.map_err(|reason| Refusal(StatusCode::CONFLICT, reason));
    let done = aborted
        .map(|()| html! { p { "Aborted the upload of " (target) ". Its parts are deleted." } });
    respond(done, "/")
}

fn bucket_page(bucket: &str) -> String {
    format!("/?bucket={}", encoded(bucket))
}

/// The page after a button: the outcome, or the reason of a refusal.
fn respond(done: Result<Markup, Refusal>, back: &str) -> Response {
    match done {
        Ok(done) => html(outcome(&done, back)),
        Err(Refusal(status, reason)) => {
            let reason = html! { p class="wrong" role="alert" { "That failed: " (reason) } };
            (status, html(outcome(&reason, back))).into_response()
        }
    }
}

fn objects(number: u64) -> String {
    match number {
        1 => "1 object".to_owned(),
        number => format!("{} objects", count(number as f64)),
    }
}

fn changed_text(what: &str, change: &CacheChange) -> Markup {
    html! {
        p { (what) ": " (objects(change.objects)) ", " (bytes(change.bytes as f64)) "." }
        @if change.left_out > 0 {
            p { "Left out for lack of memory: " (objects(change.left_out)) "." }
        }
        @if !change.failed.is_empty() {
            p { "Could not be read:" }
            ul { @for failure in change.failed.iter().take(NAMED) { li { (failure) } } }
        }
    }
}

/// Renders the buttons of a bucket, and the requested explanation.
pub(super) fn of_bucket(view: &View, bucket: &str) -> Markup {
    let explained = view
        .why
        .as_ref()
        .and_then(|why| Some(why.as_ref().ok()?.key.as_str()));
    let fields = |name: &str, label: &str| {
        html! {
            input type="hidden" name="bucket" value=(bucket);
            label for={ "action-" (name) } { (label) }
            input id={ "action-" (name) } name=(name) maxlength="1024" value=[explained];
        }
    };
    html! {
        h2 id="memory-of-bucket" { "Memory of bucket " (bucket) }
        form class="action" method="post" action="/actions/warm" {
            (fields("prefix", "Keys that begin with"))
            button type="submit" { "Read into memory" }
            button type="submit" formaction="/actions/drop" { "Drop from memory" }
            span class="hint" { "Empty: the whole bucket" }
        }
        form class="action" method="get" action="/" {
            (fields("why", "Key"))
            button type="submit" { "Why is it in memory, or not?" }
        }
        @if let Some(why) = &view.why { (explanation(why)) }
    }
}

fn explanation(why: &Result<CacheExplanation, String>) -> Markup {
    html! {
        div class="card why" role="status" {
            @match why {
                Err(reason) => p class="wrong" { (reason) },
                Ok(why) => {
                    p { strong { (why.key) } ": a read would be a " strong { (why.outcome) } "." }
                    ul { @for reason in &why.reasons { li { (reason) } } }
                    @if let Some(object) = &why.object {
                        p { (object.resident_blocks) " of " (object.blocks) " blocks are in memory, "
                            (bytes(object.resident_bytes as f64)) " of " (bytes(object.size as f64)) ". Version " (object.version) "." }
                    }
                },
            }
        }
    }
}

/// Renders the button that aborts an upload, behind a first one that only shows it.
pub(super) fn of_upload(upload: &ClientUpload, index: usize) -> Markup {
    html! {
        details id={ "abort-" (index) } {
            summary { "Abort" }
            form method="post" action="/actions/abort" {
                @for (name, value) in [("bucket", &upload.bucket), ("key", &upload.key), ("upload", &upload.upload)] {
                    input type="hidden" name=(name) value=(value);
                }
                button type="submit" { "Delete its parts" }
            }
        }
    }
}
