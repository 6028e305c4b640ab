//! What the fuzzers of `fuzz/` call: for each parser of bytes from a network one function that takes any bytes, and panics
//! where what is read breaks a promise. The gate calls them too, with drawn and with damaged good bytes.

/// The body of a request with Influx lines.
pub fn lines(bytes: &[u8]) {
    crate::influx::fuzz::body(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_all_kinds() {
        bywash_support::fuzz_corpus::run_seeds("lines", lines);
    }
}
