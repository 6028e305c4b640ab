//! Settings of tests, from the environment: seeds, and how long random tests run.

use std::ops::Range;
use std::str::FromStr;

/// Returns the seeds of a random test: `BYWASH_SEED=N` is one, `BYWASH_SEEDS=A..B` are several, else `default`.
///
/// # Panics
/// If a variable has another form, or an empty range.
pub fn seeds(default: Range<u64>) -> Range<u64> {
    let variable = |name| std::env::var(name).ok();
    parse_seeds(
        variable("BYWASH_SEED").as_deref(),
        variable("BYWASH_SEEDS").as_deref(),
    )
    .unwrap_or(default)
}

/// Returns the number in an environment variable, `default` if there is none.
///
/// # Panics
/// If the variable is not such a number.
pub fn setting<T: FromStr>(name: &str, default: T) -> T {
    std::env::var(name).map_or(default, |text| number(name, &text))
}

fn parse_seeds(one: Option<&str>, several: Option<&str>) -> Option<Range<u64>> {
    if let Some(one) = one {
        let seed = number("BYWASH_SEED", one);
        return Some(seed..seed + 1);
    }
    let several = several?;
    let (first, end) = several
        .split_once("..")
        .unwrap_or_else(|| panic!("BYWASH_SEEDS={several}: write A..B"));
    let seeds = number("BYWASH_SEEDS", first)..number("BYWASH_SEEDS", end);
    assert!(!seeds.is_empty(), "BYWASH_SEEDS={several} has no seed");
    Some(seeds)
}

fn number<T: FromStr>(name: &str, text: &str) -> T {
    let number = text.trim().parse();
    number.unwrap_or_else(|_| panic!("{name}: {text:?} is not a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_precedes_several() {
        assert_eq!(parse_seeds(None, None), None);
        assert_eq!(parse_seeds(None, Some("7..10")), Some(7..10));
        assert_eq!(parse_seeds(Some(" 3 "), Some("7..10")), Some(3..4));
    }

    #[test]
    fn ranges_that_would_run_nothing_are_refused() {
        for wrong in ["7", "7..", "9..9", "9..7", "a..b", "0..=3"] {
            let parsed = std::panic::catch_unwind(|| parse_seeds(None, Some(wrong)));
            assert!(parsed.is_err(), "{wrong}");
        }
    }
}
