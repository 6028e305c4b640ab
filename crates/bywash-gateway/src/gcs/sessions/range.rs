//! Content-Range of requests of a session.

use http::HeaderMap;
use http::header::{CONTENT_LENGTH, CONTENT_RANGE};

use super::super::error::{GcsError, GcsResult};
use crate::meta::text;

/// The length of every chunk but the last is a multiple of this.
const GRANULE_BYTES: u64 = 256 << 10;

/// Bytes that a request of a session has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ContentRange {
    /// No bytes: a question for the status, or the end of an object of this length.
    Status { total: Option<u64> },
    /// Bytes from `first` up to before `end`, and the length of the object if it is known.
    Chunk {
        first: u64,
        end: u64,
        total: Option<u64>,
    },
    /// The whole object, of this length if it is known.
    Whole { length: Option<u64> },
}

impl ContentRange {
    /// Parses the header of a request; without it, the body is the whole object.
    pub(crate) fn of(headers: &HeaderMap) -> GcsResult<Self> {
        let length = text(headers, CONTENT_LENGTH.as_str()).and_then(|text| text.parse().ok());
        let Some(range) = text(headers, CONTENT_RANGE.as_str()) else {
            return Ok(Self::Whole { length });
        };
        let parsed = Self::parse(range).ok_or_else(|| {
            GcsError::invalid(format!(
                "The Content-Range is bytes FIRST-LAST/TOTAL, FIRST-LAST/* or */TOTAL, not {range:?}."
            ))
        })?;
        parsed.check_length(length)?;
        Ok(parsed)
    }

    fn parse(range: &str) -> Option<Self> {
        let (range, total) = range
            .trim()
            .strip_prefix("bytes ")?
            .trim()
            .split_once('/')?;
        let number = |text: &str| -> Option<u64> {
            let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            plain.then(|| text.parse().ok()).flatten()
        };
        let total = match total {
            "*" => None,
            total => Some(number(total)?),
        };
        if range == "*" {
            return Some(Self::Status { total });
        }
        let (first, last) = range.split_once('-')?;
        let first = number(first)?;
        let end = match last {
            // The last byte of none, as Google's Node client states it of an empty object.
            "-1" => 0,
            last => number(last)?.checked_add(1)?,
        };
        if first == end && total == Some(end) {
            return Some(Self::Status { total });
        }
        let fits = first < end && total.is_none_or(|total| end <= total);
        fits.then_some(Self::Chunk { first, end, total })
    }

    /// The length of the object, if the request states it.
    pub(super) fn total(self) -> Option<u64> {
        match self {
            Self::Status { total } | Self::Chunk { total, .. } => total,
            Self::Whole { length } => length,
        }
    }

    /// The range within an object of the length that its session has announced: a chunk that reaches it is the last one.
    ///
    /// # Errors
    /// If the object would have another length, or the chunk is too short and not the last.
    pub(super) fn within(self, announced: Option<u64>) -> GcsResult<Self> {
        let range = match announced {
            Some(length) => self.within_length(length)?,
            None => self,
        };
        range.check_granule()?;
        Ok(range)
    }

    fn within_length(self, length: u64) -> GcsResult<Self> {
        let stated = match self {
            Self::Chunk { end, total, .. } => total.or((end > length).then_some(end)),
            other => other.total(),
        };
        match (self, stated) {
            (_, Some(stated)) if stated != length => Err(other_length(stated, length)),
            (Self::Chunk { first, end, .. }, _) => Ok(Self::Chunk {
                first,
                end,
                total: Some(length),
            }),
            _ => Ok(self),
        }
    }

    /// Refuses a body of another length.
    fn check_length(self, length: Option<u64>) -> GcsResult<()> {
        match (self, length) {
            (Self::Chunk { first, end, .. }, Some(length)) if length != end - first => {
                Err(GcsError::invalid(format!(
                    "The body has {length} bytes, and its Content-Range {}.",
                    end - first
                )))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a chunk that is too short and not the last.
    fn check_granule(self) -> GcsResult<()> {
        let Self::Chunk { first, end, total } = self else {
            return Ok(());
        };
        let is_last = total == Some(end);
        if !is_last && end - first < GRANULE_BYTES && end % GRANULE_BYTES != 0 {
            return Err(GcsError::short_chunk(end - first, GRANULE_BYTES));
        }
        Ok(())
    }
}

/// The error of an upload that ends, or would end, with another length than its session has announced.
pub(super) fn other_length(stated: u64, announced: u64) -> GcsError {
    GcsError::invalid(format!(
        "Invalid request.  According to the Content-Range header, the final size of the upload is {stated} byte(s), which does not match \
         the expected size of {announced} byte(s), which was specified in an earlier request."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_the_protocol_are_parsed() {
        let chunk = |first, end, total| Some(ContentRange::Chunk { first, end, total });
        for (text, parsed) in [
            ("bytes 0-262143/*", chunk(0, 262_144, None)),
            (
                "bytes 262144-262145/262146",
                chunk(262_144, 262_146, Some(262_146)),
            ),
            ("bytes */*", Some(ContentRange::Status { total: None })),
            ("bytes */0", Some(ContentRange::Status { total: Some(0) })),
            (
                "bytes 0--1/0",
                Some(ContentRange::Status { total: Some(0) }),
            ),
            ("bytes 5-4/5", Some(ContentRange::Status { total: Some(5) })),
            ("bytes 5-4/*", None),
            ("bytes 0--1/*", None),
            ("bytes 0--2/0", None),
            ("bytes 0-9/5", None),
            ("bytes 0-/5", None),
            ("bytes +1-2/5", None),
            ("bytes 0-18446744073709551615/*", None),
            ("bytes=0-1/2", None),
            ("", None),
        ] {
            assert_eq!(ContentRange::parse(text), parsed, "{text}");
        }
    }

    #[test]
    fn only_the_last_chunk_may_be_short() {
        let chunk = |first, end, total| ContentRange::Chunk { first, end, total };
        for (range, length, is_served) in [
            (chunk(0, 262_144, None), Some(262_144), true),
            (chunk(0, 262_143, None), None, false),
            (chunk(0, 100, Some(200)), Some(100), false),
            (chunk(0, 100, Some(100)), Some(100), true),
            (chunk(0, 300_000, None), Some(300_000), true),
            // The rest of a chunk after the part that the server kept.
            (chunk(400_000, 524_288, None), Some(124_288), true),
            (chunk(0, 262_144, None), Some(262_143), false),
        ] {
            let found = range.check_length(length).and(range.check_granule());
            assert_eq!(found.is_ok(), is_served, "{range:?}");
        }
    }
}
