//! A web server's files, served as well or as badly as its [`Manners`] say.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use chrono::{DateTime, TimeDelta, Utc};
use http::Method;
use parking_lot::Mutex;

use super::request::decode;
use super::{Asked, Protocol, Reply};

/// What a server says of a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tag {
    /// No ETag.
    None,
    /// One that says "about the same".
    Weak,
    /// One that says "the same bytes".
    Strong,
}

/// What a server can do, and does.
#[derive(Debug, Clone, Copy)]
pub struct Manners {
    /// Range is understood; otherwise the whole file is sent.
    pub ranges: bool,
    /// The ETag it sends.
    pub tag: Tag,
    /// Last-Modified is sent.
    pub dates: bool,
    /// Conditions are looked at.
    pub conditions: bool,
    /// HEAD is known; otherwise it is answered 405.
    pub head: bool,
    /// Files have times with parts of a second, which conditions are compared with.
    pub fine_dates: bool,
    /// Content-Length is sent; otherwise the body is chunked.
    pub length: bool,
}

impl Default for Manners {
    /// The best.
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

/// The server. Give it to [`super::Server::start`], and keep it to change its files.
#[derive(Debug, Default)]
pub struct Web {
    entries: Mutex<BTreeMap<String, Entry>>,
    manners: Mutex<Manners>,
    /// Versions so far.
    versions: Mutex<i64>,
}

impl Web {
    /// No files.
    #[must_use]
    pub fn new(manners: Manners) -> Self {
        Self {
            manners: Mutex::new(manners),
            ..Self::default()
        }
    }

    /// Puts, or replaces, the file at `path`, which begins with a slash and is not encoded.
    pub fn put(&self, path: &str, body: impl Into<Bytes>) {
        self.put_encoded(path, body, None);
    }

    /// The same, with a Content-Encoding that the bytes already have.
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

    /// `path` is answered with this status and nothing else.
    pub fn answer_with(&self, path: &str, status: u16) {
        let entry = Entry::Status(status);
        self.entries.lock().insert(path.to_owned(), entry);
    }

    /// `path` is to be found at `location`.
    pub fn redirect(&self, path: &str, location: &str) {
        let entry = Entry::Redirect(location.to_owned());
        self.entries.lock().insert(path.to_owned(), entry);
    }

    /// From now on the server is like this.
    pub fn behave(&self, manners: Manners) {
        *self.manners.lock() = manners;
    }
}

/// A second a version, so that each has its own date.
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
    fn answer(&self, asked: &Asked) -> Reply {
        let manners = *self.manners.lock();
        let entry = self.entries.lock().get(&decode(&asked.path)).cloned();
        if asked.method == Method::HEAD && !manners.head {
            return Reply::status(405);
        }
        match entry {
            None => Reply::status(404),
            Some(Entry::Status(status)) => Reply::status(status),
            Some(Entry::Redirect(location)) => Reply::status(302).with("location", &location),
            Some(Entry::File {
                body,
                version,
                encoding,
            }) => {
                let mut reply = file(asked, manners, &body, version);
                if let Some(encoding) = encoding {
                    reply = reply.with("content-encoding", &encoding);
                }
                reply
            }
        }
    }
}

fn file(asked: &Asked, manners: Manners, body: &Bytes, version: i64) -> Reply {
    let e_tag = tag(manners.tag, version);
    let parts = TimeDelta::milliseconds(if manners.fine_dates { 500 } else { 0 });
    if manners.conditions && !holds(asked, e_tag.as_deref(), date(version) + parts) {
        return Reply::status(412);
    }
    let length = body.len() as u64;
    let range = asked.header("range").filter(|_| manners.ranges);
    let mut reply = match range.map(|text| parse_range(text, length)) {
        None => Reply::status(200).body(body.clone()),
        Some(None) => {
            return Reply::status(416).with("content-range", &format!("bytes */{length}"));
        }
        Some(Some(range)) => {
            let (start, end) = (range.start as usize, range.end as usize);
            let text = format!("bytes {start}-{}/{length}", end - 1);
            Reply::status(206)
                .with("content-range", &text)
                .body(body.slice(start..end))
        }
    };
    reply = reply.with("content-type", "application/x-test");
    if let Some(e_tag) = e_tag {
        reply = reply.with("etag", &e_tag);
    }
    if manners.dates {
        reply = reply.with("last-modified", &date_text(date(version)));
    }
    if !manners.length {
        reply = reply.with("transfer-encoding", "chunked");
    }
    reply
}

/// Whether the conditions of a request hold. One that the server has no validator for is passed over.
fn holds(asked: &Asked, e_tag: Option<&str>, modified: DateTime<Utc>) -> bool {
    let strong = e_tag.filter(|tag| !tag.starts_with("W/"));
    let matches = asked
        .header("if-match")
        .is_none_or(|text| Some(text) == strong);
    let unchanged = asked
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
