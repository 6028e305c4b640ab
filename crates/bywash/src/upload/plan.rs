//! Boundaries of an upload's chunks: the same in every process, so that stored parts can be matched.

use serde::{Deserialize, Serialize};

use crate::origin::session::ChunkRule;

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
}

impl ChunkPlan {
    /// Fits `chunk` bytes to a store's rule. `exact`: the user chose this length, so it is not rounded, and only made
    /// longer if the object's length requires it.
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
        let broken = chunk == 0 || !chunk.is_multiple_of(granule) || !(min..=max).contains(&chunk);
        if exact && broken {
            return Err(format!(
                "{chunk} bytes do not fit the store: its chunks are multiples of {granule} bytes, from {min} to {max}"
            ));
        }
        let mut first = chunk.max(min).next_multiple_of(granule).min(max);
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
        })
    }

    /// Returns whether the plan is valid; one read from a journal or token may not be.
    pub(crate) fn is_sound(&self) -> bool {
        self.first > 0 && self.first <= self.max && self.step != Some(0)
    }

    /// Returns the maximum number of chunks, if the store limits it.
    pub(crate) fn chunks(&self) -> Option<u64> {
        self.chunks
    }

    /// Returns the bytes of the chunk `index`.
    pub(crate) fn length_of(&self, index: u64) -> u64 {
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
        let Some(step) = self.step else {
            return index.saturating_mul(self.first);
        };
        let (mut start, mut at) = (0_u64, 0);
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
        let Some(step) = self.step else {
            return offset / self.first;
        };
        let (mut start, mut at) = (0_u64, 0);
        loop {
            let length = self.length_of(at);
            let within = (offset - start) / length;
            if length == self.max || within < step {
                return at + within;
            }
            start += step * length;
            at += step;
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
    fn exact_chunk_length_that_breaks_the_rule_is_refused_with_the_rule() {
        let odd = ChunkPlan::new(&GCS, 300_000, true, None).unwrap_err();
        assert!(odd.contains("multiples of 262144"), "{odd}");
        let small = ChunkPlan::new(&S3, MIB, true, None).unwrap_err();
        assert!(small.contains("from 5242880"), "{small}");
        let fitted = ChunkPlan::new(&GCS, 300_000, false, None).unwrap();
        assert_eq!(fitted.length_of(0), 512 << 10);
        let fitted = ChunkPlan::new(&S3, MIB, false, Some(7 * MIB)).unwrap();
        assert_eq!(fitted.length_of(0), 5 * MIB);
        assert!(ChunkPlan::new(&S3, 5 * MIB, true, Some(60 * TIB)).is_err());
    }

    proptest! {
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
