//! Times copies of a warm object out of the server's memory, and copies of as many bytes out of
//! this process's own, on one thread: `cargo run --release --example warm_read -- BUCKET KEY
//! ROUNDS`. Prints the ratio of each round.

use std::hint::black_box;
use std::time::{Duration, Instant};

use bywash_client::Client;

/// Copies in a round.
const COPIES: u32 = 200;

/// Returns how long a copy takes on average.
fn timed(mut copy: impl FnMut()) -> Duration {
    let start = Instant::now();
    for _ in 0..COPIES {
        copy();
    }
    start.elapsed() / COPIES
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let (Some(bucket), Some(key), Some(rounds)) = (words.next(), words.next(), words.next()) else {
        return Err("write: warm_read BUCKET KEY ROUNDS".into());
    };
    let bucket = Client::connect()?.bucket(&bucket);
    let own: Vec<u8> = bucket
        .get(&key)?
        .bytes
        .segments()
        .flatten()
        .copied()
        .collect();
    let mut target = vec![0; own.len()];
    for round in 0..rounds.parse()? {
        let mut failed = None;
        let mut leased = || {
            let mut rest = target.as_mut_slice();
            match bucket.get(&key) {
                Ok(object) => {
                    for segment in object.bytes.segments() {
                        let (front, back) = std::mem::take(&mut rest).split_at_mut(segment.len());
                        front.copy_from_slice(segment);
                        rest = back;
                    }
                }
                Err(error) => failed = Some(error),
            }
            black_box(&mut target);
        };
        let mut by_lease = Duration::ZERO;
        if round % 2 == 0 {
            by_lease = timed(&mut leased);
        }
        let mut copied = vec![0; own.len()];
        let by_copy = timed(|| {
            copied.copy_from_slice(black_box(&own));
            black_box(&mut copied);
        });
        if round % 2 == 1 {
            by_lease = timed(&mut leased);
        }
        if let Some(error) = failed {
            return Err(error.into());
        }
        assert_eq!(target, own);
        println!("{}", by_lease.as_secs_f64() / by_copy.as_secs_f64());
    }
    Ok(())
}
