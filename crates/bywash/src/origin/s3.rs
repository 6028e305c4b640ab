//! The `s3://` origin: object_store's client, plus uploads in the S3 protocol's own terms.
//!
//! The client's retries are off; the engine retries (one owner). Parts and completion go through
//! presigned requests, because the client numbers parts by their position and cannot put a
//! condition on a completion.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use http::header::{CONTENT_LENGTH, ETAG, HeaderName, IF_MATCH, IF_NONE_MATCH};
use http::{Method, StatusCode};
use object_store::aws::{AmazonS3, AmazonS3Builder, S3CopyIfNotExists};
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::signer::{SignedUrlOptions, Signer};
use object_store::{
    BackoffConfig, ClientOptions, CopyOptions, Error, GetOptions, GetResult, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result, RetryConfig,
};
use serde::Deserialize;

use super::{Origin, PartBody, UploadedPart, body_length_error, invalid_part};

/// How long a presigned request of ours stays valid: long enough for a 5 GiB part on a slow line.
const PRESIGN_VALIDITY: Duration = Duration::from_secs(6 * 3600);
/// The most of an error answer that we read, in bytes.
const ERROR_BODY_LIMIT_BYTES: usize = 64 * 1024;

/// A bucket of S3, or of a server that speaks its protocol.
#[derive(Debug, Clone)]
pub struct S3Store {
    client: Arc<AmazonS3>,
    objects: Arc<PrefixStore<Arc<AmazonS3>>>,
    prefix: Path,
    http: reqwest::Client,
    name: String,
}

impl S3Store {
    /// Opens `bucket` with the credentials, region and endpoint of the environment
    /// (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, ..., instance metadata last). Sends no request.
    pub fn from_env(bucket: &str, prefix: &Path) -> Result<Self> {
        Self::from_builder(
            AmazonS3Builder::from_env().with_bucket_name(bucket),
            bucket,
            prefix,
        )
    }

    /// Opens `bucket` as `builder` says; retries and time limits are replaced by the engine's.
    pub fn from_builder(builder: AmazonS3Builder, bucket: &str, prefix: &Path) -> Result<Self> {
        install_tls_provider();
        // No limit on a whole request: a large body on a slow line is not a failure. The engine
        // limits the time without progress instead.
        let options = ClientOptions::new()
            .with_allow_http(true)
            .with_timeout_disabled();
        let client = builder
            .with_client_options(options)
            .with_retry(no_retries())
            .with_copy_if_not_exists(S3CopyIfNotExists::Multipart)
            .build()?;
        let client = Arc::new(client);
        let http = reqwest::Client::builder()
            .connect_timeout(Duration::from_secs(5))
            .build()
            .map_err(|error| generic(Box::new(error)))?;
        let objects = Arc::new(PrefixStore::new(Arc::clone(&client), prefix.clone()));
        let name = format!("s3://{bucket}/{prefix}");
        Ok(Self {
            client,
            objects,
            prefix: prefix.clone(),
            http,
            name,
        })
    }

    fn full_path(&self, path: &Path) -> Path {
        self.prefix.parts().chain(path.parts()).collect()
    }

    async fn presign(
        &self,
        method: Method,
        path: &Path,
        query: &[(&str, &str)],
    ) -> Result<reqwest::Url> {
        let options = SignedUrlOptions::new().with_query(query.iter().copied());
        self.client
            .signed_url_opts(method, &self.full_path(path), PRESIGN_VALIDITY, &options)
            .await
    }
}

fn no_retries() -> RetryConfig {
    RetryConfig {
        max_retries: 0,
        retry_timeout: Duration::ZERO,
        backoff: BackoffConfig::default(),
    }
}

