//! Sources and destinations as users write them: files, objects and standard streams.

use std::fmt;
use std::path::{Path as FsPath, PathBuf};
use std::str::FromStr;

use bywash::OriginUrl;
use bywash::origin::folder::FolderStore;
use object_store::path::Path;

use crate::address::Address;
use crate::failure::Failure;

/// A file, an object or a standard stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Url {
    /// `-`
    Stdio,
    /// A path of this machine; as a source also `file:///dir/file`.
    File(PathBuf),
    /// A destination `file:///dir/file`: an object of a folder that is a store, or a folder of such objects.
    Folder(PathBuf),
    /// An object of a store, or a folder of objects if its key is empty or ends with a slash.
    Object(Address),
}

impl FromStr for Url {
    type Err = String;

    /// Parses a source.
    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("the location is empty".to_owned());
        }
        if text == "-" {
            return Ok(Self::Stdio);
        }
        if text.starts_with("file://") {
            let path = url::Url::parse(text)
                .ok()
                .and_then(|url| url.to_file_path().ok());
            return path
                .map(Self::File)
                .ok_or_else(|| format!("{text:?} is not a file address; write file:///dir/file"));
        }
        if text.contains("://") {
            text.parse().map(Self::Object)
        } else {
            Ok(Self::File(PathBuf::from(text)))
        }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdio => f.write_str("-"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Folder(path) => match url::Url::from_file_path(path) {
                Ok(url) => url.fmt(f),
                Err(()) => write!(f, "file://{}", path.display()),
            },
            Self::Object(address) => address.fmt(f),
        }
    }
}

impl Url {
    /// Parses a destination.
    ///
    /// # Errors
    /// Also for a web server, which can be read only.
    pub(crate) fn destination(text: &str) -> Result<Self, String> {
        Ok(match text.parse()? {
            Self::Object(address) if !address.scheme.is_writable() => {
                return Err(format!(
                    "{address} can be read only; to write there, give an address that was signed for it, as by bywash presign \
                     --method PUT"
                ));
            }
            // Special files such as pipes are written directly.
            Self::File(path) if text.starts_with("file://") && !is_special(&path) => {
                Self::Folder(path)
            }
            url => url,
        })
    }

    /// Whether it names a folder, into which a copy is written under its source's name.
    pub(crate) fn is_folder(&self) -> bool {
        match self {
            Self::Stdio => false,
            Self::File(path) | Self::Folder(path) => {
                path.is_dir() || path.as_os_str().as_encoded_bytes().ends_with(b"/")
            }
            Self::Object(address) => address.is_folder(),
        }
    }

    /// The file or object `name` below this folder.
    pub(crate) fn join(&self, name: &str) -> Self {
        match self {
            Self::Stdio => Self::Stdio,
            Self::File(path) => Self::File(path.join(name)),
            Self::Folder(path) => Self::Folder(path.join(name)),
            Self::Object(address) => Self::Object(address.join(name)),
        }
    }

    /// The last name of the path or key, for a copy into a folder.
    pub(crate) fn file_name(&self) -> Option<String> {
        match self {
            Self::Stdio => None,
            Self::File(path) | Self::Folder(path) => path
                .file_name()
                .map(|name| name.to_string_lossy().into_owned()),
            // Percent-encoded characters of a web server's address stand for one character each.
            Self::Object(address) => {
                let path = address.path().ok()?;
                path.filename().map(str::to_owned)
            }
        }
    }

    /// Splits a destination into the origin's URL and the object's path.
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
            Self::Object(address) => Ok((address.origin()?, address.object()?)),
            Self::Stdio | Self::File(_) => Err(Failure::failed(format!(
                "{self} is no object that can be uploaded to"
            ))),
        }
    }
}

fn is_special(path: &FsPath) -> bool {
    path.metadata()
        .is_ok_and(|meta| !meta.is_file() && !meta.is_dir())
}

/// The folder that is the origin of the object at `path`: the nearest existing folder store above
/// it, otherwise the nearest existing folder.
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
    fn sources_are_read() {
        let s3 = |text: &str| Url::Object(text.parse().unwrap());
        for (text, url) in [
            ("-", Url::Stdio),
            ("a/b", Url::File("a/b".into())),
            ("./-", Url::File("./-".into())),
            ("file:///a%20b/c", Url::File("/a b/c".into())),
            ("s3://data", s3("s3://data")),
            ("s3://data/", s3("s3://data/")),
            ("s3://data/dir/", s3("s3://data/dir/")),
        ] {
            assert_eq!(text.parse(), Ok(url), "{text}");
        }
        for bad in ["", "s3://", "ftp://b/k", "file://host/a"] {
            assert!(bad.parse::<Url>().is_err(), "{bad}");
        }
    }

    #[test]
    fn url_knows_its_last_name() {
        for (text, name) in [
            ("a/b.txt", Some("b.txt")),
            ("s3://data/x/y", Some("y")),
            ("s3://data", None),
            ("s3://data/a%20b", Some("a%20b")),
            ("https://host/dir/a%20b?x=y", Some("a b")),
            ("-", None),
        ] {
            assert_eq!(
                text.parse::<Url>().map(|url| url.file_name()),
                Ok(name.map(str::to_owned)),
                "{text}"
            );
        }
    }

    #[test]
    fn destinations_are_read_and_written() {
        for (text, folder) in [
            ("s3://b/k", false),
            ("s3://b/", true),
            ("gs://b/dir/k", false),
            ("az://container/dir/", true),
            ("file:///no/such/a%20b", false),
        ] {
            let url = Url::destination(text).unwrap();
            assert!(matches!(url, Url::Folder(_) | Url::Object(_)), "{text}");
            assert_eq!(url.to_string(), text);
            assert_eq!(url.is_folder(), folder, "{text}");
        }
        for text in ["-", "a/b", "file:///dev/null"] {
            let url = Url::destination(text);
            assert!(matches!(url, Ok(Url::Stdio | Url::File(_))), "{text}");
        }
        for bad in [
            "gs://",
            "gs:///k",
            "gs://b//k",
            "az://c/../k",
            "ftp://b/k",
            "https://h/k",
        ] {
            assert!(Url::destination(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn existing_folder_store_stays_the_origin_of_objects_below() {
        let home = tempfile::tempdir().unwrap();
        let below = home.path().join("a/b");
        std::fs::create_dir_all(&below).unwrap();
        assert_eq!(root_of(&below.join("key")), below);
        assert_eq!(root_of(&below.join("new/key")), below);
        std::fs::create_dir(home.path().join(FolderStore::OWN_FOLDER)).unwrap();
        assert_eq!(root_of(&below.join("key")), home.path());
        let url = Url::Folder(below.join("key"));
        let (origin, path) = url.split().unwrap();
        assert_eq!(origin, OriginUrl::File(home.path().to_owned()));
        assert_eq!(path, Path::from("a/b/key"));
    }
}
