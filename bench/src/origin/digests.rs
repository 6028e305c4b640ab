//! Digests that the origin states of objects whose name asks for one: `/bench/s4096/crc32c-NAME` has a CRC32C.

use std::collections::BTreeMap;
use std::sync::Mutex;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bywash::{ContentDigest, RunningDigest};

/// Headers of the digests of an object; values in base64.
pub(super) type Headers = Vec<(&'static str, String)>;

/// Digests of made-up objects, by kind and size: all of one size have one content.
#[derive(Debug, Default)]
pub(super) struct Digests(Mutex<BTreeMap<(Kind, u64), String>>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Crc32c,
    Md5,
    Sha256,
}

impl Kind {
    fn of(path: &str) -> Option<Self> {
        let (_, name) = path.rsplit_once('/')?;
        let (kind, _) = name.split_once('-')?;
        match kind {
            "crc32c" => Some(Self::Crc32c),
            "md5" => Some(Self::Md5),
            "sha256" => Some(Self::Sha256),
            _ => None,
        }
    }
}

impl Digests {
    /// The headers that state the digest of an object in a response with all of it (`whole`) or a range. As S3, a checksum
    /// comes with all of it only; an MD5 comes always, as the ETag that it is on S3 does.
    pub(super) fn headers(&self, path: &str, size: u64, content: &[u8], whole: bool) -> Headers {
        let Some(kind) = Kind::of(path) else {
            return Vec::new();
        };
        let header = match kind {
            Kind::Md5 => return vec![("x-ms-blob-content-md5", self.of(kind, size, content))],
            Kind::Crc32c => "x-amz-checksum-crc32c",
            Kind::Sha256 => "x-amz-checksum-sha256",
        };
        if !whole {
            return Vec::new();
        }
        vec![
            ("x-amz-checksum-type", "FULL_OBJECT".to_owned()),
            (header, self.of(kind, size, content)),
        ]
    }

    fn of(&self, kind: Kind, size: u64, content: &[u8]) -> String {
        let mut known = self.0.lock().expect("no thread panics with the digests");
        let digest = known.entry((kind, size));
        digest
            .or_insert_with(|| compute(kind, size, content))
            .clone()
    }
}

/// The digest of an object that repeats `content`.
fn compute(kind: Kind, size: u64, content: &[u8]) -> String {
    let like = match kind {
        Kind::Crc32c => ContentDigest::Crc32c(0),
        Kind::Md5 => ContentDigest::Md5([0; 16]),
        Kind::Sha256 => ContentDigest::Sha256([0; 32]),
    };
    let mut digest = RunningDigest::like(&like);
    let mut left = size;
    while left > 0 {
        let piece = content
            .len()
            .min(usize::try_from(left).unwrap_or(usize::MAX));
        digest.update(&content[..piece]);
        left -= piece as u64;
    }
    match digest.finish() {
        ContentDigest::Crc32c(crc) => BASE64_STANDARD.encode(crc.to_be_bytes()),
        ContentDigest::Md5(md5) => BASE64_STANDARD.encode(md5),
        ContentDigest::Sha256(sha256) => BASE64_STANDARD.encode(sha256),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_the_digest_that_the_name_asks_for() {
        let digests = Digests::default();
        let headers = |path, whole| digests.headers(path, 9, b"123456789", whole);
        assert_eq!(headers("/bench/s9/plain-1", true), []);
        let sum = ("x-amz-checksum-crc32c", "4waSgw==".to_owned());
        let kind = ("x-amz-checksum-type", "FULL_OBJECT".to_owned());
        assert_eq!(headers("/bench/s9/crc32c-1", true), [kind, sum]);
        assert_eq!(headers("/bench/s9/crc32c-1", false), []);
        let md5 = "JfnnlDI7RTiF9RgfG2JNCw==".to_owned();
        assert_eq!(
            headers("/bench/s9/md5-1", false),
            [("x-ms-blob-content-md5", md5)]
        );
    }

    #[test]
    fn digest_of_repeated_content_is_that_of_all_of_it() {
        let twice = compute(Kind::Sha256, 8, b"abcdabcd");
        assert_eq!(compute(Kind::Sha256, 8, b"abcd"), twice);
    }
}
