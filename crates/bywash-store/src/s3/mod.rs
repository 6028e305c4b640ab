//! The `s3://` origin: object_store's client, plus uploads by the S3 protocol.
//!
//! Parts and completion use presigned requests, because the client numbers parts by their position and cannot make a
//! completion conditional.

mod client;
mod delete;
mod multipart;
mod odd;
mod part_urls;
mod profile;
mod put;
mod self_copy;
mod tags;
#[cfg(any(test, fuzzing))]
pub(crate) use multipart::fuzz;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use async_trait::async_trait;
use object_store::Result;
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, S3CopyIfNotExists};
use object_store::path::Path;
use object_store::signer::{SignedUrlOptions, Signer};

pub(crate) use self::client::S3Session;
use self::client::STORE;
pub(crate) use self::multipart::{attribute_headers, same_upload};
pub use self::part_urls::PartUrls;
use self::profile::Profile;
use self::put::{Special, is_on, special_of};
use super::access::Access;
use super::cloud::{Cloud, CloudClient, client_options, no_retries};
use super::http_client::{HttpClient, Request};
use super::interface::{
    Capabilities, DeleteCondition, Origin, StoreIdentity, TextHeaders, VersionDeletes,
};
use super::object_tags::ObjectTags;
use super::omissions::Omissions;
use super::options::OriginOptions;
use super::page::{ListPage, Objects};
use crate::digest::ContentDigest;
use crate::error::generic_error;
use crate::session::{ChunkRule, Finished, NewSession, OpenSession, SessionOptions, SessionToken};

/// Validity of a presigned request: long enough for a 5 GiB part on a slow line.
const PRESIGN_VALIDITY: Duration = Duration::from_secs(6 * 3600);

/// Settings of the environment and of profiles that may change the result of a read. A container has other ones at each
/// start, and its role has no name here.
const READ_SETTINGS: [&str; 12] = [
    "aws_access_key_id",
    "aws_region",
    "aws_endpoint",
    "aws_endpoint_url_s3",
    "aws_virtual_hosted_style_request",
    "aws_skip_signature",
    "aws_s3_express",
    "aws_request_payer",
    "aws_metadata_endpoint",
    "aws_role_arn",
    "aws_web_identity_token_file",
    "aws_sse_customer_key_base64",
];
/// Settings that only prove the access key.
const PROOFS: [&str; 2] = ["aws_secret_access_key", "aws_session_token"];

/// A bucket of S3, or of a server with its protocol.
pub type S3Store = Cloud<S3Client>;

/// Client for the uploads of an [`S3Store`].
#[derive(Debug, Clone)]
pub struct S3Client {
    objects: AmazonS3,
    /// Name of the bucket.
    bucket: Arc<str>,
    http: HttpClient,
    /// Requests are not signed.
    unsigned: bool,
    /// The settings leave tags out of writes.
    tagless: bool,
    /// Minimum bytes of a part, except the last.
    min_part: u64,
    /// The server heeds If-Match of a DELETE.
    version_deletes: VersionDeletes,
    /// Requests for odd keys need no header that only object_store's requests have.
    reads_odd: bool,
    /// Copies of parts need no header that only object_store's requests have.
    copies: bool,
    special: Option<Special>,
    /// The store refused the header of the checksum, so that the MD5 is sent. A stale value costs a request, hence
    /// relaxed.
    md5_only: Arc<AtomicBool>,
    /// Time beyond the stall limit that a completion may take without sending a byte.
    joining: Duration,
}

impl S3Store {
    /// Returns the store with another time for which it may join parts without sending a byte. The default is ten
    /// minutes.
    #[must_use]
    pub fn with_joining_time(mut self, time: Duration) -> Self {
        self.client.joining = time;
        self
    }

    /// Returns the store with another minimum length of parts. The default is 5 MiB, S3's own rule.
    #[must_use]
    pub fn with_min_part(mut self, bytes: u64) -> Self {
        self.client.min_part = bytes;
        self
    }

    /// Opens `bucket` with the settings of [`builder_from_env`]. Sends no request.
    pub fn from_env(bucket: &str, prefix: &Path) -> Result<Self> {
        let builder = builder_from_env()?.with_bucket_name(bucket);
        Self::from_builder(builder, bucket, prefix)?.with_conditional_delete_of_env()
    }

    /// Opens `bucket` with these settings, or with the environment's if there are none. Sends no request.
    ///
    /// # Errors
    /// If a setting is not valid, or S3 does not have it.
    pub fn with_options(bucket: &str, prefix: &Path, options: &OriginOptions) -> Result<Self> {
        if options.is_empty() {
            return Self::from_env(bucket, prefix);
        }
        let (profile, options) = options.split_off(&["profile", "aws_profile"]);
        let (conditional_delete, options) = options.split_off(&delete::SETTING);
        let mut builder = AmazonS3Builder::new();
        let settings = options.keys::<AmazonS3ConfigKey>("s3")?;
        for (key, value) in &settings {
            builder = builder.with_config(*key, value);
        }
        if let Some(name) = profile {
            builder = find_profile(Some(&name))?.fill(builder);
        }
        let store = Self::from_builder(builder.with_bucket_name(bucket), bucket, prefix)?;
        store
            .read_with(|access| access.add_all_but(&PROOFS, &settings))
            .with_conditional_delete(conditional_delete.as_deref())
    }

