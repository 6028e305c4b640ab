//! Digest of the whole object that a store states in the headers of a response.
//!
//! A header counts only where its store defines it as the digest of the bytes that a read returns. A wrong reading of
//! one would fail every read of its object. Where there is a CRC it is taken before an MD5, which takes ten times as
//! long to compute.
//!
//! - `x-amz-checksum-*` (S3): with `x-amz-checksum-type: FULL_OBJECT`, for the others are digests of digests. S3 sends
//!   none with a range, so only a response with the whole object counts.
//! - `x-goog-hash` (Google): of the stored object, for any range. Not if Google decompressed the object.
//! - `x-ms-blob-content-md5` (Azure): of the whole block blob, for any range.
//! - `Content-MD5`: of the body, so only a response with the whole object counts.
//! - An ETag that is an MD5 (Amazon S3): of an object stored by one request, not encrypted with a key of KMS or of the
//!   client. Other servers with this protocol put other things there, and so do directory buckets.

use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, ETAG};
use http::{HeaderMap, StatusCode};

use super::ContentDigest;
use super::text::{google_hash, md5_of_e_tag, of_base64};
use crate::response::content_range;

/// Returns the digest of the whole object that a response to a read states; `None` if no digest counts, or
/// if it cannot be parsed. `host`: the host that sent it.
pub(crate) fn stated_digest(
    host: &str,
    status: StatusCode,
    headers: &HeaderMap,
) -> Option<ContentDigest> {
    let (whole, size) = match status {
        StatusCode::OK => {
            let length = value(headers, CONTENT_LENGTH.as_str());
            (true, length.and_then(|length| length.parse().ok()))
        }
        StatusCode::PARTIAL_CONTENT => {
            let (range, size) = content_range(headers).ok()?;
            (range == (0..size), Some(size))
        }
        _ => return None,
    };
    let of_body = || s3_checksum(headers).or_else(|| azure_md5(headers, "content-md5"));
    whole
        .then(of_body)
        .flatten()
        .or_else(|| google_stored(headers, size))
        .or_else(|| azure_md5(headers, "x-ms-blob-content-md5"))
        .or_else(|| amazon_e_tag(host, headers))
}

/// Returns the digest that the response to a PUT of a whole object states; `None` if no digest counts.
///
/// An object that one request stored has no digest of digests, whether or not S3 says so, and Google decompresses
/// nothing here.
pub(crate) fn stated_by_put(host: &str, headers: &HeaderMap) -> Option<ContentDigest> {
    s3_value(headers)
        .or_else(|| google_value(headers))
        .or_else(|| azure_md5(headers, "content-md5"))
        .or_else(|| amazon_e_tag(host, headers))
}

/// Returns the value of a header that appears once.
fn value<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut all = headers.get_all(name).into_iter();
    let first = all.next()?.to_str().ok()?;
    all.next().is_none().then(|| first.trim())
}

fn s3_checksum(headers: &HeaderMap) -> Option<ContentDigest> {
    if value(headers, "x-amz-checksum-type") != Some("FULL_OBJECT") {
        return None;
    }
    s3_value(headers)
}

fn s3_value(headers: &HeaderMap) -> Option<ContentDigest> {
    let value = |name| value(headers, name);
    let crc64 = value("x-amz-checksum-crc64nvme").and_then(of_base64);
    let crc32c = || value("x-amz-checksum-crc32c").and_then(of_base64);
    let crc32 = || value("x-amz-checksum-crc32").and_then(of_base64);
    let sha256 = || value("x-amz-checksum-sha256").and_then(of_base64);
    crc64
        .map(|crc| ContentDigest::Crc64Nvme(u64::from_be_bytes(crc)))
        .or_else(|| crc32c().map(|crc| ContentDigest::Crc32c(u32::from_be_bytes(crc))))
        .or_else(|| crc32().map(|crc| ContentDigest::Crc32(u32::from_be_bytes(crc))))
        .or_else(|| sha256().map(ContentDigest::Sha256))
}

/// Reads the digests of `x-goog-hash`, unless Google has decompressed the object.
fn google_stored(headers: &HeaderMap, size: Option<u64>) -> Option<ContentDigest> {
    let stored_length = value(headers, "x-goog-stored-content-length");
    if stored_length.is_some() && stored_length.and_then(|length| length.parse().ok()) != size {
        return None;
    }
    let stored = value(headers, "x-goog-stored-content-encoding").unwrap_or("identity");
    let sent = value(headers, CONTENT_ENCODING.as_str()).unwrap_or("identity");
    if stored != sent && headers.contains_key("x-goog-stored-content-encoding") {
        return None;
    }
    google_value(headers)
}

fn google_value(headers: &HeaderMap) -> Option<ContentDigest> {
    let crc32c = google_hash(headers, "crc32c=").and_then(of_base64);
    crc32c
        .map(|crc| ContentDigest::Crc32c(u32::from_be_bytes(crc)))
        .or_else(|| {
            Some(ContentDigest::Md5(
                google_hash(headers, "md5=").and_then(of_base64)?,
            ))
        })
}

