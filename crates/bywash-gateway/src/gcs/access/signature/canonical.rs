//! The parts of a request as a signature covers them.

use http::{HeaderMap, Uri};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use super::super::super::error::{GcsError, GcsResult};

/// Characters that a canonical query has as they are.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');
/// As [`PLAIN`], for a path.
const PLAIN_PATH: &AsciiSet = &PLAIN.remove(b'/');

/// A decoded parameter of a query.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) name: String,
    pub(super) value: String,
}

/// Decodes a query as signers encode it: a plus is a plus.
pub(super) fn pairs(uri: &Uri) -> GcsResult<Vec<Pair>> {
    let query = uri.query().unwrap_or_default();
    let decoded = |text: &str| -> GcsResult<String> {
        let decoded = percent_decode_str(text).decode_utf8();
        let decoded = decoded.map_err(|_| GcsError::invalid("The query is not UTF-8."))?;
        Ok(decoded.into_owned())
    };
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Ok(Pair {
                name: decoded(name)?,
                value: decoded(value)?,
            })
        })
        .collect()
}

/// Returns the value of a parameter, whose name is in lower case here.
pub(super) fn parameter<'p>(pairs: &'p [Pair], name: &str) -> Option<&'p str> {
    let mut pairs = pairs.iter();
    let found = pairs.find(|pair| pair.name.eq_ignore_ascii_case(name))?;
    Some(&found.value)
}

/// Returns a canonical query: sorted, encoded anew, without the signature itself.
pub(super) fn query<'p>(pairs: impl Iterator<Item = &'p Pair>) -> String {
    let is_signature = |name: &str| {
        ["x-goog-signature", "x-amz-signature"]
            .iter()
            .any(|known| name.eq_ignore_ascii_case(known))
    };
    let encoded = |text: &str| utf8_percent_encode(text, PLAIN).to_string();
    let mut found: Vec<_> = pairs
        .filter(|pair| !is_signature(&pair.name))
        .map(|pair| (encoded(&pair.name), encoded(&pair.value)))
        .collect();
    found.sort();
    let found: Vec<_> = found
        .into_iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    found.join("&")
}

/// Encodes a path anew.
pub(super) fn path(sent: &str) -> String {
    let decoded = percent_decode_str(sent).decode_utf8_lossy();
    utf8_percent_encode(&decoded, PLAIN_PATH).to_string()
}

/// Returns the lines of the headers that a signature covers.
///
/// `host`: the value of the header Host, in place of the one that was sent.
pub(super) fn headers(headers: &HeaderMap, signed: &str, host: Option<&str>) -> String {
    let line = |name: &str| {
        if let Some(host) = host.filter(|_| name == "host") {
            return format!("host:{host}\n");
        }
        let values: Vec<String> = headers
            .get_all(name)
            .iter()
            .map(|value| {
                let value = String::from_utf8_lossy(value.as_bytes());
                value.split_ascii_whitespace().collect::<Vec<_>>().join(" ")
            })
            .collect();
        format!("{name}:{}\n", values.join(","))
    };
    signed.split(';').map(line).collect()
}

/// Decodes hexadecimal digits of any case.
pub(super) fn bytes_of(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    let byte = |pair: &[u8]| {
        let digits = std::str::from_utf8(pair).ok()?;
        let is_digits = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        u8::from_str_radix(digits, 16)
            .ok()
            .filter(|_| is_digits && pair.len() == 2)
    };
    pairs.map(byte).collect()
}
