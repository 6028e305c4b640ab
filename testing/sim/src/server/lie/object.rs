//! Lies with valid HTTP syntax: false headers and bodies.

use bytes::{BufMut, Bytes, BytesMut};
use chrono::{DateTime, TimeDelta, Utc};
use crc_fast::CrcAlgorithm::Crc32IsoHdlc;
use http::{HeaderValue, Method, StatusCode};

use super::super::{HttpRequest, HttpResponse, Protocol};
use super::{Lie, LieEffect};
use bywash_support::pattern::mix;

pub(super) const PAGE: &[u8] =
    b"<!DOCTYPE html><html><title>Log in</title><h1>Log in</h1></html>\n";
pub(super) const ERROR: &[u8] =
    b"<Error><Code>InternalError</Code><Message>We encountered an internal error.</Message></Error>";

/// Returns the contents of another version of the same length.
pub(super) fn other_version(honest: &Bytes) -> Bytes {
    honest.iter().map(|byte| !byte).collect::<Vec<_>>().into()
}

/// Encodes bytes in gzip's format, without compression: the result is longer.
pub(super) fn gzip(bytes: &Bytes) -> Bytes {
    let mut packed = BytesMut::from(&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255][..]);
    let mut blocks = bytes.chunks(0xffff).peekable();
    while let Some(block) = blocks.next() {
        let length = u16::try_from(block.len()).expect("a block has at most 0xffff bytes");
        packed.put_u8(u8::from(blocks.peek().is_none()));
        packed.put_u16_le(length);
        packed.put_u16_le(!length);
        packed.extend_from_slice(block);
    }
    if bytes.is_empty() {
        packed.extend_from_slice(&[1, 0, 0, 0xff, 0xff]);
    }
    let crc = crc_fast::checksum(Crc32IsoHdlc, bytes);
    packed.put_u32_le(u32::try_from(crc).expect("a CRC32 has 32 bits"));
    packed.put_u32_le(bytes.len() as u32);
    packed.freeze()
}

/// Parses first byte, last byte and object length of the Content-Range of a correct 206.
fn range_of(response: &HttpResponse) -> Option<(u64, u64, u64)> {
    let text = response.headers.get("content-range")?.to_str().ok()?;
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?, total.parse().ok()?))
}

/// Returns the correct response to the same request for another range, or for the whole object.
fn other_range(
    protocol: &dyn Protocol,
    request: &HttpRequest,
    range: Option<(u64, u64)>,
) -> HttpResponse {
    let mut request = request.clone();
    request.headers.remove("range");
    if let Some((first, last)) = range {
        let value = format!("bytes={first}-{last}");
        let value = HeaderValue::from_str(&value).expect("a range is plain text");
        request.headers.insert("range", value);
    }
    protocol.respond(&request)
}

pub(super) fn apply(
    lie: Lie,
    protocol: &dyn Protocol,
    request: &HttpRequest,
    response: HttpResponse,
    number: u64,
    is_list: bool,
) -> LieEffect {
    if let Some(response) = of_status(lie, request, &response) {
        return LieEffect::Response(response);
    }
    // Lists and errors have no ranges and validators to falsify.
    if is_list || !response.status.is_success() {
        return LieEffect::Response(response);
    }
    let changed = of_range(lie, protocol, request, &response)
        .or_else(|| of_body(lie, request, &response))
        .or_else(|| of_validator(lie, protocol, request, &response, number));
    LieEffect::Response(changed.unwrap_or(response))
}

/// Lies that do not depend on the requested range.
fn of_status(lie: Lie, request: &HttpRequest, response: &HttpResponse) -> Option<HttpResponse> {
    let to = |location: &str| HttpResponse::status(302).with("location", location);
    let page = |status: u16, kind: &str, body: &'static [u8]| {
        let response = HttpResponse::status(status).with("content-type", kind);
        match request.method {
            Method::HEAD => response.with("content-length", &body.len().to_string()),
            _ => response.body(body),
        }
    };
    Some(match lie {
        Lie::NotModified => {
            let mut not_modified = HttpResponse::status(304);
            if let Some(tag) = response.headers.get("etag") {
                not_modified.headers.insert("etag", tag.clone());
            }
            not_modified
        }
        Lie::NoContent => HttpResponse::status(204),
        Lie::HtmlPage => page(200, "text/html", PAGE),
        Lie::ErrorInOk => page(200, "application/xml", ERROR),
        Lie::RedirectToSelf => to(&format!("{}{}", request.base, request.target())),
        Lie::RedirectEndless => to(&format!("{}{}x", request.base, request.target())),
        // No server is there, and none needs to be.
        Lie::RedirectElsewhere => to(&format!("http://127.0.0.2:9{}", request.target())),
        Lie::RedirectToFile => to("file:///etc/hostname"),
        Lie::RedirectBare => HttpResponse::status(301),
        Lie::BadRequest => HttpResponse::status(400),
        Lie::Forbidden => HttpResponse::status(403),
        Lie::Missing => HttpResponse::status(404),
        Lie::ConditionFailed => HttpResponse::status(412),
        Lie::TooMany => HttpResponse::status(429),
        Lie::Unavailable => HttpResponse::status(503),
        _ => return None,
    })
}

