//! Entry points of the fuzzers of `fuzz/`: one function for each parser of untrusted bytes. Each takes any bytes and
//! panics if the result breaks an invariant. Tests call them too, with random and with damaged valid bytes.

use crate::format::fuzz;

/// A page or summary of a segment, with its magic number and checksum set. The first byte selects which.
pub fn segment(bytes: &[u8]) {
    match bytes.split_first() {
        Some((choice, rest)) if choice % 3 == 0 => fuzz::header(rest),
        Some((choice, rest)) if choice % 3 == 1 => fuzz::seal(rest),
        Some((_, rest)) => fuzz::summary(rest),
        None => {}
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn pages_of_segments() {
        bywash_support::fuzz_corpus::run_seeds("segment", segment);
    }
}
