//! URLs of origins: `file:///folder`, `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`,
//! `https://host/folder`, `memory://`.

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path as FsPath, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use object_store::path::Path;
use url::Url;

#[cfg(feature = "azure")]
use super::azure::AzureStore;
use super::folder::FolderStore;
#[cfg(feature = "gcs")]
use super::gcs::GcsStore;
#[cfg(feature = "http")]
use super::http::HttpStore;
use super::interface::Origin;
use super::memory::MemoryStore;
use super::options::OriginOptions;
#[cfg(feature = "s3")]
use super::s3::S3Store;
use super::web_url::HttpUrl;
use crate::error::OriginUrlError;

/// URL of an origin.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum OriginUrl {
    /// A folder of this machine.
    File(PathBuf),
    /// An S3 bucket, or the part of it below a prefix. Credentials, region and endpoint are found as S3 clients
    /// find them, in the environment and in the profiles of `~/.aws`.
    S3 {
        /// The bucket's name.
        bucket: String,
        /// Prefix of the keys; empty for the whole bucket.
        prefix: Path,
    },
    /// A bucket of Google Cloud Storage, or the part of it below a prefix. Credentials are found as Google's
    /// clients find them, in the environment; `STORAGE_EMULATOR_HOST` sets another server.
    Gcs {
        /// The bucket's name.
        bucket: String,
        /// Prefix of the keys; empty for the whole bucket.
        prefix: Path,
    },
    /// A container of Azure Blob Storage, or the part of it below a prefix. Account, credentials and endpoint come
    /// from `AZURE_STORAGE_*` variables, such as `AZURE_STORAGE_CONNECTION_STRING`.
    Azure {
        /// The container's name.
        container: String,
        /// Prefix of the keys; empty for the whole container.
        prefix: Path,
    },
    /// A folder of a web server, over `http` or `https`, read-only. Its user info is sent as basic authentication,
    /// its query with each request; neither is displayed.
    Http(HttpUrl),
    /// Objects in memory, lost when the process ends. Not charged to the budget, as it is an origin.
    Memory,
}

impl OriginUrl {
    /// Opens the origin with the environment's settings. Blocks for a few file operations at most; sends no request.
    pub fn open(&self) -> object_store::Result<Arc<dyn Origin>> {
        self.open_with(&OriginOptions::default())
    }

    /// Opens the origin with its own settings, or with the environment's if there are none.
    ///
    /// # Errors
    /// If a setting is not valid, or this kind of origin does not have it.
    pub fn open_with(&self, options: &OriginOptions) -> object_store::Result<Arc<dyn Origin>> {
        let without = |kind| options.no_options(kind).and(options.no_web(kind));
        Ok(match self {
            Self::File(folder) => {
                without("file")?;
                Arc::new(FolderStore::open(folder)?)
            }
            #[cfg(feature = "s3")]
            Self::S3 { bucket, prefix } => {
                Arc::new(S3Store::with_options(bucket, prefix, options)?)
            }
            #[cfg(feature = "gcs")]
            Self::Gcs { bucket, prefix } => {
                Arc::new(GcsStore::with_options(bucket, prefix, options)?)
            }
            #[cfg(feature = "azure")]
            Self::Azure { container, prefix } => {
                Arc::new(AzureStore::with_options(container, prefix, options)?)
            }
            #[cfg(feature = "http")]
            Self::Http(url) => {
                options.no_options("http")?;
                let headers = options.header_map()?;
                Arc::new(HttpStore::open(url, &headers, options.redirects)?)
            }
            Self::Memory => {
                without("memory")?;
                Arc::new(MemoryStore::new())
            }
            #[cfg(not(all(feature = "s3", feature = "gcs", feature = "azure", feature = "http")))]
            _ => return Err(self.is_not_built()),
        })
    }

    #[cfg(not(all(feature = "s3", feature = "gcs", feature = "azure", feature = "http")))]
    fn is_not_built(&self) -> object_store::Error {
        crate::error::not_supported_error(format!(
            "{self}: this program was built without the client of that store: enable its feature of bywash, s3, gcs, azure or http"
        ))
    }

