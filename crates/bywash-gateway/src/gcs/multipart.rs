//! Bodies of several parts: boundaries, and the parts of a batch, which are requests and responses themselves.
//!
//! Lines may end with a line feed alone: Google's Python client sends them so.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, Uri};

use super::error::{GcsError, GcsResult};
use crate::limits::{MAX_BATCH_CALLS, MAX_HEADERS};

/// One call of a batch.
#[derive(Debug)]
pub(crate) struct BatchCall {
    /// Content-ID of its part.
    pub(crate) id: Option<String>,
    /// Its request line and headers, not yet parsed.
    head: Bytes,
    pub(crate) body: Bytes,
}

impl BatchCall {
    /// Parses the request line and headers; the error describes a fault. Parsed when it is served:
    /// parsed headers are many times as long as their text.
    pub(crate) fn head(&self) -> Result<CallHead, String> {
        CallHead::parse(&self.head)
    }
}

/// Request line and headers of a call.
#[derive(Debug)]
pub(crate) struct CallHead {
    pub(crate) method: Method,
    pub(crate) target: Uri,
    pub(crate) headers: HeaderMap,
}

/// The boundary of a Content-Type, if it is `kind`.
pub(crate) fn boundary(content_type: &str, kind: &str) -> Option<String> {
    let mut parts = content_type.split(';').map(str::trim);
    if !parts.next()?.eq_ignore_ascii_case(kind) {
        return None;
    }
    let value = parts.find_map(|part| {
        let (name, value) = part.split_once('=')?;
        name.trim()
            .eq_ignore_ascii_case("boundary")
            .then(|| value.trim().trim_matches(['"', '\'']).to_owned())
    });
    value.filter(|value| !value.is_empty() && value.len() <= 70)
}

/// The end of the line that begins at `from`, behind its line end.
fn line_end(text: &[u8], from: usize) -> usize {
    let end = text[from..].iter().position(|byte| *byte == b'\n');
    end.map_or(text.len(), |length| from + length + 1)
}

/// Contents of the parts of a body; `None` if there are more than `max` parts.
///
/// # Errors
/// Without a last boundary.
fn parts(body: &Bytes, boundary: &str, max: usize) -> GcsResult<Option<Vec<Bytes>>> {
    let delimiter = format!("--{boundary}");
    let mut parts = Vec::new();
    let (mut at, mut begin) = (0, None);
    while at < body.len() {
        let end = line_end(body, at);
        let line = body[at..end].trim_ascii_end();
        let rest = line.strip_prefix(delimiter.as_bytes());
        if let Some(rest) = rest.filter(|rest| rest.is_empty() || *rest == b"--") {
            // Text before the first boundary is ignored. The line end before a boundary belongs to
            // it.
            if let Some(begin) = begin {
                let part = &body[begin..at];
                let part = part.strip_suffix(b"\n").unwrap_or(part);
                let part = part.strip_suffix(b"\r").unwrap_or(part);
                if parts.len() == max {
                    return Ok(None);
                }
                parts.push(body.slice(begin..begin + part.len()));
            }
            if rest == b"--" {
                return Ok(Some(parts));
            }
            begin = Some(end);
        }
        at = end;
    }
    Err(GcsError::invalid(
        "The body of the batch has no last boundary; nothing was done.",
    ))
}

/// Splits a text after the empty line that ends its head. A text without one is a head.
fn split(text: &Bytes) -> (Bytes, Bytes) {
    let mut at = 0;
    while at < text.len() {
        let end = line_end(text, at);
        if text[at..end].trim_ascii_end().is_empty() {
            return (text.slice(..at), text.slice(end..));
        }
        at = end;
    }
    (text.clone(), Bytes::new())
}

/// Parses lines of headers. A line that is not a header is left out.
fn header_lines(lines: &[u8]) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
    let header = |line: &[u8]| {
        let at = line.iter().position(|byte| *byte == b':')?;
        let name = HeaderName::from_bytes(line[..at].trim_ascii()).ok()?;
        let value = HeaderValue::from_bytes(line[at + 1..].trim_ascii()).ok()?;
        Some((name, value))
    };
    lines.split(|byte| *byte == b'\n').filter_map(header)
}

/// Collects headers, as many as a request of its own may have: a map of more is large, and of very many impossible.
fn headers(lines: &[u8]) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in header_lines(lines) {
        if headers.len() == MAX_HEADERS {
            return Err(format!("it has more than {MAX_HEADERS} headers"));
        }
        headers.append(name, value);
    }
    Ok(headers)
}

