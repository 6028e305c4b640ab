//! Receives the body of a request before it takes a permit: a slow client holds none.

use std::borrow::Cow;

use axum::body::Body;
use axum::http::header::CONTENT_LENGTH;
use axum::http::{HeaderMap, StatusCode};
use bywash::{Engine, Reservation, Share};
use http_body_util::{BodyExt, LengthLimitError, Limited};

use super::{Refused, too_large};
use crate::limits::{MAX_WRITE_BYTES, MAX_WRITE_TIME};

/// Bytes charged with the first byte of a body: common requests are no longer.
const FIRST_BYTES: usize = 64 << 10;

/// Bytes of a body, charged as they arrive.
#[derive(Debug, Default)]
pub(super) struct Received {
    pub(super) bytes: Vec<u8>,
    charge: Option<Reservation>,
}

impl Received {
    /// Receives a body within [`MAX_WRITE_BYTES`] and [`MAX_WRITE_TIME`].
    pub(super) async fn all(
        engine: &Engine,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<Self, Refused> {
        let max = max_length(headers)?;
        let mut received = Self::default();
        let gathering = received.gather(engine, max, body);
        let gathered = tokio::time::timeout(MAX_WRITE_TIME, gathering).await;
        gathered.unwrap_or_else(|_| {
            Err(Refused::Request(
                StatusCode::REQUEST_TIMEOUT,
                format!("the body did not come within {MAX_WRITE_TIME:?}").into(),
            ))
        })?;
        Ok(received)
    }

    async fn gather(&mut self, engine: &Engine, max: usize, body: Body) -> Result<(), Refused> {
        let mut body = Limited::new(body, MAX_WRITE_BYTES);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| {
                if error.is::<LengthLimitError>() {
                    too_large()
                } else {
                    Refused::Request(
                        StatusCode::BAD_REQUEST,
                        format!("the body broke off: {error}").into(),
                    )
                }
            })?;
            let Ok(piece) = frame.into_data() else {
                continue;
            };
            self.make_room(engine, piece.len(), max)?;
            self.bytes.extend_from_slice(&piece);
        }
        Ok(())
    }

    /// Charges `more` bytes, and as many again so that bytes are seldom moved; at most `max` in all, if that suffices.
    fn make_room(&mut self, engine: &Engine, more: usize, max: usize) -> Result<(), Refused> {
        let needed = self.bytes.len() + more;
        if needed <= self.bytes.capacity() {
            return Ok(());
        }
        let wanted = needed.next_power_of_two().max(FIRST_BYTES);
        let capacity = wanted.min(max.max(needed));
        self.reserve(engine, capacity - self.bytes.capacity())?;
        self.bytes.reserve_exact(capacity - self.bytes.len());
        Ok(())
    }

    /// Charges `bytes` more, until this is dropped.
    pub(super) fn reserve(&mut self, engine: &Engine, bytes: usize) -> Result<(), Refused> {
        let more = engine.try_reserve(Share::Upload, bytes as u64);
        let more = more.ok_or(Refused::Request(
            StatusCode::SERVICE_UNAVAILABLE,
            Cow::Borrowed("there is no memory for the lines now; send the request again"),
        ))?;
        match &mut self.charge {
            Some(charge) => charge.merge(more),
            none => *none = Some(more),
        }
        Ok(())
    }
}

/// Returns the max bytes of a body, by its head.
fn max_length(headers: &HeaderMap) -> Result<usize, Refused> {
    let length = headers
        .get(CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse().ok());
    match length.unwrap_or(MAX_WRITE_BYTES) {
        length if length > MAX_WRITE_BYTES => Err(too_large()),
        length => Ok(length),
    }
}
