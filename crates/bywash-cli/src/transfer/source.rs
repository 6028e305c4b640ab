//! Reads a file, an object or standard input as a stream of parts, some parts ahead.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use bywash::origin::folder::FileIdentity;
use bywash::upload::journal::SourceIdentity;
use bywash::{ContentDigest, RunningDigest, Segments};
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt, TryStreamExt};
use object_store::Attributes;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio_util::io::StreamReader;

use crate::endpoint::Endpoint;
use crate::failure::Failure;
use crate::transfer::byte_range::ByteRange;
use crate::transfer::object::Object;
use crate::transfer::part::{PART_MIN_BYTES, PART_UNKNOWN_BYTES, Part, ahead, part_bytes};
use crate::transfer::removal::put_back;
use crate::transfer::version::{FileVersion, Version, link_at};
use crate::url::Url;

/// A stream of parts: all but the last are exactly `part_bytes` long.
pub(crate) struct Source {
    /// Length of the stream, if known.
    pub(crate) bytes: Option<u64>,
    pub(crate) part_bytes: u64,
    /// Content headers and user metadata of an object.
    pub(crate) attributes: Attributes,
    /// Modification time of a file or an object, if known.
    pub(crate) modified: Option<SystemTime>,
    /// The version that all bytes are of; `None` of a pipe, a device or standard input.
    pub(crate) version: Option<Version>,
    /// The open file that all bytes are of, if it can be read again.
    file: Option<(PathBuf, Arc<File>)>,
    pub(crate) parts: BoxStream<'static, Result<Part, Failure>>,
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
                Self::of_path(path, &location.to_string(), range).await
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

    /// A file, a pipe or a device; `name`: the user's spelling. A file that changes while it is read is a failure.
    async fn of_path(path: &FsPath, name: &str, range: Option<ByteRange>) -> Result<Self, Failure> {
        let Opened {
            file,
            bytes,
            modified,
            version,
        } = open_file(path).await?;
        let same = file.try_clone().map_err(|error| unreadable(name, &error))?;
        let source = match bytes {
            Some(bytes) => {
                let span = span(name, range, bytes)?;
                let parts = part_bytes(span.end - span.start);
                Self::of_file(path.to_owned(), file, span, parts)
            }
            None => Self::of_reader(name.to_owned(), range, tokio::fs::File::from_std(file))?,
        };
        let source = Self {
            modified,
            version: version.clone().map(Version::File),
            ..source
        };
        Ok(match version {
            Some(version) => source.unchanged(name.to_owned(), same, version.file),
            None => source,
        })
    }

