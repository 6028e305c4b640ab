//! Boundaries of an upload's chunks: the same in every process, so that stored parts can be matched.

use bywash_store::ChunkRule;
use serde::{Deserialize, Serialize};

/// Chunk from which a plan applies, and its offset: not the first one if the length of chunks was changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct PlanStart {
    index: u64,
    offset: u64,
}

impl PlanStart {
    fn is_zero(&self) -> bool {
        *self == Self::default()
    }
}

/// Doublings of the chunk length within a store's maximum number of chunks. Twelve take S3's 10,000 parts from 5 MiB
/// past 5 TiB.
const GROWTH_STEPS: u64 = 12;

/// The length of each chunk of an upload, by its index. The last chunk ends with the object.
///
/// If the object's length is known, all chunks have one length. If not, and the store limits the number of chunks, it
/// doubles after each twelfth of that number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChunkPlan {
    /// Bytes of the first chunk.
    first: u64,
    /// Maximum bytes of a chunk.
    #[serde(rename = "most")]
    max: u64,
    /// Chunks before the length doubles, if it does.
    step: Option<u64>,
    /// Maximum number of chunks, if the store limits it.
    chunks: Option<u64>,
    /// Nothing is known of chunks before this one.
    #[serde(default, skip_serializing_if = "PlanStart::is_zero")]
    start: PlanStart,
}

impl ChunkPlan {
    /// Fits `chunk` bytes to a store's rule. `exact`: the user chose this length, so an odd one is rounded down to the
    /// store's unit, as in Google's writer; any other is rounded up. Neither is below the store's minimum, and both are
    /// made longer if the object's length requires it.
    ///
    /// # Errors
    /// A sentence that states the rule.
    pub(crate) fn new(
        rule: &ChunkRule,
        chunk: u64,
        exact: bool,
        length: Option<u64>,
    ) -> Result<Self, String> {
        let granule = rule.granule.max(1);
        let min = rule.min.max(1).next_multiple_of(granule);
        let max = rule.max / granule * granule;
        let rounded = if exact {
            chunk / granule * granule
        } else {
            chunk.max(min).next_multiple_of(granule)
        };
        if exact && (chunk == 0 || rounded > max) {
            return Err(format!(
                "{chunk} bytes do not fit the store: its chunks are multiples of {granule} bytes, from {min} to {max}"
            ));
        }
        let mut first = rounded.max(min).min(max);
        let mut step = None;
        match (rule.max_chunks, length) {
            (Some(chunks), Some(length)) => {
                let needed = length.div_ceil(chunks.max(1)).next_multiple_of(granule);
                if needed > max {
                    return Err(format!(
                        "{length} bytes are more than the store takes: {chunks} chunks of {max} bytes"
                    ));
                }
                first = first.max(needed);
            }
            (Some(chunks), None) => step = Some((chunks / GROWTH_STEPS).max(1)),
            (None, _) => {}
        }
        Ok(Self {
            first,
            max: if step.is_some() { max } else { first },
            step,
            chunks: rule.max_chunks,
            start: PlanStart::default(),
        })
    }

