//! Cost of passing faults to an upload of unknown length, as from a pipe: their backoffs and stalls, and no more.

use std::time::Duration;

use bytes::Bytes;
use bywash::origin::ChunkRule;
use bywash::{RetryPolicy, UploadOptions};
use object_store::path::Path;
use proptest::prelude::*;
use tokio::time::Instant;

use super::fake::{Fake, IN_ORDER, SessionFault};

const CHUNK: usize = 4 << 10;
const CHUNKS: usize = 10;
/// A third stall without progress would exceed the retry deadline, as one of the completion does.
const MAX_STALLS: usize = 2;

/// A request that a fault hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Request {
    Send,
    Status,
    Finish,
}

fn faults() -> impl Strategy<Value = Vec<(Request, usize, SessionFault)>> {
    let request = prop::sample::select(vec![
        Request::Send,
        Request::Send,
        Request::Status,
        Request::Finish,
    ]);
    let fault = prop_oneof![
        (0..=CHUNK as u64).prop_map(SessionFault::Keep),
        (0..=CHUNK as u64).prop_map(SessionFault::LoseAfter),
        Just(SessionFault::LoseResponse),
        Just(SessionFault::Stall),
    ];
    prop::collection::vec((request, 0..CHUNKS, fault), 0..=6)
}

/// Sum of the first `count` backoffs without progress, each at its maximum.
fn backoffs(policy: RetryPolicy, count: usize) -> Duration {
    let mut pause = policy.initial_backoff;
    let mut sum = Duration::ZERO;
    for _ in 0..count {
        sum += pause;
        pause = (pause * 2).min(policy.max_backoff);
    }
    sum
}

/// Uploads a pipe's bytes, one chunk at a time or several, and returns how long it took.
async fn upload(fake: &Fake, parallel: usize) -> Duration {
    let body = bywash_support::pattern(3, CHUNKS * CHUNK + 777);
    let path = Path::from("piped");
    let options = UploadOptions {
        parallel,
        ..UploadOptions::default()
    };
    let begun = Instant::now();
    let mut upload = fake.bucket(CHUNK).upload(&path, options).await.unwrap();
    for piece in body.chunks(1_000) {
        upload.write(Bytes::copy_from_slice(piece)).await.unwrap();
    }
    upload.finish().await.unwrap();
    assert_eq!(fake.object(&path).await.unwrap(), body);
    begun.elapsed()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn upload_takes_no_longer_than_the_backoffs_and_stalls_of_its_faults(
        drawn in faults(),
        parallel in 1_usize..=4,
        in_order in any::<bool>(),
    ) {
        let rule = ChunkRule { parallel: !in_order, ..IN_ORDER };
        let fake = Fake::new(rule);
        let mut queues = [const { Vec::new() }; 3];
        let (mut count, mut stalls, mut max) = (0, 0, Duration::ZERO);
        let policy = RetryPolicy::default();
        for (request, at, fault) in drawn {
            let queue = &mut queues[request as usize];
            queue.resize(CHUNKS, SessionFault::None);
            let is_stall = fault == SessionFault::Stall;
            let lasts = is_stall && (stalls == MAX_STALLS || request == Request::Finish);
            if lasts || queue[at] != SessionFault::None {
                continue;
            }
            queue[at] = fault;
            count += 1;
            if is_stall {
                stalls += 1;
                max += policy.stall;
            }
        }
        max += backoffs(policy, count);
        let [sends, statuses, ends] = queues;
        {
            let mut state = fake.state.lock();
            state.sends.extend(sends);
            state.statuses.extend(statuses);
            state.ends.extend(ends);
        }
        let took = bywash_sim::paused_runtime().block_on(upload(&fake, parallel));
        // The clock of a paused runtime counts in milliseconds.
        let rounding = Duration::from_millis(2 * count as u64);
        prop_assert!(took <= max + rounding, "{took:?} of {max:?}");
    }
}
