//! The parts of a request as a signature of version 4 covers them.

use http::header::HOST;
use http::{HeaderMap, Uri};
use percent_encoding::{
    AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode, utf8_percent_encode,
};

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
pub(crate) struct Pair {
    pub(crate) name: String,
    pub(crate) value: String,
}

/// The query is not UTF-8.
#[derive(Debug)]
pub(crate) struct NotUtf8;

/// Decodes a query. Signers encode a plus; one that is not is a plus or, as in forms, a space.
pub(crate) fn pairs(uri: &Uri, plus_is_space: bool) -> Result<Vec<Pair>, NotUtf8> {
    let query = uri.query().unwrap_or_default();
    let decoded = |text: &str| {
        let spaced = text.replace('+', if plus_is_space { " " } else { "+" });
        let decoded = percent_decode_str(&spaced).decode_utf8();
        decoded.map(String::from).map_err(|_| NotUtf8)
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

/// The value of a parameter, whose name is in lower case here.
pub(crate) fn parameter<'p>(pairs: &'p [Pair], name: &str) -> Option<&'p str> {
    let mut pairs = pairs.iter();
    let found = pairs.find(|pair| pair.name.eq_ignore_ascii_case(name))?;
    Some(&found.value)
}

/// Canonical query: sorted, encoded again, without the signature itself.
pub(crate) fn query<'p>(pairs: impl Iterator<Item = &'p Pair>) -> String {
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

/// Decodes a path and encodes it again.
pub(crate) fn path(sent: &str) -> String {
    let decoded: Vec<u8> = percent_decode_str(sent).collect();
    percent_encode(&decoded, PLAIN_PATH).to_string()
}

/// Encodes a path.
pub(crate) fn encoded(path: &str) -> String {
    utf8_percent_encode(path, PLAIN_PATH).to_string()
}

/// The lines of the headers that a signature covers.
///
/// `host`: the value of the header Host, in place of the one that was sent.
pub(crate) fn headers(headers: &HeaderMap, signed: &str, host: Option<&str>) -> Vec<u8> {
    let mut lines = Vec::new();
    for name in signed.split(';') {
        lines.extend_from_slice(name.as_bytes());
        lines.push(b':');
        if let Some(host) = host.filter(|_| name == "host") {
            lines.extend_from_slice(host.as_bytes());
        } else {
            for (index, value) in headers.get_all(name).iter().enumerate() {
                if index > 0 {
                    lines.push(b',');
                }
                let words = value.as_bytes().split(u8::is_ascii_whitespace);
                let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
                lines.extend_from_slice(&words.join(&b' '));
            }
        }
        lines.push(b'\n');
    }
    lines
}

/// The value of the header Host without its port, as some clients sign it: Amazon's servers have
/// none. `None` without a port.
pub(crate) fn host_without_port(headers: &HeaderMap) -> Option<&str> {
    let host = headers.get(HOST)?.to_str().ok()?;
    let (name, port) = host.rsplit_once(':')?;
    let is_port = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    is_port.then_some(name)
}

/// Decodes hexadecimal digits of any case.
pub(crate) fn bytes_of(text: &str) -> Option<Vec<u8>> {
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
