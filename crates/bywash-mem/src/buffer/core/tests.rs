#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::tests::pool;

const LEN: u64 = 4096;

/// Of two threads that found a span without a frame, the first has written when the second brings its frame.
#[test]
fn later_frame_of_a_span_leaves_the_first_with_its_bytes() {
    let pool = pool(1 << 20);
    let layout = BufferLayout::single_frame(LEN as usize, LEN);
    let core = BufferCore::new(&pool.budget().0, Share::Download, layout, Vec::new());
    let mut claimed = BufferCore::claim(&core, 0..3, ClaimScope::All).unwrap();
    let mut claim = claimed.claims.pop().unwrap();
    let held = pool.budget().held(Share::Download);
    claim.write(b"on");
    core.add_frames(std::slice::from_ref(&(0..LEN))).unwrap();
    claim.write(b"e");
    drop(claim);
    let slice = core.slice(0, 3).unwrap().unwrap();
    assert_eq!(slice[..], *b"one");
    assert_eq!(pool.budget().held(Share::Download), held, "one frame");
}
