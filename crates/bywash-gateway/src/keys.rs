//! Mapping between object keys and the paths of their storage.
//!
//! A path of [`object_store`] cannot end with `/`. Clients create such keys as folder markers, so they are stored as
//! an object with a reserved name in that folder. That name is another name of the same key: a Bywash whose origin is this one asks for it.
//! Other keys without an equal path are rejected, except where an origin has them and
//! they are read, listed or deleted ([`bywash::origin::odd_keys`]). So each path is listed as one key.

use std::borrow::Cow;

use bywash::Bucket;
use bywash::origin::odd_keys::{self, FOLDER_MARKER as FOLDER, is_odd, path_of_key};
use object_store::path::Path;
use s3s::{S3ErrorCode, S3Result};

use crate::errors::{
    OperationContext, WithElements, fault, invalid_argument, no_such_key, not_implemented,
};
use crate::limits::MAX_KEY_BYTES;
use crate::xml;

/// Whether other programs may have written any key to the origin of a bucket.
pub(crate) fn may_have_odd_keys(bucket: &Bucket) -> bool {
    ["s3", "gcs", "azure"].contains(&bucket.origin_kind())
}

/// Returns the path of the key of an object that is read or deleted: as [`path_of`] does, or of a
/// key that only other programs write. No object has a key that cannot be stored: NoSuchKey, as S3
/// has it of any key without an object.
pub(crate) fn stored_path(bucket: &Bucket, key: &str) -> S3Result<Path> {
    path_of(key).or_else(|error| {
        if key.is_empty() || key.len() > MAX_KEY_BYTES {
            return Err(error);
        }
        if !may_have_odd_keys(bucket) {
            return Err(no_such_key(OperationContext::new("read", bucket.name(), key)));
        }
        let path = path_of_key(key);
        if bucket.reads_odd_keys() { Ok(path) } else { Err(not_implemented(format!(
                "The key {key:?} has an empty part, `.` or `..`, or a control character, and the client of this origin reaches no such \
                 object; reach it at the origin itself."
            ))) }
    })
}

/// Returns the path of a key, or why the key cannot be stored.
pub(crate) fn path_of(key: &str) -> S3Result<Path> {
    let invalid = |reason: String| {
        let message = format!("The key {key:?} cannot be stored here: {reason}.");
        Err(invalid_argument("key", key, message))
    };
    let name = match key.strip_suffix('/') {
        Some(folder) => Cow::Owned(format!("{folder}/{FOLDER}")),
        None => Cow::Borrowed(key),
    };
    if name.len() > MAX_KEY_BYTES {
        let message = format!(
            "The key has {} bytes as it is stored, more than {MAX_KEY_BYTES}.",
            name.len()
        );
        return Err(fault(S3ErrorCode::KeyTooLongError, message).with([
            ("Size", name.len().to_string()),
            ("MaxSizeAllowed", MAX_KEY_BYTES.to_string()),
        ]));
    }
    match Path::parse(&name) {
        Ok(path)
            if path.as_ref() == name
                && !name.is_empty()
                && !odd_keys::is_reserved(&name)
                && name.chars().all(xml::fits) =>
        {
            Ok(path)
        }
        _ => invalid(
            "a part of it is empty, `.` or `..`, begins with `.bywash-key=`, or has a control character".to_owned(),
        ),
    }
}

/// The path of a key that is stored under its own name, if it can be stored: [`path_of`] without a
/// copy. The object with this path, if there is one, has this key.
pub(crate) fn plain_path(key: &str) -> Option<&str> {
    let name = key.rsplit('/').next().unwrap_or(key);
    let is_plain = !name.is_empty()
        && name != FOLDER
        && !odd_keys::is_reserved(name)
        && key.len() <= MAX_KEY_BYTES;
    (is_plain && key.chars().all(xml::fits)).then_some(key)
}

/// The key stored at `path`.
pub(crate) fn key_of(path: &Path) -> Cow<'_, str> {
    if is_odd(path) {
        return odd_keys::key_of(path);
    }
    let name = path.as_ref();
    Cow::Borrowed(match name.strip_suffix(FOLDER) {
        Some(folder) if folder.ends_with('/') => folder,
        _ => name,
    })
}

/// Parent keys (`a/`) that sort before the key of `path` in S3 order but after it in path order, outermost first.
pub(crate) fn late_folders(path: &Path) -> Vec<String> {
    let name = odd_keys::key_of(path);
    name.match_indices('/')
        .map(|(at, _)| name.split_at(at + 1))
        // The key of the folder itself is the object of other programs.
        .filter(|(_, rest)| !rest.is_empty() && *rest < FOLDER)
        .map(|(folder, _)| folder.to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn keys_round_trip_or_are_rejected() {
        for key in [
            "a", "a/b", "a b", "..a", "a..", "\u{fc}", "%2F", "a\\b", "a%2Fb",
        ] {
            let path = path_of(key).unwrap();
            assert_eq!((path.as_ref(), &*key_of(&path)), (key, key));
        }
        for key in ["a/", "a/b/", " /", ".bywash-folder/", FOLDER] {
            assert_eq!(key_of(&path_of(key).unwrap()), key);
        }
        assert_eq!(path_of("a/.bywash-folder").unwrap(), path_of("a/").unwrap());
        for key in [
            "",
            "/",
            "/a",
            "/a/",
            "a//",
            "a//b",
            ".",
            "./",
            "..",
            "a/../b",
            "a/./b",
            "a/..",
            "a\0b",
            "a\nb",
            "a\u{7f}b",
            "a\u{fffe}b",
            "\u{ffff}",
            "a/.bywash-key=b",
            ".bywash-key=/b",
        ] {
            let error = path_of(key).unwrap_err();
            assert_eq!(*error.code(), S3ErrorCode::InvalidArgument, "{key:?}");
        }
    }

    #[test]
    fn plain_paths_are_those_of_their_keys() {
        for key in ["a", "a/b", "\u{fc}", "a b", "%2F", &"k".repeat(1024)] {
            assert_eq!(plain_path(key), Some(path_of(key).unwrap().as_ref()));
        }
        for key in [
            "",
            "a/",
            "a\0b",
            FOLDER,
            "a/.bywash-folder",
            "a/.bywash-key=b",
            &"k".repeat(1025),
        ] {
            assert_eq!(plain_path(key), None, "{key:?}");
        }
    }

    #[test]
    fn no_stored_name_is_too_long() {
        assert!(path_of(&"k".repeat(1024)).is_ok());
        for key in ["k".repeat(1025), format!("{}/", "k".repeat(1010))] {
            assert_eq!(
                *path_of(&key).unwrap_err().code(),
                S3ErrorCode::KeyTooLongError
            );
        }
    }

    #[test]
    fn late_folders_have_an_entry_below_the_reserved_name() {
        let late = |path: &str| -> Vec<String> {
            let path = Path::parse(path).unwrap();
            late_folders(&path)
        };
        assert_eq!(late("a/-b"), ["a/"]);
        assert_eq!(late_folders(&path_of_key("a/\u{1}")), ["a/"]);
        assert_eq!(late("a/+b/.A"), ["a/", "a/+b/"]);
        assert_eq!(late("-a/b/+c/d"), ["-a/b/"]);
        assert!(late("a/b/.bywash-folder").is_empty() && late("-a").is_empty());
    }
}
