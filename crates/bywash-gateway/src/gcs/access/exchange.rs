//! The token endpoint: a client that signs an assertion by the key of its account gets an access token.
//!
//! Source: RFC 7523, and "Using OAuth 2.0 for server to server applications" of Google.

use chrono::Utc;
use http::request::Parts;
use http::{Method, Response, StatusCode};
use s3s::Body;
use serde_json::json;

use super::super::body::{BodyStream, document};
use super::super::error::{GcsError, GcsResult};
use super::super::resource::json;
use super::account::TOKEN_PATH;
use super::jwt::{Jwt, Purpose};
use super::{Access, account_of};
use crate::documents::Documents;
use crate::errors::OperationContext;
use crate::limits::{MAX_ACCESS_TOKEN_AGE_S, MAX_JSON_BYTES};

/// What an exchange is called by its clients.
const GRANT: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";
/// Token endpoints of Google: clients state one of them, whatever their key file has.
const OF_GOOGLE: [&str; 3] = [
    "https://oauth2.googleapis.com/token",
    "https://www.googleapis.com/oauth2/v4/token",
    "https://accounts.google.com/o/oauth2/token",
];

/// Whether a request is for the token endpoint.
pub(crate) fn is_exchange(parts: &Parts) -> bool {
    parts.method == Method::POST && parts.uri.path() == TOKEN_PATH
}

/// Exchanges an assertion for an access token. Errors have the shape of OAuth.
pub(crate) async fn exchange(
    access: &Access,
    documents: &Documents,
    body: BodyStream,
) -> GcsResult<Response<Body>> {
    let doing = OperationContext::new("exchange a token", "", "");
    let _charge = documents.charge(MAX_JSON_BYTES as u64, doing).await?;
    let form = document(body).await?;
    match given(access, &form).await {
        Ok(token) => Ok(granted(&token)),
        // A fault of the server is no refusal: the client tries again.
        Err(error) if error.status().is_server_error() => Err(error),
        Err(error) => Ok(refused(&error)),
    }
}

async fn given(access: &Access, form: &[u8]) -> GcsResult<String> {
    let value = |wanted: &str| {
        let mut pairs = form_urlencoded::parse(form);
        let found = pairs.find(|(name, _)| name == wanted);
        found.map(|(_, value)| value.into_owned())
    };
    if value("grant_type").as_deref() != Some(GRANT) {
        return Err(GcsError::invalid(format!("The grant_type is {GRANT}.")));
    }
    let assertion = value("assertion").unwrap_or_default();
    let Some((accounts, key)) = &access.accounts else {
        return Err(GcsError::invalid("This server has no service accounts."));
    };
    let refused = |error| GcsError::invalid(format!("The assertion is refused: {error}."));
    let jwt = Jwt::parse(&assertion).map_err(refused)?;
    let account = account_of(accounts, &jwt).await?;
    let own = account.token_uri();
    let known = [&*own, OF_GOOGLE[0], OF_GOOGLE[1], OF_GOOGLE[2]];
    let now = Utc::now().timestamp();
    let verified = jwt.verify(&account.public_key, Purpose::Exchange(&known), now);
    verified.map_err(refused)?;
    Ok(key.token(&account, now))
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
