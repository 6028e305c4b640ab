//! Tags of objects, stored with an object in the form of the header of a write.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::Method;
use md5::{Digest as _, Md5};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::server::objects::{Objects, TAGGING, error_response, escape};
use crate::server::request::decode;
use crate::server::{HttpRequest, HttpResponse};

/// Maximum number of tags of an object.
const MOST_TAGS: usize = 10;

type Pairs = Vec<(String, String)>;

fn of_header(header: &str) -> Pairs {
    let pairs = header.split('&').filter(|pair| !pair.is_empty());
    let plain = |text: &str| decode(&text.replace('+', " "));
    let pair = |pair: &str| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (plain(key), plain(value))
    };
    pairs.map(pair).collect()
}

fn to_header(pairs: &Pairs) -> String {
    let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let pair = |(key, value): &(String, String)| format!("{}={}", encode(key), encode(value));
    pairs.iter().map(pair).collect::<Vec<_>>().join("&")
}

fn of_document(document: &str) -> Option<Pairs> {
    let inside = |text: &str, tag: &str| {
        let (_, rest) = text.split_once(&format!("<{tag}>"))?;
        let (inside, _) = rest.split_once(&format!("</{tag}>"))?;
        let plain = inside.replace("&lt;", "<").replace("&gt;", ">");
        Some(plain.replace("&quot;", "\"").replace("&amp;", "&"))
    };
    let tags = inside(document, "TagSet")?;
    let tags = tags.split("</Tag>").filter(|tag| tag.contains("<Tag>"));
    tags.map(|tag| {
        Some((
            inside(tag, "Key")?,
            inside(tag, "Value").unwrap_or_default(),
        ))
    })
    .collect()
}

/// Returns whether S3 takes these tags: not too many, and none of its own.
fn are_valid(pairs: &Pairs) -> bool {
    pairs.len() <= MOST_TAGS && pairs.iter().all(|(key, _)| !key.starts_with("aws:"))
}

/// Returns the error of a write with tags in its header that S3 does not take.
pub(super) fn refused(request: &HttpRequest) -> Option<HttpResponse> {
    let pairs = of_header(request.header(TAGGING)?);
    (!are_valid(&pairs)).then(|| error_response(400, "InvalidTag"))
}

/// Returns the number of tags in the form of the header.
pub(in crate::server) fn count(header: &str) -> usize {
    of_header(header).len()
}

/// Executes a request for the tags of an object.
pub(super) fn respond(objects: &Objects, request: &HttpRequest) -> HttpResponse {
    let (bucket, key) = request.bucket_and_key();
    let Some(stored) = objects.get(&bucket, &key) else {
        return error_response(404, "NoSuchKey");
    };
    let header = match request.method {
        Method::GET => {
            let mut text = "<Tagging><TagSet>".to_owned();
            let header = stored.headers.get(TAGGING).map_or("", String::as_str);
            for (key, value) in of_header(header) {
                let (key, value) = (escape(&key), escape(&value));
                let _ = write!(text, "<Tag><Key>{key}</Key><Value>{value}</Value></Tag>");
            }
            return HttpResponse::status(200).body(text + "</TagSet></Tagging>");
        }
        Method::DELETE => None,
        Method::PUT => {
            let md5 = BASE64_STANDARD.encode(Md5::digest(&request.body));
            let Some(pairs) = of_document(&String::from_utf8_lossy(&request.body)) else {
                return error_response(400, "MalformedXML");
            };
            match request.header("content-md5") {
                None => return error_response(400, "InvalidRequest"),
                Some(sent) if sent != md5 => return error_response(400, "BadDigest"),
                Some(_) if !are_valid(&pairs) => return error_response(400, "InvalidTag"),
                Some(_) => Some(to_header(&pairs)),
            }
        }
        _ => return error_response(405, "MethodNotAllowed"),
    };
    let status = if header.is_some() { 200 } else { 204 };
    objects.set_header(&bucket, &key, TAGGING, header);
    HttpResponse::status(status)
}
