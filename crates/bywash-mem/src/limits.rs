//! Limits on counts, sizes and durations that a user of the pool can cause: unit, and reason for the value.

/// Number of pins of one block at which the process aborts, as `Arc` does. Half of the field, so that racing threads cannot
/// overflow it.
pub(crate) const MAX_PINS: u64 = 1 << 23;