    /// Returns the part of this origin below a path: a folder of a folder, a longer prefix. The whole origin for a web server
    /// and for memory.
    #[must_use]
    pub fn below(&self, path: &Path) -> Self {
        let joined = |prefix: &Path| prefix.parts().chain(path.parts()).collect();
        let mut part = self.clone();
        match &mut part {
            Self::File(folder) => folder.push(path.as_ref()),
            Self::S3 { prefix, .. } | Self::Gcs { prefix, .. } | Self::Azure { prefix, .. } => {
                *prefix = joined(prefix);
            }
            Self::Http(_) | Self::Memory => {}
        }
        part
    }

    /// Whether the URL itself contains secrets.
    #[must_use]
    pub fn has_secrets(&self) -> bool {
        matches!(self, Self::Http(url) if url.has_secrets())
    }

    /// The default bucket name for this origin: the bucket's or container's, or the folder's.
    #[must_use]
    pub fn default_name(&self) -> Option<String> {
        match self {
            Self::File(folder) => folder
                .file_name()
                .map(|name| name.to_string_lossy().into_owned()),
            Self::S3 { bucket: name, .. }
            | Self::Gcs { bucket: name, .. }
            | Self::Azure {
                container: name, ..
            } => Some(name.clone()),
            Self::Http(url) => url.name(),
            Self::Memory => Some("memory".to_owned()),
        }
    }
}

impl FromStr for OriginUrl {
    type Err = OriginUrlError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = |reason: &str| OriginUrlError {
            text: without_secrets(text),
            reason: reason.to_owned(),
        };
        let url = match Url::parse(text) {
            Ok(url) => url,
            Err(url::ParseError::RelativeUrlWithoutBase)
                if !text.contains("://") && !text.is_empty() =>
            {
                return Ok(Self::File(
                    absolute(FsPath::new(text)).map_err(|error| bad(&error.to_string()))?,
                ));
            }
            Err(error) => return Err(bad(&error.to_string())),
        };
        match url.scheme() {
            "file" => url
                .to_file_path()
                .map(Self::File)
                .map_err(|()| bad("a file address needs an absolute path")),
            scheme @ ("s3" | "gs" | "az") => {
                let name = url
                    .host_str()
                    .ok_or_else(|| bad("the bucket is missing"))?
                    .to_owned();
                let prefix =
                    Path::from_url_path(url.path()).map_err(|error| bad(&error.to_string()))?;
                Ok(match scheme {
                    "s3" => Self::S3 {
                        bucket: name,
                        prefix,
                    },
                    "gs" => Self::Gcs {
                        bucket: name,
                        prefix,
                    },
                    _ => Self::Azure {
                        container: name,
                        prefix,
                    },
                })
            }
            "http" | "https" => Ok(Self::Http(HttpUrl::new(url))),
            "memory" => Ok(Self::Memory),
            other => Err(bad(&format!("scheme {other} is not known"))),
        }
    }
}

/// Returns the part of an invalid URL that may be displayed: no query and no user info.
fn without_secrets(text: &str) -> String {
    let text = text.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = text.split_once("://") else {
        return text.to_owned();
    };
    let authority_end = rest.find('/').unwrap_or(rest.len());
    let user_end = rest[..authority_end].rfind('@').map_or(0, |at| at + 1);
    format!("{scheme}://{}", &rest[user_end..])
}

/// Returns the absolute path without `..`: a URL resolves `..` by name, which behind a symbolic link is another
/// folder.
fn absolute(path: &FsPath) -> std::io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    if !path.components().any(|part| part == Component::ParentDir) {
        return Ok(path);
    }
    let mut resolved = PathBuf::new();
    for part in path.components() {
        resolved.push(part);
        if part == Component::ParentDir {
            resolved = resolved.canonicalize()?;
        }
    }
    Ok(resolved)
}

