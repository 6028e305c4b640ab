//! Access records and their formatting.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use http::header::{REFERER, USER_AGENT};
use http::request::Parts;
use http::{HeaderMap, HeaderName, Method, Uri, Version};
use serde::Serialize;

use super::AccessLogFormat;
use crate::auth::is_signature_parameter;
use crate::limits::MAX_LOGGED_TEXT_BYTES;

/// Status logged if the client left before the response, as in nginx.
const CLIENT_LEFT: u16 = 499;

/// Address of a connection's client, passed in the request's extensions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// Texts of a request's head that an access record quotes.
#[derive(Debug)]
pub(crate) struct ClientTexts {
    time: DateTime<Utc>,
    peer: Option<SocketAddr>,
    /// Path and query, without the signature.
    target: String,
    version: Version,
    user_agent: String,
    referer: String,
}

impl ClientTexts {
    pub(crate) fn new(parts: &Parts) -> Self {
        Self {
            time: Utc::now(),
            peer: parts.extensions.get::<Peer>().map(|peer| peer.0),
            target: cut(unsigned_target(&parts.uri)),
            version: parts.version,
            user_agent: header(&parts.headers, USER_AGENT),
            referer: header(&parts.headers, REFERER),
        }
    }
}

/// Removes the signature from path and query: with it, a reader of the log could repeat the request.
fn unsigned_target(uri: &Uri) -> String {
    let mut target = uri.path().to_owned();
    let pairs = uri.query().into_iter().flat_map(|query| query.split('&'));
    for (index, pair) in pairs
        .filter(|pair| !is_signature_parameter(pair))
        .enumerate()
    {
        target.push(if index == 0 { '?' } else { '&' });
        target.push_str(pair);
    }
    target
}

fn header(headers: &HeaderMap, name: HeaderName) -> String {
    let value = headers.get(name).map(|value| value.as_bytes());
    cut(String::from_utf8_lossy(value.unwrap_or_default()).into_owned())
}

/// Cuts the text to the length that a record holds.
fn cut(mut text: String) -> String {
    if text.len() > MAX_LOGGED_TEXT_BYTES {
        text.truncate(text.floor_char_boundary(MAX_LOGGED_TEXT_BYTES));
        text.push_str("...");
        text.shrink_to_fit();
    }
    text
}

/// The logged properties of one request.
#[derive(Debug)]
pub(crate) struct AccessRecord {
    pub(crate) texts: ClientTexts,
    pub(crate) method: Method,
    /// The S3 operation, named as its method here: `get_object`.
    pub(crate) operation: Option<&'static str>,
    /// Access key of the verified signature.
    pub(crate) requester: Option<String>,
    pub(crate) bucket: String,
    pub(crate) key: String,
    /// 0 if the client left before the response.
    pub(crate) status: u16,
    pub(crate) received: u64,
    pub(crate) sent: u64,
    pub(crate) duration: Duration,
    pub(crate) request_id: String,
    pub(crate) cache: &'static str,
    pub(crate) outcome: &'static str,
    pub(crate) error: Option<String>,
}

impl AccessRecord {
    /// Cuts all texts to the lengths that a record holds.
    pub(crate) fn bounded(self) -> Self {
        Self {
            bucket: cut(self.bucket),
            key: cut(self.key),
            error: self.error.map(cut),
            ..self
        }
    }

    /// Size in memory.
    pub(crate) fn bytes(&self) -> usize {
        let texts = &self.texts;
        size_of::<Self>()
            + texts.target.capacity()
            + texts.user_agent.capacity()
            + texts.referer.capacity()
            + self.bucket.capacity()
            + self.key.capacity()
            + self.request_id.capacity()
            + self.requester.as_ref().map_or(0, String::capacity)
            + self.error.as_ref().map_or(0, String::capacity)
    }

    fn status(&self) -> u16 {
        match self.status {
            0 => CLIENT_LEFT,
            status => status,
        }
    }
}

/// Appends the record's line.
pub(super) fn write(out: &mut Vec<u8>, record: &AccessRecord, format: AccessLogFormat) {
    let line = match format {
        AccessLogFormat::Json => json(record),
        AccessLogFormat::Combined => combined(record),
    };
    out.extend_from_slice(line.as_bytes());
    out.push(b'\n');
}

#[derive(Serialize)]
struct JsonLine<'a> {
    time: String,
    remote_address: Option<String>,
    requester: Option<&'a str>,
    operation: Option<String>,
    method: &'a str,
    bucket: &'a str,
    key: &'a str,
    target: &'a str,
    status: u16,
    bytes_in: u64,
    bytes: u64,
    duration_ms: f64,
    request_id: &'a str,
    cache: Option<&'a str>,
    outcome: &'a str,
    error: Option<&'a str>,
    user_agent: &'a str,
    referer: &'a str,
}

