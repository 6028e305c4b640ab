//! Host names and the buckets they name.
//!
//! `BUCKET.DOMAIN` and `BUCKET.localhost` are virtual-hosted-style. DOMAIN itself, `localhost`, addresses and unknown
//! names are path-style. An unknown name that begins with the name of a bucket is rejected, because its path would
//! address another bucket.

use http::header::HOST;
use http::request::Parts;
use http::{StatusCode, Version};
use percent_encoding::percent_decode_str;
use s3s::{S3ErrorCode, S3Result};

use crate::errors::{custom, fault};
use crate::limits::MAX_HOST_BYTES;

/// The domain of every endpoint.
const LOCALHOST: &str = "localhost";

/// Domains of virtual-hosted-style names, longest first.
#[derive(Debug, Clone)]
pub(crate) struct Hosts(Vec<String>);

/// Bucket and key of a request; empty if it names none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) bucket: String,
    pub(crate) key: String,
    /// Whether the host names the bucket.
    pub(crate) is_virtual: bool,
    /// An unknown host name without its port: possibly virtual-hosted-style below a domain that is not configured.
    pub(crate) unknown_host: Option<String>,
}

/// Meaning of a host name.
enum AddressingStyle {
    Path,
    /// Names a bucket.
    Virtual(String),
    Unknown(String),
}

impl Hosts {
    /// Accepts domains in any order, and adds `localhost`.
    ///
    /// # Errors
    /// The first name that is not a domain.
    pub(crate) fn new(domains: &[String]) -> Result<Self, String> {
        let mut known = vec![LOCALHOST.to_owned()];
        for domain in domains {
            if !is_domain(domain) {
                return Err(domain.clone());
            }
            known.push(domain.to_ascii_lowercase());
        }
        known.sort_by_key(|domain| std::cmp::Reverse(domain.len()));
        known.dedup();
        Ok(Self(known))
    }

    /// Determines bucket and key from a request's host and path.
    ///
    /// # Errors
    /// If the request has no host although HTTP requires one, several hosts, or an invalid one.
    pub(crate) fn target(&self, parts: &Parts) -> (Target, S3Result<()>) {
        let path = percent_decode_str(parts.uri.path()).decode_utf8_lossy();
        let path = path.strip_prefix('/').unwrap_or(&path);
        let in_path = |unknown_host| {
            let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
            Target {
                bucket: bucket.to_owned(),
                key: key.to_owned(),
                is_virtual: false,
                unknown_host,
            }
        };
        let host = match host_of(parts) {
            Ok(host) => host,
            Err(error) => return (in_path(None), Err(error)),
        };
        let target = match host.map_or(AddressingStyle::Path, |host| self.style(host)) {
            AddressingStyle::Path => in_path(None),
            AddressingStyle::Unknown(name) => in_path(Some(name)),
            AddressingStyle::Virtual(bucket) => Target {
                bucket,
                key: path.to_owned(),
                is_virtual: true,
                unknown_host: None,
            },
        };
        (target, Ok(()))
    }

    /// Whether `host`, a Host header, is a domain as it is written in the settings, or an IPv4
    /// address: requests to it are path-style. False for some other names that are path-style too.
    pub(crate) fn is_plain_path_style(&self, host: &str) -> bool {
        let name = without_port(host);
        host.len() <= MAX_HOST_BYTES
            && (name.parse::<std::net::Ipv4Addr>().is_ok()
                || self.0.iter().any(|domain| domain == name))
    }

    fn style(&self, host: &str) -> AddressingStyle {
        let name = without_port(host).to_ascii_lowercase();
        let name = name.strip_suffix('.').unwrap_or(&name);
        if is_address(name) || self.0.iter().any(|domain| domain == name) {
            return AddressingStyle::Path;
        }
        let below = |domain: &'_ String| {
            let bucket = name.strip_suffix(domain.as_str())?.strip_suffix('.')?;
            (!bucket.is_empty()).then(|| bucket.to_owned())
        };
        match self.0.iter().find_map(below) {
            Some(bucket) => AddressingStyle::Virtual(bucket),
            None => AddressingStyle::Unknown(name.to_owned()),
        }
    }
}

impl Target {
    /// The bucket if the host names it.
    pub(crate) fn virtual_bucket(&self) -> Option<&str> {
        self.is_virtual.then_some(&*self.bucket)
    }

    /// Rejects an unknown host name that begins with the name of an existing bucket.
    pub(crate) fn check_host(&self, exists: impl Fn(&str) -> bool) -> S3Result<()> {
        let Some(host) = &self.unknown_host else {
            return Ok(());
        };
        // Bucket names may contain dots; the domain after it is not empty.
        let mut dots = host.match_indices('.');
        let Some((at, _)) = dots.find(|(at, _)| exists(&host[..*at])) else {
            return Ok(());
        };
        let (bucket, domain) = (&host[..at], &host[at + 1..]);
        let message = format!(
            "The host {host} may mean bucket {bucket} of domain {domain}, or a path of host {host}: start the server with --domain {domain} or --domain {host}, or address it as localhost or by IP address."
        );
        Err(fault(S3ErrorCode::InvalidRequest, message))
    }
}

