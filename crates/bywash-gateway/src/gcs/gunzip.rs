//! Decompression of objects that are stored with `contentEncoding: gzip`, for clients that do not take gzip, and of requests whose documents
//! the client compressed, as Google's Java client does.
//!
//! The memory of a decompression is fixed, however far its bytes expand: a piece is decompressed when the one before it was sent.

use std::io::{self, BufRead, ErrorKind, Read};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use bywash::PartBody;
use flate2::bufread::MultiGzDecoder;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use http::HeaderMap;
use http::header::{ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING};
use object_store::{Attribute, Attributes, Error as StoreError};
use s3s::S3ErrorCode;

use super::endpoint::GcsRequest;
use super::error::GcsResult;
use super::insert::body_of;
use super::route::Operation;
use crate::documents::{Charge, RequestDocuments};
use crate::limits::MAX_JSON_BYTES;
use crate::meta::text;

/// Max bytes of a decompressed piece, as of a response's unsent bytes.
const PIECE_BYTES: usize = crate::limits::MAX_UNSENT_BYTES;
/// Pieces that are decompressed before the response begins.
const PIECES_AHEAD: usize = 2;
/// Memory of one decompression: window and tables, the buffer, and two pieces that wait to be sent.
pub(crate) const GUNZIP_BYTES: u64 = 64 * 1024 + 3 * PIECE_BYTES as u64;
/// Name of the decompression in errors.
const STORE: &str = "gzip";
/// First bytes of a gzip file.
const MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Whether an object is decompressed for a client: it is stored as gzip, and neither the object nor
/// the client forbids it.
pub(crate) fn is_due(attributes: &Attributes, headers: &HeaderMap) -> bool {
    let kept = |attribute| {
        attributes
            .get(&attribute)
            .map_or("", |value| value.as_ref())
    };
    let is_gzip = kept(Attribute::ContentEncoding)
        .trim()
        .eq_ignore_ascii_case("gzip");
    let is_fixed = kept(Attribute::CacheControl)
        .split(',')
        .any(|directive| directive.trim().eq_ignore_ascii_case("no-transform"));
    is_gzip && !is_fixed && !takes_gzip(headers)
}

/// Whether a client takes gzip, or bytes as they are stored.
fn takes_gzip(headers: &HeaderMap) -> bool {
    let values = |name| {
        let values = headers.get_all(name).iter();
        values.filter_map(|value| value.to_str().ok())
    };
    let takes = |coding: &str| {
        let (name, quality) = coding.split_once(';').unwrap_or((coding, ""));
        let refused = quality
            .trim()
            .strip_prefix("q=")
            .and_then(|quality| quality.trim().parse().ok())
            .is_some_and(|quality: f32| quality <= 0.0);
        name.trim().eq_ignore_ascii_case("gzip") && !refused
    };
    values(ACCEPT_ENCODING).any(|value| value.split(',').any(takes))
        || values(CACHE_CONTROL).any(|value| value.contains("no-transform"))
}

/// Compressed bytes that have arrived.
#[derive(Debug, Default)]
struct Arrived {
    bytes: Bytes,
    is_over: bool,
}

impl Read for Arrived {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let held = self.fill_buf()?;
        let length = held.len().min(into.len());
        into[..length].copy_from_slice(&held[..length]);
        self.consume(length);
        Ok(length)
    }
}

impl BufRead for Arrived {
    /// Fails with `WouldBlock` until more has arrived.
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.bytes.is_empty() && !self.is_over {
            Err(ErrorKind::WouldBlock.into())
        } else {
            Ok(&self.bytes)
        }
    }

    fn consume(&mut self, length: usize) {
        self.bytes.advance(length);
    }
}

/// The bytes of a gzip file, decompressed.
struct Gunzip<E> {
    body: BoxStream<'static, Result<Bytes, E>>,
    /// Makes the error of a damaged file.
    damaged: Box<dyn Fn(io::Error) -> E + Send>,
    /// Whether any byte has arrived.
    has_begun: bool,
    decoder: MultiGzDecoder<Arrived>,
    buffer: Box<[u8]>,
    is_over: bool,
    _charge: Option<Charge>,
}

