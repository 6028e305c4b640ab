//! Memory of readers: charged in steps before it is taken.

use bywash_mem::{Budget, Reservation, Share};

use crate::SeriesError;

/// Bytes reserved at a time, so that the budget is not asked for each name and block.
const STEP: u64 = 64 << 10;

/// A charge that grows. Never waits: a reader holds other memory while it asks for more.
#[derive(Debug)]
pub(crate) struct Charge {
    /// `None` if the caller has charged the memory.
    budget: Option<Budget>,
    reserved: Option<Reservation>,
    used: u64,
}

impl Charge {
    /// A charge against `budget`; `None` if the caller has charged the memory.
    pub(crate) fn new(budget: Option<&Budget>) -> Self {
        Self {
            budget: budget.cloned(),
            reserved: None,
            used: 0,
        }
    }

    /// An empty charge against the same budget.
    pub(crate) fn again(&self) -> Self {
        Self::new(self.budget.as_ref())
    }

    /// Whether the caller has charged the memory.
    pub(crate) fn is_charged_by_caller(&self) -> bool {
        self.budget.is_none()
    }

    /// Bytes that the budget has at most; `None` if the caller has charged the memory.
    pub(crate) fn limit(&self) -> Option<u64> {
        self.budget.as_ref().map(Budget::limit)
    }

    /// Adds bytes.
    ///
    /// Fails with [`SeriesError::NoMemory`] if the budget does not have them now.
    pub(crate) fn grow(&mut self, bytes: u64) -> Result<(), SeriesError> {
        let used = self.used + bytes;
        let reserved = self.reserved.as_ref().map_or(0, Reservation::bytes);
        if let Some(budget) = self.budget.as_ref().filter(|_| used > reserved) {
            let missing = used - reserved;
            // The upload share: resident blocks leave it part of the budget.
            let reserve = |bytes| budget.try_reserve(Share::Upload, bytes);
            let more = reserve(missing.next_multiple_of(STEP)).or_else(|| reserve(missing));
            let more = more.ok_or(SeriesError::NoMemory { bytes: missing })?;
            match &mut self.reserved {
                Some(reserved) => reserved.merge(more),
                none => *none = Some(more),
            }
        }
        self.used = used;
        Ok(())
    }

    /// As [`Self::grow`], up to `bytes` in total.
    pub(crate) fn grow_to(&mut self, bytes: u64) -> Result<(), SeriesError> {
        self.grow(bytes.saturating_sub(self.used))
    }

    /// Takes all of the charge.
    pub(crate) fn take(&mut self) -> Self {
        let empty = self.again();
        std::mem::replace(self, empty)
    }

    /// Releases all but `bytes`.
    pub(crate) fn shrink_to(&mut self, bytes: u64) {
        self.used = self.used.min(bytes);
        if let Some(reserved) = &mut self.reserved {
            reserved.shrink_to(bytes);
        }
    }

    /// Charges the same bytes to the download share instead, which eviction serves, if it has them now. Cached memory stays long:
    /// uploads keep their part of the budget.
    pub(crate) fn move_to_downloads(&mut self) -> bool {
        let moved = self
            .budget
            .as_ref()
            .and_then(|budget| budget.try_reserve(Share::Download, self.used));
        let is_moved = moved.is_some();
        if is_moved {
            self.reserved = moved;
        }
        is_moved
    }
}

#[cfg(test)]
mod tests {
    use bywash_mem::{BlockPool, PoolConfig};

    use super::*;

    #[test]
    fn charge_grows_before_use_and_fails_without_memory() {
        let pool = BlockPool::new(PoolConfig::new(8 << 20)).unwrap();
        let budget = pool.budget();
        let mut charge = Charge::new(Some(budget));
        charge.grow(1).unwrap();
        charge.grow(STEP - 1).unwrap();
        assert_eq!(budget.used(), STEP, "one step");
        let failed = charge.grow(8 << 20).unwrap_err();
        assert!(matches!(failed, SeriesError::NoMemory { .. }), "{failed}");
        assert_eq!(budget.used(), STEP, "a failed charge takes nothing");
        charge.grow_to(STEP + 1).unwrap();
        charge.shrink_to(7);
        assert_eq!(budget.used(), 7);
        assert!(charge.move_to_downloads());
        assert_eq!(
            (budget.held(Share::Upload), budget.held(Share::Download)),
            (0, 7)
        );
        drop(charge);
        assert_eq!(budget.used(), 0);
        let mut covered = Charge::new(None);
        covered.grow(u64::MAX / 2).unwrap();
        assert_eq!(budget.used(), 0);
    }
}