/// Makes ring the process's TLS provider unless the program chose another one before.
fn install_tls_provider() {
    // An error only says that there is one already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

fn generic(source: Box<dyn std::error::Error + Send + Sync>) -> Error {
    Error::Generic {
        store: "S3",
        source,
    }
}

/// A stream that withholds its last piece until it knows that no error follows.
///
/// With a fixed Content-Length, a body whose check fails at its end then never arrives whole, so
/// the server cannot store it.
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

#[derive(Debug, Deserialize)]
struct ErrorAnswer {
    #[serde(rename = "Code")]
    code: String,
    #[serde(rename = "Message", default)]
    message: String,
}

/// Without an ETag it is something else: an error with another root, or a page of a proxy.
#[derive(Debug, Deserialize)]
struct CompleteAnswer {
    #[serde(rename = "ETag")]
    e_tag: String,
}

/// Turns a refused upload request into the error that says what to do.
fn refusal(path: &Path, status: StatusCode, body: &str) -> Error {
    let answer: Option<ErrorAnswer> = quick_xml::de::from_str(body).ok();
    let code = answer.as_ref().map_or("", |answer| answer.code.as_str());
    let text = match &answer {
        Some(answer) => format!("{status}: {}: {}", answer.code, answer.message),
        None => status.to_string(),
    };
    let path = path.to_string();
    let source = text.into();
    match (status.as_u16(), code) {
        (_, "NoSuchUpload" | "NoSuchKey" | "NoSuchBucket") | (404, _) => {
            Error::NotFound { path, source }
        }
        (_, "PreconditionFailed") | (412, _) => Error::Precondition { path, source },
        (401, _) => Error::Unauthenticated { path, source },
        (403, _) => Error::PermissionDenied { path, source },
        _ => generic(source),
    }
}

async fn error_body(response: reqwest::Response) -> String {
    let mut body = Vec::new();
    let mut stream = response.bytes_stream();
    while let Some(Ok(piece)) = stream.next().await {
        body.extend_from_slice(&piece);
        if body.len() > ERROR_BODY_LIMIT_BYTES {
            break;
        }
    }
    String::from_utf8_lossy(&body).into_owned()
}

fn header(response: &reqwest::Response, name: &HeaderName) -> Option<String> {
    Some(response.headers().get(name)?.to_str().ok()?.to_owned())
}

fn complete_body(parts: &[UploadedPart]) -> String {
    let mut xml = String::from("<CompleteMultipartUpload>");
    for part in parts {
        let e_tag = quick_xml::escape::escape(&part.e_tag);
        xml.push_str(&format!(
            "<Part><ETag>{e_tag}</ETag><PartNumber>{}</PartNumber></Part>",
            part.number
        ));
    }
    xml.push_str("</CompleteMultipartUpload>");
    xml
}

#[async_trait]
impl Origin for S3Store {
    fn kind(&self) -> &'static str {
        "s3"
    }

    async fn create_upload(&self, path: &Path, options: PutMultipartOptions) -> Result<String> {
        self.client
            .create_multipart_opts(&self.full_path(path), options)
            .await
    }

    async fn put_part(
        &self,
        path: &Path,
        upload: &str,
        number: u16,
        length: u64,
        body: PartBody,
    ) -> Result<String> {
        let query = [("partNumber", &*number.to_string()), ("uploadId", upload)];
        let url = self.presign(Method::PUT, path, &query).await?;
        // Our own error must come back to the caller, not the client's view of a cut connection.
        let failure = Arc::new(parking_lot::Mutex::new(None));
        let report = Arc::clone(&failure);
        let body = withhold_last(exact_length(path, length, body)).map_err(move |error| {
            let text = error.to_string();
            *report.lock() = Some(error);
            std::io::Error::other(text)
        });
        let request = self
            .http
            .put(url)
            .header(CONTENT_LENGTH, length)
            .body(reqwest::Body::wrap_stream(body));
        let answer = request.send().await;
        if let Some(error) = failure.lock().take() {
            return Err(error);
        }
        let response = answer.map_err(|error| generic(Box::new(error.without_url())))?;
        let status = response.status();
        if !status.is_success() {
            return Err(refusal(path, status, &error_body(response).await));
        }
        header(&response, &ETAG).ok_or_else(|| generic("the answer to a part has no ETag".into()))
    }

    async fn complete_upload(
        &self,
        path: &Path,
        upload: &str,
        parts: &[UploadedPart],
        mode: PutMode,
    ) -> Result<PutResult> {
        let url = self
            .presign(Method::POST, path, &[("uploadId", upload)])
            .await?;
        let mut request = self.http.post(url).body(complete_body(parts));
        let create = matches!(mode, PutMode::Create);
        match mode {
            PutMode::Overwrite => {}
            PutMode::Create => request = request.header(IF_NONE_MATCH, "*"),
            PutMode::Update(version) => {
                let e_tag = version
                    .e_tag
                    .ok_or_else(|| generic("an ETag is needed to replace conditionally".into()))?;
                request = request.header(IF_MATCH, e_tag);
            }
        }
        let response = request
            .send()
            .await
            .map_err(|error| generic(Box::new(error.without_url())))?;
        let status = response.status();
        let version = header(&response, &HeaderName::from_static("x-amz-version-id"));
        let body = error_body(response).await;
        // S3 may answer 200 and put an error into the body, since the answer begins before the
        // work is done.
        let failed = !status.is_success() || quick_xml::de::from_str::<ErrorAnswer>(&body).is_ok();
        if failed {
            if body.contains("<Code>InvalidPart</Code>")
                && let Some(part) = parts.first()
            {
                return Err(invalid_part(path, part));
            }
            return Err(match refusal(path, status, &body) {
                Error::Precondition { path, source } if create => {
                    Error::AlreadyExists { path, source }
                }
                error => error,
            });
        }
        let answer: CompleteAnswer =
            quick_xml::de::from_str(&body).map_err(|error| generic(Box::new(error)))?;
        Ok(PutResult {
            e_tag: Some(answer.e_tag),
            version,
            extensions: object_store::Extensions::new(),
        })
    }

    async fn abort_upload(&self, path: &Path, upload: &str) -> Result<()> {
        self.client
            .abort_multipart(&self.full_path(path), &upload.to_owned())
            .await
    }
}

impl fmt::Display for S3Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

#[async_trait]
impl ObjectStore for S3Store {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.objects.put_opts(path, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.objects.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        self.objects.get_opts(path, options).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.objects.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.objects.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.objects.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.objects.copy_opts(from, to, options).await
    }
}
