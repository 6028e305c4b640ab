//! An S3 origin that holds any object of any size: `/bench/s1048576/name` has 1 MiB.
//!
//! It supports GET and HEAD, ranges and `If-Match`, and can be shaped as a link: a time to the
//! first byte of each response, and a rate that all bodies share. Given a folder, it also has and lists its files. It states digests of
//! objects whose names ask for one.

mod digests;
mod files;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt as _, stream};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{
    ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, IF_MATCH, LAST_MODIFIED,
    RANGE,
};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep, sleep_until};

use crate::Failure;
use digests::Digests;
use files::Files;

/// Bytes of a piece of a body: about a millisecond of the shaped link, the resolution of a timer.
const PIECE_BYTES: u64 = 256 * 1024;
/// Max time that a body may make up for: timers wake about a millisecond late, so without it one connection could not fill
/// the link.
const LATE: Duration = Duration::from_millis(5);
/// Content that all objects repeat: larger than the processor's caches, like real bodies.
const CONTENT_BYTES: usize = 64 << 20;
/// Path of the counters.
pub(crate) const COUNTERS: &str = "/-/counters";

static CONTENT: LazyLock<Bytes> = LazyLock::new(|| {
    let words = (0..CONTENT_BYTES as u64 / 8).map(|word| word.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    words.flat_map(u64::to_le_bytes).collect::<Vec<u8>>().into()
});

/// Settings of the origin.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// Milliseconds until the first byte of a response
    #[arg(long, default_value_t = 0)]
    first_byte_ms: u64,
    /// Megabytes (10^6) a second that all bodies share; 0: no limit
    #[arg(long, default_value_t = 0)]
    rate_mb: u64,
    /// Folder whose files are objects too: `a` is at `/bench/ANYTHING/a`
    #[arg(long)]
    folder: Option<PathBuf>,
}

/// Requests to the origin so far.
#[derive(Debug, Default, Clone, Copy, serde::Serialize, serde::Deserialize)]
pub(crate) struct Counters {
    /// GETs, HEADs and listings.
    pub(crate) requests: u64,
    /// Bytes of object data sent.
    pub(crate) bytes: u64,
}

#[derive(Debug)]
struct Origin {
    first_byte: Duration,
    /// Nanoseconds of the link for one byte; 0: no limit.
    nanos_a_byte: f64,
    /// Time at which the link is free again.
    free: Mutex<Instant>,
    requests: AtomicU64,
    bytes: AtomicU64,
    files: Files,
    digests: Digests,
}

/// Prints its address, and serves until killed.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let origin = Arc::new(Origin {
        first_byte: Duration::from_millis(args.first_byte_ms),
        nanos_a_byte: if args.rate_mb == 0 {
            0.0
        } else {
            1000.0 / args.rate_mb as f64
        },
        free: Mutex::new(Instant::now()),
        requests: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
        files: match &args.folder {
            None => Files::default(),
            Some(folder) => Files::load(folder)?,
        },
        digests: Digests::default(),
    });
    LazyLock::force(&CONTENT);
    crate::runtime()?.block_on(async {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
        println!("ready {}", listener.local_addr()?);
        loop {
            let (socket, _) = listener.accept().await?;
            socket.set_nodelay(true)?;
            let origin = Arc::clone(&origin);
            tokio::spawn(async move {
                let service = service_fn(|request| respond(Arc::clone(&origin), request));
                let connection = hyper::server::conn::http1::Builder::new();
                // A disconnect of a client is no failure of the origin.
                let _ = connection
                    .serve_connection(TokioIo::new(socket), service)
                    .await;
            });
        }
    })
}

type Body = BoxBody<Bytes, Infallible>;

async fn respond(
    origin: Arc<Origin>,
    request: Request<Incoming>,
) -> Result<Response<Body>, hyper::http::Error> {
    if request.uri().path() == COUNTERS {
        let counters = Counters {
            requests: origin.requests.load(Relaxed),
            bytes: origin.bytes.load(Relaxed),
        };
        let json = serde_json::to_vec(&counters).unwrap_or_default();
        return Response::builder().body(Full::from(json).boxed());
    }
    origin.requests.fetch_add(1, Relaxed);
    // A timer of zero would still wait for the next tick, up to a millisecond.
    if !origin.first_byte.is_zero() {
        sleep(origin.first_byte).await;
    }
    if let (Some(query), "/bench" | "/bench/") = (request.uri().query(), request.uri().path()) {
        let listing = Full::from(origin.files.list(query)).boxed();
        return Response::builder()
            .header(CONTENT_TYPE, "application/xml")
            .body(listing);
    }
    // Google's client encodes the slashes of a name.
    let path = request.uri().path().replace("%2F", "/");
    let Some((size, e_tag, content)) = origin.object(&path) else {
        return empty(StatusCode::NOT_FOUND);
    };
    if request
        .headers()
        .get(IF_MATCH)
        .is_some_and(|wanted| wanted.as_bytes() != e_tag.as_bytes())
    {
        return empty(StatusCode::PRECONDITION_FAILED);
    }
    let requested = request
        .headers()
        .get(RANGE)
        .and_then(|value| value.to_str().ok());
    let range = match requested.map(|requested| parse_range(requested, size)) {
        None => 0..size,
        Some(Some(range)) => range,
        Some(None) => return empty(StatusCode::RANGE_NOT_SATISFIABLE),
    };
    let status = if requested.is_some() {
        StatusCode::PARTIAL_CONTENT
    } else {
        StatusCode::OK
    };
    let mut response = Response::builder()
        .status(status)
        .header(ETAG, e_tag)
        .header(LAST_MODIFIED, "Thu, 01 Jan 2026 00:00:00 GMT")
        .header(ACCEPT_RANGES, "bytes")
        .header(CONTENT_LENGTH, range.end - range.start);
    if requested.is_some() {
        let last = range.end - 1;
        response = response.header(
            CONTENT_RANGE,
            format!("bytes {}-{last}/{size}", range.start),
        );
    }
    let whole = range == (0..size);
    for (name, value) in origin.digests.headers(&path, size, &content, whole) {
        response = response.header(name, value);
    }
    if request.method() == Method::HEAD {
        return response.body(Empty::new().boxed());
    }
    let frames = origin
        .pieces(content, range)
        .map(|piece| Ok(Frame::data(piece)));
    response.body(BodyExt::boxed(StreamBody::new(frames)))
}