/// Returns the host of a request. Only HTTP/1.0 allows none.
fn host_of(parts: &Parts) -> S3Result<Option<&str>> {
    let wrong = |message: &str| Err(custom("InvalidRequest", StatusCode::BAD_REQUEST, message));
    let mut values = parts.headers.get_all(HOST).iter();
    let host = match (values.next(), values.next()) {
        (Some(_), Some(_)) => return wrong("The request has two Host headers; send one."),
        (None, _) if parts.version == Version::HTTP_10 => return Ok(None),
        (None, _) => return wrong("The request has no Host header; send the host it is for."),
        (Some(host), None) => host.to_str().unwrap_or_default(),
    };
    let address = host.starts_with('[') && without_port(host).ends_with(']');
    if host.len() > MAX_HOST_BYTES || !(address || is_host(host)) {
        return wrong("The Host header is not a host name or an address.");
    }
    // A request to a proxy has its host twice.
    let authority = parts.uri.authority();
    if authority.is_some_and(|authority| !authority.as_str().eq_ignore_ascii_case(host)) {
        return wrong("The request's target and its Host header name different hosts.");
    }
    Ok(Some(host))
}

/// Whether `name` can be a domain of buckets: a host name without a port, not an address.
#[must_use]
pub fn is_domain(name: &str) -> bool {
    name.len() <= MAX_HOST_BYTES && is_name(name) && !is_address(name)
}

/// Whether `host` is a name or an IPv4 address, with or without a port.
fn is_host(host: &str) -> bool {
    let name = without_port(host);
    is_name(name.strip_suffix('.').unwrap_or(name))
}

fn is_name(name: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty()
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    name.split('.').all(is_label)
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

fn is_address(name: &str) -> bool {
    let bare = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'));
    match bare {
        Some(bare) => bare.parse::<std::net::Ipv6Addr>().is_ok(),
        None => name.parse::<std::net::Ipv4Addr>().is_ok(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn target(host: &str, path: &str) -> Target {
        let hosts = Hosts::new(&["s3.example.com".to_owned(), "Example.com".to_owned()]).unwrap();
        let request = http::Request::builder().uri(path).header(HOST, host);
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let (target, checked) = hosts.target(&parts);
        checked.unwrap();
        target
    }

    #[test]
    fn hosts_below_a_domain_name_a_bucket_and_the_longest_domain_wins() {
        for host in [
            "b.localhost",
            "b.localhost:8420",
            "B.LocalHost",
            "b.localhost.",
            "b.s3.example.com",
            "b.example.com:80",
        ] {
            let found = target(host, "/x/y");
            assert_eq!((&*found.bucket, &*found.key), ("b", "x/y"), "{host}");
            assert_eq!(found.unknown_host, None);
        }
        assert_eq!(target("my.bucket.localhost", "/x").bucket, "my.bucket");
    }

    #[test]
    fn domains_and_addresses_are_path_style() {
        for host in [
            "localhost",
            "localhost:8420",
            "s3.example.com",
            "example.com:443",
            "127.0.0.1",
            "127.0.0.1:8420",
            "[::1]",
            "[::1]:8420",
        ] {
            let found = target(host, "/b/x");
            assert_eq!((&*found.bucket, &*found.key), ("b", "x"), "{host}");
            assert_eq!(found.unknown_host, None);
        }
    }

    #[test]
    fn plain_hosts_are_path_style() {
        let hosts = Hosts::new(&["s3.example.com".to_owned()]).unwrap();
        for host in ["localhost:1", "127.0.0.1", "127.0.0.1:80", "s3.example.com"] {
            assert!(hosts.is_plain_path_style(host), "{host}");
            assert!(matches!(hosts.style(host), AddressingStyle::Path), "{host}");
        }
        for host in [
            "",
            "b.localhost",
            "b.s3.example.com",
            "other.org",
            "127.0.0.1:x",
        ] {
            assert!(!hosts.is_plain_path_style(host), "{host}");
        }
    }

    #[test]
    fn unknown_hosts_below_a_bucket_name_are_rejected() {
        let exists = |name: &str| matches!(name, "b" | "my.bucket" | "single");
        for host in ["b.other.org", "my.bucket.other.org:80"] {
            let error = target(host, "/x").check_host(exists).unwrap_err();
            assert!(error.message().unwrap().contains("--domain"), "{host}");
        }
        // A name without a dot has no domain after a bucket.
        for host in ["c.other.org", "single", "other.b.org"] {
            let found = target(host, "/x");
            assert_eq!(found.bucket, "x");
            found.check_host(exists).unwrap();
        }
    }

    #[test]
    fn invalid_domains_are_rejected() {
        for domain in ["", "a..b", "http://x", "x:80", "127.0.0.1", ".x", "x/y"] {
            assert_eq!(Hosts::new(&[domain.to_owned()]).unwrap_err(), domain);
        }
    }
}
