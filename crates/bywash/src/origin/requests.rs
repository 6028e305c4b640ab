//! Requests that object_store's clients cannot make: numbered parts, streamed without buffering, and conditional
//! completions.

use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use http::StatusCode;
use http::header::{CONTENT_LENGTH, HeaderName};
use object_store::path::Path;
use object_store::{Error, Result};
use reqwest::RequestBuilder;

use super::network::client_builder;
use super::{PartBody, body_length_error};
use crate::limits::MAX_RESPONSE_BYTES;

/// Client for a cloud's additional requests. It makes one attempt; the engine retries.
#[derive(Debug, Clone)]
pub(super) struct Requests {
    pub(super) http: reqwest::Client,
    /// Name of the store in errors.
    store: &'static str,
}

/// A whole response, short enough to be read into memory.
#[derive(Debug)]
pub(super) struct TextResponse {
    pub(super) status: StatusCode,
    pub(super) headers: http::HeaderMap,
    pub(super) body: String,
}

impl TextResponse {
    pub(super) fn header(&self, name: &HeaderName) -> Option<String> {
        Some(self.headers.get(name)?.to_str().ok()?.to_owned())
    }
}

impl Requests {
    pub(super) fn new(store: &'static str) -> Result<Self> {
        Self::with(store, |client| client)
    }

    /// Creates a client with `settings` in addition to the usual ones.
    pub(super) fn with(
        store: &'static str,
        settings: impl FnOnce(reqwest::ClientBuilder) -> reqwest::ClientBuilder,
    ) -> Result<Self> {
        let http = settings(client_builder()).build();
        Ok(Self {
            http: http.map_err(|error| generic(store, Box::new(error)))?,
            store,
        })
    }

    pub(super) fn generic(
        &self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Error {
        generic(self.store, source.into())
    }

    /// Sends a request and reads its response, of any status.
    pub(super) async fn send(&self, request: RequestBuilder) -> Result<TextResponse> {
        let response = request
            .send()
            .await
            .map_err(|error| self.generic(error.without_url()))?;
        let (status, headers) = (response.status(), response.headers().clone());
        let mut body = Vec::new();
        let mut stream = response.bytes_stream();
        while let Some(piece) = stream.next().await {
            body.extend_from_slice(&piece.map_err(|error| self.generic(error.without_url()))?);
            if body.len() > MAX_RESPONSE_BYTES {
                break;
            }
        }
        Ok(TextResponse {
            status,
            headers,
            body: String::from_utf8_lossy(&body).into_owned(),
        })
    }

    /// Sends a part of `length` bytes. A body that fails or has another length never arrives whole; its own error is
    /// returned rather than that of the cut connection.
    pub(super) async fn send_part(
        &self,
        request: RequestBuilder,
        path: &Path,
        length: u64,
        body: PartBody,
    ) -> Result<TextResponse> {
        let failure = Arc::new(parking_lot::Mutex::new(None));
        let report = Arc::clone(&failure);
        let body = withhold_last(exact_length(path, length, body)).map_err(move |error| {
            let text = error.to_string();
            *report.lock() = Some(error);
            std::io::Error::other(text)
        });
        let request = request
            .header(CONTENT_LENGTH, length)
            .body(reqwest::Body::wrap_stream(body));
        let response = self.send(request).await;
        if let Some(error) = failure.lock().take() {
            return Err(error);
        }
        response
    }

    /// Returns the error for a response without a more precise one, in object_store's wording, by which transient and
    /// permanent failures are distinguished.
    pub(super) fn refusal(&self, path: &Path, status: StatusCode, detail: &str) -> Error {
        let text = format!("status code: {status}: {detail}");
        let (path, source) = (path.to_string(), text.into());
        match status {
            StatusCode::NOT_FOUND | StatusCode::GONE => Error::NotFound { path, source },
            StatusCode::NOT_MODIFIED => Error::NotModified { path, source },
            StatusCode::PRECONDITION_FAILED => Error::Precondition { path, source },
            StatusCode::UNAUTHORIZED => Error::Unauthenticated { path, source },
            StatusCode::FORBIDDEN => Error::PermissionDenied { path, source },
            _ => self.generic(source),
        }
    }
}

fn generic(store: &'static str, source: Box<dyn std::error::Error + Send + Sync>) -> Error {
    Error::Generic { store, source }
}

/// A stream that withholds its last piece until it is known that no error follows.
///
/// With a fixed Content-Length, a body that fails at its end then never arrives whole, so the server cannot store it.
fn withhold_last(body: PartBody) -> PartBody {
    let state = (body, None::<Bytes>, false);
    futures::stream::try_unfold(state, |(mut body, mut held, done)| async move {
        if done {
            return Ok(None);
        }
        loop {
            match body.try_next().await? {
                Some(piece) => {
                    if let Some(ready) = held.replace(piece) {
                        return Ok(Some((ready, (body, held, false))));
                    }
                }
                None => return Ok(held.map(|last| (last, (body, None, true)))),
            }
        }
    })
    .boxed()
}

/// Fails a body that is not exactly `length` bytes long.
fn exact_length(path: &Path, length: u64, body: PartBody) -> PartBody {
    let path = path.clone();
    futures::stream::try_unfold((body, 0_u64), move |(mut body, got)| {
        let path = path.clone();
        async move {
            match body.try_next().await? {
                Some(piece) if got + piece.len() as u64 > length => {
                    Err(body_length_error(&path, length, got + piece.len() as u64))
                }
                Some(piece) => {
                    let got = got + piece.len() as u64;
                    Ok(Some((piece, (body, got))))
                }
                None if got == length => Ok(None),
                None => Err(body_length_error(&path, length, got)),
            }
        }
    })
    .boxed()
}