impl CallHead {
    fn parse(head: &[u8]) -> Result<Self, String> {
        let end = line_end(head, 0);
        let line = std::str::from_utf8(head[..end].trim_ascii_end());
        let line = line.map_err(|_| "its first line is not UTF-8".to_owned())?;
        let mut words = line.split_ascii_whitespace();
        let (Some(method), Some(target)) = (words.next(), words.next()) else {
            return Err("its first line has no method and target".to_owned());
        };
        Ok(Self {
            method: method
                .parse()
                .map_err(|_| format!("{method:?} is no method"))?,
            target: target
                .parse()
                .map_err(|_| format!("{target:?} is no address"))?,
            headers: headers(&head[end..])?,
        })
    }
}

/// Finds the calls of a batch.
pub(crate) fn calls(body: &Bytes, boundary: &str) -> GcsResult<Vec<BatchCall>> {
    let parts = parts(body, boundary, MAX_BATCH_CALLS)?.ok_or_else(|| {
        GcsError::invalid(format!(
            "The batch has more than {MAX_BATCH_CALLS} calls; send several batches."
        ))
    })?;
    let call = |part: Bytes| {
        let (of_part, request) = split(&part);
        let id = header_lines(&of_part).find(|(name, _)| name == "content-id");
        let id = id.and_then(|(_, id)| Some(id.to_str().ok()?.to_owned()));
        let (head, body) = split(&request);
        BatchCall { id, head, body }
    };
    Ok(parts.into_iter().map(call).collect())
}

/// Adds a response to the body of a batch's. Its id is the call's, marked as a response.
pub(crate) fn write_part(
    written: &mut Vec<u8>,
    boundary: &str,
    id: Option<&str>,
    response: &Response<Vec<u8>>,
) {
    let mut line = |text: &[&[u8]]| {
        text.iter().for_each(|text| written.extend_from_slice(text));
        written.extend_from_slice(b"\r\n");
    };
    line(&[b"--", boundary.as_bytes()]);
    line(&[b"Content-Type: application/http"]);
    match id.map(|id| (id, id.strip_prefix('<'))) {
        None => {}
        Some((_, Some(rest))) => line(&[b"Content-ID: <response-", rest.as_bytes()]),
        Some((id, None)) => line(&[b"Content-ID: response-", id.as_bytes()]),
    }
    line(&[]);
    let status = response.status();
    let reason = status.canonical_reason().unwrap_or("Unknown");
    line(&[
        b"HTTP/1.1 ",
        status.as_str().as_bytes(),
        b" ",
        reason.as_bytes(),
    ]);
    for (name, value) in response.headers() {
        line(&[name.as_str().as_bytes(), b": ", value.as_bytes()]);
    }
    let body = response.body();
    line(&[b"Content-Length: ", body.len().to_string().as_bytes()]);
    line(&[]);
    line(&[body]);
}

/// Ends the body of a batch's response.
pub(crate) fn end_parts(written: &mut Vec<u8>, boundary: &str) {
    written.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
}

