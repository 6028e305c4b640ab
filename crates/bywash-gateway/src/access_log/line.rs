//! Access records and their formatting: straight into the bytes of a line, by the thread of the request.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use chrono::{DateTime, Datelike, Timelike, Utc};
use http::header::{REFERER, USER_AGENT};
use http::{HeaderMap, HeaderName, Method, Uri, Version};

use super::AccessLogFormat;
use crate::limits::MAX_LOGGED_TEXT_BYTES;
use crate::sigv4::parse::is_signature_parameter;

/// Status logged if the client left before the response, as in nginx.
const CLIENT_LEFT: u16 = 499;

/// Address of a connection's client.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// Texts of a request's head that an access record quotes.
#[derive(Debug)]
pub(crate) struct ClientTexts {
    time: DateTime<Utc>,
    peer: SocketAddr,
    version: Version,
    /// Path and query without the signature, then the User-Agent, then the Referer.
    text: String,
    target_end: usize,
    user_agent_end: usize,
}

impl ClientTexts {
    pub(crate) fn new(peer: Peer, version: Version, uri: &Uri, headers: &HeaderMap) -> Self {
        let mut text = String::new();
        push_unsigned_target(&mut text, uri);
        let target_end = text.len();
        push_header(&mut text, headers, USER_AGENT);
        let user_agent_end = text.len();
        push_header(&mut text, headers, REFERER);
        // Kept until the response ends.
        text.shrink_to_fit();
        Self {
            time: Utc::now(),
            peer: peer.0,
            version,
            text,
            target_end,
            user_agent_end,
        }
    }

    fn target(&self) -> &str {
        &self.text[..self.target_end]
    }

    fn user_agent(&self) -> &str {
        &self.text[self.target_end..self.user_agent_end]
    }

    fn referer(&self) -> &str {
        &self.text[self.user_agent_end..]
    }
}

/// Appends path and query without the signature: with it, a reader of the log could repeat the request.
fn push_unsigned_target(text: &mut String, uri: &Uri) {
    let max = MAX_LOGGED_TEXT_BYTES;
    push_cut(text, uri.path(), max);
    let pairs = uri.query().into_iter().flat_map(|query| query.split('&'));
    let is_shown =
        |pair: &&str| !is_signature_parameter(pair.split('=').next().unwrap_or_default());
    for (index, pair) in pairs.filter(is_shown).enumerate() {
        let left = max.saturating_sub(text.len());
        if left == 0 {
            return;
        }
        text.push(if index == 0 { '?' } else { '&' });
        push_cut(text, pair, left);
    }
}

fn push_header(text: &mut String, headers: &HeaderMap, name: HeaderName) {
    let value = headers.get(name).map(|value| value.as_bytes());
    let value = String::from_utf8_lossy(value.unwrap_or_default());
    push_cut(text, &value, MAX_LOGGED_TEXT_BYTES);
}

/// Appends at most `max` bytes, and `...` if there are more.
fn push_cut(text: &mut String, more: &str, max: usize) {
    let (kept, is_cut) = cut(more, max);
    text.push_str(kept);
    if is_cut {
        text.push_str(CUT);
    }
}

/// Stands for the rest of a text that was cut.
const CUT: &str = "...";

/// Returns at most `max` bytes of a text, and whether there are more.
fn cut(text: &str, max: usize) -> (&str, bool) {
    if text.len() > max {
        (&text[..text.floor_char_boundary(max)], true)
    } else {
        (text, false)
    }
}

/// The logged properties of one request.
#[derive(Debug)]
pub(crate) struct AccessRecord<'a> {
    pub(crate) texts: &'a ClientTexts,
    pub(crate) method: &'a Method,
    /// The S3 operation, named as its method here: `get_object`.
    pub(crate) operation: Option<&'static str>,
    /// Access key of the verified signature.
    pub(crate) requester: Option<&'a str>,
    pub(crate) bucket: &'a str,
    pub(crate) key: &'a str,
    /// 0 if the client left before the response.
    pub(crate) status: u16,
    pub(crate) received: u64,
    pub(crate) sent: u64,
    pub(crate) duration: Duration,
    pub(crate) request_id: &'a str,
    pub(crate) cache: &'static str,
    pub(crate) outcome: &'static str,
    pub(crate) error: Option<&'a str>,
}

impl AccessRecord<'_> {
    fn status(&self) -> u16 {
        match self.status {
            0 => CLIENT_LEFT,
            status => status,
        }
    }
}

/// Appends the record's line.
pub(super) fn write(line: &mut String, record: &AccessRecord<'_>, format: AccessLogFormat) {
    match format {
        AccessLogFormat::Json => json(line, record),
        AccessLogFormat::Combined => combined(line, record),
    }
    line.push('\n');
}

