//! Addresses of this server's own endpoint, signed with its own key.

use std::io;
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use http::Method;
use object_store::ClientOptions;
use object_store::aws::AmazonS3Builder;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};
use object_store::path::Path;
use object_store::signer::Signer;

use crate::serve::data_dir::Session;

/// Connector of a client that signs and sends nothing. Another one reads all certificates first, which takes 50 ms.
#[derive(Debug)]
pub(super) struct SignsOnly;

impl HttpConnector for SignsOnly {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Self))
    }
}

#[async_trait]
impl HttpService for SignsOnly {
    async fn call(&self, _: HttpRequest) -> Result<HttpResponse, HttpError> {
        let error = io::Error::other("this client signs, and sends no requests");
        Err(HttpError::new(HttpErrorKind::Unknown, error))
    }
}

/// Signs one request for an object of the server of `session`. `None` for an anonymous server, and for methods that are not signed for.
pub(crate) fn signed_address(
    session: &Session,
    bucket: &str,
    path: &Path,
    method: &str,
    expires: Duration,
) -> Option<String> {
    let signed = [Method::GET, Method::HEAD, Method::PUT, Method::DELETE];
    let method = signed.into_iter().find(|known| known == method)?;
    if session.is_anonymous() {
        return None;
    }
    let store = AmazonS3Builder::new()
        .with_endpoint(&session.endpoint)
        .with_region(&session.region)
        .with_bucket_name(bucket)
        .with_access_key_id(&session.credentials.access_key)
        .with_secret_access_key(&session.credentials.secret_key)
        .with_allow_http(true)
        .with_http_connector(SignsOnly)
        .build();
    // Neither waits nor sends anything: the key is known.
    let address = store
        .ok()?
        .signed_url(method, path, expires)
        .now_or_never()?;
    address.ok().map(String::from)
}
