//! Reads a file, an object or standard input as a stream of parts, some of them ahead.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path as FsPath, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use bywash::upload::journal::SourceIdentity;
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt, TryStreamExt};
use object_store::Attributes;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio_util::io::StreamReader;

use crate::endpoint::Endpoint;
use crate::failure::Failure;
use crate::transfer::object::Object;
use crate::url::Url;

/// Min size of a part: below, the round trip outweighs the transfer.
pub(crate) const PART_MIN_BYTES: u64 = 8 << 20;
/// Part size for a source of unknown length: S3 allows 10,000 parts, so up to 312 GiB.
const PART_UNKNOWN_BYTES: u64 = 32 << 20;
/// Max parts of an S3 upload.
const PARTS_MAX: u64 = 10_000;
/// Max bytes of parts read ahead, at least one part. The sink may hold as much again.
const AHEAD_BYTES: u64 = 32 << 20;
/// More concurrent requests do not raise the throughput.
const AHEAD_PARTS_MAX: u64 = 4;

/// A byte range as in HTTP's `Range`: `0-99` (both ends included), `100-`, `-20` (the last 20).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ByteRange {
    Between(u64, u64),
    From(u64),
    Last(u64),
}

impl FromStr for ByteRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is not a range; write 0-99, 100- or -20");
        let number = |digits: &str| digits.parse::<u64>().map_err(|_| bad());
        let (start, end) = text.split_once('-').ok_or_else(bad)?;
        match (start.is_empty(), end.is_empty()) {
            (true, false) => Ok(Self::Last(number(end)?)),
            (false, true) => Ok(Self::From(number(start)?)),
            (false, false) if number(start)? <= number(end)? => {
                Ok(Self::Between(number(start)?, number(end)?))
            }
            _ => Err(bad()),
        }
    }
}

impl ByteRange {
    /// Returns the range in an object of `size` bytes; `None` if it is empty.
    pub(crate) fn of(self, size: u64) -> Option<Range<u64>> {
        let range = match self {
            Self::Between(start, end) => start..end.saturating_add(1).min(size),
            Self::From(start) => start..size,
            Self::Last(count) => size.saturating_sub(count)..size,
        };
        (range.start < range.end).then_some(range)
    }
}

/// A stream of parts: all but the last are exactly `part_bytes` long.
pub(crate) struct Source {
    /// Length of the stream, if known.
    pub(crate) bytes: Option<u64>,
    pub(crate) part_bytes: u64,
    /// Content headers and user metadata of an object.
    pub(crate) attributes: Attributes,
    /// Modification time of a file or an object, if known.
    pub(crate) modified: Option<SystemTime>,
    /// ETag of the object's version.
    pub(crate) e_tag: Option<String>,
    /// The open file that all bytes are of, if it can be read again.
    file: Option<(PathBuf, Arc<File>)>,
    pub(crate) parts: BoxStream<'static, Result<Bytes, Failure>>,
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source")
            .field("bytes", &self.bytes)
            .field("part_bytes", &self.part_bytes)
            .finish_non_exhaustive()
    }
}

impl Source {
    /// `listed`: length of the object, if known from a listing.
    pub(crate) async fn open(
        location: &Url,
        range: Option<ByteRange>,
        listed: Option<u64>,
        endpoint: &Endpoint,
    ) -> Result<Self, Failure> {
        match location {
            Url::Stdio => Self::of_reader("standard input".to_owned(), range, tokio::io::stdin()),
            Url::File(path) | Url::Folder(path) => {
                let name = location.to_string();
                let (file, bytes, modified) = open_file(path).await?;
                let source = match bytes {
                    Some(bytes) => {
                        let span = span(&name, range, bytes)?;
                        let parts = part_bytes(span.end - span.start);
                        Self::of_file(path.clone(), file, span, parts)
                    }
                    None => Self::of_reader(name, range, tokio::fs::File::from_std(file))?,
                };
                Ok(Self { modified, ..source })
            }
            Url::Object(address) => {
                let is_small = |bytes| (1..=PART_MIN_BYTES).contains(&bytes);
                if range.is_none()
                    && listed.is_some_and(is_small)
                    && let Some((object, bytes)) = Object::read_small(address, endpoint).await?
                {
                    return Ok(Self::of_whole(object, bytes));
                }
                let object = Object::open(address, endpoint).await?;
                Self::of_object(object, &location.to_string(), range)
            }
        }
    }

    /// A source that can only be read from start to end.
    fn of_reader(
        name: String,
        range: Option<ByteRange>,
        reader: impl AsyncRead + Send + Unpin + 'static,
    ) -> Result<Self, Failure> {
        if range.is_some() {
            return Err(Failure::usage(format!(
                "{name} has no fixed length; a range needs a file or an object"
            )));
        }
        Ok(Self {
            bytes: None,
            part_bytes: PART_UNKNOWN_BYTES,
            attributes: Attributes::new(),
            modified: None,
            e_tag: None,
            file: None,
            parts: in_parts(name, reader, PART_UNKNOWN_BYTES).boxed(),
        })
    }

