//! Small request bodies: buffered whole, within a limit of bytes and of time.

use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::MethodRouter;
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};

use crate::limits::{MAX_SMALL_BODY_BYTES, MAX_SMALL_BODY_TIME};

/// Limits the bodies of `routes` to [`MAX_SMALL_BODY_BYTES`] and [`MAX_SMALL_BODY_TIME`].
pub(crate) fn small<S: Clone + Send + Sync + 'static>(routes: MethodRouter<S>) -> MethodRouter<S> {
    routes.layer(middleware::from_fn(gather))
}

async fn gather(request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    match collect(body).await {
        Ok(body) => next.run(Request::from_parts(parts, body.into())).await,
        Err(refusal) => refusal.into_response(),
    }
}

async fn collect(body: Body) -> Result<Bytes, (StatusCode, String)> {
    let body = Limited::new(body, MAX_SMALL_BODY_BYTES).collect();
    match tokio::time::timeout(MAX_SMALL_BODY_TIME, body).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err((
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the body is longer than {MAX_SMALL_BODY_BYTES} bytes\n"),
        )),
        Ok(Err(error)) => Err((
            StatusCode::BAD_REQUEST,
            format!("the body broke off: {error}\n"),
        )),
        Err(_) => Err((
            StatusCode::REQUEST_TIMEOUT,
            format!("the body did not come within {MAX_SMALL_BODY_TIME:?}\n"),
        )),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[tokio::test]
    async fn bodies_up_to_the_limit_are_taken_and_longer_ones_refused() {
        let body = |length| Body::from(vec![b'a'; length]);
        let taken = collect(body(MAX_SMALL_BODY_BYTES)).await.unwrap();
        assert_eq!(taken.len(), MAX_SMALL_BODY_BYTES);
        let (status, _) = collect(body(MAX_SMALL_BODY_BYTES + 1)).await.unwrap_err();
        assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    }

    #[tokio::test(start_paused = true)]
    async fn body_that_never_ends_is_refused_at_its_deadline() {
        let begun = tokio::time::Instant::now();
        let silent = futures::stream::pending::<Result<Bytes, std::io::Error>>();
        let (status, _) = collect(Body::from_stream(silent)).await.unwrap_err();
        assert_eq!(status, StatusCode::REQUEST_TIMEOUT);
        assert_eq!(begun.elapsed(), MAX_SMALL_BODY_TIME);
    }
}
