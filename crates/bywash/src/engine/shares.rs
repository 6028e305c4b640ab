//! The shares of the memory that reads and writes are guaranteed.

use std::fmt;
use std::str::FromStr;

use bywash_mem::PoolConfig;

use crate::limits::MAX_GUARANTEED_PERCENT;

/// The percentages of the memory limit that are guaranteed to reads, and to writes. Either side may use the rest as long as the other
/// side does not need it; cached blocks count as reads. Default: 25 % each.
///
/// A server that only reads needs none for writes, and then has all of its memory for the cache. One that takes many uploads from slow
/// clients keeps its reads fast with a larger share for reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryShares {
    reads: u8,
    writes: u8,
}

impl Default for MemoryShares {
    fn default() -> Self {
        Self {
            reads: 25,
            writes: 25,
        }
    }
}

impl MemoryShares {
    /// Guarantees `reads` and `writes` percent of the memory.
    ///
    /// # Errors
    /// The reason, if one is above 40: the other side then has too little for its largest request.
    pub fn new(reads: u8, writes: u8) -> Result<Self, String> {
        if reads.max(writes) <= MAX_GUARANTEED_PERCENT {
            return Ok(Self { reads, writes });
        }
        Err(format!(
            "{reads}%:{writes}% guarantees one side more than {MAX_GUARANTEED_PERCENT}%, which leaves the other too little for a large request"
        ))
    }

    /// The configuration of a pool with these guarantees.
    pub(super) fn of_pool(self, memory: u64) -> PoolConfig {
        PoolConfig {
            download_guarantee: percent(memory, self.reads),
            upload_guarantee: percent(memory, self.writes),
            ..PoolConfig::new(memory)
        }
    }
}

fn percent(memory: u64, part: u8) -> u64 {
    // A memory limit is far below 2^57 bytes.
    memory / 100 * u64::from(part) + memory % 100 * u64::from(part) / 100
}

/// Parses `READS%:WRITES%`, as `10%:0%`.
impl FromStr for MemoryShares {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let part = |text: &str| text.strip_suffix('%')?.parse::<u8>().ok();
        let parsed = text.split_once(':');
        match parsed.and_then(|(reads, writes)| part(reads).zip(part(writes))) {
            Some((reads, writes)) => Self::new(reads, writes),
            None => Err(format!("{text:?} is not READS%:WRITES%, as 25%:25%")),
        }
    }
}

impl fmt::Display for MemoryShares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%:{}%", self.reads, self.writes)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::sync::Arc;

    use bywash_mem::Share;
    use bywash_store::memory::MemoryStore;
    use object_store::ObjectStoreExt as _;

    use super::*;
    use crate::{Consistency, Engine};

    fn shares(text: &str) -> MemoryShares {
        text.parse().unwrap()
    }

    #[test]
    fn text_is_parsed_or_refused_with_its_reason() {
        assert_eq!(shares("25%:25%"), MemoryShares::default());
        assert_eq!(shares("40%:0%").to_string(), "40%:0%");
        for (wrong, reason) in [
            ("41%:0%", "more than 40%"),
            ("0%:100%", "more than 40%"),
            ("25:25", "READS%:WRITES%"),
            ("25%", "READS%:WRITES%"),
            ("-1%:5%", "READS%:WRITES%"),
            ("", "READS%:WRITES%"),
        ] {
            let refused = wrong.parse::<MemoryShares>().unwrap_err();
            assert!(refused.contains(reason), "{wrong}: {refused}");
        }
    }

    #[test]
    fn default_is_a_quarter_for_each_side() {
        for memory in [8 << 20, (64 << 20) + 3, 1 << 40] {
            let (ours, plain) = (
                MemoryShares::default().of_pool(memory),
                PoolConfig::new(memory),
            );
            assert_eq!(ours, plain);
        }
    }

    #[test]
    fn each_side_gets_all_that_is_not_guaranteed_to_the_other_also_after_a_change_of_the_limit() {
        let memory = 100 << 20;
        for (text, reads, writes) in [
            ("25%:25%", 75, 75),
            ("40%:0%", 100, 60),
            ("0%:40%", 60, 100),
        ] {
            let builder = Engine::builder().memory(memory);
            let engine = builder.memory_shares(shares(text)).build().unwrap();
            for limit in [memory, memory / 2, memory] {
                engine.set_memory(limit).unwrap();
                for (share, percent) in [(Share::Download, reads), (Share::Upload, writes)] {
                    let all = limit / 100 * percent;
                    let held = engine.try_reserve(share, all);
                    assert!(held.is_some(), "{text} at {limit}: {share:?}");
                    drop(held);
                    let beyond = engine.try_reserve(share, all + 1);
                    assert!(beyond.is_none(), "{text} at {limit}: {share:?}");
                }
            }
        }
    }

    #[tokio::test]
    async fn largest_requests_fit_beside_the_largest_guarantee() {
        for text in ["40%:40%", "40%:0%", "0%:40%"] {
            let builder = Engine::builder().memory(64 << 20).chunk_size(32 << 20);
            let engine = builder.memory_shares(shares(text)).build().unwrap();
            let origin = Arc::new(MemoryStore::new());
            let bucket = engine.mount("test", origin, Consistency::Immutable);
            let bucket = bucket.unwrap();
            let bytes = bytes::Bytes::from(vec![7; 33 << 20]);
            let (from, to) = ("a".into(), "b".into());
            bucket.put(&from, bytes.clone().into()).await.unwrap();
            bucket.copy(&from, &to).await.unwrap();
            let copied = bucket.get(&to).await.unwrap().bytes().await.unwrap();
            assert_eq!(copied, bytes, "{text}");
        }
    }
}
