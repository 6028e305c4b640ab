//! Memory of blocks that were not used for a time.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior};

use super::Engine;

/// Walks over the blocks within the age: a block leaves at most this part of the age late.
const WALKS_WITHIN_AGE: u32 = 4;

impl Engine {
    /// Returns a task that evicts blocks unused for `age`, and gives the pages of idle memory back to the system. Ends with
    /// the last handle of the engine.
    ///
    /// It walks over all blocks four times within the age, on a blocking thread: some 10 ns a block. A block leaves after
    /// `age` to one and a quarter times `age`, its pages another quarter later. Pinned blocks stay.
    pub fn evict_idle(&self, age: Duration) -> impl Future<Output = ()> + Send + use<> {
        let shared = Arc::downgrade(&self.shared);
        async move {
            let mut walks = tokio::time::interval(age / WALKS_WITHIN_AGE);
            walks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut idle_before = 0;
            loop {
                walks.tick().await;
                let Some(shared) = shared.upgrade() else {
                    return;
                };
                let now = Instant::now().into_std();
                let walk = tokio::task::spawn_blocking(move || {
                    let pool = &shared.pool;
                    // Frames that were idle at the last walk already are not about to be used again.
                    pool.decommit_idle(idle_before.min(pool.budget().idle()));
                    let evicted = pool.evict_unused(age, now);
                    // Relaxed: a counter.
                    shared.idle_evicted_bytes.fetch_add(evicted.bytes, Relaxed);
                    pool.budget().idle()
                });
                match walk.await {
                    Ok(idle) => idle_before = idle,
                    // The runtime is shutting down, or the walk panicked: the next one would as well.
                    Err(_) => return,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use object_store::ObjectStoreExt;
    use object_store::path::Path;

    use super::*;
    use crate::Consistency;
    use bywash_store::memory::MemoryStore;

    const BLOCK: usize = 64 << 10;

    #[tokio::test(start_paused = true)]
    async fn unused_blocks_leave_after_the_age_and_their_pages_after_them() {
        let engine = Engine::builder()
            .memory(16 << 20)
            .block_size(BLOCK)
            .build()
            .unwrap();
        let origin = Arc::new(MemoryStore::new());
        let bucket = engine
            .mount("test", origin, Consistency::Immutable)
            .unwrap();
        let used = Path::from("used");
        let unused = Path::from("unused");
        let read = async |path: &Path| bucket.get(path).await.unwrap().bytes().await.unwrap();
        for path in [&used, &unused] {
            bucket.put(path, vec![1; 4 * BLOCK].into()).await.unwrap();
            read(path).await;
        }
        let task = tokio::spawn(engine.evict_idle(Duration::from_secs(60)));
        let resident = |path: &Path| bucket.cached(path.as_ref())[0].resident_bytes;
        let all = 4 * BLOCK as u64;
        for seconds in 0..59 {
            assert_eq!(resident(&unused), all, "after {seconds} s");
            tokio::time::sleep(Duration::from_secs(1)).await;
            read(&used).await;
        }
        for _ in 0..31 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            read(&used).await;
        }
        assert_eq!((resident(&used), resident(&unused)), (all, 0));
        assert_eq!(engine.stats().pool.idle_evicted_bytes, all);
        assert_eq!(engine.budget().used(), all, "the idle pages went back");

        tokio::time::sleep(Duration::from_secs(91)).await;
        assert_eq!((resident(&used), engine.budget().used()), (0, 0));
        assert_eq!(engine.stats().pool.idle_evicted_bytes, 2 * all);
        read(&unused).await;
        drop((bucket, engine));
        task.await.unwrap();
    }
}