    /// Ends the stream with a failure if the file changed since it was opened: its bytes may be of several versions then, and no
    /// sink completes.
    fn unchanged(self, name: String, file: File, opened: FileIdentity) -> Self {
        let check = async move {
            let meta = file.metadata().map_err(|error| unreadable(&name, &error))?;
            if FileIdentity::from(&meta).has_bytes_of(&opened) {
                Ok(None)
            } else {
                Err(Failure::failed(format!(
                    "cannot read {name}: it changed while it was read; try again"
                )))
            }
        };
        let check = stream::once(check).try_filter_map(|none| std::future::ready(Ok(none)));
        Self {
            parts: self.parts.chain(check).boxed(),
            ..self
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
            version: None,
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
        let Opened { file, bytes, .. } = open_file(&path).await?;
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
                outcome.map_err(|error| unreadable(&name, &error))
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

    /// Whether the source is a file that can be read again and has not changed since it was opened.
    pub(crate) fn is_unchanged(&self) -> bool {
        match (&self.file, &self.version) {
            (Some((path, _)), Some(Version::File(version))) => version.is_at(path).unwrap_or(false),
            _ => false,
        }
    }

    /// An object that was read by one request.
    fn of_whole(object: Object, bytes: Segments) -> Self {
        let part = (!bytes.is_empty()).then(|| Ok(bytes.into()));
        Self {
            bytes: Some(object.meta.size),
            part_bytes: PART_MIN_BYTES,
            attributes: object.attributes.clone(),
            modified: Some(object.meta.last_modified.into()),
            version: Some(object.version()),
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
        let digest = object.digest.filter(|_| range.is_none());
        let source = Self::of_span(object, name, range)?;
        Ok(match digest {
            Some(digest) => source.compared(name.to_owned(), digest),
            None => source,
        })
    }

    fn of_span(object: Object, name: &str, range: Option<ByteRange>) -> Result<Self, Failure> {
        let span = span(name, range, object.meta.size)?;
        let parts = part_bytes(span.end - span.start);
        let (attributes, version) = (object.attributes.clone(), Some(object.version()));
        let modified = Some(object.meta.last_modified.into());
        let object = Arc::new(object);
        if !object.has_parts() {
            return Ok(Self {
                modified,
                attributes,
                version,
                ..Self::of_stream(name.to_owned(), object, span, parts)
            });
        }
        let read = move |part: Range<u64>| {
            let object = Arc::clone(&object);
            async move { object.part(part).await.map(Part::from) }
        };
        Ok(Self {
            modified,
            version,
            ..Self::of_spans(span, parts, attributes, read)
        })
    }

    /// Ends the stream with a failure if its bytes do not have this digest: no sink completes then.
    pub(crate) fn compared(self, name: String, expected: ContentDigest) -> Self {
        let begun = (self.parts, RunningDigest::like(&expected));
        let parts = stream::try_unfold(Some(begun), move |begun| {
            let name = name.clone();
            async move {
                let Some((mut parts, mut running)) = begun else {
                    return Ok(None);
                };
                if let Some(part) = parts.try_next().await? {
                    part.iter().for_each(|piece| running.update(piece));
                    return Ok(Some((part, Some((parts, running)))));
                }
                match running.finish() {
                    got if got == expected => Ok(None),
                    got => Err(wrong_digest(&name, &expected, &got)),
                }
            }
        });
        Self {
            parts: parts.boxed(),
            ..self
        }
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
            version: None,
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
        F: Future<Output = Result<Part, Failure>> + Send + 'static,
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
            version: None,
            file: None,
            parts: parts.buffered(ahead(part_bytes)).boxed(),
        }
    }

    /// Returns the next part; `None` after the last.
    pub(crate) async fn next(&mut self) -> Result<Option<Part>, Failure> {
        self.parts.try_next().await
    }
}

/// The failure of a copy whose bytes do not have the object's digest.
pub(crate) fn wrong_digest(name: &str, expected: &ContentDigest, got: &ContentDigest) -> Failure {
    Failure::failed(format!(
        "cannot read {name}: the bytes have {got}, and {expected} is expected; try again, or compare the object with its source"
    ))
}

/// Reads to the end, part by part.
fn in_parts(
    name: String,
    reader: impl AsyncRead + Send + Unpin + 'static,
    part_bytes: u64,
) -> impl Stream<Item = Result<Part, Failure>> + Send + 'static {
    stream::try_unfold((Some(reader), name), move |(reader, name)| async move {
        let Some(mut reader) = reader else {
            return Ok(None);
        };
        let mut part = Vec::new();
        let read = (&mut reader).take(part_bytes).read_to_end(&mut part).await;
        read.map_err(|error| Failure::io(format!("cannot read {name}"), &error))?;
        // A short part is the last: a terminal would need a second end-of-file.
        let rest = (part.len() as u64 == part_bytes).then_some(reader);
        Ok((!part.is_empty()).then(|| (Bytes::from(part).into(), (rest, name))))
    })
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

/// An open file.
struct Opened {
    file: File,
    /// Its length, if it can be read in parts.
    bytes: Option<u64>,
    modified: Option<SystemTime>,
    /// Its version, if it is regular.
    version: Option<FileVersion>,
}

async fn open_file(path: &FsPath) -> Result<Opened, Failure> {
    let name = path.display().to_string();
    let path = path.to_owned();
    let opened = tokio::task::spawn_blocking(move || open_or_put_back(&path)).await;
    let opened = opened.map_err(io::Error::other).and_then(|opened| opened);
    opened.map_err(|error| unreadable(&name, &error))
}

fn unreadable(name: &str, error: &io::Error) -> Failure {
    Failure::io(format!("cannot read {name}"), error)
}

/// Opens a file. One that an interrupted move set aside gets its name again.
fn open_or_put_back(path: &FsPath) -> io::Result<Opened> {
    match open_blocking(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => match put_back(path) {
            Ok(Some(aside)) => {
                let (name, aside) = (path.display(), aside.display());
                tracing::warn!(
                    "{name} was set aside as {aside} by an interrupted mv, and is put back"
                );
                open_blocking(path)
            }
            _ => Err(error),
        },
        opened => opened,
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "no event tells that the clock of the file system has ticked; no runtime thread"
)]
fn open_blocking(path: &FsPath) -> io::Result<Opened> {
    let link = link_at(path)?;
    let file = File::open(path)?;
    let mut meta = file.metadata()?;
    if meta.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if !meta.is_file() {
        return Ok(Opened {
            file,
            bytes: None,
            modified: None,
            version: None,
        });
    }
    let mut identity = FileIdentity::from(&meta);
    if !identity.is_settled() {
        // A change within the same tick of the file system's clock would not be seen.
        std::thread::sleep(identity.settles_within());
        meta = file.metadata()?;
        identity = FileIdentity::from(&meta);
    }
    Ok(Opened {
        file,
        // Files of /proc have length 0 and content.
        bytes: Some(meta.len()).filter(|bytes| *bytes > 0),
        modified: meta.modified().ok(),
        version: Some(FileVersion {
            file: identity,
            link,
        }),
    })
}

fn read_exact(file: &File, part: &Range<u64>) -> io::Result<Part> {
    let mut bytes = Vec::new();
    let wanted = part.end - part.start;
    bytes.reserve_exact(usize::try_from(wanted).map_err(io::Error::other)?);
    ReadAt {
        file,
        offset: part.start,
    }
    .take(wanted)
    .read_to_end(&mut bytes)?;
    if bytes.len() as u64 != wanted {
        return Err(io::Error::other("it became shorter while it was read"));
    }
    Ok(Bytes::from(bytes).into())
}

/// Reads a shared file at an offset of its own.
struct ReadAt<'a> {
    file: &'a File,
    offset: u64,
}

impl Read for ReadAt<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use bywash::{Consistency, Engine, OriginUrl};
    use object_store::ObjectStoreExt;
    use object_store::path::Path;

    use super::*;

    #[tokio::test]
    async fn part_of_an_object_is_not_joined() {
        let engine = Engine::builder().memory(64 << 20).build().unwrap();
        let origin = OriginUrl::Memory.open().unwrap();
        let bucket = engine.mount("objects", origin, Consistency::Immutable);
        let (bucket, path) = (bucket.unwrap(), Path::from("large"));
        let content = Bytes::from(vec![7; 5 << 20]);
        bucket.put(&path, content.clone().into()).await.unwrap();
        let object = Object::at("large", bucket, path).await.unwrap();
        let mut source = Source::of_object(object, "large", None).unwrap();
        let part = source.next().await.unwrap().unwrap();
        assert!(part == Part::from(content));
        assert!(part.into_iter().count() > 1);
    }
}