fn of_range(
    lie: Lie,
    protocol: &dyn Protocol,
    request: &HttpRequest,
    response: &HttpResponse,
) -> Option<HttpResponse> {
    let total = match range_of(response) {
        Some((_, _, total)) => total,
        None => response.body.len() as u64,
    };
    if lie == Lie::RangeForWhole && request.method == Method::GET && range_of(response).is_none() {
        return (total > 1).then(|| other_range(protocol, request, Some((0, total / 2 - 1))));
    }
    let (first, last, _) = range_of(response)?;
    let named = |text: &str| Some(response.clone().with("content-range", text));
    let other = |first: u64, last: u64| Some(other_range(protocol, request, Some((first, last))));
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
                return Some(
                    HttpResponse::status(416).with("content-range", &format!("bytes */{total}")),
                );
            }
            let last = last.min(total - 1);
            let text = format!("bytes {first}-{last}/{total}");
            Some(other_range(protocol, request, Some((first, last))).with("content-range", &text))
        }
        Lie::TotalUnknown => named(&format!("bytes {first}-{last}/*")),
        Lie::RangeUnnamed => {
            let mut response = response.clone();
            response.headers.remove("content-range");
            Some(response)
        }
        Lie::RangeGarbage => named("bytes from here to there"),
        Lie::RangeReversed => named(&format!("bytes {}-{first}/{total}", last + 1)),
        Lie::RangeHuge => named("bytes 0-18446744073709551615/18446744073709551615"),
        Lie::RangeMultipart => {
            let mut response = response.clone();
            response.headers.remove("content-range");
            let mut body = BytesMut::from(&*format!(
                "--cut\r\ncontent-range: bytes {first}-{last}/{total}\r\n\r\n"
            ));
            body.extend_from_slice(&response.body);
            body.extend_from_slice(b"\r\n--cut--\r\n");
            Some(
                response
                    .with("content-type", "multipart/byteranges; boundary=cut")
                    .body(body.freeze()),
            )
        }
        Lie::WholeForRange => Some(other_range(protocol, request, None)),
        Lie::RangeRefused => {
            Some(HttpResponse::status(416).with("content-range", &format!("bytes */{total}")))
        }
        Lie::RangeRefusedEmpty => {
            Some(HttpResponse::status(416).with("content-range", "bytes */0"))
        }
        _ => None,
    }
}

fn of_body(lie: Lie, request: &HttpRequest, response: &HttpResponse) -> Option<HttpResponse> {
    let response = response.clone();
    let sized = |response: HttpResponse, length: usize| {
        response.with("content-length", &length.to_string())
    };
    if request.method == Method::HEAD {
        let length = match response.headers.get("content-length") {
            Some(length) => length.to_str().ok()?.parse().ok()?,
            None => response.body.len(),
        };
        let response = response.body(Bytes::new());
        return match lie {
            Lie::HeadLonger => Some(sized(response, length + 1000)),
            Lie::HeadShorter => Some(sized(response, length / 2)),
            Lie::HeadMissing => Some(HttpResponse::status(404)),
            Lie::EncodingNamed => Some(sized(response, length).with("content-encoding", "br")),
            _ => None,
        };
    }
    let body = response.body.clone();
    match lie {
        Lie::LengthOfHalf => Some(response.body(body.slice(..body.len() / 2))),
        Lie::BodyLong => {
            let mut long = BytesMut::from(&body[..]);
            long.extend_from_slice(&[b'!'; 100]);
            Some(response.body(long.freeze()))
        }
        Lie::Gzip => Some(response.with("content-encoding", "gzip").body(gzip(&body))),
        Lie::GzipUnnamed => Some(response.body(gzip(&body))),
        Lie::EncodingNamed => Some(response.with("content-encoding", "br")),
        Lie::Transformed => {
            let mut response = response.body(gzip(&body));
            response.status = StatusCode::NON_AUTHORITATIVE_INFORMATION;
            Some(response)
        }
        _ => None,
    }
}

fn of_validator(
    lie: Lie,
    protocol: &dyn Protocol,
    request: &HttpRequest,
    response: &HttpResponse,
    number: u64,
) -> Option<HttpResponse> {
    let mut response = response.clone();
    let tag = response.headers.get("etag").cloned();
    let odd = number % 2 == 1;
    let date = |date: DateTime<Utc>| date.format("%a, %d %b %Y %H:%M:%S GMT").to_string();
    match lie {
        Lie::TagChanges => response = response.with("etag", &format!("\"{:016x}\"", mix(number))),
        Lie::TagWeakens if odd => {
            let tag = tag?.to_str().ok()?.to_owned();
            response = response.with("etag", &format!("W/{tag}"));
        }
        Lie::TagVanishes if odd => {
            response.headers.remove("etag");
        }
        Lie::TagGarbage => {
            let bytes = HeaderValue::from_bytes(b"\"\xff\xfe\"").ok()?;
            response.headers.insert("etag", bytes);
        }
        Lie::DateChanges => {
            let seconds = i64::try_from(number).unwrap_or_default();
            let other = DateTime::UNIX_EPOCH + TimeDelta::days(9000) + TimeDelta::seconds(seconds);
            response = response.with("last-modified", &date(other));
        }
        Lie::DateInFuture => {
            response = response.with("last-modified", "Tue, 01 Jan 3025 00:00:00 GMT");
        }
        Lie::DateGarbage => response = response.with("last-modified", "the day before yesterday"),
        Lie::DateMissing => {
            response.headers.remove("last-modified");
        }
        Lie::TwoVersions if odd => {
            // Also for a request with a precondition on the other version.
            let mut request = request.clone();
            request.headers.remove("if-match");
            request.headers.remove("if-unmodified-since");
            response = protocol.respond(&request).with("etag", "\"0ther\"");
            response.body = other_version(&response.body);
        }
        _ => return None,
    }
    Some(response)
}