/// Reads an MD5 in base64. Azure does not keep the MD5 of blobs which can be changed in place.
fn azure_md5(headers: &HeaderMap, name: &str) -> Option<ContentDigest> {
    let changes = value(headers, "x-ms-blob-type").is_some_and(|kind| kind != "BlockBlob");
    let md5 = value(headers, name).filter(|_| !changes)?;
    of_base64(md5).map(ContentDigest::Md5)
}

fn amazon_e_tag(host: &str, headers: &HeaderMap) -> Option<ContentDigest> {
    let own_key = "x-amz-server-side-encryption-customer-algorithm";
    // S3 encrypts each object. With its own keys, which this value names, the ETag still is the MD5.
    let plain = value(headers, "x-amz-server-side-encryption") == Some("AES256");
    if !plain || headers.contains_key(own_key) || !is_amazon_s3(host) {
        return None;
    }
    let hex = value(headers, ETAG.as_str())?;
    let hex = hex.strip_prefix('"')?.strip_suffix('"')?;
    md5_of_e_tag(hex).map(ContentDigest::Md5)
}

/// Returns whether `host` serves Amazon's general-purpose buckets: `[BUCKET.]s3[.dualstack][.REGION].amazonaws.com`.
fn is_amazon_s3(host: &str) -> bool {
    let ours = [".amazonaws.com", ".amazonaws.com.cn"];
    let Some(name) = ours.iter().find_map(|suffix| host.strip_suffix(suffix)) else {
        return false;
    };
    let mut labels = name.rsplit('.');
    match labels.next() {
        Some("s3") => true,
        Some(_region) => match labels.next() {
            Some("dualstack") => labels.next() == Some("s3"),
            service => service == Some("s3"),
        },
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    const S3: &str = "bucket.s3.eu-north-1.amazonaws.com";
    const MD5: &str = "JfnnlDI7RTiF9RgfG2JNCw==";
    const E_TAG: (&str, &str) = ("etag", "\"25f9e794323b453885f5181f1b624d0b\"");
    const FULL: (&str, &str) = ("x-amz-checksum-type", "FULL_OBJECT");
    const SSE: (&str, &str) = ("x-amz-server-side-encryption", "AES256");
    const ALL: (&str, &str) = ("content-range", "bytes 0-8/9");
    const SOME: (&str, &str) = ("content-range", "bytes 0-7/9");

    fn stated(host: &str, headers: &[(&'static str, &'static str)]) -> Option<String> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name = HeaderName::from_static(name);
            map.append(name, HeaderValue::from_static(value));
        }
        let status = if map.contains_key("content-range") {
            StatusCode::PARTIAL_CONTENT
        } else {
            StatusCode::OK
        };
        stated_digest(host, status, &map).map(|digest| digest.to_string())
    }

    #[test]
    fn s3_checksum_counts_if_it_is_of_the_full_object_and_all_of_it_was_sent() {
        let crc64 = ("x-amz-checksum-crc64nvme", "rosUhgp5mIg=");
        let crc32c = ("x-amz-checksum-crc32c", "4waSgw==");
        let shown = Some("CRC64NVME ae8b14860a799888".to_owned());
        assert_eq!(stated("h", &[FULL, crc32c, crc64]), shown);
        assert_eq!(stated("h", &[FULL, ALL, crc64]), shown);
        assert_eq!(
            stated("h", &[FULL, crc32c]).as_deref(),
            Some("CRC32C e3069283")
        );
        let crc32 = ("x-amz-checksum-crc32", "y/Q5Jg==");
        assert_eq!(
            stated("h", &[FULL, crc32]).as_deref(),
            Some("CRC32 cbf43926")
        );
        assert_eq!(stated("h", &[crc64]), None, "without a type");
        let composite = ("x-amz-checksum-type", "COMPOSITE");
        assert_eq!(stated("h", &[composite, crc32c]), None);
        assert_eq!(stated("h", &[FULL, SOME, crc64]), None, "a range");
        for bad in ["", "4waS", "4waSgw==-2", "rosUhgp5mIg=", "????"] {
            assert_eq!(
                stated("h", &[FULL, ("x-amz-checksum-crc32c", bad)]),
                None,
                "{bad}"
            );
        }
    }

    #[test]
    fn google_hash_counts_unless_the_object_was_decompressed() {
        let hash = (
            "x-goog-hash",
            "md5=JfnnlDI7RTiF9RgfG2JNCw==, crc32c=4waSgw==",
        );
        let crc = Some("CRC32C e3069283".to_owned());
        assert_eq!(stated("h", &[hash]), crc);
        assert_eq!(stated("h", &[hash, SOME]), crc, "of the whole object");
        let md5 = ("x-goog-hash", "md5=JfnnlDI7RTiF9RgfG2JNCw==");
        let crc32c = ("x-goog-hash", "crc32c=4waSgw==");
        assert_eq!(stated("h", &[md5, crc32c]), crc, "two headers");
        let shown = stated("h", &[md5]);
        assert_eq!(
            shown.as_deref(),
            Some("MD5 25f9e794323b453885f5181f1b624d0b")
        );
        let gzip = ("x-goog-stored-content-encoding", "gzip");
        let length = ("content-length", "9");
        let stored_length = |length| ("x-goog-stored-content-length", length);
        assert_eq!(stated("h", &[hash, gzip]), None);
        assert_eq!(stated("h", &[hash, length, stored_length("7")]), None);
        assert_eq!(stated("h", &[hash, length, stored_length("9")]), crc);
        assert_eq!(
            stated("h", &[hash, gzip, ("content-encoding", "gzip")]),
            crc
        );
    }

    #[test]
    fn content_md5_is_of_the_body_and_that_of_a_blob_is_of_the_whole() {
        let shown = Some("MD5 25f9e794323b453885f5181f1b624d0b".to_owned());
        assert_eq!(stated("h", &[("content-md5", MD5)]), shown);
        assert_eq!(stated("h", &[("content-md5", MD5), ALL]), shown);
        assert_eq!(stated("h", &[("content-md5", MD5), SOME]), None);
        let (blob, block) = (
            ("x-ms-blob-content-md5", MD5),
            ("x-ms-blob-type", "BlockBlob"),
        );
        assert_eq!(stated("h", &[blob, block, SOME]), shown);
        let append = ("x-ms-blob-type", "AppendBlob");
        assert_eq!(stated("h", &[blob, append, SOME]), None);
        assert_eq!(stated("h", &[("content-md5", MD5), append]), None);
        let twice = [("content-md5", MD5), ("content-md5", MD5)];
        assert_eq!(stated("h", &twice), None);
    }

    #[test]
    fn e_tag_is_an_md5_only_at_amazon_and_without_keys_of_others() {
        let shown = Some("MD5 25f9e794323b453885f5181f1b624d0b".to_owned());
        assert_eq!(stated(S3, &[E_TAG, SSE]), shown);
        assert_eq!(stated(S3, &[E_TAG, SSE, SOME]), shown);
        assert_eq!(stated(S3, &[E_TAG]), None);
        let kms = ("x-amz-server-side-encryption", "aws:kms");
        assert_eq!(stated(S3, &[E_TAG, kms]), None);
        let customer = ("x-amz-server-side-encryption-customer-algorithm", "AES256");
        assert_eq!(stated(S3, &[E_TAG, SSE, customer]), None);
        for parts in [
            "\"25f9e794323b453885f5181f1b624d0b-2\"",
            "W/\"25f9e794323b453885f5181f1b624d0b\"",
            "\"+5f9e794323b453885f5181f1b624d0b\"",
        ] {
            assert_eq!(stated(S3, &[("etag", parts), SSE]), None, "{parts}");
        }
        for amazon in [
            "s3.amazonaws.com",
            "s3.us-west-2.amazonaws.com",
            "a.b.s3.dualstack.us-west-2.amazonaws.com",
            "b.s3.cn-north-1.amazonaws.com.cn",
        ] {
            assert_eq!(stated(amazon, &[E_TAG, SSE]), shown, "{amazon}");
        }
        for other in [
            "127.0.0.1",
            "minio.example.com",
            "s3.amazonaws.com.example.com",
            "b--usw2-az1--x-s3.s3express-usw2-az1.us-west-2.amazonaws.com",
            "l.s3-object-lambda.us-west-2.amazonaws.com",
            "",
        ] {
            assert_eq!(stated(other, &[E_TAG, SSE]), None, "{other}");
        }
    }

    #[test]
    fn response_to_a_put_states_a_digest_of_all_its_bytes() {
        let stated = |headers: &[(&'static str, &'static str)]| {
            let mut map = HeaderMap::new();
            for (name, value) in headers {
                map.insert(
                    HeaderName::from_static(name),
                    HeaderValue::from_static(value),
                );
            }
            stated_by_put(S3, &map).map(|digest| digest.to_string())
        };
        let crc = Some("CRC32C e3069283".to_owned());
        let md5 = Some("MD5 25f9e794323b453885f5181f1b624d0b".to_owned());
        assert_eq!(stated(&[("x-amz-checksum-crc32c", "4waSgw==")]), crc);
        let empty_body = ("content-length", "0");
        let google = [
            ("x-goog-hash", "crc32c=4waSgw=="),
            ("x-goog-stored-content-length", "9"),
            ("x-goog-stored-content-encoding", "gzip"),
            empty_body,
        ];
        assert_eq!(stated(&google), crc);
        assert_eq!(stated(&[("content-md5", MD5), empty_body]), md5);
        assert_eq!(stated(&[E_TAG, SSE]), md5);
        assert_eq!(stated(&[E_TAG]), None);
        assert_eq!(stated(&[("x-amz-checksum-crc32c", "4waSgw==-2")]), None);
    }

    #[test]
    fn other_statuses_state_nothing() {
        let mut headers = HeaderMap::new();
        headers.insert("content-md5", HeaderValue::from_static(MD5));
        for status in [304, 404, 416, 500] {
            let status = StatusCode::from_u16(status).expect("a status");
            assert_eq!(stated_digest("h", status, &headers), None, "{status}");
        }
        let partial = StatusCode::PARTIAL_CONTENT;
        assert_eq!(stated_digest("h", partial, &headers), None, "no range");
    }
}