    /// Opens `bucket` with `builder`'s settings, except retries and time limits, which are the engine's.
    pub fn from_builder(builder: AmazonS3Builder, bucket: &str, prefix: &Path) -> Result<Self> {
        let http = HttpClient::new(STORE)?;
        let unsigned = is_on(&builder, AmazonS3ConfigKey::SkipSignature);
        let builder = match unsigned {
            // A URL is made by signing it: `presign` takes the signature out.
            true => builder
                .with_access_key_id("none")
                .with_secret_access_key("none"),
            false => builder,
        };
        let mut access = Access::default();
        let value = |key: &AmazonS3ConfigKey| builder.get_config_value(key);
        access.add_named(&READ_SETTINGS, value);
        let region = builder.get_config_value(&AmazonS3ConfigKey::Region);
        let endpoint = builder.get_config_value(&AmazonS3ConfigKey::Endpoint);
        let special = special_of(&builder);
        let tagless = is_on(&builder, AmazonS3ConfigKey::DisableTagging);
        let endpoint = endpoint.or(region).unwrap_or_default();
        let version_deletes = if delete::is_amazon(&builder) {
            VersionDeletes::ByStore
        } else {
            VersionDeletes::ByLook
        };
        let copies = self_copy::is_plain(&builder, bucket);
        let reads_odd = odd::is_plain(&builder);
        let objects = builder
            .with_client_options(client_options())
            .with_http_connector(http.connector())
            .with_retry(no_retries())
            .with_copy_if_not_exists(S3CopyIfNotExists::Multipart)
            .build()?;
        let client = S3Client {
            objects,
            bucket: bucket.into(),
            http,
            unsigned,
            tagless,
            version_deletes,
            copies,
            special,
            md5_only: Arc::default(),
            reads_odd,
            min_part: multipart::RULE.min,
            joining: client::JOINING,
        };
        let objects = Arc::new(client.objects.clone());
        let store = Self::new(&format!("s3://{bucket}"), endpoint, objects, prefix, client);
        Ok(store.read_with(|of| *of = access))
    }
}

impl S3Client {
    /// Signs a request for `key` in the bucket; the root is the bucket itself.
    pub(super) async fn presign(&self, key: &Path, request: &Request) -> Result<reqwest::Url> {
        let mut options = SignedUrlOptions::new().with_query(request.pairs());
        options.signed_headers.clone_from(&request.headers);
        let method = request.method.clone();
        let signed = self
            .objects
            .signed_url_opts(method, key, PRESIGN_VALIDITY, &options);
        let mut url = signed.await?;
        if self.unsigned {
            let pairs = url.query().unwrap_or_default().split('&');
            let unsigned: Vec<_> = pairs.filter(|pair| !pair.starts_with("X-Amz-")).collect();
            let query = unsigned.join("&");
            url.set_query((!query.is_empty()).then_some(&query));
        }
        Ok(url)
    }
}

/// Returns the credentials, region and endpoint that S3 clients find. First in `AWS_ACCESS_KEY_ID`,
/// `AWS_ENDPOINT_URL` and the like; then in the profile named by `AWS_PROFILE`, or the default one, of
/// `~/.aws/credentials` and `~/.aws/config`; credentials in the instance's metadata last.
///
/// # Errors
/// If there is no profile of that name, or if it gets its credentials from a service.
pub fn builder_from_env() -> Result<AmazonS3Builder> {
    Ok(find_profile(None)?.fill(AmazonS3Builder::from_env()))
}

/// Returns the endpoint of the profile that [`builder_from_env`] would read.
pub fn endpoint_of_profile() -> Option<String> {
    find_profile(None).ok()?.endpoint().map(str::to_owned)
}

fn find_profile(name: Option<&str>) -> Result<Profile> {
    Profile::find(name, |name| std::env::var(name).ok()).map_err(|text| generic_error("S3", text))
}

#[async_trait]
impl Origin for S3Store {
    fn capabilities(&self) -> Capabilities {
        let rule = ChunkRule {
            min: self.client.min_part,
            ..multipart::RULE
        };
        Capabilities {
            chunk_rule: rule,
            has_tags: !self.client.tagless,
            // A shorter object is one part: its bytes are sent sooner than three requests.
            min_rewritten_bytes: Some(self.client.min_part).filter(|_| self.client.copies),
            version_deletes: self.client.version_deletes,
            reads_odd_keys: self.client.reads_odd(),
            keeps_marks: true,
            text_headers: TextHeaders::Everywhere,
            ..Capabilities::of("s3")
        }
    }

    fn identity(&self) -> Option<StoreIdentity> {
        Some(self.names())
    }

    async fn list_page(&self, prefix: &str, after: Option<&str>, max: usize) -> Result<ListPage> {
        self.page_of(&self.client.objects, prefix, after, max).await
    }

    fn list_noting(
        &self,
        prefix: Option<&Path>,
        after: Option<&Path>,
        omissions: &Omissions,
    ) -> Objects {
        self.by_pages(&self.client.objects, prefix, after, omissions)
    }

    async fn object_tags(&self, path: &Path) -> Result<ObjectTags> {
        self.read_tags(path).await
    }

    async fn set_object_tags(&self, path: &Path, tags: &ObjectTags) -> Result<()> {
        self.write_tags(path, tags).await
    }

    async fn delete_if(&self, path: &Path, condition: &DeleteCondition) -> Result<()> {
        self.delete_matching(path, condition).await
    }

    async fn content_digest(&self, path: &Path) -> Result<Option<(String, ContentDigest)>> {
        self.head_digest(path).await
    }

    async fn stat(&self, path: &Path) -> Result<Option<Finished>> {
        self.head_object(path).await
    }

    async fn open_session(&self, path: &Path, options: &SessionOptions) -> Result<NewSession> {
        Ok(Box::new(self.open(path, options).await?))
    }

    async fn resume_session(
        &self,
        path: &Path,
        options: &SessionOptions,
        token: &SessionToken,
    ) -> Result<NewSession> {
        Ok(Box::new(self.take_over(path, options, token)?))
    }

    async fn open_sessions(&self) -> Result<Vec<OpenSession>> {
        self.list_uploads().await
    }
}
