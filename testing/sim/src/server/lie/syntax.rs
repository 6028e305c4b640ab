//! Lies that violate the syntax of HTTP, or break the connection.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::Method;

use super::super::wire::{WireStep, head};
use super::super::{HttpRequest, HttpResponse};
use super::{Lie, object};

const DRIP_BYTES: usize = 8 << 10;
const DRIP_PAUSE: Duration = Duration::from_millis(5);

/// Returns the steps in place of `response`; `None` for lies with valid HTTP syntax.
pub(super) fn apply(
    lie: Lie,
    request: &HttpRequest,
    response: &HttpResponse,
) -> Option<Vec<WireStep>> {
    let raw = RawResponse::new(request, response);
    raw.on_connection(lie)
        .or_else(|| raw.in_head(lie))
        .or_else(|| raw.in_body(lie))
}

/// Bytes of a correct response.
struct RawResponse<'a> {
    response: &'a HttpResponse,
    head: String,
    body: Bytes,
}

fn send(head: &str, body: &Bytes) -> Vec<WireStep> {
    vec![WireStep::text(head), WireStep::Send(body.clone())]
}

impl<'a> RawResponse<'a> {
    fn new(request: &HttpRequest, response: &'a HttpResponse) -> Self {
        // The response to a HEAD has the object's length.
        let length = match response.headers.get("content-length") {
            Some(length) => length.to_str().unwrap_or_default().to_owned(),
            None => response.body.len().to_string(),
        };
        let body = match request.method {
            Method::HEAD => Bytes::new(),
            _ => response.body.clone(),
        };
        Self {
            response,
            head: head(response, Some(&length)),
            body,
        }
    }

    fn half(&self) -> Bytes {
        self.body.slice(..self.body.len() / 2)
    }

    fn with_header(&self, line: &str) -> Vec<WireStep> {
        let head = self.head.trim_end();
        send(&format!("{head}\r\n{line}\r\n\r\n"), &self.body)
    }

    fn with_length(&self, length: &str) -> Vec<WireStep> {
        send(&head(self.response, Some(length)), &self.body)
    }

    fn on_connection(&self, lie: Lie) -> Option<Vec<WireStep>> {
        let then = |body: &Bytes, last: WireStep| {
            let mut steps = send(&self.head, body);
            steps.push(last);
            steps
        };
        let half_head = &self.head[..self.head.len() / 2];
        Some(match lie {
            Lie::BodyShort => send(&self.head, &self.half()),
            Lie::BytesAfterBody => then(&self.body, WireStep::text("HTTP/1.1 200 OK\r\n")),
            Lie::StallBeforeHead => vec![WireStep::Stall],
            Lie::StallInHead => vec![WireStep::text(half_head), WireStep::Stall],
            Lie::StallInBody => then(&self.half(), WireStep::Stall),
            Lie::Drip => vec![
                WireStep::text(self.head.clone()),
                WireStep::Drip(self.body.clone(), DRIP_BYTES, DRIP_PAUSE),
            ],
            Lie::CloseBeforeHead => Vec::new(),
            Lie::ResetBeforeHead => vec![WireStep::Reset],
            Lie::ResetInBody => then(&self.half(), WireStep::Reset),
            Lie::NotHttp => vec![WireStep::text("SSH-2.0-OpenSSH_9.2\r\n\r\n")],
            Lie::NoHead => vec![WireStep::Send(self.body.clone())],
            _ => return None,
        })
    }

    fn in_head(&self, lie: Lie) -> Option<Vec<WireStep>> {
        Some(match lie {
            Lie::StatusUnknown => {
                let head = self.head.replacen("HTTP/1.1 2", "HTTP/1.1 9", 1);
                send(&head, &self.body)
            }
            Lie::SwitchProtocol => vec![WireStep::text(
                "HTTP/1.1 101 Switching Protocols\r\nupgrade: nonsense\r\nconnection: upgrade\r\n\r\n",
            )],
            Lie::ContinueFlood => {
                let many = "HTTP/1.1 100 Continue\r\n\r\n".repeat(100);
                vec![WireStep::Flood(many.into())]
            }
            Lie::HeaderHuge => self.with_header(&format!("x-huge: {}", "h".repeat(1 << 20))),
            Lie::HeadersMany => {
                let many: Vec<_> = (0..100_000).map(|n| format!("x-{n}: {n}")).collect();
                self.with_header(&many.join("\r\n"))
            }
            Lie::HeadEndless => vec![
                WireStep::text("HTTP/1.1 200 OK\r\n"),
                WireStep::Flood("x-more: and more\r\n".repeat(100).into()),
            ],
            Lie::HeaderBroken => self.with_header("a header without its colon"),
            Lie::HeaderNul => self.with_header("x-nul: a\0b"),
            Lie::RangeTwice => self.with_header("content-range: bytes 0-6/7"),
            Lie::LengthTwice => self.with_header("content-length: 7"),
            Lie::LengthNegative => self.with_length("-1"),
            Lie::LengthOverflow => self.with_length("18446744073709551616"),
            Lie::LengthHuge => self.with_length("9223372036854775807"),
            Lie::CloseDelimited => {
                let lines = self.head.split("\r\n");
                let lines: Vec<_> = lines
                    .filter(|line| !line.starts_with("content-length"))
                    .collect();
                let head = lines.join("\r\n").replacen("HTTP/1.1", "HTTP/1.0", 1);
                send(&head, &self.half())
            }
            _ => return None,
        })
    }

    fn in_body(&self, lie: Lie) -> Option<Vec<WireStep>> {
        let hex = |bytes: &Bytes| format!("{:x}", bytes.len());
        Some(match lie {
            Lie::ChunkGarbage => chunked(self.response, "zz", &self.body, true),
            Lie::ChunkOverflow => chunked(self.response, "FFFFFFFFFFFFFFFFFF", &self.body, true),
            Lie::ChunksUnended => {
                let half = self.half();
                chunked(self.response, &hex(&half), &half, false)
            }
            Lie::LengthBesideChunks => {
                let mut response = self.response.clone();
                response.headers.insert("content-length", 3.into());
                chunked(&response, &hex(&self.body), &self.body, true)
            }
            Lie::GzipChunked | Lie::GzipChunkedUnnamed => {
                let mut response = self.response.clone();
                if lie == Lie::GzipChunked {
                    response = response.with("content-encoding", "gzip");
                }
                let gzip = object::gzip(&self.body);
                chunked(&response, &hex(&gzip), &gzip, true)
            }
            Lie::ErrorEndless => vec![
                WireStep::text(
                    "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 9223372036854775807\r\n\r\n",
                ),
                WireStep::Flood("an error that never ends\n".repeat(1000).into()),
            ],
            _ => return None,
        })
    }
}

/// Formats a response of one chunk, with the given text as its length.
fn chunked(response: &HttpResponse, length: &str, chunk: &Bytes, end: bool) -> Vec<WireStep> {
    let mut head = head(response, None);
    head.truncate(head.len() - 2);
    let mut bytes = BytesMut::from(&*format!("{head}transfer-encoding: chunked\r\n\r\n"));
    if length != "0" {
        bytes.extend_from_slice(format!("{length}\r\n").as_bytes());
        bytes.extend_from_slice(chunk);
        bytes.extend_from_slice(b"\r\n");
    }
    if end {
        bytes.extend_from_slice(b"0\r\n\r\n");
    }
    vec![WireStep::Send(bytes.freeze())]
}
