//! Buckets as folders under the root: their names and their deletion.

use std::path::Path as FsPath;

use bywash_store::folder::FolderStore;

use crate::error::EngineError;
use crate::limits::MAX_BUCKET_NAME_BYTES;

/// Removes a bucket's folder if it contains nothing but the store's own folder.
///
/// The own folder is moved aside first. An object written after that makes the removal fail, or shows up in the
/// moved folder. In both cases everything is moved back.
pub(super) fn remove_empty_bucket(root: &FsPath, name: &str) -> Result<(), EngineError> {
    let io = |source| EngineError::Io {
        bucket: name.to_owned(),
        source,
    };
    let folder = root.join(name);
    let own = folder.join(FolderStore::OWN_FOLDER);
    // No bucket's name begins with a dot.
    let aside = root.join(format!(".deleting-{name}"));
    if aside.exists() {
        std::fs::remove_dir_all(&aside).map_err(io)?;
    }
    let had_own = own.exists();
    if had_own {
        std::fs::rename(&own, &aside).map_err(io)?;
    }
    let busy = had_own && has_files(&aside.join("keys"));
    let removed = if busy {
        Ok(())
    } else {
        std::fs::remove_dir(&folder)
    };
    match removed {
        Ok(()) if !busy => {
            if had_own {
                std::fs::remove_dir_all(&aside).map_err(io)?;
            }
            Ok(())
        }
        removed => {
            if had_own {
                std::fs::rename(&aside, &own).map_err(io)?;
            }
            match removed {
                Err(source) if source.kind() != std::io::ErrorKind::DirectoryNotEmpty => {
                    Err(io(source))
                }
                _ => Err(EngineError::BucketNotEmpty(name.to_owned())),
            }
        }
    }
}

/// Returns whether there is any file below `folder`.
fn has_files(folder: &FsPath) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .into_iter()
        .any(|entry| !entry.path().is_dir() || has_files(&entry.path()))
}

pub(super) fn check_bucket_name(name: &str) -> Result<(), EngineError> {
    let bad = |reason| {
        Err(EngineError::InvalidBucketName {
            name: name.to_owned(),
            reason,
        })
    };
    if !MAX_BUCKET_NAME_BYTES.contains(&name.len()) {
        return bad("a name has 3 to 63 characters");
    }
    if !name
        .bytes()
        .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'.' || c == b'-')
    {
        return bad("only lower-case letters, digits, '.' and '-' are allowed");
    }
    let edge = |c: Option<u8>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    if !edge(name.bytes().next()) || !edge(name.bytes().last()) || name.contains("..") {
        return bad("a name begins and ends with a letter or digit and has no '..'");
    }
    Ok(())
}

/// As [`check_bucket_name`], for a bucket to create: S3 reserves more names, which existing folders may have.
pub(super) fn check_new_bucket_name(name: &str) -> Result<(), EngineError> {
    check_bucket_name(name)?;
    let bad = |reason| {
        Err(EngineError::InvalidBucketName {
            name: name.to_owned(),
            reason,
        })
    };
    if name.parse::<std::net::Ipv4Addr>().is_ok() {
        return bad("a name is no address");
    }
    let prefixes = ["xn--", "sthree-", "amzn-s3-demo-"];
    let suffixes = ["-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3"];
    if prefixes.iter().any(|prefix| name.starts_with(prefix))
        || suffixes.iter().any(|suffix| name.ends_with(suffix))
    {
        return bad("its prefix or suffix is reserved in S3");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_names_follow_the_rules() {
        for good in ["abc", "a-b.c", "0ab", &"a".repeat(63)] {
            assert!(check_bucket_name(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "ab",
            "Abc",
            "a_b",
            "-ab",
            "ab.",
            "a..b",
            "../x",
            "a/b",
            &"a".repeat(64),
        ] {
            assert!(check_bucket_name(bad).is_err(), "{bad}");
        }
        for reserved in [
            "192.168.5.4",
            "xn--a",
            "sthree-a",
            "amzn-s3-demo-a",
            "a-s3alias",
            "a--ol-s3",
            "a.mrap",
            "a--x-s3",
        ] {
            assert!(check_bucket_name(reserved).is_ok(), "a folder may have it");
            assert!(check_new_bucket_name(reserved).is_err(), "{reserved}");
        }
        assert!(check_new_bucket_name("a-b.c").is_ok());
    }
}
