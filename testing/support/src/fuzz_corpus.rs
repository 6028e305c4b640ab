//! Inputs for tests of parsers: the seeds of the fuzzers in `fuzz/`, mutations of them, and random bytes.
//!
//! The fuzzers search for as long as they are given; these tests call the same targets with the same inputs in each run.

use std::fs;
use std::path::Path;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Number of random inputs of a call, and of mutations of one input: takes a parser some milliseconds.
const INPUTS: u64 = 1_000;
/// Maximum length of a random input, in bytes: more than the fixed header of any format.
const MAX_INPUT_BYTES: usize = 300;

/// Calls `target` with the seeds of a fuzzer (`fuzz/seeds/NAME`), their prefixes and mutations, and random bytes.
///
/// # Panics
/// If there is no seed, or if `target` panics: prints the input.
pub fn run_seeds(name: &str, target: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/seeds")
        .join(name);
    let seeds =
        fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = seeds.flatten().map(|seed| seed.path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} has no seed", folder.display());
    for path in paths {
        run_mutations(&fs::read(&path).expect("a listed seed"), target);
    }
    for seed in 0..INPUTS {
        let mut random = StdRng::seed_from_u64(seed);
        let length = random.random_range(0..=MAX_INPUT_BYTES);
        let bytes: Vec<u8> = (0..length).map(|_| random.random()).collect();
        run(&bytes, target);
    }
}

/// Calls `target` with all prefixes and with mutations of a valid input.
///
/// # Panics
/// If `target` panics: prints the input.
pub fn run_mutations(valid: &[u8], target: fn(&[u8])) {
    for end in 0..=valid.len() {
        run(&valid[..end], target);
    }
    for seed in 0..INPUTS {
        let mut random = StdRng::seed_from_u64(seed);
        let mut bytes = valid.to_vec();
        for _ in 0..random.random_range(1..=4) {
            mutate(&mut bytes, &mut random);
        }
        run(&bytes, target);
    }
}

/// Calls `target`, and prints the input if it panics.
fn run(bytes: &[u8], target: fn(&[u8])) {
    struct PrintOnPanic<'a>(&'a [u8]);
    impl Drop for PrintOnPanic<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("input: b\"{}\"", self.0.escape_ascii());
            }
        }
    }
    let _print = PrintOnPanic(bytes);
    target(bytes);
}

/// Changes, removes, inserts or repeats bytes at a random offset.
fn mutate(bytes: &mut Vec<u8>, random: &mut StdRng) {
    if bytes.is_empty() {
        bytes.push(random.random());
        return;
    }
    let offset = random.random_range(0..bytes.len());
    match random.random_range(0..5) {
        0 => bytes[offset] ^= 1 << random.random_range(0..8),
        1 => bytes[offset] = [0, 0x7f, 0x80, 0xff, b'"', b'<', b'\n'][random.random_range(0..7)],
        2 => {
            bytes.remove(offset);
        }
        3 => bytes.insert(offset, random.random()),
        _ => {
            let end = random.random_range(offset..bytes.len());
            bytes.extend_from_within(offset..end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "longer")]
    fn mutations_lengthen_some_inputs() {
        run_mutations(b"abc", |bytes| assert!(bytes.len() <= 4, "longer"));
    }
}
