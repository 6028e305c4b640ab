//! Generations: numbers of versions, computed from the origin's data about a version, so every node
//! and restart computes the same.
//!
//! The upper bits are the time of the version: in folders and memory to about a millisecond, elsewhere to the second, because
//! the listings of stores have other fractions of it than their responses. The lower 20 bits are a digest of its ETag. So
//! versions of one object have different generations, but for one in a million within that time, and later ones have higher
//! ones if they differ in it. A time before 1970 or after 2262 is in no upper bits: there all bits are the digest's.

use bywash::Bucket;
use object_store::{GetResult, ObjectMeta};
use sha2::{Digest as _, Sha256};

use super::error::{GcsError, GcsResult};
use super::query::Query;
use crate::digest::Algorithm;
use crate::meta::{bare, kept_metageneration};

/// Bits of the digest of the ETag.
const DIGEST_BITS: u32 = 20;

/// The numbers of a version; both are 0 for an absent object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct VersionNumbers {
    pub(crate) generation: i64,
    pub(crate) metageneration: i64,
}

impl VersionNumbers {
    pub(crate) fn of(bucket: &Bucket, found: &GetResult) -> Self {
        Self {
            generation: generation(bucket, &found.meta),
            metageneration: kept_metageneration(&found.attributes),
        }
    }
}

/// The generation of a version.
pub(crate) fn generation(bucket: &Bucket, meta: &ObjectMeta) -> i64 {
    let time = if bucket.takes_late_attributes() {
        meta.last_modified.timestamp_nanos_opt()
    } else {
        meta.last_modified.timestamp().checked_mul(1_000_000_000)
    };
    let mask = (1 << DIGEST_BITS) - 1;
    let mut hasher = Algorithm::Crc32c.hasher();
    hasher.update(bare(meta.e_tag.as_deref().unwrap_or_default()).as_bytes());
    let digest = hasher.finish();
    let digest = digest
        .iter()
        .fold(0_i64, |number, byte| number << 8 | i64::from(*byte));
    let generation = match time.filter(|time| *time > mask) {
        Some(time) => time & !mask | digest & mask,
        None => of_odd_time(meta),
    };
    // Zero stands for an absent object.
    generation.max(1)
}

/// The generation of a version with a time that its upper bits cannot have, before 1970 or far
/// ahead: of all of its digest.
fn of_odd_time(meta: &ObjectMeta) -> i64 {
    let e_tag = bare(meta.e_tag.as_deref().unwrap_or_default());
    let digest = Sha256::digest(format!("{} {e_tag}", meta.last_modified.timestamp()));
    let digest = digest[..8]
        .iter()
        .fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    i64::try_from(digest >> 1).unwrap_or(i64::MAX)
}

