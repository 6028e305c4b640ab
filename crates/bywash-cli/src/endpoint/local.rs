//! Reads of a bucket over the socket of this user's running server, where that server is the endpoint.
//!
//! The endpoint decides all that the socket does not return in the same form, errors above all. So a verb prints the same with and
//! without the socket.

mod listing;
mod metadata;
mod object;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use bywash::origin::{
    Capabilities, Level, ListPage, ObjectTags, Omissions, Origin, ReadOnly, StoreIdentity,
};
use bywash_client::place::default_socket;
use bywash_client::{Client, ErrorCode};
use futures::FutureExt;
use futures::stream::BoxStream;
use http::Method;
use object_store::aws::{AmazonS3, AmazonS3ConfigKey};
use object_store::path::Path;
use object_store::signer::Signer;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use tokio::sync::OnceCell;

use super::own::SignsOnly;
use super::remote::Remote;

/// Max time until the server has greeted. A stopped server must not delay a verb whose endpoint may be another one.
const GREETING: Duration = Duration::from_secs(2);
/// Max time of a call: shorter than the engine waits for a response, because the endpoint is asked next.
const CALL: Duration = Duration::from_secs(5);
/// Key of the address that server and verb both sign.
const SIGNED_KEY: &str = "signed-by-both";
const SIGNED_FOR: Duration = Duration::from_secs(60);
/// Two signatures of one key differ if a second ends between them.
const SIGNING_ATTEMPTS: usize = 3;
/// Settings by which requests to the endpoint have other hosts or headers.
const SPECIAL_SETTINGS: [&str; 3] = [
    "aws_virtual_hosted_style_request",
    "aws_s3_express",
    "aws_sse_customer_key_base64",
];

/// The origin that reads `bucket` over the socket, if that is possible, and else from `endpoint`.
/// Connects with the first read.
pub(super) fn origin(remote: &Remote, bucket: &str, endpoint: Arc<dyn Origin>) -> Arc<dyn Origin> {
    let reads = LocalReads(Arc::new(LocalBucket {
        remote: remote.clone(),
        name: bucket.to_owned(),
        endpoint,
        socket: OnceCell::new(),
    }));
    Arc::new(ReadOnly::because("it is opened for reads", Arc::new(reads)))
}

#[derive(Debug)]
struct LocalReads(Arc<LocalBucket>);

/// A bucket of the S3 endpoint that may be reached over the socket too.
#[derive(Debug)]
struct LocalBucket {
    remote: Remote,
    name: String,
    endpoint: Arc<dyn Origin>,
    /// `None`: the socket is not used.
    socket: OnceCell<Option<SocketBucket>>,
}

/// A bucket of the server at the socket.
#[derive(Debug, Clone)]
struct SocketBucket {
    bucket: bywash_client::Bucket,
    /// Set by the first failure of the connection: the rest is read from the endpoint.
    broken: Arc<AtomicBool>,
}

impl LocalBucket {
    /// Returns the bucket at the socket. The first call connects.
    async fn socket(&self) -> Option<&SocketBucket> {
        let socket = self.socket.get_or_init(|| async {
            let (remote, name) = (self.remote.clone(), self.name.clone());
            let connected = tokio::task::spawn_blocking(move || connect(&remote, &name)).await;
            let name = &self.name;
            match connected.unwrap_or_else(|error| Err(error.to_string())) {
                Ok(bucket) => {
                    let socket = bucket.client().socket().display();
                    tracing::debug!("s3://{name} is read over the socket {socket}");
                    Some(SocketBucket {
                        bucket,
                        broken: Arc::default(),
                    })
                }
                Err(reason) => {
                    tracing::debug!("s3://{name} is read from the endpoint: {reason}");
                    None
                }
            }
        });
        socket.await.as_ref()
    }
}

impl SocketBucket {
    /// Runs a blocking call. `None` if it fails: the endpoint is asked.
    async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&bywash_client::Bucket) -> bywash_client::Result<T> + Send + 'static,
    ) -> Option<T> {
        if self.broken.load(Relaxed) {
            return None;
        }
        let bucket = self.bucket.clone();
        let called = tokio::task::spawn_blocking(move || work(&bucket)).await;
        let error = match called.ok()? {
            Ok(value) => return Some(value),
            Err(error) => error,
        };
        let lost = [
            ErrorCode::Connection,
            ErrorCode::Deadline,
            ErrorCode::Protocol,
        ];
        if lost.contains(&error.code()) {
            self.broken.store(true, Relaxed);
        }
        tracing::debug!(%error, "the endpoint is asked after a failure at the socket");
        None
    }
}