impl<E> Gunzip<E> {
    fn new(
        first: Bytes,
        body: BoxStream<'static, Result<Bytes, E>>,
        charge: Option<Charge>,
        damaged: impl Fn(io::Error) -> E + Send + 'static,
    ) -> Self {
        Self {
            body,
            damaged: Box::new(damaged),
            has_begun: !first.is_empty(),
            decoder: MultiGzDecoder::new(Arrived {
                bytes: first,
                is_over: false,
            }),
            buffer: vec![0; PIECE_BYTES].into_boxed_slice(),
            is_over: false,
            _charge: charge,
        }
    }
}

impl<E> Stream for Gunzip<E> {
    type Item = Result<Bytes, E>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        while !this.is_over {
            match this.decoder.read(&mut this.buffer) {
                Ok(0) => this.is_over = true,
                Ok(length) => {
                    let piece = Bytes::copy_from_slice(&this.buffer[..length]);
                    return Poll::Ready(Some(Ok(piece)));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    match ready!(this.body.poll_next_unpin(cx)) {
                        Some(Ok(bytes)) => {
                            this.has_begun |= !bytes.is_empty();
                            this.decoder.get_mut().bytes = bytes;
                        }
                        Some(Err(error)) => {
                            this.is_over = true;
                            return Poll::Ready(Some(Err(error)));
                        }
                        None if this.has_begun => this.decoder.get_mut().is_over = true,
                        // An empty body is no file.
                        None => this.is_over = true,
                    }
                }
                Err(error) => {
                    this.is_over = true;
                    return Poll::Ready(Some(Err((this.damaged)(error))));
                }
            }
        }
        Poll::Ready(None)
    }
}

/// Returns the decompressed bytes of an object; `Err` with them as they are if they are no gzip file. The caller has charged
/// [`GUNZIP_BYTES`].
pub(crate) async fn open(
    mut body: PartBody,
    charge: Charge,
) -> Result<Result<PartBody, PartBody>, StoreError> {
    let first = body.next().await.transpose()?.unwrap_or_default();
    if !first.starts_with(&MAGIC) {
        let first = futures::stream::iter([Ok(first)]);
        return Ok(Err(first.chain(body).boxed()));
    }
    let damaged = |error| {
        StoreError::Generic {
        store: STORE,
        source: format!(
            "the bytes are no whole gzip file, which the contentEncoding states ({error}); take them with Accept-Encoding: gzip"
        )
        .into(),
    }
    };
    let mut pieces = Gunzip::new(first, body, Some(charge), damaged).boxed();
    // Before the response begins: a small damaged file is an error, and no cut.
    let mut begun = Vec::with_capacity(PIECES_AHEAD);
    while begun.len() < PIECES_AHEAD
        && let Some(piece) = pieces.next().await.transpose()?
    {
        begun.push(Ok(piece));
    }
    Ok(Ok(futures::stream::iter(begun).chain(pieces).boxed()))
}

/// Whether an error is that an object's bytes are damaged, which another try would not repair.
pub(crate) fn is_damage(error: &StoreError) -> bool {
    matches!(error, StoreError::Generic { store: STORE, .. })
}

/// Whether the body of a request is documents that the client compressed. The bytes of an object are stored as they are.
pub(super) fn is_compressed(request: &GcsRequest) -> bool {
    let has_documents = match request.route.operation {
        Operation::Insert => request.query.get("uploadType") == Some("multipart"),
        Operation::Session | Operation::Xml(_) => false,
        _ => true,
    };
    let coding = text(&request.parts.headers, CONTENT_ENCODING.as_str());
    has_documents && coding.is_some_and(|coding| coding.trim().eq_ignore_ascii_case("gzip"))
}

