//! Addresses of objects: `s3://bucket/key`, `gs://bucket/key`, `az://container/key`, `https://host/path`.

use std::fmt;
use std::str::FromStr;

use bywash::OriginUrl;
use bywash::origin::odd_keys::key_of;
use object_store::path::Path;

use crate::failure::Failure;

/// The protocol of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scheme {
    S3,
    Gcs,
    Azure,
    Http,
    Https,
}

impl Scheme {
    const ALL: [Self; 5] = [Self::S3, Self::Gcs, Self::Azure, Self::Http, Self::Https];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Gcs => "gs",
            Self::Azure => "az",
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    /// Whether the store accepts writes.
    pub(crate) fn is_writable(self) -> bool {
        !matches!(self, Self::Http | Self::Https)
    }
}

/// An object of a store, or a folder of objects if the key is empty or ends with a slash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) scheme: Scheme,
    /// The bucket or container; the host of an HTTP server.
    pub(crate) bucket: String,
    /// Kept as written, to distinguish `dir/` from `dir`.
    pub(crate) key: String,
    /// Query of a web server's address: sent with each request, not shown, because it may be a signature.
    query: Option<String>,
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, rest) = text.split_once("://").unwrap_or_default();
        let scheme = Scheme::ALL.into_iter().find(|scheme| scheme.name() == name);
        let scheme = scheme.ok_or_else(|| {
            format!(
                "{text:?}: this kind of address is not known; write a file path, s3://bucket/key, gs://bucket/key, \
                 az://container/key or https://host/path"
            )
        })?;
        let (rest, query) = if scheme.is_writable() {
            (rest, None)
        } else {
            split_query(rest)
        };
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err(format!(
                "{text:?} names no bucket; write {name}://bucket/key"
            ));
        }
        // `Path` would remove a leading slash and address another object.
        if key.starts_with('/') {
            return Err(format!(
                "{text:?}: a key that begins with a slash cannot be named here"
            ));
        }
        Path::parse(key)
            .map_err(|error| format!("{text:?}: this key cannot be named here: {error}"))?;
        Ok(Self {
            scheme,
            bucket: bucket.to_owned(),
            key: key.to_owned(),
            query: query.map(str::to_owned),
        })
    }
}

/// Splits the text at its query. A fragment is never sent to a server.
fn split_query(text: &str) -> (&str, Option<&str>) {
    let text = text.split('#').next().unwrap_or_default();
    match text.split_once('?') {
        Some((before, query)) => (before, Some(query)),
        None => (text, None),
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            scheme,
            bucket,
            key,
            ..
        } = self;
        // User name and password of a web server are not shown.
        let host = match bucket.rsplit_once('@') {
            Some((_, host)) if !scheme.is_writable() => host,
            _ => bucket,
        };
        write!(f, "{}://{host}/{key}", scheme.name())
    }
}

impl Address {
    pub(crate) fn is_folder(&self) -> bool {
        self.key.is_empty() || self.key.ends_with('/')
    }

    /// The object `name` below this folder.
    pub(crate) fn join(&self, name: &str) -> Self {
        let slash = if self.is_folder() { "" } else { "/" };
        Self {
            key: format!("{}{slash}{name}", self.key),
            ..self.clone()
        }
    }

    /// Returns the URL of the whole bucket for the engine.
    pub(crate) fn origin(&self) -> Result<OriginUrl, Failure> {
        let mut url = format!("{}://{}", self.scheme.name(), self.bucket);
        if let Some(query) = &self.query {
            url = format!("{url}/?{query}");
        }
        url.parse()
            .map_err(|error| Failure::usage(format!("{self}: {error}")))
    }

    /// Returns the key as a store path; for a folder, the prefix of its keys.
    pub(crate) fn path(&self) -> Result<Path, Failure> {
        let path = match self.scheme.is_writable() {
            true => Path::parse(&self.key),
            // Percent-encoded characters stand for one character each.
            false => Path::from_url_path(&self.key),
        };
        path.map_err(|error| {
            Failure::usage(format!("{self}: this key cannot be named here: {error}"))
        })
    }

    /// Returns the path of one object. Fails for an empty key and for a folder.
    pub(crate) fn object(&self) -> Result<Path, Failure> {
        if self.is_folder() {
            return Err(Failure::usage(format!(
                "{self} names no object; write {}://bucket/key",
                self.scheme.name()
            )));
        }
        self.path()
    }

    /// The address of another key of this bucket.
    pub(crate) fn sibling(&self, path: &Path) -> Self {
        Self {
            key: key_of(path).into_owned(),
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn addresses_are_read_and_written() {
        for (text, folder) in [
            ("s3://b/k", false),
            ("s3://b/", true),
            ("s3://data/a b%20c?d#e", false),
            ("gs://b/dir/k", false),
            ("az://container/dir/", true),
            ("http://127.0.0.1:8080/a%20b", false),
            ("https://example.org/", true),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
            assert_eq!(address.is_folder(), folder, "{text}");
            assert_eq!(address.object().is_err(), folder, "{text}");
        }
        let http: Address = "http://host/a%20b".parse().unwrap();
        assert_eq!(http.path().unwrap().as_ref(), "a b");
        let http: Address = "http://me:secret@host/a".parse().unwrap();
        assert_eq!(http.to_string(), "http://host/a");
        assert_eq!(http.bucket, "me:secret@host");
        let signed: Address = "https://host/dir/a?x=y/z&sig=s%2F#part".parse().unwrap();
        assert_eq!(signed.to_string(), "https://host/dir/a");
        assert_eq!(signed.path().unwrap().as_ref(), "dir/a");
        let other: Address = "https://host/dir/a?x=z".parse().unwrap();
        assert_ne!(signed.origin().unwrap(), other.origin().unwrap());
        let bare: Address = "https://host?x=y".parse().unwrap();
        assert!(bare.is_folder());
        for bad in [
            "s3://",
            "s3:///key",
            "s3://data//a",
            "s3://data/a//b",
            "s3://data/../a",
            "gs:///k",
            "az://c/../k",
            "ftp://b/k",
            "https://?b=c",
        ] {
            assert!(bad.parse::<Address>().is_err(), "{bad}");
        }
    }

    #[test]
    fn names_are_joined_below_folders() {
        for (folder, joined) in [
            ("s3://b/", "s3://b/x/y"),
            ("s3://b/dir", "s3://b/dir/x/y"),
            ("s3://b/dir/", "s3://b/dir/x/y"),
        ] {
            let folder: Address = folder.parse().unwrap();
            assert_eq!(folder.join("x/y").to_string(), joined);
        }
    }
}
