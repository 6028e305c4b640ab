//! The parts of a request as a signature of version 4 covers them.

use std::borrow::Cow;

use http::header::HOST;
use http::request::Parts;
use http::{HeaderMap, Method, Request, Uri};
use percent_encoding::{
    AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode, utf8_percent_encode,
};
use sha2::{Digest, Sha256};

/// Characters that a canonical query has as they are.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');
/// As [`PLAIN`], for a path.
const PLAIN_PATH: &AsciiSet = &PLAIN.remove(b'/');

/// The parts of a request that signatures cover.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestHead<'a> {
    pub(crate) method: &'a Method,
    pub(crate) uri: &'a Uri,
    pub(crate) headers: &'a HeaderMap,
}

impl<'a> RequestHead<'a> {
    pub(crate) fn of_parts(parts: &'a Parts) -> Self {
        Self {
            method: &parts.method,
            uri: &parts.uri,
            headers: &parts.headers,
        }
    }

    pub(crate) fn of<B>(request: &'a Request<B>) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
        }
    }
}

/// One form of a request as it may have been signed.
pub(crate) struct CanonicalRequest<'a> {
    head: RequestHead<'a>,
    path: &'a str,
    query: &'a [Pair<'a>],
    host: Option<&'a str>,
    signed: &'a str,
    payload: &'a str,
}

impl CanonicalRequest<'_> {
    /// Calls `put` with the canonical request, in parts.
    fn write(&self, mut put: impl FnMut(&[u8])) {
        for part in [self.head.method.as_str(), "\n", self.path, "\n"] {
            put(part.as_bytes());
        }
        for (index, (name, value)) in self.query.iter().enumerate() {
            for part in [if index == 0 { "" } else { "&" }, name, "=", value] {
                put(part.as_bytes());
            }
        }
        put(b"\n");
        for name in self.signed.split(';') {
            put(name.as_bytes());
            put(b":");
            match self.host.filter(|_| name == "host") {
                Some(host) => put(host.as_bytes()),
                None => write_values(self.head.headers, name, &mut put),
            }
            put(b"\n");
        }
        for part in ["\n", self.signed, "\n", self.payload] {
            put(part.as_bytes());
        }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.write(|part| bytes.extend_from_slice(part));
        bytes
    }

    /// SHA-256 in hexadecimal digits.
    pub(super) fn digest(&self) -> [u8; 64] {
        let mut digest = Sha256::new();
        self.write(|part| digest.update(part));
        let mut digits = [0; 64];
        for (pair, byte) in digits.chunks_exact_mut(2).zip(digest.finalize()) {
            for (digit, nibble) in pair.iter_mut().zip([byte >> 4, byte & 15]) {
                *digit = b"0123456789abcdef"[usize::from(nibble)];
            }
        }
        digits
    }
}

/// The values of a header, joined by commas, with one space between words.
fn write_values(headers: &HeaderMap, name: &str, put: &mut impl FnMut(&[u8])) {
    for (index, value) in headers.get_all(name).iter().enumerate() {
        if index > 0 {
            put(b",");
        }
        let words = value.as_bytes().split(u8::is_ascii_whitespace);
        let words = words.filter(|word| !word.is_empty());
        for (index, word) in words.enumerate() {
            put(if index > 0 { b" " } else { b"" });
            put(word);
        }
    }
}

/// The forms in which signers write the parts of one request: each combination may have been signed. The common form is
/// the first of each part.
pub(crate) struct Forms<'a> {
    pub(crate) head: RequestHead<'a>,
    /// Names of the signed headers.
    pub(crate) signed: &'a str,
    /// Values of Host; `None`: as it was sent.
    pub(crate) hosts: &'a [Option<&'a str>],
    pub(crate) paths: &'a [Cow<'a, str>],
    pub(crate) queries: &'a [Vec<Pair<'a>>],
    pub(crate) payloads: &'a [&'a str],
}

impl Forms<'_> {
    pub(crate) fn requests(&self) -> impl Iterator<Item = CanonicalRequest<'_>> {
        let hosts = self.hosts.iter().copied();
        let with_payload = hosts.flat_map(|host| {
            let payloads = self.payloads.iter().copied();
            payloads.map(move |payload| (host, payload))
        });
        with_payload.flat_map(move |(host, payload)| {
            self.paths.iter().flat_map(move |path| {
                self.queries.iter().map(move |query| CanonicalRequest {
                    head: self.head,
                    path,
                    query,
                    host,
                    signed: self.signed,
                    payload,
                })
            })
        })
    }
}