    /// Reads a file from `offset` on, in parts of this length: the rest of an upload.
    pub(crate) async fn rest_of_file(
        path: PathBuf,
        offset: u64,
        part_bytes: u64,
    ) -> Result<Self, Failure> {
        let (file, bytes, _) = open_file(&path).await?;
        let span = offset..bytes.unwrap_or_default().max(offset);
        Ok(Self::of_file(path, file, span, part_bytes))
    }

    fn of_file(path: PathBuf, file: File, span: Range<u64>, part_bytes: u64) -> Self {
        let (name, file) = (path.display().to_string(), Arc::new(file));
        let opened = Arc::clone(&file);
        let read = move |part: Range<u64>| {
            let (file, name) = (Arc::clone(&file), name.clone());
            async move {
                let read = tokio::task::spawn_blocking(move || read_exact(&file, &part)).await;
                let outcome = read.map_err(io::Error::other).and_then(|outcome| outcome);
                outcome.map_err(|error| Failure::io(format!("cannot read {name}"), &error))
            }
        };
        Self {
            file: Some((path, opened)),
            ..Self::of_spans(span, part_bytes, Attributes::new(), read)
        }
    }

    /// Returns the identity of the open file, to detect changes; `None` if the source cannot be read again.
    pub(crate) fn identity(&self) -> Result<Option<SourceIdentity>, Failure> {
        let Some((path, file)) = &self.file else {
            return Ok(None);
        };
        let found = file
            .metadata()
            .and_then(|meta| SourceIdentity::of(path, &meta));
        let found = found
            .map_err(|error| Failure::io(format!("cannot read {}", path.display()), &error))?;
        Ok(Some(found))
    }

    /// An object that was read by one request.
    fn of_whole(object: Object, bytes: Bytes) -> Self {
        let part = (!bytes.is_empty()).then_some(Ok(bytes));
        Self {
            bytes: Some(object.meta.size),
            part_bytes: PART_MIN_BYTES,
            attributes: object.attributes,
            modified: Some(object.meta.last_modified.into()),
            e_tag: object.meta.e_tag,
            file: None,
            parts: stream::iter(part).boxed(),
        }
    }

    /// `name`: the user's spelling.
    pub(crate) fn of_object(
        object: Object,
        name: &str,
        range: Option<ByteRange>,
    ) -> Result<Self, Failure> {
        let span = span(name, range, object.meta.size)?;
        let parts = part_bytes(span.end - span.start);
        let (attributes, e_tag) = (object.attributes.clone(), object.meta.e_tag.clone());
        let modified = Some(object.meta.last_modified.into());
        let object = Arc::new(object);
        if !object.has_parts() {
            return Ok(Self {
                modified,
                attributes,
                ..Self::of_stream(name.to_owned(), object, span, parts)
            });
        }
        let read = move |part: Range<u64>| {
            let object = Arc::clone(&object);
            async move { Ok(object.part(part).await?.into_contiguous()) }
        };
        Ok(Self {
            modified,
            e_tag,
            ..Self::of_spans(span, parts, attributes, read)
        })
    }

    /// Reads a range of an object by one request.
    fn of_stream(name: String, object: Arc<Object>, span: Range<u64>, part_bytes: u64) -> Self {
        let bytes = span.end - span.start;
        let parts = async move {
            let body = object.stream(span).await?.map_err(io::Error::other);
            Ok::<_, Failure>(in_parts(name, StreamReader::new(body), part_bytes))
        };
        Self {
            bytes: Some(bytes),
            part_bytes,
            attributes: Attributes::new(),
            modified: None,
            e_tag: None,
            file: None,
            parts: stream::once(parts).try_flatten().boxed(),
        }
    }

    /// Reads the range `span` part by part with `read`, concurrently but in order.
    fn of_spans<F>(
        span: Range<u64>,
        part_bytes: u64,
        attributes: Attributes,
        read: impl Fn(Range<u64>) -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = Result<Bytes, Failure>> + Send + 'static,
    {
        let bytes = span.end - span.start;
        let starts =
            (0..bytes.div_ceil(part_bytes)).map(move |index| span.start + index * part_bytes);
        let end = span.end;
        let parts = stream::iter(starts)
            .map(move |start| read(start..end.min(start.saturating_add(part_bytes))));
        Self {
            bytes: Some(bytes),
            part_bytes,
            attributes,
            modified: None,
            e_tag: None,
            file: None,
            parts: parts.buffered(ahead(part_bytes)).boxed(),
        }
    }

    /// Returns the next part; `None` after the last.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        self.parts.try_next().await
    }
}

