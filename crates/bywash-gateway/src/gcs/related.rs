//! Bodies of two parts, `multipart/related`: the metadata, then the bytes of the object.
//!
//! Names of headers are compared without regard to case. The first part is buffered within a limit; the bytes of the second
//! pass on as they arrive, but for a few that may be the beginning of the boundary. Lines end as the line of the first boundary does: by CR
//! and LF, or, as Google takes it too and gcsfs sends it, by LF alone. However small the pieces of a body are, each byte is searched a
//! bounded number of times.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use futures::stream::Fuse;
use futures::{Stream, StreamExt};
use s3s::S3ErrorCode;

use super::body::{BodyStream, too_long};
use super::error::{GcsError, GcsResult};
use crate::body::{BodyError, RequestContext};
use crate::limits::MAX_JSON_BYTES;

/// Document and headers before the bytes of the object.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RelatedHead {
    /// The document of metadata.
    pub(crate) document: Vec<u8>,
    /// Content-Type of the bytes.
    pub(crate) content_type: Option<String>,
    /// Offset of the first byte of the object.
    bytes_begin: usize,
    /// End of a line of this body.
    line_end: &'static str,
}

/// Ends of lines that a body may use.
const LINE_ENDS: [&str; 2] = ["\r\n", "\n"];

/// Min bytes of a first part to buffer before it is parsed again.
const MIN_PARSED_BYTES: usize = 4 << 10;

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    #[cfg(test)]
    tests::note_searched((text.len() + 1).saturating_sub(wanted.len()));
    text.windows(wanted.len())
        .position(|window| window == wanted)
}

/// The value of a header of a part.
fn header(head: &[u8], name: &str) -> Option<String> {
    let head = String::from_utf8_lossy(head);
    let value = head.lines().find_map(|line| {
        let (found, value) = line.split_once(':')?;
        found
            .trim()
            .eq_ignore_ascii_case(name)
            .then(|| value.trim().to_owned())
    });
    value.filter(|value| !value.is_empty())
}

/// The head of a part that begins at `from`, and the offset of its content; `None` if it is not
/// complete.
fn part_head<'a>(text: &'a [u8], from: usize, line_end: &str) -> Option<(&'a [u8], usize)> {
    let rest = text.get(from..)?;
    // A part without headers begins with the empty line.
    if rest.starts_with(line_end.as_bytes()) {
        return Some((&[], from + line_end.len()));
    }
    let empty_line = line_end.repeat(2);
    let end = find(rest, empty_line.as_bytes())?;
    Some((&rest[..end], from + end + empty_line.len()))
}

/// The offset after the line of the first boundary, and how that line ends.
fn first_boundary(text: &[u8], boundary: &str) -> Option<(usize, &'static str)> {
    // Text before the first boundary is ignored.
    let found = LINE_ENDS.iter().filter_map(|&line_end| {
        let delimiter = format!("--{boundary}{line_end}");
        if text.starts_with(delimiter.as_bytes()) {
            return Some((delimiter.len(), line_end));
        }
        let inner = format!("{line_end}{delimiter}");
        find(text, inner.as_bytes()).map(|at| (at + inner.len(), line_end))
    });
    found.min_by_key(|&(begin, _)| begin)
}

impl RelatedHead {
    /// Parses the beginning of a body; `None` if more of it is needed.
    pub(crate) fn parse(text: &[u8], boundary: &str) -> GcsResult<Option<Self>> {
        let Some((begin, line_end)) = first_boundary(text, boundary) else {
            return Ok(None);
        };
        let Some((_, document)) = part_head(text, begin, line_end) else {
            return Ok(None);
        };
        let inner = format!("{line_end}--{boundary}{line_end}");
        // The content may be empty; then the boundary begins with the end of the part's head.
        let content = document.saturating_sub(line_end.len());
        let rest = &text[content..];
        let end = find(rest, inner.as_bytes());
        // However the body is cut, the last boundary ends it.
        let last = find(rest, format!("{line_end}--{boundary}--").as_bytes());
        if last.is_some_and(|last| end.is_none_or(|end| last < end)) {
            return Err(GcsError::invalid(
                "The body has one part; it needs two, the metadata and the bytes of the object.",
            ));
        }
        let Some(end) = end.map(|at| content + at) else {
            return Ok(None);
        };
        let Some((head, bytes_begin)) = part_head(text, end + inner.len(), line_end) else {
            return Ok(None);
        };
        Ok(Some(Self {
            document: text.get(document..end).unwrap_or_default().to_vec(),
            content_type: header(head, "content-type"),
            bytes_begin,
            line_end,
        }))
    }
}

