//! A small world for one test: a scripted origin, and an engine over it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use bywash::{Bucket, BucketStats, Consistency, Engine, EngineBuilder};
use bywash_sim::{
    Consume, FaultProfile, Observation, Oracle, Outcome, Rules, SimOrigin, Verdict, Violation,
    observe,
};
use object_store::path::Path;
use object_store::{GetOptions, GetRange};

/// Block size of these engines, in bytes.
pub(crate) const BLOCK: usize = 16 * 1024;

/// Loads without waiters have ended after this time, which is far below every deadline.
const SETTLE: Duration = Duration::from_secs(1);

pub(crate) struct World {
    pub(crate) origin: SimOrigin,
    pub(crate) engine: Engine,
    pub(crate) bucket: Bucket,
    pub(crate) oracle: Arc<Oracle>,
    pub(crate) path: Path,
    rules: Rules,
}

/// 10 ms to a response, pieces of 4 KiB with 1 ms in between: 4 MB/s.
pub(crate) fn steady() -> FaultProfile {
    FaultProfile {
        latency: Duration::from_millis(10)..Duration::from_millis(10),
        pause: Duration::from_millis(1)..Duration::from_millis(1),
        piece: 4096..4096,
        faults: Vec::new(),
    }
}

impl World {
    pub(crate) fn new(consistency: Consistency) -> Self {
        Self::with(consistency, |builder| builder)
    }

    pub(crate) fn with(
        consistency: Consistency,
        set: impl FnOnce(EngineBuilder) -> EngineBuilder,
    ) -> Self {
        Self::seeded(1, consistency, set)
    }

    /// As [`Self::with`], over an origin with another seed.
    pub(crate) fn seeded(
        seed: u64,
        consistency: Consistency,
        set: impl FnOnce(EngineBuilder) -> EngineBuilder,
    ) -> Self {
        Self::over(SimOrigin::new(seed, steady()), consistency, set)
    }

    /// Returns a world with a new engine over `origin`.
    pub(crate) fn over(
        origin: SimOrigin,
        consistency: Consistency,
        set: impl FnOnce(EngineBuilder) -> EngineBuilder,
    ) -> Self {
        let builder = Engine::builder()
            .memory(32 << 20)
            .block_size(BLOCK)
            .chunk_size(4 * BLOCK);
        let engine = set(builder).build().unwrap();
        let bucket = engine
            .mount("sim", Arc::new(origin.clone()), consistency)
            .unwrap();
        Self {
            oracle: origin.oracle(),
            origin,
            engine,
            bucket,
            path: Path::from("dir/object"),
            rules: Rules {
                window: consistency.max_age(),
                tight_memory: false,
            },
        }
    }

    pub(crate) async fn see(&self, options: GetOptions, consume: Consume) -> Observation {
        observe(&self.bucket, &self.oracle, &self.path, options, consume).await
    }

    /// Judges one read and, if it is correct, returns it.
    pub(crate) fn right(&self, seen: Observation) -> Observation {
        match self.oracle.judge(&seen, &self.rules) {
            Ok(_) => seen,
            Err(violation) => panic!("{violation}"),
        }
    }

    /// Reads the whole object, which must succeed; returns its bytes.
    pub(crate) async fn read(&self) -> Bytes {
        self.read_range(None).await
    }

    pub(crate) async fn read_range(&self, range: Option<GetRange>) -> Bytes {
        let options = GetOptions {
            range,
            ..GetOptions::default()
        };
        let seen = self.right(self.see(options, Consume::All).await);
        assert!(
            matches!(seen.outcome, Outcome::Complete),
            "{:?}",
            seen.outcome
        );
        seen.body.into()
    }

    /// Returns the number of the version of a whole read.
    pub(crate) async fn read_version(&self) -> u64 {
        let seen = self.see(GetOptions::default(), Consume::All).await;
        match self.oracle.judge(&seen, &self.rules) {
            Ok(Verdict::Read(number)) => number,
            other => panic!("{other:?}: {:?}", seen.outcome),
        }
    }

    pub(crate) fn judge(&self, seen: &Observation) -> Result<Verdict, Violation> {
        self.oracle.judge(seen, &self.rules)
    }

    pub(crate) fn stats(&self) -> BucketStats {
        self.engine.stats().buckets["sim"]
    }

    /// Checks that soon no load is in progress and only blocks hold memory.
    pub(crate) async fn assert_idle(&self) {
        tokio::time::sleep(SETTLE).await;
        let stats = self.engine.stats();
        assert_eq!(stats.pool.flights, 0);
        assert_eq!(stats.budget.waiting, 0);
        assert_eq!(
            stats.budget.used,
            stats.pool.resident_bytes + stats.budget.idle
        );
    }
}
