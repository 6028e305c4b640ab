//! Changing the limit while the pool is in use.

use crate::pool::BlockPool;

/// How often eviction is tried again while others take what it frees. Each round evicts all that is too much, so only takers as
/// fast as that use up more than one.
const ROUNDS: usize = 16;

/// The limit was not changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitError {
    /// No addresses are reserved for so much, or it holds no frame.
    #[error(
        "memory limit of {limit} bytes is not between {least} and the ceiling {ceiling}; choose one that is, or restart with a higher ceiling"
    )]
    OutOfRange {
        /// What was asked for, in bytes.
        limit: u64,
        /// The least limit, in bytes.
        least: u64,
        /// The highest limit, in bytes.
        ceiling: u64,
    },
    /// More is held by pinned blocks, loads, writes and reservations.
    #[error(
        "memory limit of {limit} bytes is less than the {held} bytes that pinned blocks, loads and writes hold; try again when they have let go"
    )]
    Held {
        /// What was asked for, in bytes.
        limit: u64,
        /// What cannot be evicted, in bytes.
        held: u64,
    },
}

impl BlockPool {
    /// Changes the limit; the guaranteed shares keep their part of it. Upwards as far as `PoolConfig::ceiling`, at once.
    /// Downwards blocks are evicted first, and it takes effect when all that is used fits. May look at every slot.
    ///
    /// # Errors
    /// [`LimitError`]; the limit is as it was. If it was clear from the start that too much is held, nothing was evicted either.
    pub fn set_limit(&self, limit: u64) -> Result<(), LimitError> {
        let memory = self.memory();
        let made = memory.config();
        let (least, ceiling) = (crate::MIN_FRAME as u64, made.ceiling);
        if limit < least || limit > ceiling {
            return Err(LimitError::OutOfRange {
                limit,
                least,
                ceiling,
            });
        }
        // Of the pool as it was made: parts of parts would lose a byte each time.
        let limits = made.with_limit(limit);
        let mut held = 0;
        for _ in 0..ROUNDS {
            let Err(over) = memory.try_limit(limits) else {
                // Who waits may have enough now, or never will.
                memory.turnstile().wake();
                return Ok(());
            };
            let evictable = self.evictable();
            if evictable < over {
                held = limit + over - evictable;
                break;
            }
            held = limit + over;
            self.evict(over);
        }
        Err(LimitError::Held { limit, held })
    }

    /// Bytes that evicting the blocks would free that nobody has pinned now.
    fn evictable(&self) -> u64 {
        (0..self.slab().len())
            .filter_map(|slot| {
                let seen = self.settled(slot);
                let lanes = seen.stripes();
                let pinned = seen.pins() > 0 || (lanes != 0 && !self.stripes().empty(lanes));
                if pinned {
                    return None;
                }
                self.pin_quietly(slot).map(|pin| pin.sole_charge())
            })
            .sum()
    }
}
