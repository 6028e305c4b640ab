//! Charges for memory outside the pool: listings, request XML, request heads, tables.

use bywash_mem::{Reservation, Share};

use super::Engine;
use crate::error::EngineError;

impl Engine {
    /// Charges `bytes` of memory outside the engine to its budget, for callers that are about to allocate them.
    /// Evicts blocks if that makes room, otherwise waits in the order of all requests, until the admission deadline.
    ///
    /// A caller that holds a charge must not wait for another: see [`Self::try_grow`].
    ///
    /// # Errors
    /// [`EngineError::SlowDown`] at the deadline; [`EngineError::InvalidSetting`] at once if the memory can never
    /// hold so much.
    pub async fn reserve(
        &self,
        share: Share,
        bytes: u64,
        operation: &'static str,
        object: &str,
    ) -> Result<Reservation, EngineError> {
        self.shared.reserve(share, bytes, operation, object).await
    }

    /// As [`Self::reserve`] without waiting; `None` if there is no room, or others wait for memory of this share.
    #[must_use]
    pub fn try_reserve(&self, share: Share, bytes: u64) -> Option<Reservation> {
        self.shared.pool.try_reserve(share, bytes)
    }

    /// Adds `more` bytes to a charge without waiting; false if there is no room.
    #[must_use]
    pub fn try_grow(&self, charge: &mut Reservation, more: u64) -> bool {
        self.shared.pool.try_grow(charge, more)
    }

    /// Maximum time that a request waits for memory.
    #[must_use]
    pub fn admission_deadline(&self) -> std::time::Duration {
        self.shared.admission_deadline
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn reservation_waits_in_order_until_the_admission_deadline() {
        let engine = Engine::builder()
            .memory(16 << 20)
            .admission_deadline(Duration::from_secs(3))
            .build()
            .unwrap();
        let max = (16 << 20) / 4 * 3;
        let mut charge = engine
            .reserve(Share::Download, max, "list", "b")
            .await
            .unwrap();
        assert!(engine.try_reserve(Share::Download, 1).is_none());
        let refused = engine.reserve(Share::Download, 1 << 20, "list", "b").await;
        assert!(matches!(
            refused,
            Err(EngineError::SlowDown { waited_s: 3, .. })
        ));
        assert_eq!(engine.stats().budget.refused, 1);
        charge.shrink_to(max - (1 << 20));
        let next = engine.reserve(Share::Download, 1 << 20, "list", "b").await;
        drop((charge, next.unwrap()));
        assert_eq!(engine.budget().used(), 0);
        let never = engine.reserve(Share::Download, max + 1, "list", "b").await;
        assert!(matches!(never, Err(EngineError::InvalidSetting { .. })));
        assert_eq!(engine.stats().budget.refused, 1, "it can never be met");
    }
}