/// Reads the document and headers before the bytes of the object. The caller has charged
/// [`MAX_JSON_BYTES`].
pub(crate) async fn open(
    body: BodyStream,
    boundary: &str,
    context: &Arc<RequestContext>,
) -> GcsResult<(RelatedHead, RelatedBytes)> {
    let mut body = body.fuse();
    let mut read = BytesMut::new();
    let (mut min_parsed, mut is_whole) = (1, false);
    loop {
        if read.len() >= min_parsed || is_whole {
            if let Some(head) = RelatedHead::parse(&read, boundary)? {
                let held = read.split_off(head.bytes_begin);
                let end = format!("{}--{boundary}--", head.line_end).into_bytes();
                let bytes = RelatedBytes {
                    context: Arc::clone(context),
                    body,
                    held,
                    end,
                    is_over: false,
                };
                return Ok((head, bytes));
            }
            if read.len() > MAX_JSON_BYTES {
                return Err(too_long());
            }
            if is_whole {
                return Err(GcsError::invalid(
                    "The body ended before the bytes of the object; check the boundary of its Content-Type.",
                ));
            }
            // Each parse starts over: one a piece would take the square of the length of the part.
            let next = read.len() + MIN_PARSED_BYTES.max(read.len() / 2);
            min_parsed = next.min(MAX_JSON_BYTES + 1);
        }
        match body.next().await {
            Some(Ok(piece)) => read.extend_from_slice(&piece),
            Some(Err(error)) => return Err(GcsError::invalid(error.to_string())),
            None => is_whole = true,
        }
    }
}

/// The bytes of the object, up to the last boundary.
pub(crate) struct RelatedBytes {
    context: Arc<RequestContext>,
    body: Fuse<BodyStream>,
    /// Read, and not passed on.
    held: BytesMut,
    /// The last boundary, with the line end before it.
    end: Vec<u8>,
    is_over: bool,
}

impl RelatedBytes {
    /// Returns the bytes that are certainly the object's, if there are any.
    fn take(&mut self) -> Option<Bytes> {
        if let Some(at) = find(&self.held, &self.end) {
            self.is_over = true;
            let bytes = self.held.split_to(at).freeze();
            self.held.clear();
            return Some(bytes).filter(|bytes| !bytes.is_empty());
        }
        let passed = self.held.len().saturating_sub(self.end.len() - 1);
        (passed > 0).then(|| self.held.split_to(passed).freeze())
    }
}

