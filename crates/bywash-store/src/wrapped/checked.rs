//! Compares the response to a read with its request.

use std::ops::Range;

use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{Error, GetOptions, GetRange, GetResult, GetResultPayload, Result};

use crate::error::OriginError;

/// The bytes that a read asks for.
#[derive(Debug)]
pub(super) enum Asked {
    /// None: the metadata only.
    Head,
    /// A range, or all bytes.
    Bytes(Option<GetRange>),
}

impl Asked {
    pub(super) fn of(options: &GetOptions) -> Self {
        if options.head {
            Self::Head
        } else {
            Self::Bytes(options.range.clone())
        }
    }

    /// Returns the bytes that an object of `size` bytes has of it.
    fn range_of(&self, size: u64) -> Option<Range<u64>> {
        match self {
            Self::Bytes(Some(range)) => range.as_range(size).ok(),
            Self::Head | Self::Bytes(None) => Some(0..size),
        }
    }
}

/// Returns the response with a body that fails unless it is as long as the response states.
///
/// # Errors
/// [`OriginError::BadResponse`] if it has another range than the one asked for.
pub(super) fn checked(path: &Path, asked: &Asked, result: GetResult) -> Result<GetResult> {
    let (meta, range) = (result.meta.clone(), result.range.clone());
    let (attributes, extensions) = (result.attributes.clone(), result.extensions.clone());
    let body = match asked {
        Asked::Head => stream::empty().boxed(),
        Asked::Bytes(_) => {
            let is_empty = meta.size == 0 && range == (0..0);
            let expected = asked.range_of(meta.size);
            if !is_empty && expected.as_ref() != Some(&range) {
                let detail = match expected {
                    Some(expected) => format!("requested {expected:?}, received {range:?}"),
                    None => format!(
                        "received {range:?} of a range beyond its {} bytes",
                        meta.size
                    ),
                };
                return Err(bad(path, detail));
            }
            of_length(path, range.end - range.start, result.into_stream())
        }
    };
    Ok(GetResult {
        payload: GetResultPayload::Stream(body),
        meta,
        range,
        attributes,
        extensions,
    })
}

fn bad(path: &Path, detail: String) -> Error {
    let object = path.to_string();
    OriginError::bad_response(object, detail)
}

/// A body of `length` bytes, or an error at its end. Holds nothing of it.
fn of_length(
    path: &Path,
    length: u64,
    body: BoxStream<'static, Result<Bytes>>,
) -> BoxStream<'static, Result<Bytes>> {
    let path = path.clone();
    let pieces = stream::try_unfold((body, 0_u64), move |(mut body, got)| {
        let path = path.clone();
        async move {
            let Some(piece) = body.try_next().await? else {
                let detail = format!("the body ended after {got} bytes of {length}");
                let is_whole = got == length;
                return is_whole.then_some(None).ok_or_else(|| bad(&path, detail));
            };
            let got = got + piece.len() as u64;
            if got > length {
                let detail = format!("the body is longer than its {length} bytes");
                return Err(bad(&path, detail));
            }
            Ok(Some((piece, (body, got))))
        }
    });
    pieces.boxed()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use object_store::{Attributes, Extensions, ObjectMeta};

    use super::*;

    /// A response that states `range` of an object of 100 bytes and sends `sent` bytes.
    fn response(range: Range<u64>, sent: usize) -> GetResult {
        let piece = Ok(Bytes::from(vec![7; sent]));
        GetResult {
            payload: GetResultPayload::Stream(stream::iter([piece]).boxed()),
            meta: ObjectMeta {
                location: Path::from("a"),
                last_modified: chrono::DateTime::UNIX_EPOCH,
                size: 100,
                e_tag: None,
                version: None,
            },
            range,
            attributes: Attributes::new(),
            extensions: Extensions::new(),
        }
    }

    async fn read(asked: GetRange, range: Range<u64>, sent: usize) -> Result<usize> {
        let found = checked(
            &Path::from("a"),
            &Asked::Bytes(Some(asked)),
            response(range, sent),
        )?;
        let pieces: Vec<Bytes> = found.into_stream().try_collect().await?;
        Ok(pieces.concat().len())
    }

    #[tokio::test]
    async fn range_and_length_must_be_those_requested() {
        let bounded = |range| GetRange::Bounded(range);
        for (asked, range, sent) in [
            (bounded(10..20), 10..20, 10),
            (bounded(90..200), 90..100, 10),
            (GetRange::Offset(40), 40..100, 60),
            (GetRange::Suffix(30), 70..100, 30),
        ] {
            assert_eq!(read(asked, range, sent).await.unwrap(), sent);
        }
        for (asked, range, sent) in [
            (bounded(10..20), 0..10, 10),
            (bounded(10..20), 10..20, 9),
            (bounded(10..20), 10..20, 11),
            (bounded(100..110), 90..100, 10),
            (GetRange::Suffix(30), 0..100, 100),
        ] {
            let error = read(asked, range, sent).await.unwrap_err();
            let found = OriginError::find(&error);
            assert!(
                matches!(found, Some(OriginError::BadResponse { .. })),
                "{error}"
            );
        }
    }
}
