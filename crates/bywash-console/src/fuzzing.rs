//! Entry points of the fuzzers of `fuzz/`: one function for each parser of untrusted bytes. Each takes any bytes and
//! panics if the result breaks an invariant. Tests call them too, with random and with damaged valid bytes.

/// The body of a request with Influx lines.
pub fn lines(bytes: &[u8]) {
    crate::influx::fuzz::body(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_parse_or_fail_as_lines() {
        bywash_support::fuzz_corpus::run_seeds("lines", lines);
    }
}
