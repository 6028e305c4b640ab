//! Entry points of the fuzzers of `fuzz/`: one function for each parser of untrusted bytes. Each takes any bytes and
//! panics if the result breaks an invariant. Tests call them too, with random and with damaged valid bytes.

use crate::manifest::fuzz as files;
use crate::query::Pattern;
use crate::wal::fuzz as wal;

/// A log segment: the first byte selects a whole segment or the body of a frame.
pub fn log(bytes: &[u8]) {
    match bytes.split_first() {
        Some((choice, rest)) if choice % 2 == 0 => wal::segment(rest),
        Some((_, rest)) => wal::frame(rest),
        None => {}
    }
}

/// Manifests, indexes and pages of data files: the first byte selects.
pub fn files(bytes: &[u8]) {
    match bytes.split_first() {
        Some((0, rest)) => files::manifest(rest),
        Some((1, rest)) => files::manifest_body(rest),
        Some((rows, rest)) if *rows < 128 => files::index(rest, u64::from(*rows)),
        Some((rows, rest)) => files::page(rest, usize::from(*rows)),
        None => {}
    }
}

/// A pattern, a zero, a name: both matchers must agree.
pub fn pattern(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let (pattern, name) = text.split_once('\0').unwrap_or((text, text));
    // The naive matcher takes exponential time.
    if pattern.len() > 12 || name.len() > 24 {
        return;
    }
    let plain = match Pattern::parse(pattern) {
        Pattern::Exact(exact) => exact == name,
        Pattern::Glob(glob) => plain(&glob, name),
    };
    assert_eq!(
        Pattern::parse(pattern).matches(name),
        plain,
        "{pattern:?} {name:?}"
    );
}

fn plain(glob: &str, name: &str) -> bool {
    let (mut globs, mut names) = (glob.chars(), name.chars());
    match (globs.next(), names.next()) {
        (None, first) => first.is_none(),
        (Some('*'), None) => plain(globs.as_str(), name),
        (Some('*'), Some(_)) => plain(globs.as_str(), name) || plain(glob, names.as_str()),
        (Some(_), None) => false,
        (Some(one), Some(other)) => {
            (one == '?' || one == other) && plain(globs.as_str(), names.as_str())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs() {
        bywash_support::fuzz_corpus::run_seeds("log", log);
    }

    #[test]
    fn files_at_a_store() {
        bywash_support::fuzz_corpus::run_seeds("files", files);
    }

    #[test]
    fn patterns() {
        bywash_support::fuzz_corpus::run_seeds("pattern", pattern);
    }
}