fn json(record: &AccessRecord) -> String {
    let texts = &record.texts;
    let line = JsonLine {
        time: texts.time.to_rfc3339_opts(SecondsFormat::Millis, true),
        remote_address: texts.peer.map(|peer| peer.ip().to_canonical().to_string()),
        requester: record.requester.as_deref(),
        operation: record.operation.map(operation_name),
        method: record.method.as_str(),
        bucket: &record.bucket,
        key: &record.key,
        target: &texts.target,
        status: record.status(),
        bytes_in: record.received,
        bytes: record.sent,
        duration_ms: record.duration.as_micros() as f64 / 1000.0,
        request_id: &record.request_id,
        cache: Some(record.cache).filter(|cache| !cache.is_empty()),
        outcome: record.outcome,
        error: record.error.as_deref(),
        user_agent: &texts.user_agent,
        referer: &texts.referer,
    };
    let text = serde_json::to_string(&line).unwrap_or_default();
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        // Valid JSON, but unsafe on a terminal. All of these are in the basic plane.
        if steers_terminal(character) {
            // Writing to a String cannot fail.
            let _ = write!(safe, "\\u{:04x}", u32::from(character));
        } else {
            safe.push(character);
        }
    }
    safe
}

/// Control characters, and characters that change text direction or line.
fn steers_terminal(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Converts `get_object` to `GetObject`.
fn operation_name(method: &str) -> String {
    let mut name = String::with_capacity(method.len());
    for word in method.split('_') {
        let mut characters = word.chars();
        name.extend(characters.next().map(|first| first.to_ascii_uppercase()));
        name.push_str(characters.as_str());
    }
    name
}

fn combined(record: &AccessRecord) -> String {
    let texts = &record.texts;
    let address = texts.peer.map(|peer| peer.ip().to_canonical().to_string());
    let mut line = address.unwrap_or_else(|| "-".to_owned());
    line.push_str(" - ");
    escape(
        &mut line,
        record.requester.as_deref().unwrap_or("-"),
        |byte| byte == b' ',
    );
    let time = texts.time.format("%d/%b/%Y:%H:%M:%S +0000");
    let _ = write!(line, " [{time}] \"{} ", record.method);
    escape(&mut line, &texts.target, |_| false);
    let _ = write!(
        line,
        " {:?}\" {} {} \"",
        texts.version,
        record.status(),
        record.sent
    );
    let or_dash = |text: &str| {
        if text.is_empty() {
            "-".to_owned()
        } else {
            text.to_owned()
        }
    };
    escape(&mut line, &or_dash(&texts.referer), |_| false);
    line.push_str("\" \"");
    escape(&mut line, &or_dash(&texts.user_agent), |_| false);
    line.push('"');
    line
}

/// Appends text with Apache's escapes: a quote or a line end in it cannot end the field.
fn escape(line: &mut String, text: &str, also: impl Fn(u8) -> bool) {
    for byte in text.bytes() {
        match byte {
            b'"' => line.push_str("\\\""),
            b'\\' => line.push_str("\\\\"),
            byte if also(byte) || !(b' '..=b'~').contains(&byte) => {
                let _ = write!(line, "\\x{byte:02x}");
            }
            byte => line.push(char::from(byte)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(key: &str) -> AccessRecord {
        let request = http::Request::builder()
            .uri("/data/a%0A%22b?versionId=null&X-Amz-Signature=secret&X-Amz-Credential=k")
            .header("user-agent", "a \"quoted\" \\ agent")
            .header("referer", "http://x/\u{9b}31m")
            .body(())
            .expect("a request");
        AccessRecord {
            texts: ClientTexts::new(&request.into_parts().0),
            method: Method::GET,
            operation: Some("list_objects_v2"),
            requester: Some("the key".to_owned()),
            bucket: "data".to_owned(),
            key: key.to_owned(),
            status: 0,
            received: 1,
            sent: 2,
            duration: Duration::from_micros(1500),
            request_id: "ID".to_owned(),
            cache: "",
            outcome: "left",
            error: None,
        }
    }

    #[test]
    fn json_lines_hold_any_key_and_no_signature() {
        let key = "a\n\"b\\\u{1b}[31m\u{9b}\u{202e}\u{2028}é";
        let mut out = Vec::new();
        write(&mut out, &record(key), AccessLogFormat::Json);
        let text = String::from_utf8(out).expect("text");
        assert_eq!(text.matches('\n').count(), 1);
        assert!(!text.trim_end().chars().any(steers_terminal), "{text}");
        assert!(!text.contains("secret"), "{text}");
        let line: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(line["key"], key);
        assert_eq!(line["operation"], "ListObjectsV2");
        assert_eq!(line["status"], 499);
        assert_eq!(line["duration_ms"], 1.5);
        assert_eq!(line["target"], "/data/a%0A%22b?versionId=null");
        assert_eq!(line["cache"], serde_json::Value::Null);
    }

    #[test]
    fn combined_lines_keep_their_fields_apart() {
        let mut out = Vec::new();
        write(&mut out, &record("key"), AccessLogFormat::Combined);
        let text = String::from_utf8(out).expect("text");
        let (start, rest) = text.split_once(" [").expect("a time");
        assert_eq!(start, "- - the\\x20key");
        let (_, rest) = rest.split_once("] ").expect("a time");
        assert_eq!(
            rest,
            "\"GET /data/a%0A%22b?versionId=null HTTP/1.1\" 499 2 \"http://x/\\xc2\\x9b31m\" \
             \"a \\\"quoted\\\" \\\\ agent\"\n"
        );
    }

    #[test]
    fn texts_of_clients_are_cut() {
        let long = cut("é".repeat(MAX_LOGGED_TEXT_BYTES));
        assert!(long.len() <= MAX_LOGGED_TEXT_BYTES + 3);
        let record = AccessRecord {
            bucket: "b".repeat(1 << 20),
            ..record("k")
        };
        assert!(record.bounded().bucket.len() <= MAX_LOGGED_TEXT_BYTES + 3);
    }
}
