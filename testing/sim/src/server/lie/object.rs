//! Lies in good order: heads and bodies that HTTP allows, and that are not true.

use bytes::{BufMut, Bytes, BytesMut};
use chrono::{DateTime, TimeDelta, Utc};
use crc_fast::CrcAlgorithm::Crc32IsoHdlc;
use http::{HeaderValue, Method, StatusCode};

use super::super::{Asked, Protocol, Reply};
use super::{Lie, Told};
use crate::pattern::mix;

pub(super) const PAGE: &[u8] =
    b"<!DOCTYPE html><html><title>Log in</title><h1>Log in</h1></html>\n";
pub(super) const ERROR: &[u8] =
    b"<Error><Code>InternalError</Code><Message>We encountered an internal error.</Message></Error>";

/// The object as another version of the same length.
pub(super) fn other_version(honest: &Bytes) -> Bytes {
    honest.iter().map(|byte| !byte).collect::<Vec<_>>().into()
}

/// The bytes in gzip's format, stored without compression: it is longer than they are.
pub(super) fn packed(bytes: &Bytes) -> Bytes {
    let mut packed = BytesMut::from(&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255][..]);
    let mut blocks = bytes.chunks(0xffff).peekable();
    while let Some(block) = blocks.next() {
        let length = u16::try_from(block.len()).expect("a block has at most that many");
        packed.put_u8(u8::from(blocks.peek().is_none()));
        packed.put_u16_le(length);
        packed.put_u16_le(!length);
        packed.extend_from_slice(block);
    }
    if bytes.is_empty() {
        packed.extend_from_slice(&[1, 0, 0, 0xff, 0xff]);
    }
    let crc = crc_fast::checksum(Crc32IsoHdlc, bytes);
    packed.put_u32_le(u32::try_from(crc).expect("it has 32 bits"));
    packed.put_u32_le(bytes.len() as u32);
    packed.freeze()
}

/// First and last byte, and the object's length, of an honest 206.
fn range_of(reply: &Reply) -> Option<(u64, u64, u64)> {
    let text = reply.headers.get("content-range")?.to_str().ok()?;
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?, total.parse().ok()?))
}

/// The honest response to the same request for another range, or for the whole.
fn other_range(protocol: &dyn Protocol, asked: &Asked, range: Option<(u64, u64)>) -> Reply {
    let mut asked = asked.clone();
    asked.headers.remove("range");
    if let Some((first, last)) = range {
        let value = format!("bytes={first}-{last}");
        let value = HeaderValue::from_str(&value).expect("it is plain text");
        asked.headers.insert("range", value);
    }
    protocol.answer(&asked)
}

pub(super) fn tell(
    lie: Lie,
    protocol: &dyn Protocol,
    asked: &Asked,
    reply: Reply,
    nth: u64,
    is_list: bool,
) -> Told {
    let told = of_status(lie, asked, &reply);
    if let Some(reply) = told {
        return Told::Reply(reply);
    }
    // A page of a list, or an error, has no ranges and validators to lie about.
    if is_list || !reply.status.is_success() {
        return Told::Reply(reply);
    }
    let told = of_range(lie, protocol, asked, &reply)
        .or_else(|| of_body(lie, asked, &reply))
        .or_else(|| of_validator(lie, protocol, asked, &reply, nth));
    Told::Reply(told.unwrap_or(reply))
}

/// Lies that do not look at what was asked for.
fn of_status(lie: Lie, asked: &Asked, reply: &Reply) -> Option<Reply> {
    let to = |location: &str| Reply::status(302).with("location", location);
    let page = |status: u16, kind: &str, body: &'static [u8]| {
        let reply = Reply::status(status).with("content-type", kind);
        match asked.method {
            Method::HEAD => reply.with("content-length", &body.len().to_string()),
            _ => reply.body(body),
        }
    };
    Some(match lie {
        Lie::NotModified => {
            let mut not_modified = Reply::status(304);
            if let Some(tag) = reply.headers.get("etag") {
                not_modified.headers.insert("etag", tag.clone());
            }
            not_modified
        }
        Lie::NoContent => Reply::status(204),
        Lie::HtmlPage => page(200, "text/html", PAGE),
        Lie::ErrorInOk => page(200, "application/xml", ERROR),
        Lie::RedirectToSelf => to(&format!("{}{}", asked.base, asked.target())),
        Lie::RedirectEndless => to(&format!("{}{}x", asked.base, asked.target())),
        // No server is there, and none needs to be.
        Lie::RedirectElsewhere => to(&format!("http://127.0.0.2:9{}", asked.target())),
        Lie::RedirectToFile => to("file:///etc/hostname"),
        Lie::RedirectBare => Reply::status(301),
        Lie::BadRequest => Reply::status(400),
        Lie::Forbidden => Reply::status(403),
        Lie::Missing => Reply::status(404),
        Lie::ConditionFailed => Reply::status(412),
        Lie::TooMany => Reply::status(429),
        Lie::Unavailable => Reply::status(503),
        _ => return None,
    })
}