fn json(line: &mut String, record: &AccessRecord<'_>) {
    let texts = record.texts;
    line.push_str("{\"time\":\"");
    push_time(line, texts.time);
    // Writing to a String cannot fail.
    let _ = write!(
        line,
        "\",\"remote_address\":\"{}\",\"requester\":",
        texts.peer.ip().to_canonical()
    );
    push_optional(line, record.requester);
    line.push_str(",\"operation\":");
    match record.operation {
        Some(operation) => {
            line.push('"');
            push_operation(line, operation);
            line.push('"');
        }
        None => line.push_str("null"),
    }
    for (name, text) in [
        (",\"method\":", record.method.as_str()),
        (",\"bucket\":", record.bucket),
        (",\"key\":", record.key),
        (",\"target\":", texts.target()),
    ] {
        line.push_str(name);
        push_json(line, text);
    }
    let micros = record.duration.as_micros();
    let _ = write!(
        line,
        ",\"status\":{},\"bytes_in\":{},\"bytes\":{},\"duration_ms\":{}.{:03},\"request_id\":\"{}\",\"cache\":",
        record.status(),
        record.received,
        record.sent,
        micros / 1000,
        micros % 1000,
        record.request_id
    );
    push_optional(line, Some(record.cache).filter(|cache| !cache.is_empty()));
    line.push_str(",\"outcome\":");
    push_json(line, record.outcome);
    line.push_str(",\"error\":");
    push_optional(line, record.error);
    line.push_str(",\"user_agent\":");
    push_json(line, texts.user_agent());
    line.push_str(",\"referer\":");
    push_json(line, texts.referer());
    line.push('}');
}

fn push_optional(line: &mut String, text: Option<&str>) {
    match text {
        Some(text) => push_json(line, text),
        None => line.push_str("null"),
    }
}

/// Appends a JSON string of a text, which is cut to the length that a record holds.
fn push_json(line: &mut String, text: &str) {
    let (text, is_cut) = cut(text, MAX_LOGGED_TEXT_BYTES);
    line.push('"');
    let is_plain = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\';
    if text.bytes().all(is_plain) {
        line.push_str(text);
    } else {
        text.chars()
            .for_each(|character| push_escaped(line, character));
    }
    if is_cut {
        line.push_str(CUT);
    }
    line.push('"');
}

fn push_escaped(line: &mut String, character: char) {
    match character {
        '"' => line.push_str("\\\""),
        '\\' => line.push_str("\\\\"),
        '\n' => line.push_str("\\n"),
        '\r' => line.push_str("\\r"),
        '\t' => line.push_str("\\t"),
        // Valid JSON but for the first 32, and unsafe on a terminal. All of these are in the basic plane.
        character if steers_terminal(character) => {
            let _ = write!(line, "\\u{:04x}", u32::from(character));
        }
        character => line.push(character),
    }
}