/// Name and value of a parameter, encoded as they are signed.
pub(crate) type Pair<'a> = (Cow<'a, str>, Cow<'a, str>);

/// The query is not UTF-8.
#[derive(Debug)]
pub(crate) struct NotUtf8;

/// Canonical query: sorted, encoded again, without the signature itself. Signers encode a plus; one that is not encoded is
/// a plus or, as in forms, a space.
pub(crate) fn query(uri: &Uri, plus_is_space: bool) -> Result<Vec<Pair<'_>>, NotUtf8> {
    let query = uri.query().unwrap_or_default();
    let is_signature = |name: &str| {
        ["x-goog-signature", "x-amz-signature"]
            .iter()
            .any(|known| name.eq_ignore_ascii_case(known))
    };
    let mut pairs = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        if pairs.is_empty() {
            // Enough for a presigned request, in one allocation.
            pairs.reserve(8);
        }
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let name = encoded_again(name, plus_is_space)?;
        let value = encoded_again(value, plus_is_space)?;
        if !is_signature(&name) {
            pairs.push((name, value));
        }
    }
    pairs.sort();
    Ok(pairs)
}

/// Decodes a name or a value and encodes it as it is signed.
fn encoded_again(sent: &str, plus_is_space: bool) -> Result<Cow<'_, str>, NotUtf8> {
    // Bytes above ASCII may be no UTF-8.
    let is_above = |pair: &[u8]| pair[0] == b'%' && pair[1] >= b'8';
    let is_ascii = || !sent.as_bytes().windows(2).any(is_above);
    if sent.bytes().all(is_unreserved) || (is_canonical(sent, false) && is_ascii()) {
        return Ok(Cow::Borrowed(sent));
    }
    let spaced = sent.replace('+', if plus_is_space { " " } else { "+" });
    let decoded = percent_decode_str(&spaced).decode_utf8();
    let decoded = decoded.map_err(|_| NotUtf8)?;
    Ok(Cow::Owned(utf8_percent_encode(&decoded, PLAIN).to_string()))
}

/// Decodes a path and encodes it as it is signed.
pub(crate) fn path(sent: &str) -> Cow<'_, str> {
    if is_canonical(sent, true) {
        return Cow::Borrowed(sent);
    }
    let decoded: Vec<u8> = percent_decode_str(sent).collect();
    Cow::Owned(percent_encode(&decoded, PLAIN_PATH).to_string())
}

/// Encodes a path.
pub(crate) fn encoded(path: &str) -> String {
    utf8_percent_encode(path, PLAIN_PATH).to_string()
}

/// Whether a text is encoded as it is signed: unreserved characters as they are, all others by `%` and two upper-case
/// digits. `is_path`: slashes are not encoded.
pub(crate) fn is_canonical(text: &str, is_path: bool) -> bool {
    let is_plain = |byte: u8| is_unreserved(byte) || (is_path && byte == b'/');
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    };
    let mut rest = text.as_bytes();
    loop {
        let plain = rest.iter().take_while(|byte| is_plain(**byte)).count();
        rest = match &rest[plain..] {
            [] => return true,
            [b'%', high, low, rest @ ..] => match digit(*high).zip(digit(*low)) {
                Some((high, low)) if !is_plain(high << 4 | low) => rest,
                _ => return false,
            },
            _ => return false,
        };
    }
}

/// Whether a byte is unreserved, of all bytes: a look-up is faster than ranges.
const UNRESERVED: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < table.len() {
        let known = byte as u8;
        table[byte] = known.is_ascii_alphanumeric() || matches!(known, b'-' | b'_' | b'.' | b'~');
        byte += 1;
    }
    table
};

fn is_unreserved(byte: u8) -> bool {
    UNRESERVED[usize::from(byte)]
}

/// The value of the header Host without its port, as some clients sign it: Amazon's servers have
/// none. `None` without a port.
pub(crate) fn host_without_port(headers: &HeaderMap) -> Option<&str> {
    let host = headers.get(HOST)?.to_str().ok()?;
    let (name, port) = host.rsplit_once(':')?;
    let is_port = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    is_port.then_some(name)
}