/// Escapes a path for a URL. Letters of all scripts stay readable; characters with a meaning in URLs, or dropped from
/// them, are escaped.
fn escaped(path: &[u8]) -> String {
    let mut text = String::with_capacity(path.len());
    for chunk in path.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '\0'..=' ' | '\x7f' | '%' | '#' | '?' | '\\' => {
                    text.push_str(&format!("%{:02X}", u32::from(letter)));
                }
                _ => text.push(letter),
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

/// Displays the URL such that parsing it gives the same origin: journals store it.
impl fmt::Display for OriginUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, name, prefix) = match self {
            Self::File(folder) => {
                return write!(f, "file://{}", escaped(folder.as_os_str().as_bytes()));
            }
            Self::Http(url) => return url.fmt(f),
            Self::Memory => return write!(f, "memory://"),
            Self::S3 { bucket, prefix } => ("s3", bucket, prefix),
            Self::Gcs { bucket, prefix } => ("gs", bucket, prefix),
            Self::Azure { container, prefix } => ("az", container, prefix),
        };
        write!(f, "{scheme}://{name}")?;
        if prefix.is_root() {
            Ok(())
        } else {
            write!(f, "/{}", escaped(prefix.as_ref().as_bytes()))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn parent_of_a_link_resolves_and_round_trips() {
        let home = tempfile::tempdir().unwrap();
        let place = home.path().canonicalize().unwrap();
        std::fs::create_dir_all(place.join("real/folder")).unwrap();
        std::os::unix::fs::symlink(place.join("real/folder"), place.join("link")).unwrap();
        let text = format!("{}/link/../new", place.display());
        let url: OriginUrl = text.parse().unwrap();
        assert_eq!(url, OriginUrl::File(place.join("real/new")));
        assert_eq!(url.to_string().parse(), Ok(url));
        let missing = format!("{}/missing/../new", place.display());
        assert!(missing.parse::<OriginUrl>().is_err());
    }

    #[test]
    fn part_of_an_origin_has_a_longer_prefix() {
        let below = Path::from("x/y");
        for (whole, part) in [
            ("file:///a", "file:///a/x/y"),
            ("s3://b", "s3://b/x/y"),
            ("gs://b/p", "gs://b/p/x/y"),
            ("az://c/p", "az://c/p/x/y"),
            ("memory://", "memory://"),
        ] {
            let url: OriginUrl = whole.parse().unwrap();
            assert_eq!(url.below(&below).to_string(), part);
            assert_eq!(url.below(&Path::ROOT), url);
        }
    }

    #[test]
    fn parses_urls_and_rejects_others() {
        assert_eq!("file:///a/b".parse(), Ok(OriginUrl::File("/a/b".into())));
        assert_eq!("memory://".parse(), Ok(OriginUrl::Memory));
        let s3: OriginUrl = "s3://data/a/b".parse().unwrap();
        assert_eq!(
            s3,
            OriginUrl::S3 {
                bucket: "data".into(),
                prefix: Path::from("a/b")
            }
        );
        assert_eq!(s3.to_string(), "s3://data/a/b");
        assert_eq!(s3.default_name().as_deref(), Some("data"));
        for text in [
            "gs://data/a",
            "az://data/a/b",
            "gs://my_bucket.example",
            "az://data",
        ] {
            let url: OriginUrl = text.parse().unwrap();
            assert_eq!(url.to_string(), text);
            assert!(url.default_name().is_some_and(|name| text.contains(&name)));
        }
        assert!(matches!("gs://a".parse(), Ok(OriginUrl::Gcs { .. })));
        assert!(matches!("az://a".parse(), Ok(OriginUrl::Azure { .. })));
        assert!(matches!("some/folder".parse(), Ok(OriginUrl::File(path)) if path.is_absolute()));
        let web: OriginUrl = "https://me:pw@h.example:8443/pub/set?sig=s"
            .parse()
            .unwrap();
        assert_eq!(web.to_string(), "https://h.example:8443/pub/set");
        assert_eq!(web.default_name().as_deref(), Some("set"));
        let error = "http://me:pw@h:port/a?sig=s".parse::<OriginUrl>();
        let text = error.unwrap_err().to_string();
        assert!(text.contains("http://h:port/a"), "{text}");
        assert!(!text.contains("pw") && !text.contains("sig"), "{text}");
        for bad in ["", "ftp://x", "s3://", "gs://", "az://", "file://host/a"] {
            assert!(bad.parse::<OriginUrl>().is_err(), "{bad}");
        }
    }
}