/// Decompresses the body of a request, if the client compressed it.
pub(crate) async fn open_request(request: &mut GcsRequest) -> GcsResult<()> {
    if !is_compressed(request) {
        return Ok(());
    }
    let doing = request.doing("read the request for");
    let documents = request.documents.all();
    let charge = match request.route.operation {
        // Part of the charge of the batch.
        Operation::Batch => None,
        // Together with the charge of the document inside: a request that holds memory waits for no
        // more of this kind.
        _ => {
            let bytes = GUNZIP_BYTES + MAX_JSON_BYTES as u64;
            let charge = documents.charge(bytes, doing).await?;
            let documents = Arc::clone(documents);
            request.documents = RequestDocuments::prepaid(documents);
            Some(charge)
        }
    };
    let context = Arc::clone(&request.context);
    let damaged = move |error| {
        let message = format!(
            "The body is no whole gzip file, which its Content-Encoding states: {error}; nothing was stored."
        );
        context.note(S3ErrorCode::IncompleteBody, message)
    };
    let body = body_of(request);
    request.body = Gunzip::new(Bytes::new(), body, charge, damaged).boxed();
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::io::Write;

    use bywash::Engine;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use futures::TryStreamExt;
    use http::HeaderValue;

    use super::*;
    use crate::documents::Documents;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    /// Decompresses a file that arrives in pieces of `size` bytes.
    async fn opened(file: &[u8], size: usize) -> Result<PartBody, PartBody> {
        let pieces: Vec<_> = file
            .chunks(size)
            .map(|piece| Ok(Bytes::copy_from_slice(piece)))
            .collect();
        let engine = Engine::builder().memory(64 << 20).build().unwrap();
        let charge = Documents::gunzips(engine.clone())
            .try_charge(GUNZIP_BYTES)
            .unwrap();
        let body = futures::stream::iter(pieces).boxed();
        match open(body, charge).await {
            Ok(opened) => opened,
            // In the first pieces.
            Err(error) => Ok(futures::stream::iter([Err(error)]).boxed()),
        }
    }

    #[tokio::test]
    async fn files_are_decompressed_however_they_are_cut() {
        let text: Vec<u8> = (0..20_000_u32).flat_map(u32::to_le_bytes).collect();
        // Two members, as `cat a.gz b.gz` makes them.
        let file = [gzip(&text), gzip(b"end")].concat();
        for size in [2, 3, 1000, file.len()] {
            let body = opened(&file, size).await.ok().unwrap();
            let pieces: Vec<Bytes> = body.try_collect().await.unwrap();
            assert!(pieces.iter().all(|piece| piece.len() <= PIECE_BYTES));
            assert!(pieces.concat() == [&text[..], b"end"].concat(), "{size}");
        }
    }

    #[tokio::test]
    async fn piece_of_a_bomb_is_no_longer_than_any() {
        let file = gzip(&vec![0; 64 << 20]);
        assert!(file.len() < 100 << 10);
        let mut body = opened(&file, file.len()).await.ok().unwrap();
        let mut length = 0;
        while let Some(piece) = body.try_next().await.unwrap() {
            assert!(piece.len() <= PIECE_BYTES);
            length += piece.len();
        }
        assert_eq!(length, 64 << 20);
    }

    #[tokio::test]
    async fn cut_and_damaged_files_fail_and_others_pass_unchanged() {
        let file = gzip(&[7; 10_000]);
        let mut damaged = file.clone();
        let last = damaged.len() - 6;
        damaged[last] ^= 1;
        for file in [&file[..file.len() - 1], &damaged] {
            let body = opened(file, 100).await.ok().unwrap();
            let error = body.try_collect::<Vec<_>>().await.unwrap_err();
            assert!(is_damage(&error), "{error}");
        }
        let plain = opened(b"plain", 2).await.err().unwrap();
        let plain: Vec<Bytes> = plain.try_collect().await.unwrap();
        assert_eq!(plain.concat(), b"plain");
    }

    #[test]
    fn gzip_is_decompressed_unless_object_or_client_forbids_it() {
        let gzip = [(Attribute::ContentEncoding, "gzip")];
        let fixed = [
            (Attribute::ContentEncoding, "gzip"),
            (Attribute::CacheControl, "public, no-transform"),
        ];
        let none: [(Attribute, &str); 0] = [];
        let accept = |value: &'static str| {
            HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static(value))])
        };
        for (headers, due) in [
            (HeaderMap::new(), true),
            (accept("identity"), true),
            (accept("gzip;q=0"), true),
            (accept("deflate, GZIP"), false),
            (accept("gzip;q=0.5"), false),
        ] {
            assert_eq!(is_due(&Attributes::from_iter(gzip.clone()), &headers), due);
            assert!(!is_due(&Attributes::from_iter(fixed.clone()), &headers));
            assert!(!is_due(&Attributes::from_iter(none.clone()), &headers));
        }
        let value = HeaderValue::from_static("no-transform");
        let headers = HeaderMap::from_iter([(CACHE_CONTROL, value)]);
        assert!(!is_due(&Attributes::from_iter(gzip), &headers));
    }
}
