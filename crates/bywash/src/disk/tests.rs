#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;

#[test]
fn segments_leave_most_of_a_small_tier_when_one_is_evicted() {
    assert_eq!(segment_size(100 << 30), SEGMENT_BYTES);
    assert_eq!(segment_size(512 << 20), 32 << 20);
    assert_eq!(segment_size(1 << 20), MIN_SEGMENT_BYTES);
    assert!(segment_size(1_000_000_007).is_multiple_of(4096));
}
