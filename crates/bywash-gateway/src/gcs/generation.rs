//! Generations: numbers of versions, computed of what the origin knows of a version, so every node and restart computes the same.
//!
//! The upper bits are the time of the version: in folders and memory to about a millisecond, elsewhere to the second, because
//! the listings of stores have other fractions of it than their responses. The lower 20 bits are a digest of its ETag. So
//! versions of one object have different generations, but for one in a million within that time, and later ones have higher
//! ones if they differ in it.

use bywash::Bucket;
use object_store::ObjectMeta;

use super::error::{GcsError, GcsResult};
use super::query::Query;
use crate::digest::Algorithm;
use crate::meta::bare;

/// Bits of the digest of the ETag.
const DIGEST_BITS: u32 = 20;
/// Metadata is never changed in place: each version has its first.
pub(crate) const METAGENERATION: i64 = 1;

/// Returns the generation of a version.
pub(crate) fn generation(bucket: &Bucket, meta: &ObjectMeta) -> i64 {
    let time = match bucket.takes_late_attributes() {
        true => meta.last_modified.timestamp_nanos_opt(),
        false => meta.last_modified.timestamp().checked_mul(1_000_000_000),
    };
    let mask = (1 << DIGEST_BITS) - 1;
    let mut hasher = Algorithm::Crc32c.hasher();
    hasher.update(bare(meta.e_tag.as_deref().unwrap_or_default()).as_bytes());
    let digest = hasher.finish();
    let digest = digest
        .iter()
        .fold(0_i64, |number, byte| number << 8 | i64::from(*byte));
    // Zero stands for an absent object.
    (time.unwrap_or_default() & !mask | digest & mask).max(1)
}

/// Conditions on the generation and metageneration of a version.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Conditions {
    /// The version that the request names.
    pub(crate) named: Option<i64>,
    pub(crate) matching: Option<i64>,
    not_matching: Option<i64>,
    meta_matching: Option<i64>,
    meta_not_matching: Option<i64>,
}

/// Result of a failed condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unmet {
    /// The version that the request names does not exist.
    Absent,
    Failed,
    NotModified,
}

impl Conditions {
    /// Parses the conditions of a request.
    pub(crate) fn of(query: &Query) -> GcsResult<Self> {
        Ok(Self {
            named: query.number("generation")?,
            matching: query.number("ifGenerationMatch")?,
            not_matching: query.number("ifGenerationNotMatch")?,
            meta_matching: query.number("ifMetagenerationMatch")?,
            meta_not_matching: query.number("ifMetagenerationNotMatch")?,
        })
    }

    /// Parses the conditions of a copy's source.
    pub(crate) fn of_source(query: &Query) -> GcsResult<Self> {
        Ok(Self {
            named: query.number("sourceGeneration")?,
            matching: query.number("ifSourceGenerationMatch")?,
            not_matching: query.number("ifSourceGenerationNotMatch")?,
            meta_matching: query.number("ifSourceMetagenerationMatch")?,
            meta_not_matching: query.number("ifSourceMetagenerationNotMatch")?,
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether the only condition is that the object is absent.
    pub(crate) fn is_absent_only(&self) -> bool {
        let absent = Self {
            matching: Some(0),
            ..Self::default()
        };
        *self == absent
    }

    /// Checks a generation; 0 is that of an absent object.
    pub(crate) fn check(&self, current: i64) -> Result<(), Unmet> {
        let exists = current != 0;
        if self.named.is_some_and(|named| named != current) {
            return Err(Unmet::Absent);
        }
        let matched = self.matching.is_none_or(|wanted| wanted == current);
        let meta_matched = self
            .meta_matching
            .is_none_or(|wanted| exists && wanted == METAGENERATION);
        if !matched || !meta_matched {
            return Err(Unmet::Failed);
        }
        let changed = self.not_matching.is_none_or(|known| known != current);
        let meta_changed = self
            .meta_not_matching
            .is_none_or(|known| exists && known != METAGENERATION);
        match changed && meta_changed {
            true => Ok(()),
            false => Err(Unmet::NotModified),
        }
    }

    /// Checks the version of a read.
    pub(crate) fn check_read(&self, current: i64, object: &str) -> GcsResult<()> {
        self.check(current).map_err(|unmet| match unmet {
            Unmet::Absent => GcsError::not_found(format!("{object} has no such generation.")),
            Unmet::Failed => GcsError::condition(object),
            Unmet::NotModified => {
                GcsError::new(http::StatusCode::NOT_MODIFIED, "notModified", object)
            }
        })
    }

    /// Checks the version that a write replaces, or that a copy reads.
    pub(crate) fn check_write(&self, current: i64, object: &str) -> GcsResult<()> {
        self.check(current).map_err(|unmet| match unmet {
            Unmet::Absent => GcsError::not_found(format!("{object} has no such generation.")),
            Unmet::Failed | Unmet::NotModified => GcsError::condition(object),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_compare_generations_and_zero_is_absence() {
        let matching = |wanted| Conditions {
            matching: Some(wanted),
            ..Conditions::default()
        };
        assert_eq!(matching(5).check(5), Ok(()));
        assert_eq!(matching(5).check(6), Err(Unmet::Failed));
        assert_eq!(matching(0).check(0), Ok(()));
        assert_eq!(matching(0).check(6), Err(Unmet::Failed));
        assert!(matching(0).is_absent_only() && !matching(1).is_absent_only());
        let other = |known| Conditions {
            not_matching: Some(known),
            ..Conditions::default()
        };
        assert_eq!(other(5).check(6), Ok(()));
        assert_eq!(other(5).check(5), Err(Unmet::NotModified));
        assert_eq!(other(0).check(0), Err(Unmet::NotModified));
        let meta = Conditions {
            meta_matching: Some(2),
            ..Conditions::default()
        };
        assert_eq!(meta.check(6), Err(Unmet::Failed));
        let named = Conditions {
            named: Some(5),
            ..Conditions::default()
        };
        assert_eq!(named.check(6), Err(Unmet::Absent));
    }
}
