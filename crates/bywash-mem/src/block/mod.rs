//! Blocks: resident bytes under a key, pinned without a lock, evicted when memory is short.
//!
//! [`BlockCache`] puts the parts together: the registry finds a slot, the state word pins it, the policy proposes victims.

mod aging;
mod cache;
mod evict;
mod options;
mod pin;
mod policy;
mod registry;
mod set_limit;
mod sharded_pins;
mod slab;
mod spill;
mod table;
mod word;

pub use aging::Evicted;
pub use cache::PoolStats;
pub use options::{BlockOptions, Keep, Priority, StoreStats, Tag, TagStats};
pub use pin::{OwnedPin, Pin, PinScope};
pub use registry::Registry;
pub use set_limit::LimitError;
pub use spill::{Spill, Spilled};

pub(crate) use cache::BlockCache;
#[cfg(all(test, loom))]
pub(crate) use evict::EvictOutcome;
pub(crate) use sharded_pins::OwnOutcome;
#[cfg(all(test, loom))]
pub(crate) use slab::Slab;
pub(crate) use slab::{BlockContents, FrameRef};
pub(crate) use table::{FIRST, Table, Tables, max_entries};
#[cfg(all(test, not(any(loom, shuttle))))]
pub(crate) use word::MAX_FREQ;
#[cfg(all(test, not(any(loom, shuttle))))]
pub(crate) use word::StateWord;
#[cfg(all(test, not(shuttle)))]
pub(crate) use word::{FastPinError, PinOutcome};
