//! Entry points of the fuzzers of `fuzz/`: one function for each parser of untrusted bytes. Each takes any bytes and
//! panics if the result breaks an invariant. Tests call them too, with random and with damaged valid bytes.

/// A request, a response, or the frames of a body between nodes. The first byte selects which.
pub fn peer(bytes: &[u8]) {
    crate::port::fuzz::peer(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_between_nodes() {
        bywash_support::fuzz_corpus::run_seeds("peer", peer);
    }
}
