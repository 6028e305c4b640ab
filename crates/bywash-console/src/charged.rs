//! Memory of responses as long as a table: charged before they are written, until they are sent.

use axum::body::{Body, HttpBody};
use axum::http::header::CONTENT_LENGTH;
use axum::response::Response;
use bywash::{Engine, Reservation, Share};
use http_body_util::BodyExt;

/// Memory of each written byte: a buffer that grows by doubling is there twice while it moves.
const GROWING: u64 = 3;

/// Bytes of a text as JSON or CSV writes it.
pub(crate) fn written(text: &str) -> u64 {
    let written = |byte: u8| match byte {
        b'"' | b'\\' => 2,
        0..0x20 => 6,
        _ => 1,
    };
    text.bytes().map(written).sum()
}

/// Charges a response: `values` bytes for what it is written from, and `text` bytes of text. `None` if there is no room now.
pub(crate) fn charge(engine: &Engine, values: u64, text: u64) -> Option<Reservation> {
    engine.try_reserve(Share::Upload, values + GROWING * text)
}

/// The response, which holds what its text takes of the charge until the body is sent or the client has left.
pub(crate) fn hold(mut response: Response, mut charge: Reservation) -> Response {
    // A body whose frames pass by a function does not know its length any more.
    if let Some(length) = response.body().size_hint().exact() {
        response.headers_mut().insert(CONTENT_LENGTH, length.into());
        // The buffer may have twice the room of its text.
        charge.shrink_to(2 * length);
    }
    let held = move |frame| {
        let _charge = &charge;
        frame
    };
    response.map(|body| Body::new(body.map_frame(held)))
}
