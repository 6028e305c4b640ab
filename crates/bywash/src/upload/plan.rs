//! Where an upload's chunks begin: the same in every process, so that parts can be found again.

use serde::{Deserialize, Serialize};

use super::ChunkRule;

/// The chunk length doubles this many times, at most, before a store that counts chunks has no more of them. Twelve steps take
/// S3's 10,000 parts from 5 MiB past 5 TiB.
const GROWTH_STEPS: u64 = 12;

/// The length of each chunk of an upload, by its index. The last chunk ends where the object does.
///
/// With the object's length known, all chunks have one length. Without, and where the store counts chunks, it doubles after
/// each twelfth of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkPlan {
    /// Bytes of the first chunk.
    first: u64,
    /// Bytes of the longest chunk.
    most: u64,
    /// Chunks before the length doubles, if it does.
    step: Option<u64>,
    /// The most chunks, if the store counts them.
    chunks: Option<u64>,
}

impl ChunkPlan {
    /// A plan before anything is known of the store: chunks of `chunk` bytes.
    pub(crate) fn fixed(chunk: u64) -> Self {
        Self {
            first: chunk,
            most: chunk,
            step: None,
            chunks: None,
        }
    }

    /// Fits `chunk` bytes to a store's rule. `exact`: somebody asked for just this, so it is not rounded to the rule, and only made
    /// longer if the length needs it.
    ///
    /// # Errors
    /// The sentence that says the rule.
    pub(crate) fn new(
        rule: &ChunkRule,
        chunk: u64,
        exact: bool,
        length: Option<u64>,
    ) -> Result<Self, String> {
        let granule = rule.granule.max(1);
        let least = rule.least.max(1).next_multiple_of(granule);
        let most = rule.most / granule * granule;
        let broken =
            chunk == 0 || !chunk.is_multiple_of(granule) || !(least..=most).contains(&chunk);
        if exact && broken {
            return Err(format!(
                "{chunk} bytes do not fit the store: its chunks are multiples of {granule} bytes, from {least} to {most}"
            ));
        }
        let mut first = chunk.max(least).next_multiple_of(granule).min(most);
        let mut step = None;
        match (rule.chunks, length) {
            (Some(chunks), Some(length)) => {
                let needed = length.div_ceil(chunks.max(1)).next_multiple_of(granule);
                if needed > most {
                    return Err(format!(
                        "{length} bytes are more than the store takes: {chunks} chunks of {most} bytes"
                    ));
                }
                first = first.max(needed);
            }
            (Some(chunks), None) => step = Some((chunks / GROWTH_STEPS).max(1)),
            (None, _) => {}
        }
        Ok(Self {
            first,
            most: if step.is_some() { most } else { first },
            step,
            chunks: rule.chunks,
        })
    }

    /// Whether it can be worked with: one that was read from somewhere might not.
    pub(crate) fn is_sound(&self) -> bool {
        self.first > 0 && self.first <= self.most && self.step != Some(0)
    }

    /// The most chunks, if the store counts them.
    pub(crate) fn chunks(&self) -> Option<u64> {
        self.chunks
    }

    /// Bytes of the chunk of this index.
    #[must_use]
    pub fn length_of(&self, index: u64) -> u64 {
        let doublings = self.step.map_or(0, |step| index / step);
        let factor = u32::try_from(doublings)
            .ok()
            .and_then(|doublings| 1_u64.checked_shl(doublings));
        factor
            .and_then(|factor| self.first.checked_mul(factor))
            .map_or(self.most, |length| length.min(self.most))
    }

    /// Where the chunk of this index begins, in bytes.
    #[must_use]
    pub fn start_of(&self, index: u64) -> u64 {
        let Some(step) = self.step else {
            return index.saturating_mul(self.first);
        };
        let (mut start, mut at) = (0_u64, 0);
        while at < index {
            let length = self.length_of(at);
            let last = length == self.most;
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

    /// The chunk that has the byte at this offset.
    #[must_use]
    pub fn index_at(&self, offset: u64) -> u64 {
        let Some(step) = self.step else {
            return offset / self.first;
        };
        let (mut start, mut at) = (0_u64, 0);
        loop {
            let length = self.length_of(at);
            let within = (offset - start) / length;
            if length == self.most || within < step {
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
        least: 5 * MIB,
        most: 5 << 30,
        chunks: Some(10_000),
        parallel: true,
    };
    const GCS: ChunkRule = ChunkRule {
        granule: 256 << 10,
        least: 256 << 10,
        most: TIB,
        chunks: None,
        parallel: false,
    };

    #[test]
    fn what_somebody_asked_for_is_refused_with_the_rule_when_it_breaks_it() {
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
        fn a_plan_holds_what_it_must_and_finds_every_offset(
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
            prop_assert!(length.is_multiple_of(rule.granule) && length >= rule.least && length <= rule.most);
            prop_assert_eq!(plan.start_of(index + 1), plan.start_of(index) + length);
            prop_assert_eq!(plan.index_at(plan.start_of(index) + within % length), index);
            if known.is_some() {
                prop_assert_eq!(length, plan.length_of(0));
                let longer = plan.length_of(0) > chunk.max(rule.least).next_multiple_of(rule.granule);
                prop_assert!(!longer || (plan.length_of(0) - rule.granule) * 10_000 < needed);
            }
        }
    }
}