/// Connects to this user's server and returns its bucket `name`. Blocks.
///
/// # Errors
/// The reason for which the socket is not used: no server, another server than the endpoint, or a key that it does not know as its own.
fn connect(remote: &Remote, name: &str) -> std::result::Result<bywash_client::Bucket, String> {
    let of_client = |error: bywash_client::Error| error.to_string();
    let client = Client::connect_once(default_socket(), GREETING).map_err(of_client)?;
    let served = client.server().map_err(of_client)?.s3;
    let bare = |url: &str| url.trim_end_matches('/').to_owned();
    if remote.endpoint().map(|url| bare(url.as_str())) != Some(bare(&served)) {
        return Err(format!(
            "the endpoint of the server at the socket is {served}"
        ));
    }
    let bucket = client.with_deadline(CALL).bucket(name);
    check_key(remote, &bucket)?;
    Ok(bucket)
}

/// Checks that the endpoint would serve this verb all of the bucket: that it signs as the server does, or that the server is anonymous.
/// The socket itself asks for no key.
fn check_key(remote: &Remote, bucket: &bywash_client::Bucket) -> std::result::Result<(), String> {
    let own = own_signer(remote, bucket.name())?;
    let path = Path::from(SIGNED_KEY);
    for _ in 0..SIGNING_ATTEMPTS {
        let theirs = match bucket.sign(Method::GET.as_str(), SIGNED_KEY, SIGNED_FOR) {
            Err(error) if error.code() == ErrorCode::Unsupported => return Ok(()),
            signed => signed.map_err(|error| error.to_string())?,
        };
        // Neither waits nor sends anything: the key is known.
        let ours = own.as_ref().and_then(|own| {
            own.signed_url(Method::GET, &path, SIGNED_FOR)
                .now_or_never()
        });
        if ours.is_some_and(|ours| ours.is_ok_and(|ours| ours.as_str() == theirs)) {
            return Ok(());
        }
    }
    Err("the server's own key differs from the key of this command".to_owned())
}

/// Returns the signer of this verb's requests; `None` if they are not signed, or by a key that is not in the settings.
fn own_signer(remote: &Remote, bucket: &str) -> std::result::Result<Option<AmazonS3>, String> {
    let builder = remote.builder(bucket).map_err(|failure| failure.message)?;
    let value = |name: &AmazonS3ConfigKey| builder.get_config_value(name);
    let is_set = |name: &AmazonS3ConfigKey| value(name).is_some_and(|value| value != "false");
    let special = SPECIAL_SETTINGS.iter().filter_map(|name| name.parse().ok());
    if special.into_iter().any(|name| is_set(&name)) {
        return Err("its requests have special headers or hosts".to_owned());
    }
    let signs = value(&AmazonS3ConfigKey::AccessKeyId).is_some()
        && !is_set(&AmazonS3ConfigKey::SkipSignature);
    let signer = signs.then(|| builder.with_http_connector(SignsOnly).build());
    let signer = signer.transpose();
    signer.map_err(|error| error.to_string())
}

impl LocalReads {
    fn endpoint(&self) -> &dyn Origin {
        &*self.0.endpoint
    }
}

impl fmt::Display for LocalReads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.endpoint(), f)
    }
}

#[async_trait]
impl Origin for LocalReads {
    fn capabilities(&self) -> Capabilities {
        self.endpoint().capabilities()
    }

    fn identity(&self) -> Option<StoreIdentity> {
        self.endpoint().identity()
    }

    async fn object_tags(&self, path: &Path) -> Result<ObjectTags> {
        self.endpoint().object_tags(path).await
    }

    async fn list_page(&self, prefix: &str, after: Option<&str>, max: usize) -> Result<ListPage> {
        self.endpoint().list_page(prefix, after, max).await
    }

    fn list_noting(
        &self,
        prefix: Option<&Path>,
        after: Option<&Path>,
        omissions: &Omissions,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        match after {
            None => listing::objects(&self.0, prefix, omissions),
            // The socket has no position but of its own pages.
            Some(_) => self.endpoint().list_noting(prefix, after, omissions),
        }
    }

    async fn list_level(&self, prefix: &str, after: &str, max: usize) -> Result<Level> {
        self.endpoint().list_level(prefix, after, max).await
    }
}

/// Writes are refused by the layer above.
#[async_trait]
impl ObjectStore for LocalReads {
    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        match object::get(&self.0, path, &options).await {
            Some(found) => Ok(found),
            None => self.endpoint().get_opts(path, options).await,
        }
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.list_noting(prefix, None, &Omissions::default())
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.list_noting(prefix, Some(offset), &Omissions::default())
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        match listing::level(&self.0, prefix).await {
            Some(level) => Ok(level),
            None => self.endpoint().list_with_delimiter(prefix).await,
        }
    }

    async fn put_opts(&self, path: &Path, bytes: PutPayload, of: PutOptions) -> Result<PutResult> {
        self.endpoint().put_opts(path, bytes, of).await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.endpoint().put_multipart_opts(path, options).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.endpoint().delete_stream(paths)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.endpoint().copy_opts(from, to, options).await
    }
}
