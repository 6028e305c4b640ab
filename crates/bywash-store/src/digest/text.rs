//! Digests as the protocols of the stores write them.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::HeaderMap;

use super::ContentDigest;

/// Returns the bytes in base64, if they are as many as the digest has.
pub(super) fn of_base64<const N: usize>(text: &str) -> Option<[u8; N]> {
    BASE64_STANDARD.decode(text).ok()?.try_into().ok()
}

/// Returns a CRC32C in the encoding of S3 and Google.
pub(crate) fn crc32c_to_base64(crc32c: u32) -> String {
    BASE64_STANDARD.encode(crc32c.to_be_bytes())
}

/// Parses a CRC32C in the encoding of S3 and Google. Rejects the checksum of the parts' checksums, which ends in their count.
pub(crate) fn crc32c_of_base64(text: &str) -> Option<u32> {
    of_base64(text).map(u32::from_be_bytes)
}

/// Returns the CRC32C of these pieces, as [`crc32c_to_base64`] writes it.
pub(crate) fn pieces_crc32c(pieces: &[Bytes]) -> String {
    match ContentDigest::Crc32c(0).same_of(pieces) {
        ContentDigest::Crc32c(crc) => crc32c_to_base64(crc),
        _ => String::new(),
    }
}

/// Returns the MD5 of these pieces, as `Content-MD5` has it.
pub(crate) fn pieces_md5(pieces: &[Bytes]) -> String {
    match ContentDigest::Md5([0; 16]).same_of(pieces) {
        ContentDigest::Md5(md5) => BASE64_STANDARD.encode(md5),
        _ => String::new(),
    }
}

/// Returns the bytes in hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the ETag of an object with this MD5 in base64, as XML APIs have it.
pub(crate) fn e_tag_of_md5(text: &str) -> Option<String> {
    let md5: [u8; 16] = of_base64(text)?;
    Some(format!("\"{}\"", hex(&md5)))
}

/// Parses the digits of an MD5 in a plain ETag. No store says whether it is one: the ETag of an encrypted part only has the form.
pub(crate) fn md5_of_e_tag(e_tag: &str) -> Option<[u8; 16]> {
    let digits = e_tag.trim_matches('"');
    let is_md5 = digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let md5 = u128::from_str_radix(digits, 16).ok().filter(|_| is_md5)?;
    Some(md5.to_be_bytes())
}

/// Returns the digest of one kind in all headers `x-goog-hash`, each with one or more.
pub(crate) fn google_hash<'h>(headers: &'h HeaderMap, kind: &str) -> Option<&'h str> {
    let values = headers.get_all("x-goog-hash").into_iter();
    values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .find_map(|value| value.trim().strip_prefix(kind))
}