/// The version that a request names. Google takes 0 for the current one; its Go client sends it
/// where none is given.
fn named(generation: Option<i64>) -> Option<i64> {
    generation.filter(|generation| *generation != 0)
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
            named: named(query.number("generation")?),
            matching: query.number("ifGenerationMatch")?,
            not_matching: query.number("ifGenerationNotMatch")?,
            meta_matching: query.number("ifMetagenerationMatch")?,
            meta_not_matching: query.number("ifMetagenerationNotMatch")?,
        })
    }

    /// Parses the conditions of a copy's source.
    pub(crate) fn of_source(query: &Query) -> GcsResult<Self> {
        Ok(Self {
            named: named(query.number("sourceGeneration")?),
            matching: query.number("ifSourceGenerationMatch")?,
            not_matching: query.number("ifSourceGenerationNotMatch")?,
            meta_matching: query.number("ifSourceMetagenerationMatch")?,
            meta_not_matching: query.number("ifSourceMetagenerationNotMatch")?,
        })
    }

    /// The conditions of a source that a document names.
    pub(crate) fn of_version(named: Option<i64>, matching: Option<i64>) -> Self {
        Self {
            named: self::named(named),
            matching,
            ..Self::default()
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether they hold for one version alone, or for none.
    pub(crate) fn names_version(&self) -> bool {
        self.named.or(self.matching).is_some()
    }

    /// Refuses conditions on metadata alone for a write at an origin whose ETags depend on the
    /// bytes alone: it would not notice a change of metadata in between. With a generation they are
    /// compared with it, and the time is a part of it.
    pub(crate) fn refuse_unbound(&self, bucket: &Bucket) -> GcsResult<()> {
        let of_metadata = self.meta_matching.or(self.meta_not_matching);
        match of_metadata {
            Some(_) if bucket.origin_kind() == "s3" && !self.names_version() => {
                Err(GcsError::not_served(
                    "Conditions on the metageneration of a write are served over S3 origins, which have none, together with \
                     ifGenerationMatch or a generation only.",
                ))
            }
            _ => Ok(()),
        }
    }

    /// Whether the only condition is that the object is absent.
    pub(crate) fn is_absent_only(&self) -> bool {
        let absent = Self {
            matching: Some(0),
            ..Self::default()
        };
        *self == absent
    }

    /// Checks the numbers of a version, or of an absent object.
    pub(crate) fn check(&self, numbers: VersionNumbers) -> Result<(), Unmet> {
        let VersionNumbers {
            generation: current,
            metageneration,
        } = numbers;
        let exists = current != 0;
        if self.named.is_some_and(|named| named != current) {
            return Err(Unmet::Absent);
        }
        let matched = self.matching.is_none_or(|wanted| wanted == current);
        let meta_matched = self
            .meta_matching
            .is_none_or(|wanted| exists && wanted == metageneration);
        if !matched || !meta_matched {
            return Err(Unmet::Failed);
        }
        let changed = self.not_matching.is_none_or(|known| known != current);
        let meta_changed = self
            .meta_not_matching
            .is_none_or(|known| exists && known != metageneration);
        if changed && meta_changed {
            Ok(())
        } else {
            Err(Unmet::NotModified)
        }
    }

    /// Checks the version of a read.
    pub(crate) fn check_read(&self, current: VersionNumbers, object: &str) -> GcsResult<()> {
        self.check(current).map_err(|unmet| match unmet {
            Unmet::Absent => GcsError::not_found(format!("{object} has no such generation.")),
            Unmet::Failed => GcsError::condition(object),
            Unmet::NotModified => GcsError::not_modified(object),
        })
    }

    /// Checks the version that a write replaces, or that a copy reads.
    pub(crate) fn check_write(&self, current: VersionNumbers, object: &str) -> GcsResult<()> {
        self.check(current).map_err(|unmet| match unmet {
            Unmet::Absent => GcsError::not_found(format!("{object} has no such generation.")),
            Unmet::Failed | Unmet::NotModified => GcsError::condition(object),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::collections::HashSet;
    use std::sync::Arc;

    use bywash::origin::memory::MemoryStore;
    use bywash::{Consistency, Engine};
    use chrono::DateTime;

    use super::*;

    /// The first metadata of a generation; absent if it is 0.
    fn version(generation: i64) -> VersionNumbers {
        VersionNumbers {
            generation,
            metageneration: generation.min(1),
        }
    }

    #[test]
    fn versions_of_any_time_have_positive_and_different_generations() {
        let engine = Engine::builder().memory(16 << 20).build().unwrap();
        let origin = Arc::new(MemoryStore::new());
        let bucket = engine.mount("buc", origin, Consistency::Immutable).unwrap();
        let version = |seconds: i64, e_tag: &str| ObjectMeta {
            location: "k".into(),
            last_modified: DateTime::from_timestamp(seconds, 5).unwrap(),
            size: 1,
            e_tag: Some(e_tag.to_owned()),
            version: None,
        };
        let mut seen = HashSet::new();
        // 1677, 1901, 1965, around 1970, today, 2262, 2300, 9999.
        for seconds in [
            -9_223_372_037,
            -2_147_483_648,
            -149_731_200,
            -1,
            0,
            1,
            1_700_000_000,
            9_223_372_036,
            10_413_792_000,
            253_402_300_799,
        ] {
            for e_tag in ["\"a\"", "\"b\"", "c"] {
                let generation = generation(&bucket, &version(seconds, e_tag));
                assert!(generation > 0, "{seconds}");
                assert!(seen.insert(generation), "{seconds} {e_tag}");
            }
        }
    }

    #[test]
    fn conditions_compare_generations_and_zero_is_absence() {
        let matching = |wanted| Conditions {
            matching: Some(wanted),
            ..Conditions::default()
        };
        assert_eq!(matching(5).check(version(5)), Ok(()));
        assert_eq!(matching(5).check(version(6)), Err(Unmet::Failed));
        assert_eq!(matching(0).check(version(0)), Ok(()));
        assert_eq!(matching(0).check(version(6)), Err(Unmet::Failed));
        assert!(matching(0).is_absent_only() && !matching(1).is_absent_only());
        let other = |known| Conditions {
            not_matching: Some(known),
            ..Conditions::default()
        };
        assert_eq!(other(5).check(version(6)), Ok(()));
        assert_eq!(other(5).check(version(5)), Err(Unmet::NotModified));
        assert_eq!(other(0).check(version(0)), Err(Unmet::NotModified));
        let meta = Conditions {
            meta_matching: Some(2),
            ..Conditions::default()
        };
        assert_eq!(meta.check(version(6)), Err(Unmet::Failed));
        let changed = VersionNumbers {
            metageneration: 2,
            ..version(6)
        };
        assert_eq!(meta.check(changed), Ok(()));
        let named = Conditions {
            named: Some(5),
            ..Conditions::default()
        };
        assert_eq!(named.check(version(6)), Err(Unmet::Absent));
    }
}
