//! Lies that break HTTP itself, or the connection.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::Method;

use super::super::wire::{Step, head};
use super::super::{Asked, Reply};
use super::{Lie, object};

const DRIP_BYTES: usize = 8 << 10;
const DRIP_PAUSE: Duration = Duration::from_millis(5);

/// Returns the steps in place of `reply`; `None` for lies that are responses in good order.
pub(super) fn tell(lie: Lie, asked: &Asked, reply: &Reply) -> Option<Vec<Step>> {
    let response = Response::new(asked, reply);
    response
        .on_connection(lie)
        .or_else(|| response.in_head(lie))
        .or_else(|| response.in_body(lie))
}

/// An honest response as its bytes.
struct Response<'a> {
    reply: &'a Reply,
    head: String,
    body: Bytes,
}

fn send(head: &str, body: &Bytes) -> Vec<Step> {
    vec![Step::text(head), Step::Send(body.clone())]
}

impl<'a> Response<'a> {
    fn new(asked: &Asked, reply: &'a Reply) -> Self {
        // That of a HEAD is the object's.
        let length = match reply.headers.get("content-length") {
            Some(length) => length.to_str().unwrap_or_default().to_owned(),
            None => reply.body.len().to_string(),
        };
        let body = match asked.method {
            Method::HEAD => Bytes::new(),
            _ => reply.body.clone(),
        };
        Self {
            reply,
            head: head(reply, Some(&length)),
            body,
        }
    }

    fn half(&self) -> Bytes {
        self.body.slice(..self.body.len() / 2)
    }

    fn with_header(&self, line: &str) -> Vec<Step> {
        let head = self.head.trim_end();
        send(&format!("{head}\r\n{line}\r\n\r\n"), &self.body)
    }

    fn with_length(&self, length: &str) -> Vec<Step> {
        send(&head(self.reply, Some(length)), &self.body)
    }

    fn on_connection(&self, lie: Lie) -> Option<Vec<Step>> {
        let then = |body: &Bytes, last: Step| {
            let mut steps = send(&self.head, body);
            steps.push(last);
            steps
        };
        let half_head = &self.head[..self.head.len() / 2];
        Some(match lie {
            Lie::BodyShort => send(&self.head, &self.half()),
            Lie::BytesAfterBody => then(&self.body, Step::text("HTTP/1.1 200 OK\r\n")),
            Lie::StallBeforeHead => vec![Step::Stall],
            Lie::StallInHead => vec![Step::text(half_head), Step::Stall],
            Lie::StallInBody => then(&self.half(), Step::Stall),
            Lie::Drip => vec![
                Step::text(self.head.clone()),
                Step::Drip(self.body.clone(), DRIP_BYTES, DRIP_PAUSE),
            ],
            Lie::CloseBeforeHead => Vec::new(),
            Lie::ResetBeforeHead => vec![Step::Reset],
            Lie::ResetInBody => then(&self.half(), Step::Reset),
            Lie::NotHttp => vec![Step::text("SSH-2.0-OpenSSH_9.2\r\n\r\n")],
            Lie::NoHead => vec![Step::Send(self.body.clone())],
            _ => return None,
        })
    }

    fn in_head(&self, lie: Lie) -> Option<Vec<Step>> {
        Some(match lie {
            Lie::StatusUnknown => {
                let head = self.head.replacen("HTTP/1.1 2", "HTTP/1.1 9", 1);
                send(&head, &self.body)
            }
            Lie::SwitchProtocol => vec![Step::text(
                "HTTP/1.1 101 Switching Protocols\r\nupgrade: nonsense\r\nconnection: upgrade\r\n\r\n",
            )],
            Lie::ContinueFlood => {
                let many = "HTTP/1.1 100 Continue\r\n\r\n".repeat(100);
                vec![Step::Flood(many.into())]
            }
            Lie::HeaderHuge => self.with_header(&format!("x-huge: {}", "h".repeat(1 << 20))),
            Lie::HeadersMany => {
                let many: Vec<_> = (0..100_000).map(|n| format!("x-{n}: {n}")).collect();
                self.with_header(&many.join("\r\n"))
            }
            Lie::HeadEndless => vec![
                Step::text("HTTP/1.1 200 OK\r\n"),
                Step::Flood("x-more: and more\r\n".repeat(100).into()),
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

    fn in_body(&self, lie: Lie) -> Option<Vec<Step>> {
        let hex = |bytes: &Bytes| format!("{:x}", bytes.len());
        Some(match lie {
            Lie::ChunkGarbage => chunked(self.reply, "zz", &self.body, true),
            Lie::ChunkOverflow => chunked(self.reply, "FFFFFFFFFFFFFFFFFF", &self.body, true),
            Lie::ChunksUnended => {
                let half = self.half();
                chunked(self.reply, &hex(&half), &half, false)
            }
            Lie::LengthBesideChunks => {
                let mut reply = self.reply.clone();
                reply.headers.insert("content-length", 3.into());
                chunked(&reply, &hex(&self.body), &self.body, true)
            }
            Lie::GzipChunked | Lie::GzipChunkedUnnamed => {
                let mut reply = self.reply.clone();
                if lie == Lie::GzipChunked {
                    reply = reply.with("content-encoding", "gzip");
                }
                let packed = object::packed(&self.body);
                chunked(&reply, &hex(&packed), &packed, true)
            }
            Lie::ErrorEndless => vec![
                Step::text(
                    "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 9223372036854775807\r\n\r\n",
                ),
                Step::Flood("an error that never ends\n".repeat(1000).into()),
            ],
            _ => return None,
        })
    }
}

/// A response in one chunk whose length is written as given.
fn chunked(reply: &Reply, length: &str, chunk: &Bytes, end: bool) -> Vec<Step> {
    let mut head = head(reply, None);
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
    vec![Step::Send(bytes.freeze())]
}
