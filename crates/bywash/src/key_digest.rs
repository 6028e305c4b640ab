//! Keys of content-addressed buckets, in which a segment is the digest of the object.

use std::fmt;
use std::str::FromStr;

use bywash_store::ContentDigest;

/// Prefixes of a digest in a key, as registries and caches write them.
const PREFIXES: [&str; 2] = ["sha256:", "sha256-"];

/// Segment of a key that is the SHA-256 of its object, in hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DigestInKey {
    /// Counted from the end; 1 is the last.
    segment: u8,
}

impl DigestInKey {
    /// The last segment, as in `blobs/sha256/9f86d081...`.
    pub const LAST: Self = Self { segment: 1 };

    /// The digest in a key, if that segment is one.
    #[must_use]
    pub fn of_key(self, key: &str) -> Option<ContentDigest> {
        let segment = key.rsplit('/').nth(usize::from(self.segment) - 1)?;
        let without = PREFIXES
            .iter()
            .find_map(|prefix| segment.strip_prefix(prefix));
        ContentDigest::parse_sha256(without.unwrap_or(segment)).ok()
    }
}

/// Parses `sha256`, or `sha256@N` for the Nth segment from the end.
impl FromStr for DigestInKey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is neither sha256 nor sha256@N, with N from 1 to 255");
        let segment = match text.strip_prefix("sha256").ok_or_else(wrong)? {
            "" => 1,
            rest => rest
                .strip_prefix('@')
                .and_then(|number| number.parse().ok())
                .filter(|number| *number > 0)
                .ok_or_else(wrong)?,
        };
        Ok(Self { segment })
    }
}

impl fmt::Display for DigestInKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.segment {
            1 => f.write_str("sha256"),
            number => write!(f, "sha256@{number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    const HEX: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

    #[test]
    fn digest_is_found_in_its_segment_alone() {
        let last = DigestInKey::LAST;
        let second: DigestInKey = "sha256@2".parse().unwrap();
        let digest = ContentDigest::parse_sha256(HEX).ok();
        for key in [
            HEX.to_owned(),
            format!("blobs/sha256/{HEX}"),
            format!("a/sha256:{HEX}"),
            format!("a/sha256-{HEX}"),
            format!("a/{}", HEX.to_uppercase()),
        ] {
            assert_eq!(last.of_key(&key), digest, "{key}");
            assert_eq!(second.of_key(&format!("{key}/data")), digest, "{key}");
            assert_eq!(second.of_key(&key), None, "{key}");
        }
        for key in [
            "",
            "a",
            &HEX[1..],
            &format!("{HEX}0"),
            &format!("md5:{HEX}"),
        ] {
            assert_eq!(last.of_key(key), None, "{key}");
        }
    }

    #[test]
    fn place_is_parsed_or_refused_with_its_form() {
        for text in ["sha256", "sha256@2", "sha256@255"] {
            assert_eq!(text.parse::<DigestInKey>().unwrap().to_string(), text);
        }
        assert_eq!("sha256@1".parse(), Ok(DigestInKey::LAST));
        for text in ["", "md5", "sha256@", "sha256@0", "sha256@256", "sha256-2"] {
            let refused = text.parse::<DigestInKey>().unwrap_err();
            assert!(refused.contains("sha256@N"), "{refused}");
        }
    }
}
