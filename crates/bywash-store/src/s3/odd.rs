//! Objects with odd keys ([`crate::odd_keys`]): object_store's client cannot name them.

use http::header::ACCEPT_ENCODING;
use http::{HeaderMap, HeaderValue, Method};
use object_store::Result;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, AwsAuthorizer};
use object_store::client::{HttpRequest, HttpRequestBody};
use object_store::path::Path;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::S3Client;
use super::put::is_on;
use crate::http_client::Request;
use crate::odd_keys::{has_dots, key_of, refused};

/// The characters that a signed path has as they are.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/');

/// Returns whether requests need nothing that only object_store's own have: headers of a payer or of a key of the client, and the
/// session of a directory bucket.
pub(super) fn is_plain(builder: &AmazonS3Builder) -> bool {
    let customer_key = "aws_sse_customer_key_base64"
        .parse::<AmazonS3ConfigKey>()
        .ok();
    let customer_key = customer_key.and_then(|key| builder.get_config_value(&key));
    let switches = [
        AmazonS3ConfigKey::RequestPayer,
        AmazonS3ConfigKey::S3Express,
    ];
    customer_key.is_none() && !switches.into_iter().any(|key| is_on(builder, key))
}

impl S3Client {
    /// See [`crate::cloud::CloudClient::send_odd`].
    pub(super) async fn send_odd_request(
        &self,
        method: Method,
        path: &Path,
        headers: HeaderMap,
    ) -> Result<reqwest::Response> {
        let key = key_of(path);
        // A URL with such a segment names another object.
        if has_dots(&key) {
            return Err(refused(path));
        }
        let generic = |error: String| self.http.generic(error);
        let mut bucket = self
            .presign(&Path::ROOT, &Request::new(Method::GET))
            .await?;
        let region = region_of(&bucket).unwrap_or_default();
        bucket.set_query(None);
        let url = format!("{bucket}{}", utf8_percent_encode(&key, ESCAPED));
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.method_mut() = method.clone();
        *request.uri_mut() = url
            .parse()
            .map_err(|error: http::uri::InvalidUri| generic(error.to_string()))?;
        *request.headers_mut() = headers;
        if !self.unsigned {
            let credential = self.objects.credentials().get_credential().await?;
            AwsAuthorizer::new(&credential, "s3", &region).try_authorize(&mut request, None)?;
        }
        let mut headers = std::mem::take(request.headers_mut());
        if method != Method::DELETE {
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
        let url = url
            .parse()
            .map_err(|error: url::ParseError| generic(error.to_string()))?;
        self.http.start(method, url, headers).await
    }
}

/// Returns the region for which a URL is signed.
fn region_of(url: &reqwest::Url) -> Option<String> {
    let mut query = url.query_pairs();
    let (_, scope) = query.find(|(name, _)| name == "X-Amz-Credential")?;
    // `KEY/DATE/REGION/s3/aws4_request`
    scope.rsplit('/').nth(2).map(str::to_owned)
}
