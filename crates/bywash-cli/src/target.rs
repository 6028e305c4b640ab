//! Destinations of copies.

use std::fmt;
use std::path::{Path as FsPath, PathBuf};
use std::str::FromStr;

use bywash::OriginUrl;
use bywash::origin::folder::FolderStore;
use object_store::path::Path;
use url::Url;

use crate::address::Address;
use crate::failure::Failure;
use crate::location::Location;

/// Destination of a copy: a location outside of the engine, or an object of an origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Destination {
    /// A file's path, or standard output.
    Plain(Location),
    Object(ObjectUrl),
}

/// An object, or a folder of objects if the key is empty or ends with a slash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ObjectUrl {
    /// `file:///folder/key`
    Folder(PathBuf),
    /// `s3://bucket/key`, `gs://bucket/key`, `az://container/key`
    Store(Address),
}

impl FromStr for Destination {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text.parse()? {
            Location::Object(address) if !address.scheme.is_writable() => {
                return Err(format!("{text:?} can be read only"));
            }
            Location::Object(address) => Self::Object(ObjectUrl::Store(address)),
            // Special files such as pipes are written directly.
            Location::File(path) if text.starts_with("file://") && !is_special(&path) => {
                Self::Object(ObjectUrl::Folder(path))
            }
            plain => Self::Plain(plain),
        })
    }
}

fn is_special(path: &FsPath) -> bool {
    path.metadata()
        .is_ok_and(|meta| !meta.is_file() && !meta.is_dir())
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(location) => location.fmt(f),
            Self::Object(url) => url.fmt(f),
        }
    }
}

impl fmt::Display for ObjectUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(path) => match Url::from_file_path(path) {
                Ok(url) => url.fmt(f),
                Err(()) => write!(f, "file://{}", path.display()),
            },
            Self::Store(address) => address.fmt(f),
        }
    }
}

impl ObjectUrl {
    pub(crate) fn is_folder(&self) -> bool {
        match self {
            Self::Folder(path) => {
                path.is_dir() || path.as_os_str().as_encoded_bytes().ends_with(b"/")
            }
            Self::Store(address) => address.is_folder(),
        }
    }

    /// Returns the object `name` below this folder.
    pub(crate) fn join(&self, name: &str) -> Self {
        match self {
            Self::Folder(path) => Self::Folder(path.join(name)),
            Self::Store(address) => Self::Store(address.join(name)),
        }
    }

    /// Splits into the origin's URL and the object's path.
    pub(crate) fn split(&self) -> Result<(OriginUrl, Path), Failure> {
        match self {
            Self::Folder(path) => {
                let root = root_of(path);
                let key = path.strip_prefix(&root).unwrap_or(path);
                let key = key.to_str().ok_or_else(|| {
                    Failure::usage(format!("{self}: a key is text, and this name is not UTF-8"))
                })?;
                let path = Path::parse(key).map_err(|error| {
                    Failure::usage(format!("{self}: this key cannot be named here: {error}"))
                })?;
                Ok((OriginUrl::File(root), path))
            }
            Self::Store(address) => Ok((address.origin()?, address.object()?)),
        }
    }
}

/// Returns the folder that is the origin of the object at `path`: the nearest existing folder store above it,
/// otherwise the nearest existing folder.
fn root_of(path: &FsPath) -> PathBuf {
    let above = || path.ancestors().skip(1);
    above()
        .find(|folder| folder.join(FolderStore::OWN_FOLDER).is_dir())
        .or_else(|| above().find(|folder| folder.is_dir()))
        .unwrap_or_else(|| FsPath::new("/"))
        .to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn destinations_are_read_and_written() {
        for (text, folder) in [
            ("s3://b/k", false),
            ("s3://b/", true),
            ("gs://b/dir/k", false),
            ("az://container/dir/", true),
            ("file:///no/such/a%20b", false),
        ] {
            let Destination::Object(url) = text.parse().unwrap() else {
                panic!("{text} is an object");
            };
            assert_eq!(url.to_string(), text);
            assert_eq!(url.is_folder(), folder, "{text}");
        }
        for text in ["-", "a/b", "file:///dev/null"] {
            assert!(matches!(text.parse(), Ok(Destination::Plain(_))), "{text}");
        }
        for bad in [
            "gs://",
            "gs:///k",
            "gs://b//k",
            "az://c/../k",
            "ftp://b/k",
            "https://h/k",
        ] {
            assert!(bad.parse::<Destination>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_folder_that_was_an_origin_stays_the_origin_of_what_is_below() {
        let home = tempfile::tempdir().unwrap();
        let below = home.path().join("a/b");
        std::fs::create_dir_all(&below).unwrap();
        assert_eq!(root_of(&below.join("key")), below);
        assert_eq!(root_of(&below.join("new/key")), below);
        std::fs::create_dir(home.path().join(FolderStore::OWN_FOLDER)).unwrap();
        assert_eq!(root_of(&below.join("key")), home.path());
        let url = ObjectUrl::Folder(below.join("key"));
        let (origin, path) = url.split().unwrap();
        assert_eq!(origin, OriginUrl::File(home.path().to_owned()));
        assert_eq!(path, Path::from("a/b/key"));
    }
}