impl Stream for RelatedBytes {
    type Item = Result<Bytes, BodyError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if !this.is_over
                && let Some(bytes) = this.take()
            {
                return Poll::Ready(Some(Ok(bytes)));
            }
            match ready!(this.body.poll_next_unpin(cx)) {
                // Bytes after the last boundary are ignored.
                Some(Ok(_)) if this.is_over => {}
                Some(Ok(piece)) => this.held.extend_from_slice(&piece),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None if this.is_over => return Poll::Ready(None),
                None => {
                    this.is_over = true;
                    let message = "The body has no last boundary; nothing was stored.";
                    let error = this.context.note(S3ErrorCode::IncompleteBody, message);
                    return Poll::Ready(Some(Err(error)));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::cell::Cell;

    use futures::TryStreamExt;

    use super::*;
    use crate::record::RequestIds;

    thread_local! {
        /// Offsets that were searched on this thread.
        static SEARCHED: Cell<usize> = const { Cell::new(0) };
    }

    pub(super) fn note_searched(offsets: usize) {
        SEARCHED.set(SEARCHED.get() + offsets);
    }

    const BODY: &[u8] = b"--b\r\nCONTENT-TYPE: application/json\r\n\r\n{\"name\":\"n\"}\r\n--b\r\n\
        content-type: text/x\r\nX-Other: 1\r\n\r\nab\r\n--b\r\ncd\r\n--b--\r\n";

    /// Reads a body in pieces of `size` bytes.
    async fn read(body: &'static [u8], size: usize) -> Result<(RelatedHead, Vec<u8>), String> {
        let pieces = body.chunks(size).map(|piece| Ok(Bytes::from_static(piece)));
        let body = futures::stream::iter(pieces.collect::<Vec<_>>()).boxed();
        let context = RequestContext::new(RequestIds::new().next(), None);
        let opened = open(body, "b", &Arc::new(context)).await;
        let (head, bytes) = opened.map_err(|error| format!("{error:?}"))?;
        let bytes: Vec<Bytes> = bytes
            .try_collect()
            .await
            .map_err(|error| error.to_string())?;
        Ok((head, bytes.concat()))
    }

    #[tokio::test]
    async fn parts_are_found_however_the_body_is_cut() {
        for size in 1..=BODY.len() {
            let (head, bytes) = read(BODY, size).await.unwrap();
            assert_eq!(head.document, br#"{"name":"n"}"#);
            assert_eq!(head.content_type.as_deref(), Some("text/x"), "any case");
            // A boundary that is not the last one belongs to the object.
            assert_eq!(bytes, b"ab\r\n--b\r\ncd", "in pieces of {size}");
        }
    }

    #[tokio::test]
    async fn each_byte_is_searched_a_bounded_number_of_times_however_the_body_is_cut() {
        let document = format!("{{\"x\":\"{}\"}}", "\n".repeat(60 << 10));
        let body = [
            format!("--b\r\n\r\n{document}\r\n--b\r\n\r\n").as_bytes(),
            &b"\r\n--b\r\n-".repeat((1 << 20) / 9)[..],
            &b"\r\n--b--"[..],
        ]
        .concat();
        let body: &'static [u8] = Box::leak(body.into_boxed_slice());
        let mut found = Vec::new();
        for size in [1, 64 << 10] {
            SEARCHED.set(0);
            found.push(read(body, size).await.unwrap());
            let searched = SEARCHED.get();
            assert!(searched < 3 * body.len(), "{searched} in pieces of {size}");
        }
        assert_eq!(found[0], found[1]);
        assert_eq!(found[0].0.document.len(), document.len());
    }

    #[tokio::test]
    async fn lines_end_as_that_of_the_first_boundary() {
        let body = b"--b\nContent-Type: application/json\n\n{}\n--b\nContent-Type: text/x\n\nab\r\n--b\r\ncd\r\n--b--";
        for size in 1..=body.len() {
            let (head, bytes) = read(body, size).await.unwrap();
            assert_eq!(
                (&head.document[..], head.content_type.as_deref()),
                (&b"{}"[..], Some("text/x"))
            );
            // A CR before the last boundary's LF is the object's.
            assert_eq!(bytes, b"ab\r\n--b\r\ncd\r", "in pieces of {size}");
        }
        // Lines that end otherwise are no boundaries.
        let bodies: [&'static [u8]; 2] = [
            b"--b\r\n\r\n{}\r\n--b\r\n\r\nab\n--b--\r\n--b--",
            b"ignored\n--b\n\n{}\n--b\n\nab\n--b\n\n--b--",
        ];
        let expected: [&[u8]; 2] = [b"ab\n--b--", b"ab\n--b\n"];
        for (body, expected) in bodies.into_iter().zip(expected) {
            assert_eq!(read(body, 5).await.unwrap().1, expected);
        }
    }

    #[tokio::test]
    async fn empty_parts_are_empty() {
        let body = b"preamble\r\n--b\r\n\r\n\r\n--b\r\n\r\n\r\n--b--";
        let (head, bytes) = read(body, 7).await.unwrap();
        assert!(head.document.is_empty() && head.content_type.is_none() && bytes.is_empty());
    }

    #[tokio::test]
    async fn bodies_without_their_boundaries_are_refused() {
        let refused: [&'static [u8]; 4] = [
            b"no boundary",
            b"--b\r\n\r\n{}\r\n--b--",
            b"--b\r\n\r\n{}\r\n--b\r\nA: b",
            b"--b\r\n\r\n{}\r\n--b\r\n\r\nbytes without an end\r\n--b",
        ];
        for body in refused {
            assert!(read(body, 5).await.is_err(), "{body:?}");
        }
        let long = Box::leak(vec![b'x'; MAX_JSON_BYTES + 2].into_boxed_slice());
        assert!(read(long, 4096).await.unwrap_err().contains("longer"));
    }
}
