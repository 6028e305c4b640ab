//! Ceiling of the resident memory of a server: the formula of the endpoint, applied to a sample.

use bywash_gateway::{max_resident_bytes, max_socket_bytes};

use crate::watch::Sample;

/// Returns the maximum resident bytes, without file-backed pages, of a server with `memory` bytes in the state of `sample`.
///
/// Each descriptor counts as a connection: a file costs no more.
#[must_use]
pub fn resident_limit(memory: u64, sample: &Sample) -> u64 {
    max_resident_bytes(memory, sample.threads, sample.descriptors)
}

/// Returns the limit of the control group of a server with `memory` bytes, `threads` and `connections`.
#[must_use]
pub fn group_limit(memory: u64, threads: u64, connections: u64) -> u64 {
    max_resident_bytes(memory, threads, connections) + max_socket_bytes(connections)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROMISES: &str = include_str!("../../../docs/behaviour.md");
    const MEMORY: u64 = 1 << 30;

    /// Parses the number of bytes at the start of `text`, as in `64 MiB`.
    fn bytes(text: &str) -> Option<u64> {
        let mut words = text.split_whitespace();
        let number: u64 = words.next()?.parse().ok()?;
        match words.next()? {
            "KiB" => Some(number << 10),
            "MiB" => Some(number << 20),
            _ => None,
        }
    }

    /// Returns the bytes of a term in the table of the memory ceiling.
    fn term(name: &str) -> u64 {
        let row = PROMISES
            .lines()
            .find_map(|line| line.strip_prefix(&format!("| {name} | ")));
        let found = row.and_then(bytes);
        found.unwrap_or_else(|| panic!("docs/behaviour.md has no term {name} with its bytes"))
    }

    fn at(threads: u64, descriptors: u64) -> u64 {
        let sample = Sample {
            rss: 0,
            threads,
            descriptors,
        };
        resident_limit(MEMORY, &sample)
    }

    #[test]
    fn ceiling_is_the_formula_of_the_document() {
        assert_eq!(at(0, 0), MEMORY + term("program"));
        assert_eq!(at(7, 0) - at(0, 0), 7 * term("threads"));
        assert_eq!(at(0, 9) - at(0, 0), 9 * term("connections"));
    }

    #[test]
    fn control_group_has_the_sockets_of_the_document() {
        let sentence = "The limit of a control group needs ";
        let (_, rest) = PROMISES
            .split_once(sentence)
            .unwrap_or_else(|| panic!("docs/behaviour.md has no bytes per socket"));
        let socket = bytes(rest).unwrap_or_else(|| panic!("no bytes in {rest:.20}"));
        assert_eq!(group_limit(MEMORY, 3, 5), at(3, 5) + 5 * socket);
    }
}