/// Control characters, and characters that change text direction or line.
fn steers_terminal(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Appends `GetObject` for `get_object`.
fn push_operation(line: &mut String, method: &str) {
    for word in method.split('_') {
        let mut characters = word.chars();
        line.extend(characters.next().map(|first| first.to_ascii_uppercase()));
        line.push_str(characters.as_str());
    }
}

/// Appends a time as in RFC 3339, in milliseconds.
fn push_time(line: &mut String, time: DateTime<Utc>) {
    push_digits(line, time.year().unsigned_abs(), 4);
    for (mark, number, places) in [
        ('-', time.month(), 2),
        ('-', time.day(), 2),
        ('T', time.hour(), 2),
        (':', time.minute(), 2),
        (':', time.second(), 2),
        ('.', time.timestamp_subsec_millis().min(999), 3),
    ] {
        line.push(mark);
        push_digits(line, number, places);
    }
    line.push('Z');
}

/// Appends the last `places` decimal digits of a number.
fn push_digits(line: &mut String, number: u32, places: u32) {
    for place in (0..places).rev() {
        let digit = (number / 10_u32.pow(place) % 10) as u8;
        line.push(char::from(b'0' + digit));
    }
}

fn combined(line: &mut String, record: &AccessRecord<'_>) {
    let texts = record.texts;
    let _ = write!(line, "{} - ", texts.peer.ip().to_canonical());
    escape(line, record.requester.unwrap_or("-"), |byte| byte == b' ');
    let time = texts.time.format("%d/%b/%Y:%H:%M:%S +0000");
    let _ = write!(line, " [{time}] \"{} ", record.method);
    escape(line, texts.target(), |_| false);
    let _ = write!(
        line,
        " {:?}\" {} {} \"",
        texts.version,
        record.status(),
        record.sent
    );
    escape(line, or_dash(texts.referer()), |_| false);
    line.push_str("\" \"");
    escape(line, or_dash(texts.user_agent()), |_| false);
    line.push('"');
}

fn or_dash(text: &str) -> &str {
    if text.is_empty() { "-" } else { text }
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

    fn texts() -> ClientTexts {
        let request = http::Request::builder()
            .uri("/data/a%0A%22b?versionId=null&X-Amz-Signature=secret&X-Amz-Credential=k")
            .header("user-agent", "a \"quoted\" \\ agent")
            .header("referer", "http://x/\u{9b}31m")
            .body(())
            .expect("a request");
        let (parts, ()) = request.into_parts();
        let peer = Peer(([127, 0, 0, 1], 80).into());
        ClientTexts::new(peer, parts.version, &parts.uri, &parts.headers)
    }

    fn record<'a>(texts: &'a ClientTexts, key: &'a str) -> AccessRecord<'a> {
        AccessRecord {
            texts,
            method: &Method::GET,
            operation: Some("list_objects_v2"),
            requester: Some("the key"),
            bucket: "data",
            key,
            status: 0,
            received: 1,
            sent: 2,
            duration: Duration::from_micros(1500),
            request_id: "ID",
            cache: "",
            outcome: "left",
            error: None,
        }
    }

    fn line(record: &AccessRecord<'_>, format: AccessLogFormat) -> String {
        let mut line = String::new();
        write(&mut line, record, format);
        line
    }

    #[test]
    fn json_lines_hold_any_key_and_no_signature() {
        let key = "a\n\r\t\0\"b\\\u{1b}[31m\u{7f}\u{9b}\u{202e}\u{2028}é";
        let texts = texts();
        let text = line(&record(&texts, key), AccessLogFormat::Json);
        assert_eq!(text.matches('\n').count(), 1);
        assert!(!text.trim_end().chars().any(steers_terminal), "{text}");
        assert!(!text.contains("secret"), "{text}");
        let line: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(line["key"], key);
        assert_eq!(line["operation"], "ListObjectsV2");
        assert_eq!(line["status"], 499);
        assert_eq!(line["duration_ms"], 1.5);
        assert_eq!(line["remote_address"], "127.0.0.1");
        assert_eq!(line["requester"], "the key");
        assert_eq!(line["target"], "/data/a%0A%22b?versionId=null");
        assert_eq!(line["cache"], serde_json::Value::Null);
        assert_eq!(line["error"], serde_json::Value::Null);
        assert_eq!(line["user_agent"], "a \"quoted\" \\ agent");
        assert_eq!(line["referer"], "http://x/\u{9b}31m");
    }

    #[test]
    fn times_are_as_in_rfc_3339() {
        for millis in [0, 1_582_934_399_999, 1_700_000_000_007, 253_402_300_799_000] {
            let time = DateTime::from_timestamp_millis(millis).expect("a time");
            let mut text = String::new();
            push_time(&mut text, time);
            let expected = time.to_rfc3339_opts(chrono::SecondsFormat::Millis, true);
            assert_eq!(text, expected);
        }
    }

    #[test]
    fn combined_lines_keep_their_fields_apart() {
        let texts = texts();
        let text = line(&record(&texts, "key"), AccessLogFormat::Combined);
        let (start, rest) = text.split_once(" [").expect("a time");
        assert_eq!(start, "127.0.0.1 - the\\x20key");
        let (_, rest) = rest.split_once("] ").expect("a time");
        assert_eq!(
            rest,
            "\"GET /data/a%0A%22b?versionId=null HTTP/1.1\" 499 2 \"http://x/\\xc2\\x9b31m\" \
             \"a \\\"quoted\\\" \\\\ agent\"\n"
        );
    }

    #[test]
    fn texts_of_clients_are_cut() {
        let long = "é".repeat(MAX_LOGGED_TEXT_BYTES);
        let mut text = String::new();
        push_cut(&mut text, &long, MAX_LOGGED_TEXT_BYTES);
        assert_eq!(text.len(), MAX_LOGGED_TEXT_BYTES + CUT.len());
        let texts = texts();
        let record = AccessRecord {
            bucket: &long,
            ..record(&texts, "k")
        };
        let text = line(&record, AccessLogFormat::Json);
        assert!(text.len() < 2 * MAX_LOGGED_TEXT_BYTES, "{}", text.len());
        let uri = format!("/{}?{}", "p".repeat(3000), "q=1&".repeat(1000));
        let mut target = String::new();
        push_unsigned_target(&mut target, &uri.parse().expect("a target"));
        assert!(target.len() <= MAX_LOGGED_TEXT_BYTES + CUT.len());
    }
}
