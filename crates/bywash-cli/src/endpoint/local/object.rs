//! Reads of one object over the socket.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use bywash::origin::Origin;
use bywash::origin::odd_keys::{FOLDER_MARKER, is_odd};
use bywash_client::{View, byte_range};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{Error, GetOptions, GetRange, GetResult, GetResultPayload, Result};

use super::metadata::ObjectHead;
use super::{LocalBucket, SocketBucket};

/// Bytes of one call.
const WINDOW_BYTES: u64 = 2 << 20;
/// Calls at once for one response.
const WINDOWS_AHEAD: usize = 2;

/// Reads an object as the endpoint would return it. `None` if the endpoint is to be asked.
pub(super) async fn get(
    local: &LocalBucket,
    path: &Path,
    options: &GetOptions,
) -> Option<GetResult> {
    let has_other_conditions = options.if_none_match.is_some()
        || options.if_modified_since.is_some()
        || options.if_unmodified_since.is_some()
        || options.version.is_some();
    if has_other_conditions || is_odd(path) || path.filename() == Some(FOLDER_MARKER) {
        return None;
    }
    let socket = local.socket().await?;
    let key = path.to_string();
    let found = socket.call(move |bucket| bucket.head(&key, &Default::default()));
    let head = ObjectHead::of(path, found.await?)?;
    if options.if_match.is_some() && options.if_match != head.meta.e_tag {
        return None;
    }
    let size = head.meta.size;
    let range = match &options.range {
        Some(range) if !options.head => range
            .as_range(size)
            .ok()
            .filter(|range| !range.is_empty())?,
        _ => 0..size,
    };
    let body = if options.head || range.is_empty() {
        stream::empty().boxed()
    } else {
        let version = ObjectVersion {
            socket: socket.clone(),
            endpoint: Arc::clone(&local.endpoint),
            path: path.clone(),
            etag: head.strong_etag?,
            e_tag: head.meta.e_tag.clone()?,
        };
        version.body(range.clone()).await?
    };
    Some(GetResult {
        payload: GetResultPayload::Stream(body),
        meta: head.meta,
        range,
        attributes: head.attributes,
        extensions: http::Extensions::new(),
    })
}

/// A version of an object.
#[derive(Debug, Clone)]
struct ObjectVersion {
    socket: SocketBucket,
    endpoint: Arc<dyn Origin>,
    path: Path,
    /// Its ETag at the socket.
    etag: String,
    /// Its ETag at the endpoint.
    e_tag: String,
}

/// A part of a body.
enum Piece {
    View(View),
    /// The endpoint is to send the rest, from this offset on.
    Rest(u64),
}

impl ObjectVersion {
    /// Returns a range. `None` if its first bytes cannot be read; the endpoint sends the rest after a later failure.
    async fn body(self, range: Range<u64>) -> Option<BoxStream<'static, Result<Bytes>>> {
        let mut windows = windows(range.clone());
        let first = self.read(windows.next()?).await?;
        let reader = self.clone();
        let reads = stream::iter(windows).map(move |window| {
            let reader = reader.clone();
            async move { (window.start, reader.read(window).await) }
        });
        let pieces = reads
            .buffered(WINDOWS_AHEAD)
            .scan(false, |has_failed, (start, read)| {
                let piece = match read {
                    _ if *has_failed => None,
                    Some(view) => Some(Piece::View(view)),
                    None => {
                        *has_failed = true;
                        Some(Piece::Rest(start))
                    }
                };
                std::future::ready(piece)
            });
        let first = stream::once(std::future::ready(Piece::View(first)));
        let body = first.chain(pieces).flat_map(move |piece| match piece {
            Piece::View(view) => stream::iter(segments(view).map(Ok)).boxed(),
            Piece::Rest(start) => self.clone().rest(start..range.end),
        });
        Some(body.boxed())
    }

    async fn read(&self, range: Range<u64>) -> Option<View> {
        let (key, len) = (self.path.to_string(), range.end - range.start);
        let options = bywash_client::GetOptions {
            if_match: Some(self.etag.clone()),
            ..Default::default()
        };
        let read = self
            .socket
            .call(move |bucket| bucket.get_with(&key, byte_range(range), &options));
        let bytes = read.await?.bytes;
        (bytes.len() as u64 == len).then_some(bytes)
    }

    /// Reads a range from the endpoint.
    fn rest(self, range: Range<u64>) -> BoxStream<'static, Result<Bytes>> {
        let options = GetOptions {
            range: Some(GetRange::Bounded(range)),
            if_match: Some(self.e_tag),
            ..GetOptions::default()
        };
        let (endpoint, path) = (self.endpoint, self.path);
        let body = async move {
            let found = endpoint.get_opts(&path, options).await?;
            Ok::<_, Error>(found.into_stream())
        };
        stream::once(body).try_flatten().boxed()
    }
}

/// Splits a range into one range for each call.
fn windows(range: Range<u64>) -> impl Iterator<Item = Range<u64>> + Send {
    let end = range.end;
    let starts = std::iter::successors(Some(range.start), |start| start.checked_add(WINDOW_BYTES));
    starts
        .take_while(move |start| *start < end)
        .map(move |start| start..end.min(start.saturating_add(WINDOW_BYTES)))
}

/// One block of a view.
struct Segment {
    view: Arc<View>,
    index: usize,
}

impl AsRef<[u8]> for Segment {
    fn as_ref(&self) -> &[u8] {
        self.view.segments().nth(self.index).unwrap_or_default()
    }
}

/// The segments of a view. The view is held until its last segment is dropped.
fn segments(view: View) -> impl Iterator<Item = Bytes> {
    let view = Arc::new(view);
    let count = view.segments().len();
    (0..count).map(move |index| {
        let view = Arc::clone(&view);
        Bytes::from_owner(Segment { view, index })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_cover_a_range_once() {
        let start = 5;
        for len in [
            1,
            WINDOW_BYTES - 1,
            WINDOW_BYTES,
            WINDOW_BYTES + 1,
            5 * WINDOW_BYTES,
        ] {
            let mut at = start;
            for window in windows(start..start + len) {
                assert_eq!(window.start, at);
                assert!(!window.is_empty() && window.end - window.start <= WINDOW_BYTES);
                at = window.end;
            }
            assert_eq!(at, start + len);
        }
        assert_eq!(windows(3..3).count(), 0);
        assert_eq!(windows(u64::MAX - 1..u64::MAX).count(), 1);
    }
}