fn empty(status: StatusCode) -> Result<Response<Body>, hyper::http::Error> {
    Response::builder()
        .status(status)
        .body(Empty::new().boxed())
}

impl Origin {
    /// Returns size and ETag of an object, and the bytes that it repeats.
    fn object(&self, path: &str) -> Option<(u64, String, Bytes)> {
        if let Some((size, e_tag)) = generated(path) {
            return Some((size, e_tag, CONTENT.clone()));
        }
        let key = path.strip_prefix("/bench/")?;
        let bytes = self.files.get(key)?;
        let e_tag = format!("\"{}\"", files::e_tag(key));
        Some((bytes.len() as u64, e_tag, bytes))
    }

    /// Returns the bytes of a range, at the rate of the link.
    fn pieces(
        self: Arc<Self>,
        content: Bytes,
        range: Range<u64>,
    ) -> impl Stream<Item = Bytes> + Send + Sync + 'static {
        stream::unfold(
            (self, content, range, Instant::now()),
            |(origin, content, mut range, last)| async move {
                if range.is_empty() {
                    return None;
                }
                let period = content.len() as u64;
                let start = range.start % period;
                let len = PIECE_BYTES.min(range.end - range.start).min(period - start);
                let last = origin.carry(len, last).await;
                origin.bytes.fetch_add(len, Relaxed);
                range.start += len;
                let at =
                    |offset: u64| usize::try_from(offset).expect("below the length of the content");
                let piece = content.slice(at(start)..at(start + len));
                Some((piece, (origin, content, range, last)))
            },
        )
    }

    /// Waits until the link has carried `bytes` more bytes of a body whose previous bytes arrived at `last`. Returns the
    /// time of their arrival.
    async fn carry(&self, bytes: u64, last: Instant) -> Instant {
        if self.nanos_a_byte == 0.0 {
            return last;
        }
        let takes = Duration::from_nanos((bytes as f64 * self.nanos_a_byte) as u64);
        let arrives = {
            let mut free = self
                .free
                .lock()
                .expect("no thread panics while holding the link");
            let earliest = last.max(Instant::now() - LATE);
            *free = (*free).max(earliest) + takes;
            *free
        };
        sleep_until(arrives).await;
        arrives
    }
}

/// The content of an object of so many bytes, at most 64 MiB.
pub(crate) fn generated_content(bytes: usize) -> Bytes {
    CONTENT.slice(..bytes)
}

/// Size and ETag of the object at `/bench/sSIZE/NAME`.
fn generated(path: &str) -> Option<(u64, String)> {
    let (size, name) = path.strip_prefix("/bench/s")?.split_once('/')?;
    Some((size.parse().ok()?, format!("\"{size}-{name}\"")))
}

/// Parses `bytes=a-b`, `bytes=a-` or `bytes=-n`; `None` if the range has no bytes.
fn parse_range(text: &str, size: u64) -> Option<Range<u64>> {
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    let range = match (first, last) {
        ("", suffix) => size.saturating_sub(suffix.parse().ok()?)..size,
        (first, "") => first.parse().ok()?..size,
        (first, last) => first.parse().ok()?..size.min(last.parse::<u64>().ok()?.checked_add(1)?),
    };
    (!range.is_empty()).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_size_is_read_from_its_name_and_ranges_are_parsed() {
        assert_eq!(
            generated("/bench/s4096/c-1"),
            Some((4096, "\"4096-c-1\"".into()))
        );
        assert_eq!(generated("/other/s4096/c"), None);
        assert_eq!(parse_range("bytes=0-9", 100), Some(0..10));
        assert_eq!(parse_range("bytes=90-200", 100), Some(90..100));
        assert_eq!(parse_range("bytes=90-", 100), Some(90..100));
        assert_eq!(parse_range("bytes=-10", 100), Some(90..100));
        assert_eq!(parse_range("bytes=100-", 100), None);
    }
}
