//! Where bytes come from and go to: files, objects, standard input and output.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::{ClientConfigKey, RetryConfig};
use url::Url;

use crate::address::Address;
use crate::failure::Failure;

/// The most time one request may take. A request moves at most one part, so this allows 32 KiB/s.
const REQUEST_TIMEOUT: &str = "300s";
/// How often a request is tried again after the server failed or could not be reached. With the
/// client's growing pauses a dead endpoint is told within seconds.
const RETRIES: usize = 5;
/// No try starts later than this after the first.
const RETRY_TIMEOUT: Duration = Duration::from_secs(60);

/// A file, an object or a standard stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Location {
    /// `-`
    Stdio,
    /// A path of this machine, `dir/file` or `file:///dir/file`.
    File(PathBuf),
    /// An object of a store, or a folder of objects.
    Object(Address),
}

impl FromStr for Location {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("the location is empty".to_owned());
        }
        if text == "-" {
            return Ok(Self::Stdio);
        }
        if text.starts_with("file://") {
            let path = Url::parse(text)
                .ok()
                .and_then(|url| url.to_file_path().ok());
            return path
                .map(Self::File)
                .ok_or_else(|| format!("{text:?} is not a file address; write file:///dir/file"));
        }
        match text.contains("://") {
            true => text.parse().map(Self::Object),
            false => Ok(Self::File(PathBuf::from(text))),
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdio => f.write_str("-"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Object(address) => address.fmt(f),
        }
    }
}

impl Location {
    /// The last name of the path or key, for a copy into a folder.
    pub(crate) fn file_name(&self) -> Option<String> {
        match self {
            Self::Stdio => None,
            Self::File(path) => path
                .file_name()
                .map(|name| name.to_string_lossy().into_owned()),
            Self::Object(Address { key, .. }) => key
                .trim_end_matches('/')
                .rsplit('/')
                .next()
                .filter(|name| !name.is_empty())
                .map(str::to_owned),
        }
    }
}

/// How buckets are reached.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Remote {
    /// The S3 endpoint, as http://127.0.0.1:8420 [default: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, then AWS itself]
    ///
    /// Credentials and region come from AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN
    /// and AWS_REGION, then from the instance's metadata. Without AWS_ACCESS_KEY_ID, requests to a
    /// loopback endpoint are not signed. gs:// and az:// find theirs as Google's and Azure's clients do.
    #[arg(long, global = true, value_name = "URL")]
    endpoint: Option<Url>,
}

impl Remote {
    /// Where S3 is: as given, or else as the environment says.
    pub(crate) fn endpoint(&self) -> Option<Url> {
        let ambient = || ambient_endpoint().map(|(_, url)| url);
        self.endpoint.clone().or_else(ambient)
    }

    /// Says where S3 is, as the option does.
    pub(crate) fn set_endpoint(&mut self, endpoint: Option<Url>) {
        self.endpoint = endpoint;
    }

    /// A client of `bucket`. Sends no request.
    pub(crate) fn bucket(&self, bucket: &str) -> Result<Arc<AmazonS3>, Failure> {
        let client = self
            .builder(bucket)
            .with_config(
                AmazonS3ConfigKey::Client(ClientConfigKey::Timeout),
                REQUEST_TIMEOUT,
            )
            .with_retry(RetryConfig {
                max_retries: RETRIES,
                retry_timeout: RETRY_TIMEOUT,
                ..RetryConfig::default()
            })
            .build()
            .map_err(|error| Failure::store(format!("cannot open s3://{bucket}"), &error))?;
        Ok(Arc::new(client))
    }

    /// Credentials, region and endpoint for `bucket`.
    pub(crate) fn builder(&self, bucket: &str) -> AmazonS3Builder {
        let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
        if let Some(endpoint) = self.endpoint() {
            builder = builder
                .with_config(
                    AmazonS3ConfigKey::S3Endpoint,
                    endpoint.as_str().trim_end_matches('/'),
                )
                .with_allow_http(endpoint.scheme() == "http");
            if is_loopback(&endpoint) && std::env::var_os("AWS_ACCESS_KEY_ID").is_none() {
                builder = builder.with_skip_signature(true);
            }
        }
        builder
    }
}

/// The S3 endpoint the environment names, with the variable's name, as S3 clients find it.
pub(crate) fn ambient_endpoint() -> Option<(&'static str, Url)> {
    ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"]
        .into_iter()
        .find_map(|name| {
            let value = std::env::var(name).ok().filter(|value| !value.is_empty())?;
            Some((name, Url::parse(&value).ok()?))
        })
}

fn is_loopback(endpoint: &Url) -> bool {
    match endpoint.host() {
        Some(url::Host::Domain(name)) => name == "localhost",
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Scheme;

    #[test]
    fn locations_are_read() {
        let s3 = |bucket: &str, key: &str| {
            Location::Object(Address {
                scheme: Scheme::S3,
                bucket: bucket.to_owned(),
                key: key.to_owned(),
            })
        };
        for (text, location) in [
            ("-", Location::Stdio),
            ("a/b", Location::File("a/b".into())),
            ("./-", Location::File("./-".into())),
            ("file:///a%20b/c", Location::File("/a b/c".into())),
            ("s3://data", s3("data", "")),
            ("s3://data/", s3("data", "")),
            ("s3://data/dir/", s3("data", "dir/")),
        ] {
            assert_eq!(text.parse(), Ok(location), "{text}");
        }
        for bad in ["", "s3://", "ftp://b/k", "file://host/a"] {
            assert!(bad.parse::<Location>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_location_knows_its_last_name() {
        for (text, name) in [
            ("a/b.txt", Some("b.txt")),
            ("s3://data/x/y", Some("y")),
            ("s3://data", None),
            ("-", None),
        ] {
            assert_eq!(
                text.parse::<Location>().map(|l| l.file_name()),
                Ok(name.map(str::to_owned)),
                "{text}"
            );
        }
    }
}