fn of_range(lie: Lie, protocol: &dyn Protocol, asked: &Asked, reply: &Reply) -> Option<Reply> {
    let total = match range_of(reply) {
        Some((_, _, total)) => total,
        None => reply.body.len() as u64,
    };
    if lie == Lie::RangeForWhole && asked.method == Method::GET && range_of(reply).is_none() {
        return (total > 1).then(|| other_range(protocol, asked, Some((0, total / 2 - 1))));
    }
    let (first, last, _) = range_of(reply)?;
    let named = |text: &str| Some(reply.clone().with("content-range", text));
    let other = |first: u64, last: u64| Some(other_range(protocol, asked, Some((first, last))));
    match lie {
        Lie::RangeStartsLate => other((first + 1).min(last), last),
        Lie::RangeStartsEarly => other(first.saturating_sub(1), last),
        Lie::RangeEndsEarly => other(first, first + (last - first) / 2),
        Lie::RangeEndsLate => other(first, (last + 1).min(total - 1)),
        Lie::RangeOther => other(0, last - first),
        Lie::TotalGreater => named(&format!("bytes {first}-{last}/{}", total + 1000)),
        Lie::TotalSmaller => {
            let total = total / 2;
            if first >= total {
                return Some(Reply::status(416).with("content-range", &format!("bytes */{total}")));
            }
            let last = last.min(total - 1);
            let text = format!("bytes {first}-{last}/{total}");
            Some(other_range(protocol, asked, Some((first, last))).with("content-range", &text))
        }
        Lie::TotalUnknown => named(&format!("bytes {first}-{last}/*")),
        Lie::RangeUnnamed => {
            let mut reply = reply.clone();
            reply.headers.remove("content-range");
            Some(reply)
        }
        Lie::RangeGarbage => named("bytes from here to there"),
        Lie::RangeReversed => named(&format!("bytes {}-{first}/{total}", last + 1)),
        Lie::RangeHuge => named("bytes 0-18446744073709551615/18446744073709551615"),
        Lie::RangeMultipart => {
            let mut reply = reply.clone();
            reply.headers.remove("content-range");
            let mut body = BytesMut::from(&*format!(
                "--cut\r\ncontent-range: bytes {first}-{last}/{total}\r\n\r\n"
            ));
            body.extend_from_slice(&reply.body);
            body.extend_from_slice(b"\r\n--cut--\r\n");
            Some(
                reply
                    .with("content-type", "multipart/byteranges; boundary=cut")
                    .body(body.freeze()),
            )
        }
        Lie::WholeForRange => Some(other_range(protocol, asked, None)),
        Lie::RangeRefused => {
            Some(Reply::status(416).with("content-range", &format!("bytes */{total}")))
        }
        Lie::RangeRefusedEmpty => Some(Reply::status(416).with("content-range", "bytes */0")),
        _ => None,
    }
}

fn of_body(lie: Lie, asked: &Asked, reply: &Reply) -> Option<Reply> {
    let reply = reply.clone();
    let sized = |reply: Reply, length: usize| reply.with("content-length", &length.to_string());
    if asked.method == Method::HEAD {
        let length = match reply.headers.get("content-length") {
            Some(length) => length.to_str().ok()?.parse().ok()?,
            None => reply.body.len(),
        };
        let reply = reply.body(Bytes::new());
        return match lie {
            Lie::HeadLonger => Some(sized(reply, length + 1000)),
            Lie::HeadShorter => Some(sized(reply, length / 2)),
            Lie::HeadMissing => Some(Reply::status(404)),
            Lie::EncodingNamed => Some(sized(reply, length).with("content-encoding", "br")),
            _ => None,
        };
    }
    let body = reply.body.clone();
    match lie {
        Lie::LengthOfHalf => Some(reply.body(body.slice(..body.len() / 2))),
        Lie::BodyLong => {
            let mut long = BytesMut::from(&body[..]);
            long.extend_from_slice(&[b'!'; 100]);
            Some(reply.body(long.freeze()))
        }
        Lie::Gzip => Some(reply.with("content-encoding", "gzip").body(packed(&body))),
        Lie::GzipUnnamed => Some(reply.body(packed(&body))),
        Lie::EncodingNamed => Some(reply.with("content-encoding", "br")),
        Lie::Transformed => {
            let mut reply = reply.body(packed(&body));
            reply.status = StatusCode::NON_AUTHORITATIVE_INFORMATION;
            Some(reply)
        }
        _ => None,
    }
}

fn of_validator(
    lie: Lie,
    protocol: &dyn Protocol,
    asked: &Asked,
    reply: &Reply,
    nth: u64,
) -> Option<Reply> {
    let mut reply = reply.clone();
    let tag = reply.headers.get("etag").cloned();
    let odd = nth % 2 == 1;
    let date = |date: DateTime<Utc>| date.format("%a, %d %b %Y %H:%M:%S GMT").to_string();
    match lie {
        Lie::TagChanges => reply = reply.with("etag", &format!("\"{:016x}\"", mix(nth))),
        Lie::TagWeakens if odd => {
            let tag = tag?.to_str().ok()?.to_owned();
            reply = reply.with("etag", &format!("W/{tag}"));
        }
        Lie::TagVanishes if odd => {
            reply.headers.remove("etag");
        }
        Lie::TagGarbage => {
            let bytes = HeaderValue::from_bytes(b"\"\xff\xfe\"").ok()?;
            reply.headers.insert("etag", bytes);
        }
        Lie::DateChanges => {
            let seconds = i64::try_from(nth).unwrap_or_default();
            let other = DateTime::UNIX_EPOCH + TimeDelta::days(9000) + TimeDelta::seconds(seconds);
            reply = reply.with("last-modified", &date(other));
        }
        Lie::DateInFuture => {
            reply = reply.with("last-modified", "Tue, 01 Jan 3025 00:00:00 GMT");
        }
        Lie::DateGarbage => reply = reply.with("last-modified", "the day before yesterday"),
        Lie::DateMissing => {
            reply.headers.remove("last-modified");
        }
        Lie::TwoVersions if odd => {
            // Also to a request that is tied to the other version.
            let mut asked = asked.clone();
            asked.headers.remove("if-match");
            asked.headers.remove("if-unmodified-since");
            reply = protocol.answer(&asked).with("etag", "\"0ther\"");
            reply.body = other_version(&reply.body);
        }
        _ => return None,
    }
    Some(reply)
}
