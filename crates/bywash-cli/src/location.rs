//! Where bytes come from and go to: files, objects, standard input and output.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use bywash::origin::Connector;
use bywash::origin::s3::{builder_from_env, endpoint_of_profile};
use object_store::RetryConfig;
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use url::Url;

use crate::address::Address;
use crate::failure::{Failure, Kind};

/// The most time one request may take. A request moves at most one part, so this allows 32 KiB/s.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(300);
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
    /// Returns the file or object `name` below this folder.
    pub(crate) fn join(&self, name: &str) -> Self {
        match self {
            Self::Stdio => Self::Stdio,
            Self::File(path) => Self::File(path.join(name)),
            Self::Object(address) => Self::Object(address.join(name)),
        }
    }

    /// The last name of the path or key, for a copy into a folder.
    pub(crate) fn file_name(&self) -> Option<String> {
        match self {
            Self::Stdio => None,
            Self::File(path) => path
                .file_name()
                .map(|name| name.to_string_lossy().into_owned()),
            // What a web server's address has in percent signs is a character of the name.
            Self::Object(address) => {
                let path = address.path().ok()?;
                path.filename().map(str::to_owned)
            }
        }
    }
}

/// How buckets are reached.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Remote {
    /// The S3 endpoint, as http://127.0.0.1:8420 [default: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, then AWS itself]
    ///
    /// Credentials and region come from AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN
    /// and AWS_REGION, then from the profile of ~/.aws that AWS_PROFILE names, then from the instance's metadata. Where there
    /// are none, requests to a loopback endpoint are not signed. gs:// and az:// find theirs as Google's and Azure's clients do.
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
            .builder(bucket)?
            .with_retry(RetryConfig {
                max_retries: RETRIES,
                retry_timeout: RETRY_TIMEOUT,
                ..RetryConfig::default()
            })
            .build()
            .map_err(|error| Failure::store(format!("cannot open s3://{bucket}"), &error))?;
        Ok(Arc::new(client))
    }

    /// Credentials, region, endpoint and HTTP client for `bucket`.
    pub(crate) fn builder(&self, bucket: &str) -> Result<AmazonS3Builder, Failure> {
        let builder = builder_from_env();
        let builder = builder.map_err(|error| {
            Failure::new(Kind::Denied, format!("cannot open s3://{bucket}: {error}"))
        })?;
        let mut builder = builder
            .with_bucket_name(bucket)
            .with_http_connector(Connector::with_timeout(REQUEST_TIMEOUT));
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
}

/// What names an endpoint in a profile of the AWS command line.
pub(crate) const PROFILE_ENDPOINT: &str = "endpoint_url of the AWS profile";

/// The S3 endpoint the environment names, with the variable's name, as S3 clients find it; else that of the profile.
pub(crate) fn ambient_endpoint() -> Option<(&'static str, Url)> {
    let variable = |name: &'static str| {
        let value = std::env::var(name).ok().filter(|value| !value.is_empty())?;
        Some((name, Url::parse(&value).ok()?))
    };
    let profile = || Some((PROFILE_ENDPOINT, Url::parse(&endpoint_of_profile()?).ok()?));
    ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"]
        .into_iter()
        .find_map(variable)
        .or_else(profile)
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
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn locations_are_read() {
        let s3 = |text: &str| Location::Object(text.parse().unwrap());
        for (text, location) in [
            ("-", Location::Stdio),
            ("a/b", Location::File("a/b".into())),
            ("./-", Location::File("./-".into())),
            ("file:///a%20b/c", Location::File("/a b/c".into())),
            ("s3://data", s3("s3://data")),
            ("s3://data/", s3("s3://data/")),
            ("s3://data/dir/", s3("s3://data/dir/")),
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
            ("s3://data/a%20b", Some("a%20b")),
            ("https://host/dir/a%20b?x=y", Some("a b")),
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