/// Reads to the end, part by part.
fn in_parts(
    name: String,
    reader: impl AsyncRead + Send + Unpin + 'static,
    part_bytes: u64,
) -> impl Stream<Item = Result<Bytes, Failure>> + Send + 'static {
    stream::try_unfold((Some(reader), name), move |(reader, name)| async move {
        let Some(mut reader) = reader else {
            return Ok(None);
        };
        let mut part = Vec::new();
        let read = (&mut reader).take(part_bytes).read_to_end(&mut part).await;
        read.map_err(|error| Failure::io(format!("cannot read {name}"), &error))?;
        // A short part is the last: a terminal would need a second end-of-file.
        let rest = (part.len() as u64 == part_bytes).then_some(reader);
        Ok((!part.is_empty()).then(|| (Bytes::from(part), (rest, name))))
    })
}

/// Returns how many parts of this length may be in flight on one side.
pub(crate) fn ahead(part_bytes: u64) -> usize {
    // At most AHEAD_PARTS_MAX, so the cast is lossless.
    (AHEAD_BYTES / part_bytes).clamp(1, AHEAD_PARTS_MAX) as usize
}

/// Returns the smallest part size that S3's limit of parts allows, in whole MiB.
pub(crate) fn part_bytes(bytes: u64) -> u64 {
    bytes
        .div_ceil(PARTS_MAX)
        .next_multiple_of(1 << 20)
        .max(PART_MIN_BYTES)
}

fn span(name: &str, range: Option<ByteRange>, size: u64) -> Result<Range<u64>, Failure> {
    match range {
        None => Ok(0..size),
        Some(range) => range.of(size).ok_or_else(|| {
            Failure::failed(format!(
                "cannot read {name}: it has {size} bytes, none of them in the range"
            ))
        }),
    }
}

/// An open file, its length if it is regular, and its modification time.
type Opened = (File, Option<u64>, Option<SystemTime>);

async fn open_file(path: &FsPath) -> Result<Opened, Failure> {
    let name = path.display().to_string();
    let path = path.to_owned();
    let opened = tokio::task::spawn_blocking(move || open_blocking(&path)).await;
    let opened = opened.map_err(io::Error::other).and_then(|opened| opened);
    opened.map_err(|error| Failure::io(format!("cannot read {name}"), &error))
}

fn open_blocking(path: &FsPath) -> io::Result<Opened> {
    let file = File::open(path)?;
    let meta = file.metadata()?;
    if meta.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    let bytes = meta.is_file().then_some(meta.len());
    // Files of /proc have length 0 and content.
    let modified = bytes.and_then(|_| meta.modified().ok());
    Ok((file, bytes.filter(|bytes| *bytes > 0), modified))
}

fn read_exact(file: &File, part: &Range<u64>) -> io::Result<Bytes> {
    let mut bytes = Vec::new();
    let wanted = part.end - part.start;
    bytes.reserve_exact(usize::try_from(wanted).map_err(io::Error::other)?);
    At {
        file,
        offset: part.start,
    }
    .take(wanted)
    .read_to_end(&mut bytes)?;
    if bytes.len() as u64 != wanted {
        return Err(io::Error::other("it became shorter while it was read"));
    }
    Ok(bytes.into())
}

/// Reads a shared file at an offset of its own.
struct At<'a> {
    file: &'a File,
    offset: u64,
}

impl Read for At<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_and_resolved() {
        for (text, range, of_ten) in [
            ("0-0", ByteRange::Between(0, 0), Some(0..1)),
            ("2-5", ByteRange::Between(2, 5), Some(2..6)),
            ("2-50", ByteRange::Between(2, 50), Some(2..10)),
            ("3-", ByteRange::From(3), Some(3..10)),
            ("-4", ByteRange::Last(4), Some(6..10)),
            ("-40", ByteRange::Last(40), Some(0..10)),
            ("10-", ByteRange::From(10), None),
            ("-0", ByteRange::Last(0), None),
        ] {
            assert_eq!(text.parse(), Ok(range), "{text}");
            assert_eq!(range.of(10), of_ten, "{text}");
        }
        for bad in ["", "-", "5", "5-2", "a-b", "1-2-3", "--2"] {
            assert!(bad.parse::<ByteRange>().is_err(), "{bad}");
        }
    }

    #[test]
    fn parts_stay_within_the_limits_of_s3_and_of_memory() {
        const TIB: u64 = 1 << 40;
        for bytes in [0, 1, PART_MIN_BYTES, 100 << 30, 5 * TIB] {
            let part = part_bytes(bytes);
            assert!(
                bytes.div_ceil(part) <= PARTS_MAX && part >= PART_MIN_BYTES,
                "{bytes}: {part}"
            );
            assert!(
                ahead(part) == 1 || ahead(part) as u64 * part <= AHEAD_BYTES,
                "{bytes}: {part}"
            );
        }
        assert_eq!(ahead(PART_MIN_BYTES), 4);
    }
}