#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(body: &[u8]) {
    let body = Bytes::copy_from_slice(body);
    let Ok(calls) = calls(&body, "b") else {
        return;
    };
    // The calls that are written are read as the same number of calls.
    let mut written = Vec::new();
    for call in &calls {
        let head = call.head();
        assert!(head.is_ok_and(|head| head.headers.len() <= MAX_HEADERS) || call.head().is_err());
        let response = Response::new(call.body.to_vec());
        write_part(&mut written, "other", call.id.as_deref(), &response);
    }
    end_parts(&mut written, "other");
    let bodies = calls.iter().map(|call| &call.body[..]);
    if !bodies
        .clone()
        .any(|body| body.windows(7).any(|some| some == b"--other"))
    {
        let read = self::calls(&written.into(), "other").map(|calls| calls.len());
        assert_eq!(read.ok(), Some(calls.len()));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    /// As Google's Python client sends them, and as its Java client does.
    const LINE_FEEDS: &str = "--b\nContent-Type: application/http\nMIME-Version: 1.0\nContent-ID: <x+0>\n\n\
        PATCH http://127.0.0.1:1/storage/v1/b/d/o/x?prettyPrint=false HTTP/1.1\nContent-Type: application/json\n\
        Content-Length: 2\n\n{}\n--b\nContent-ID: <x+1>\n\nDELETE /storage/v1/b/d/o/y HTTP/1.1\naccept: */*\n\n--b--";

    #[test]
    fn calls_are_found_with_either_line_end() {
        for text in [LINE_FEEDS.to_owned(), LINE_FEEDS.replace('\n', "\r\n")] {
            let calls = calls(&text.into(), "b").unwrap();
            let ids: Vec<_> = calls.iter().map(|call| call.id.as_deref()).collect();
            assert_eq!(ids, [Some("<x+0>"), Some("<x+1>")]);
            assert_eq!(
                (&calls[0].body[..], &calls[1].body[..]),
                (&b"{}"[..], &b""[..])
            );
            let head = calls[0].head().unwrap();
            assert_eq!(head.method, Method::PATCH);
            assert_eq!(head.target.path(), "/storage/v1/b/d/o/x");
            assert_eq!(head.headers["content-type"], "application/json");
            let head = calls[1].head().unwrap();
            assert_eq!(
                (&head.method, head.target.path()),
                (&Method::DELETE, "/storage/v1/b/d/o/y")
            );
        }
    }

    #[test]
    fn bodies_without_their_end_are_refused_and_parts_without_a_request_named() {
        for text in ["", "--b", "--b\n\nGET / HTTP/1.1\n", "--bb--"] {
            assert!(calls(&text.into(), "b").is_err(), "{text}");
        }
        let found = calls(&"--b\n\nGET\n--b\n--b\n\n\n\n--b--".into(), "b").unwrap();
        assert_eq!(found.len(), 3);
        assert!(found.iter().all(|call| call.head().is_err()));
    }

    #[test]
    fn no_more_calls_and_headers_are_collected_than_may_be() {
        let lines = |count: usize| -> String {
            let lines = (0..count).map(|number| format!("a{number}: b\n"));
            lines.collect()
        };
        for (count, is_good) in [
            (MAX_HEADERS, true),
            (MAX_HEADERS + 1, false),
            (40_000, false),
        ] {
            let lines = lines(count);
            let text = format!("--b\n{lines}Content-ID: <x>\n\nGET / HTTP/1.1\n{lines}\n--b--");
            let calls = calls(&text.into(), "b").unwrap();
            assert_eq!(calls[0].id.as_deref(), Some("<x>"));
            assert_eq!(calls[0].head().is_ok(), is_good, "{count}");
        }
        // Without an end: it is not searched for.
        let many = "--b\n".repeat(MAX_BATCH_CALLS + 2);
        let error = calls(&many.into(), "b").unwrap_err();
        assert!(error.message().contains("more than"), "{error:?}");
    }

    #[test]
    fn responses_are_parts_with_the_ids_of_their_calls() {
        let mut written = Vec::new();
        let mut response = Response::new(b"{}".to_vec());
        let kind = HeaderValue::from_static("application/json");
        response.headers_mut().insert("content-type", kind);
        write_part(&mut written, "r", Some("<x+0>"), &response);
        *response.status_mut() = http::StatusCode::NO_CONTENT;
        response.body_mut().clear();
        write_part(&mut written, "r", Some("1"), &response);
        end_parts(&mut written, "r");
        let expected = "--r\r\nContent-Type: application/http\r\nContent-ID: <response-x+0>\r\n\r\nHTTP/1.1 200 OK\r\n\
            content-type: application/json\r\nContent-Length: 2\r\n\r\n{}\r\n--r\r\nContent-Type: application/http\r\n\
            Content-ID: response-1\r\n\r\nHTTP/1.1 204 No Content\r\ncontent-type: application/json\r\n\
            Content-Length: 0\r\n\r\n\r\n--r--\r\n";
        assert_eq!(String::from_utf8(written).unwrap(), expected);
    }

    #[test]
    fn boundary_is_read_from_any_form_of_the_header() {
        for (text, found) in [
            ("multipart/related; boundary=abc", Some("abc")),
            ("Multipart/Related; type=x; BOUNDARY=\"a b\"", Some("a b")),
            ("multipart/related; boundary='='", Some("=")),
            ("multipart/related", None),
            ("multipart/mixed; boundary=abc", None),
        ] {
            assert_eq!(
                boundary(text, "multipart/related").as_deref(),
                found,
                "{text}"
            );
        }
    }
}
