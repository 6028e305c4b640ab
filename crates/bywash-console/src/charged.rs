//! Memory of long responses: charged before they are rendered, until they are sent.

use axum::body::Body;
use axum::http::StatusCode;
use axum::http::header::CONTENT_LENGTH;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use bywash::{Engine, Reservation, Share};
use http_body_util::BodyExt;

/// Memory of each written byte. A buffer that grows by doubling ends with up to twice the room of its text, and the allocator
/// keeps the rooms that it left, which are as much again: measured, 3.4.
const GROWING: u64 = 4;

/// Bytes of a text as JSON or CSV writes it.
pub(crate) fn written(text: &str) -> u64 {
    let written = |byte: u8| match byte {
        b'"' | b'\\' => 2,
        0..0x20 => 6,
        _ => 1,
    };
    text.bytes().map(written).sum()
}

/// Charges a response: `values` bytes of values and `text` bytes of rendered text. `None` if that does not fit now.
pub(crate) fn charge(engine: &Engine, values: u64, text: u64) -> Option<Reservation> {
    engine.try_reserve(Share::Upload, values + GROWING * text)
}

/// Charges a response whose text is rendered into a buffer of `text` bytes, which it does not exceed. `None` if that does not fit now.
pub(crate) fn charge_written(engine: &Engine, values: u64, text: u64) -> Option<Reservation> {
    engine.try_reserve(Share::Upload, values + text)
}

/// Binds the charge of a response's text to its bytes: they may stay in the connection's buffer long after the body
/// was polled to its end.
pub(crate) async fn hold(response: Response, charge: Reservation) -> Response {
    hold_room(response, charge, |text| GROWING * text).await
}

/// As [`hold`], of a text in a buffer of `room` bytes.
pub(crate) async fn hold_written(response: Response, charge: Reservation, room: u64) -> Response {
    hold_room(response, charge, |_| room).await
}

/// Keeps the charge of `room` of the text's length.
async fn hold_room(
    response: Response,
    mut charge: Reservation,
    room: impl FnOnce(u64) -> u64,
) -> Response {
    let (mut parts, body) = response.into_parts();
    let text = match body.collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => {
            tracing::warn!(%error, "a response could not be written");
            return StatusCode::INTERNAL_SERVER_ERROR.into_response();
        }
    };
    charge.shrink_to(room(text.len() as u64));
    parts.headers.insert(CONTENT_LENGTH, text.len().into());
    Response::from_parts(parts, Body::from(charged_text(text, charge)))
}

/// Binds a charge to a text.
pub(crate) fn charged_text(text: Bytes, charge: impl Send + 'static) -> Bytes {
    Bytes::from_owner(ChargedText {
        text,
        _charge: charge,
    })
}

/// Text of a response and its charge, released with the last of its slices.
struct ChargedText<C> {
    // Before the charge: memory is free before its charge is released.
    text: Bytes,
    _charge: C,
}

impl<C> AsRef<[u8]> for ChargedText<C> {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}
