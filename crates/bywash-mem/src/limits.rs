//! Every limit on counts, sizes and durations that a user of the pool can cause: its unit, and the reason for its value.

/// Pins past which the process aborts, as `Arc` does: half the field, so that no number of racing threads reaches its end.
pub(crate) const MAX_PINS: u64 = 1 << 23;
