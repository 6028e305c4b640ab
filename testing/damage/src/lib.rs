//! Bytes for tests of parsers: drawn ones, and the seeds of the fuzzers, damaged. The fuzzers of `fuzz/` go on for as long as
//! one likes and find their own; this is what the gate has time for, the same at each run.

#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Drawn inputs of a call, and damages of a seed: some milliseconds for a parser.
const INPUTS: u64 = 1_000;
/// Bytes of a drawn input, at most: more than the fixed head of any format.
const LONGEST: usize = 300;

/// Hands `take` the seeds of a fuzzer (`fuzz/seeds/NAME`), all their beginnings and many damages, then bytes without meaning.
///
/// # Panics
/// If there is no seed; and whenever `take` does: the input is shown before.
pub fn parser(name: &str, take: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/seeds")
        .join(name);
    let seeds =
        fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = seeds.flatten().map(|seed| seed.path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} has no seed", folder.display());
    for path in paths {
        damaged(&fs::read(&path).expect("a seed that was listed"), take);
    }
    for seed in 0..INPUTS {
        let mut random = StdRng::seed_from_u64(seed);
        let length = random.random_range(0..=LONGEST);
        let bytes: Vec<u8> = (0..length).map(|_| random.random()).collect();
        shown(&bytes, take);
    }
}

/// Hands `take` all beginnings of a good input, and many damages.
///
/// # Panics
/// Whenever `take` does: the input is shown before.
pub fn damaged(good: &[u8], take: fn(&[u8])) {
    for end in 0..=good.len() {
        shown(&good[..end], take);
    }
    for seed in 0..INPUTS {
        let mut random = StdRng::seed_from_u64(seed);
        let mut bytes = good.to_vec();
        for _ in 0..random.random_range(1..=4) {
            damage(&mut bytes, &mut random);
        }
        shown(&bytes, take);
    }
}

/// Says on what `take` panicked.
fn shown(bytes: &[u8], take: fn(&[u8])) {
    struct OnPanic<'a>(&'a [u8]);
    impl Drop for OnPanic<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("on b\"{}\"", self.0.escape_ascii());
            }
        }
    }
    let _shown = OnPanic(bytes);
    take(bytes);
}

fn damage(bytes: &mut Vec<u8>, random: &mut StdRng) {
    if bytes.is_empty() {
        bytes.push(random.random());
        return;
    }
    let at = random.random_range(0..bytes.len());
    match random.random_range(0..5) {
        0 => bytes[at] ^= 1 << random.random_range(0..8),
        1 => bytes[at] = [0, 0x7f, 0x80, 0xff, b'"', b'<', b'\n'][random.random_range(0..7)],
        2 => {
            bytes.remove(at);
        }
        3 => bytes.insert(at, random.random()),
        _ => {
            let end = random.random_range(at..bytes.len());
            bytes.extend_from_within(at..end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "longer")]
    fn damage_reaches_what_is_looked_at() {
        damaged(b"abc", |bytes| assert!(bytes.len() <= 4, "longer"));
    }
}
