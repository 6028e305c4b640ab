//! A web server with configurable support for ranges, validators and conditions ([`WebServerOptions`]).

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use chrono::{DateTime, TimeDelta, Utc};
use http::Method;
use parking_lot::Mutex;

use super::request::decode;
use super::{HttpRequest, HttpResponse, Protocol};

/// Kind of the ETags of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tag {
    /// No ETag.
    None,
    /// A weak ETag.
    Weak,
    /// A strong ETag.
    Strong,
}

/// Features of a web server.
#[derive(Debug, Clone, Copy)]
pub struct WebServerOptions {
    /// Whether Range is supported; otherwise the whole file is sent.
    pub ranges: bool,
    /// ETags that it sends.
    pub tag: Tag,
    /// Whether Last-Modified is sent.
    pub dates: bool,
    /// Whether conditions are evaluated.
    pub conditions: bool,
    /// Whether HEAD is supported; otherwise the response is 405.
    pub head: bool,
    /// Whether conditions compare with modification times that have fractions of a second.
    pub fine_dates: bool,
    /// Whether Content-Length is sent; otherwise the body is chunked.
    pub length: bool,
}

impl Default for WebServerOptions {
    /// Returns full support, without fractions of a second.
    fn default() -> Self {
        Self {
            ranges: true,
            tag: Tag::Strong,
            dates: true,
            conditions: true,
            head: true,
            fine_dates: false,
            length: true,
        }
    }
}

#[derive(Debug, Clone)]
enum Entry {
    File {
        body: Bytes,
        version: i64,
        encoding: Option<String>,
    },
    Status(u16),
    Redirect(String),
}

/// The server. Pass it to [`super::Server::start`], and keep a reference to change its files.
#[derive(Debug, Default)]
pub struct Web {
    entries: Mutex<BTreeMap<String, Entry>>,
    options: Mutex<WebServerOptions>,
    /// Number of versions so far.
    versions: Mutex<i64>,
}

impl Web {
    /// Creates a server without files.
    #[must_use]
    pub fn new(options: WebServerOptions) -> Self {
        Self {
            options: Mutex::new(options),
            ..Self::default()
        }
    }

    /// Creates or replaces the file at `path`, which begins with a slash and is not encoded.
    pub fn put(&self, path: &str, body: impl Into<Bytes>) {
        self.put_encoded(path, body, None);
    }

    /// Like [`Web::put`], with the Content-Encoding of the bytes.
    pub fn put_encoded(&self, path: &str, body: impl Into<Bytes>, encoding: Option<&str>) {
        let version = {
            let mut versions = self.versions.lock();
            *versions += 1;
            *versions
        };
        let entry = Entry::File {
            body: body.into(),
            version,
            encoding: encoding.map(str::to_owned),
        };
        self.entries.lock().insert(path.to_owned(), entry);
    }

    /// Responds to requests for `path` with this status and no body.
    pub fn respond_with_status(&self, path: &str, status: u16) {
        let entry = Entry::Status(status);
        self.entries.lock().insert(path.to_owned(), entry);
    }

    /// Redirects requests for `path` to `location`.
    pub fn redirect(&self, path: &str, location: &str) {
        let entry = Entry::Redirect(location.to_owned());
        self.entries.lock().insert(path.to_owned(), entry);
    }

    /// Changes the features of the server.
    pub fn set_options(&self, options: WebServerOptions) {
        *self.options.lock() = options;
    }
}

/// Returns the date of a version; versions are a second apart.
fn date(version: i64) -> DateTime<Utc> {
    let start = DateTime::UNIX_EPOCH + TimeDelta::days(20_000);
    start + TimeDelta::seconds(version)
}

fn date_text(date: DateTime<Utc>) -> String {
    date.format("%a, %d %b %Y %H:%M:%S GMT").to_string()
}

fn tag(tag: Tag, version: i64) -> Option<String> {
    match tag {
        Tag::None => None,
        Tag::Weak => Some(format!("W/\"{version}\"")),
        Tag::Strong => Some(format!("\"{version}\"")),
    }
}

impl Protocol for Web {
    fn respond(&self, request: &HttpRequest) -> HttpResponse {
        let options = *self.options.lock();
        let entry = self.entries.lock().get(&decode(&request.path)).cloned();
        if request.method == Method::HEAD && !options.head {
            return HttpResponse::status(405);
        }
        match entry {
            None => HttpResponse::status(404),
            Some(Entry::Status(status)) => HttpResponse::status(status),
            Some(Entry::Redirect(location)) => {
                HttpResponse::status(302).with("location", &location)
            }
            Some(Entry::File {
                body,
                version,
                encoding,
            }) => {
                let mut response = file(request, options, &body, version);
                if let Some(encoding) = encoding {
                    response = response.with("content-encoding", &encoding);
                }
                response
            }
        }
    }
}

fn file(
    request: &HttpRequest,
    options: WebServerOptions,
    body: &Bytes,
    version: i64,
) -> HttpResponse {
    let e_tag = tag(options.tag, version);
    let fraction = TimeDelta::milliseconds(if options.fine_dates { 500 } else { 0 });
    if options.conditions
        && !preconditions_hold(request, e_tag.as_deref(), date(version) + fraction)
    {
        return HttpResponse::status(412);
    }
    let length = body.len() as u64;
    let range = request.header("range").filter(|_| options.ranges);
    let mut response = match range.map(|text| parse_range(text, length)) {
        None => HttpResponse::status(200).body(body.clone()),
        Some(None) => {
            return HttpResponse::status(416).with("content-range", &format!("bytes */{length}"));
        }
        Some(Some(range)) => {
            let (start, end) = (range.start as usize, range.end as usize);
            let text = format!("bytes {start}-{}/{length}", end - 1);
            HttpResponse::status(206)
                .with("content-range", &text)
                .body(body.slice(start..end))
        }
    };
    response = response.with("content-type", "application/x-test");
    if let Some(e_tag) = e_tag {
        response = response.with("etag", &e_tag);
    }
    if options.dates {
        response = response.with("last-modified", &date_text(date(version)));
    }
    if !options.length {
        response = response.with("transfer-encoding", "chunked");
    }
    response
}

/// Returns whether the preconditions of a request hold. `If-Match` needs a strong ETag.
fn preconditions_hold(request: &HttpRequest, e_tag: Option<&str>, modified: DateTime<Utc>) -> bool {
    let strong = e_tag.filter(|tag| !tag.starts_with("W/"));
    let matches = request
        .header("if-match")
        .is_none_or(|text| Some(text) == strong);
    let unchanged = request
        .header("if-unmodified-since")
        .and_then(|text| DateTime::parse_from_rfc2822(text).ok())
        .is_none_or(|since| modified <= since);
    matches && unchanged
}

fn parse_range(text: &str, length: u64) -> Option<Range<u64>> {
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    let range = if first.is_empty() {
        length.saturating_sub(last.parse().ok()?)..length
    } else {
        let end = last
            .parse::<u64>()
            .map_or(length, |last| (last + 1).min(length));
        first.parse().ok()?..end
    };
    (range.start < range.end).then_some(range)
}
