//! Where bytes come from and go to: files, objects, standard input and output.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use url::Url;

use crate::address::Address;

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
