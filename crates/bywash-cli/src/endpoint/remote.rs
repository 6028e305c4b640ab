//! Endpoint, region and credentials, from arguments and environment, and the clients made with them.

use std::sync::Arc;
use std::time::Duration;

use bywash::origin::s3::{S3Store, builder_from_env, endpoint_of_profile};
use bywash::origin::{Connector, Origin};
use bywash::{OriginUrl, Verify};
use clap::builder::FalseyValueParser;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};

use crate::failure::{Failure, Kind};

/// Max time of a request for credentials.
const CREDENTIALS_TIMEOUT: Duration = Duration::from_secs(60);

/// How buckets are reached.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Remote {
    /// The S3 endpoint, as http://127.0.0.1:8420 [default: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, then AWS itself]
    ///
    /// Credentials and region come from AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN
    /// and AWS_REGION, then from the profile of ~/.aws that AWS_PROFILE names, then from the instance's metadata. Where there
    /// are none, requests to a loopback endpoint are not signed. gs:// and az:// find theirs as Google's and Azure's clients do.
    #[arg(long, global = true, value_name = "URL")]
    endpoint: Option<url::Url>,
    /// Which reads are compared with the digest that the store states of the whole object: off, or whole
    #[arg(long, global = true, value_name = "READS", default_value_t)]
    pub(crate) verify: Verify,
    /// Read from the endpoint even if it is this user's own server on this machine
    ///
    /// Without it, cat, cp, du, ls, mv, rm, stat and sync read such a server's memory over its unix socket, in BYWASH_LOCAL or at the user's
    /// well-known place. The output is the same.
    #[arg(long, global = true, env = "BYWASH_NO_LOCAL", value_parser = FalseyValueParser::new())]
    no_local: bool,
}

impl Remote {
    /// Reaches S3 at this endpoint.
    pub(super) fn at(endpoint: Option<url::Url>) -> Self {
        Self {
            endpoint,
            verify: Verify::default(),
            no_local: true,
        }
    }

    /// The name of the bucket that this user's own server may have, if `url` is a bucket of an
    /// endpoint that it may be.
    pub(super) fn local_bucket<'u>(&self, url: &'u OriginUrl) -> Option<&'u str> {
        match url {
            OriginUrl::S3 { bucket, prefix } if !self.no_local && prefix.is_root() => {
                // Over TLS the server proves its name.
                let endpoint = self.endpoint()?;
                (endpoint.scheme() == "http").then_some(bucket)
            }
            _ => None,
        }
    }

    /// The S3 endpoint: the given one, otherwise the environment's.
    pub(crate) fn endpoint(&self) -> Option<url::Url> {
        let ambient = || ambient_endpoint().map(|(_, url)| url);
        self.endpoint.clone().or_else(ambient)
    }

    /// Returns credentials, region and endpoint for `bucket`.
    pub(super) fn builder(&self, bucket: &str) -> Result<AmazonS3Builder, Failure> {
        let builder = builder_from_env();
        let builder = builder.map_err(|error| {
            Failure::new(Kind::Denied, format!("cannot open s3://{bucket}: {error}"))
        })?;
        let mut builder = builder
            .with_bucket_name(bucket)
            .with_http_connector(Connector::with_timeout(CREDENTIALS_TIMEOUT));
        if let Some(endpoint) = self.endpoint() {
            builder = builder
                .with_config(
                    AmazonS3ConfigKey::S3Endpoint,
                    endpoint.as_str().trim_end_matches('/'),
                )
                .with_allow_http(endpoint.scheme() == "http");
            let key = builder.get_config_value(&AmazonS3ConfigKey::AccessKeyId);
            if is_loopback(&endpoint) && key.is_none() {
                builder = builder.with_skip_signature(true);
            }
        }
        Ok(builder)
    }

    /// Opens an origin. Sends no request.
    pub(super) fn open(&self, url: &OriginUrl) -> Result<Arc<dyn Origin>, Failure> {
        let failed =
            |error: &object_store::Error| Failure::store(format!("cannot open {url}"), error);
        match url {
            OriginUrl::S3 { bucket, prefix } => {
                let store = S3Store::from_builder(self.builder(bucket)?, bucket, prefix);
                let store = store.and_then(S3Store::with_conditional_delete_of_env);
                Ok(Arc::new(store.map_err(|error| failed(&error))?))
            }
            url => url.open().map_err(|error| failed(&error)),
        }
    }
}

/// Source of an endpoint in a profile of the AWS command line, for messages.
pub(crate) const PROFILE_ENDPOINT: &str = "endpoint_url of the AWS profile";

/// The S3 endpoint of the environment, with the variable's name, as S3 clients find it; otherwise
/// the profile's.
pub(crate) fn ambient_endpoint() -> Option<(&'static str, url::Url)> {
    let variable = |name: &'static str| {
        let value = std::env::var(name).ok().filter(|value| !value.is_empty())?;
        Some((name, url::Url::parse(&value).ok()?))
    };
    let profile = || {
        Some((
            PROFILE_ENDPOINT,
            url::Url::parse(&endpoint_of_profile()?).ok()?,
        ))
    };
    ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"]
        .into_iter()
        .find_map(variable)
        .or_else(profile)
}

fn is_loopback(endpoint: &url::Url) -> bool {
    match endpoint.host() {
        Some(url::Host::Domain(name)) => name == "localhost",
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}