    /// Returns the plan with chunks of another length from chunk `index` on, which begins at `offset`. `length` is the
    /// object's, if known.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub(crate) fn changed_from(
        rule: &ChunkRule,
        (index, offset): (u64, u64),
        chunk: u64,
        length: Option<u64>,
    ) -> Result<Self, String> {
        let left = ChunkRule {
            max_chunks: rule.max_chunks.map(|max| max.saturating_sub(index)),
            ..*rule
        };
        let length = length.map(|length| length.saturating_sub(offset));
        Ok(Self {
            chunks: rule.max_chunks,
            start: PlanStart { index, offset },
            ..Self::new(&left, chunk, true, length)?
        })
    }

    /// Whether the length of chunks was changed after the first one.
    pub(crate) fn was_changed(&self) -> bool {
        !self.start.is_zero()
    }

    /// The offset before which nothing is known of chunks.
    pub(crate) fn known_from(&self) -> u64 {
        self.start.offset
    }

    /// Whether the plan is valid; one read from a journal or token may not be.
    pub(crate) fn is_sound(&self) -> bool {
        self.first > 0 && self.first <= self.max && self.step != Some(0)
    }

    /// The maximum number of chunks, if the store limits it.
    pub(crate) fn chunks(&self) -> Option<u64> {
        self.chunks
    }

    /// Returns the bytes of the chunk `index`.
    pub(crate) fn length_of(&self, index: u64) -> u64 {
        let index = index.saturating_sub(self.start.index);
        let doublings = self.step.map_or(0, |step| index / step);
        let factor = u32::try_from(doublings)
            .ok()
            .and_then(|doublings| 1_u64.checked_shl(doublings));
        factor
            .and_then(|factor| self.first.checked_mul(factor))
            .map_or(self.max, |length| length.min(self.max))
    }

    /// Returns the offset of the chunk `index`.
    pub(crate) fn start_of(&self, index: u64) -> u64 {
        let PlanStart {
            index: first,
            offset,
        } = self.start;
        let Some(step) = self.step else {
            let length = index.saturating_sub(first).saturating_mul(self.first);
            return offset.saturating_add(length);
        };
        let (mut start, mut at) = (offset, first);
        while at < index {
            let length = self.length_of(at);
            let last = length == self.max;
            let count = if last {
                index - at
            } else {
                step.min(index - at)
            };
            start = start.saturating_add(count.saturating_mul(length));
            at += count;
        }
        start
    }

    /// Returns the index of the chunk that contains `offset`.
    pub(crate) fn index_at(&self, offset: u64) -> u64 {
        let mut offset = offset.saturating_sub(self.start.offset);
        let mut at = self.start.index;
        let Some(step) = self.step else {
            return at.saturating_add(offset / self.first);
        };
        loop {
            let length = self.length_of(at);
            let within = offset / length;
            if length == self.max || within < step {
                return at.saturating_add(within);
            }
            offset -= step * length;
            at = at.saturating_add(step);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;
    const TIB: u64 = 1 << 40;

    const S3: ChunkRule = ChunkRule {
        granule: 1,
        min: 5 * MIB,
        max: 5 << 30,
        max_chunks: Some(10_000),
        parallel: true,
    };
    const GCS: ChunkRule = ChunkRule {
        granule: 256 << 10,
        min: 256 << 10,
        max: TIB,
        max_chunks: None,
        parallel: false,
    };

    #[test]
    fn exact_chunk_length_is_rounded_down_to_the_unit_and_raised_to_the_minimum() {
        for (chunk, fitted) in [
            (1, 256),
            (256 << 10, 256),
            (300_000, 256),
            ((512 << 10) - 1, 256),
            (512 << 10, 512),
        ] {
            let plan = ChunkPlan::new(&GCS, chunk, true, None).unwrap();
            assert_eq!(plan.length_of(0), fitted << 10, "{chunk}");
        }
        let small = ChunkPlan::new(&S3, MIB, true, None).unwrap();
        assert_eq!(small.length_of(0), 5 * MIB);
        let none = ChunkPlan::new(&GCS, 0, true, None).unwrap_err();
        assert!(none.contains("multiples of 262144"), "{none}");
        let long = ChunkPlan::new(&S3, 6 << 30, true, None).unwrap_err();
        assert!(long.contains("to 5368709120"), "{long}");
        let fitted = ChunkPlan::new(&GCS, 300_000, false, None).unwrap();
        assert_eq!(fitted.length_of(0), 512 << 10);
        let fitted = ChunkPlan::new(&S3, MIB, false, Some(7 * MIB)).unwrap();
        assert_eq!(fitted.length_of(0), 5 * MIB);
        assert!(ChunkPlan::new(&S3, 5 * MIB, true, Some(60 * TIB)).is_err());
    }

    proptest! {
        #[test]
        fn changed_plan_goes_on_at_its_chunk(
            chunk in 5 * MIB..64 * MIB,
            first in 0_u64..9_000,
            offset in 0..TIB,
            known in proptest::option::of(0..4 * TIB),
            index in 0_u64..1_000,
            within in any::<u64>(),
        ) {
            let known = known.map(|left| offset + left);
            let plan = ChunkPlan::changed_from(&S3, (first, offset), chunk, known).unwrap();
            prop_assert_eq!(plan.start_of(first), offset);
            prop_assert_eq!(plan.index_at(offset), first);
            prop_assert_eq!(plan.chunks(), Some(10_000));
            let index = first + index;
            let length = plan.length_of(index);
            prop_assert_eq!(plan.start_of(index + 1), plan.start_of(index) + length);
            prop_assert_eq!(plan.index_at(plan.start_of(index) + within % length), index);
            if let Some(known) = known {
                prop_assert!(plan.start_of(10_000) >= known);
            }
        }

        #[test]
        fn plan_satisfies_the_rule_and_finds_every_offset(
            chunk in 1..64 * MIB,
            granule_log in 0_u32..20,
            known in proptest::option::of(0..5 * TIB),
            index in 0_u64..10_000,
            within in any::<u64>(),
        ) {
            let rule = ChunkRule { granule: 1 << granule_log, ..S3 };
            let plan = ChunkPlan::new(&rule, chunk, false, known).unwrap();
            let needed = known.unwrap_or(5 * TIB);
            prop_assert!(plan.start_of(10_000) >= needed);
            let length = plan.length_of(index);
            prop_assert!(length.is_multiple_of(rule.granule) && length >= rule.min && length <= rule.max);
            prop_assert_eq!(plan.start_of(index + 1), plan.start_of(index) + length);
            prop_assert_eq!(plan.index_at(plan.start_of(index) + within % length), index);
            if known.is_some() {
                prop_assert_eq!(length, plan.length_of(0));
                let longer = plan.length_of(0) > chunk.max(rule.min).next_multiple_of(rule.granule);
                prop_assert!(!longer || (plan.length_of(0) - rule.granule) * 10_000 < needed);
            }
        }
    }
}
