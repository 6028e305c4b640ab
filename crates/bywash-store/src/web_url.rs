//! URLs of web servers' folders. User info and query are often secrets, so neither is displayed.

use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::HeaderValue;
use object_store::path::Path;
use percent_encoding::percent_decode_str;
use sha2::{Digest, Sha256};
use url::Url;

use crate::digest::hex;

/// URL of the folder (`http://` or `https://`) that contains the objects.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct HttpUrl(Url);

impl HttpUrl {
    /// `url` must have one of the two schemes.
    pub(crate) fn new(mut url: Url) -> Self {
        url.set_fragment(None);
        Self(url)
    }

    /// The last folder's name, or the host's.
    pub(crate) fn name(&self) -> Option<String> {
        let last = self.0.path_segments()?.rfind(|name| !name.is_empty());
        let last = last.map(|name| percent_decode_str(name).decode_utf8_lossy().into_owned());
        last.or_else(|| self.0.host_str().map(str::to_owned))
    }

    /// Returns the URL of an object: its key below the folder, with the folder's query. Without user info.
    pub(crate) fn object(&self, path: &Path) -> Url {
        let mut url = self.0.clone();
        // An http URL always accepts both.
        let _ = url.set_username("");
        let _ = url.set_password(None);
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path.parts());
        }
        url
    }

    /// The user info as an `Authorization` header.
    pub(crate) fn basic_auth(&self) -> Option<HeaderValue> {
        let (user, password) = (self.0.username(), self.0.password().unwrap_or_default());
        if user.is_empty() && password.is_empty() {
            return None;
        }
        let mut text: Vec<u8> = percent_decode_str(user).collect();
        text.push(b':');
        text.extend(percent_decode_str(password));
        let mut value =
            HeaderValue::try_from(format!("Basic {}", BASE64_STANDARD.encode(text))).ok()?;
        value.set_sensitive(true);
        Some(value)
    }

    /// The URL without secrets, with a digest of its query: another query may name other files.
    pub(crate) fn durable_address(&self) -> String {
        let Some(query) = self.0.query() else {
            return self.to_string();
        };
        let digest = Sha256::digest(query.as_bytes());
        format!("{self} {}", hex(&digest[..8]))
    }

    /// Whether there is a query, which may be a signature.
    pub(crate) fn has_query(&self) -> bool {
        self.0.query().is_some()
    }

    /// Whether there is user info or a query, which may be a signature.
    pub(crate) fn has_secrets(&self) -> bool {
        self.basic_auth().is_some() || self.has_query()
    }
}

/// Displays the URL without parts that may be secret.
impl fmt::Display for HttpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut url = self.0.clone();
        let _ = url.set_username("");
        let _ = url.set_password(None);
        url.set_query(None);
        f.write_str(url.as_str().trim_end_matches('/'))
    }
}

impl fmt::Debug for HttpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HttpUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn url(text: &str) -> HttpUrl {
        HttpUrl::new(Url::parse(text).unwrap())
    }

    #[test]
    fn object_url_is_below_the_folder_with_its_query() {
        let folder = url("https://me:p%40ss@data.example:8443/pub/set/?sig=a%2Bb#top");
        let object = folder.object(&Path::parse("year=2024/a b+c%.csv").unwrap());
        assert_eq!(
            object.as_str(),
            "https://data.example:8443/pub/set/year=2024/a%20b+c%25.csv?sig=a%2Bb"
        );
        let root = url("http://127.0.0.1:8080").object(&Path::from("k"));
        assert_eq!(root.as_str(), "http://127.0.0.1:8080/k");
        assert_eq!(folder.name().unwrap(), "set");
        assert_eq!(url("http://host.example/").name().unwrap(), "host.example");
    }

    #[test]
    fn durable_address_differs_with_the_query_and_has_no_secrets() {
        let plain = url("https://me:p%40ss@data.example/pub").durable_address();
        assert_eq!(plain, "https://data.example/pub");
        let one = url("https://data.example/pub?sig=secret").durable_address();
        let other = url("https://data.example/pub?sig=other").durable_address();
        assert!(one != other && one != plain && !one.contains("secret"));
    }

    #[test]
    fn secrets_are_not_displayed() {
        let folder = url("https://me:p%40ss@data.example/pub?sig=secret");
        for shown in [folder.to_string(), format!("{folder:?}")] {
            assert!(shown.contains("https://data.example/pub"), "{shown}");
            assert!(!shown.contains("me") || !shown.contains('@'), "{shown}");
            assert!(!shown.contains("secret"), "{shown}");
        }
        let auth = folder.basic_auth().unwrap();
        assert!(auth.is_sensitive());
        assert_eq!(auth, "Basic bWU6cEBzcw==");
        assert_eq!(url("http://h/").basic_auth(), None);
    }
}
