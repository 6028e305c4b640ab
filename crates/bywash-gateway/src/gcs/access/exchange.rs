//! The token endpoint: a client that signs an assertion by the key of its account gets an access token.
//!
//! Source: RFC 7523, and "Using OAuth 2.0 for server to server applications" of Google.

use std::time::Duration;

use chrono::Utc;
use http::request::Parts;
use http::{Method, Response, StatusCode};
use s3s::Body;
use serde_json::json;

use super::super::body::{BodyStream, limited};
use super::super::error::{GcsError, GcsResult};
use super::super::resource::json;
use super::account::TOKEN_PATH;
use super::jwt::{Jwt, Purpose};
use super::{Access, account_of};
use crate::documents::Documents;
use crate::errors::OperationContext;
use crate::limits::{MAX_ACCESS_TOKEN_AGE_S, MAX_TOKEN_FORM_BYTES};

/// Name of the grant in clients' requests for an exchange.
const GRANT: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";
/// Token endpoints of Google: clients state one, regardless of the URL in their key file.
const OF_GOOGLE: [&str; 3] = [
    "https://oauth2.googleapis.com/token",
    "https://www.googleapis.com/oauth2/v4/token",
    "https://accounts.google.com/o/oauth2/token",
];

/// Whether a request is for the token endpoint.
pub(crate) fn is_exchange(parts: &Parts) -> bool {
    parts.method == Method::POST && parts.uri.path() == TOKEN_PATH
}

/// Exchanges an assertion for an access token. Anyone may send one, so its form has little memory, and `max_time` to arrive.
/// Errors have the shape of OAuth.
pub(crate) async fn exchange(
    access: &Access,
    documents: &Documents,
    body: BodyStream,
    max_time: Duration,
) -> GcsResult<Response<Body>> {
    match given(access, documents, body, max_time).await {
        Ok(token) => Ok(granted(&token)),
        // A fault of the server or of the connection is no refusal: the client tries again.
        Err(error)
            if error.status().is_server_error()
                || error.status() == StatusCode::REQUEST_TIMEOUT =>
        {
            Err(error)
        }
        Err(error) => Ok(refused(&error)),
    }
}

async fn given(
    access: &Access,
    documents: &Documents,
    body: BodyStream,
    max_time: Duration,
) -> GcsResult<String> {
    let Some((accounts, key)) = &access.accounts else {
        return Err(GcsError::invalid("This server has no service accounts."));
    };
    let doing = OperationContext::new("exchange a token", "", "");
    let _charge = documents.charge(MAX_TOKEN_FORM_BYTES as u64, doing).await?;
    let form = limited(body, MAX_TOKEN_FORM_BYTES, "The form of a token");
    let form = tokio::time::timeout(max_time, form).await;
    let form = form.map_err(|_| {
        let message = format!(
            "The form did not arrive whole within {} s; try again.",
            max_time.as_secs()
        );
        GcsError::new(
            StatusCode::REQUEST_TIMEOUT,
            "uploadBrokenConnection",
            message,
        )
    })??;
    let value = |wanted: &str| {
        let mut pairs = form_urlencoded::parse(&form);
        let found = pairs.find(|(name, _)| name == wanted);
        found.map(|(_, value)| value.into_owned())
    };
    if value("grant_type").as_deref() != Some(GRANT) {
        return Err(GcsError::invalid(format!("The grant_type is {GRANT}.")));
    }
    let assertion = value("assertion").unwrap_or_default();
    let refused = |error| GcsError::invalid(format!("The assertion is refused: {error}."));
    let jwt = Jwt::parse(&assertion).map_err(refused)?;
    let account = account_of(accounts, &jwt).await?;
    let own = account.token_uri();
    let known = [&*own, OF_GOOGLE[0], OF_GOOGLE[1], OF_GOOGLE[2]];
    let now = Utc::now().timestamp();
    let verified = jwt.verify(&account.public_key, Purpose::Exchange(&known), now);
    let rights = verified.map_err(refused)?;
    Ok(key.token(&account, rights, now))
}

fn granted(token: &str) -> Response<Body> {
    let granted = json!({
        "access_token": token,
        "expires_in": MAX_ACCESS_TOKEN_AGE_S,
        "token_type": "Bearer",
    });
    json(granted.to_string().into_bytes())
}

fn refused(error: &GcsError) -> Response<Body> {
    let refused = json!({ "error": "invalid_grant", "error_description": error.message() });
    let mut response = json(refused.to_string().into_bytes());
    *response.status_mut() = StatusCode::BAD_REQUEST;
    response
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::sync::Arc;

    use bytes::Bytes;
    use bywash::Engine;
    use futures::{StreamExt, stream};

    use super::*;
    use crate::gcs::serve::GcsConfig;

    #[tokio::test]
    async fn form_that_does_not_arrive_is_given_up_and_its_memory_released() {
        let engine = Engine::builder().memory(64 << 20).build().unwrap();
        let documents = Arc::new(Documents::new(engine.clone()));
        let folder = tempfile::tempdir().unwrap();
        let config = GcsConfig {
            anonymous: false,
            accounts: Some(folder.path().join("accounts")),
            ..GcsConfig::anonymous(folder.path())
        };
        let access = Access::open(&config, &engine).unwrap();
        let begin = stream::iter([Ok(Bytes::from_static(b"grant_type="))]);
        let body = begin.chain(stream::pending()).boxed();
        let sent = exchange(&access, &documents, body, Duration::from_millis(20)).await;
        assert_eq!(sent.unwrap_err().status(), StatusCode::REQUEST_TIMEOUT);
        assert!(documents.is_unused());
    }

    #[tokio::test]
    async fn server_without_accounts_takes_no_byte_of_a_form() {
        let engine = Engine::builder().memory(64 << 20).build().unwrap();
        let documents = Documents::new(engine.clone());
        let config = GcsConfig {
            anonymous: false,
            ..GcsConfig::anonymous("sessions")
        };
        let access = Access::open(&config, &engine).unwrap();
        let body = stream::poll_fn(|_| unreachable!("the form is read")).boxed();
        let sent = exchange(&access, &documents, body, Duration::MAX).await;
        assert_eq!(sent.unwrap().status(), StatusCode::BAD_REQUEST);
    }
}
