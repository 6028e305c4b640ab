//! The memory core: atomics come through its facade, so that loom sees them all, and each ordering is explained.

use super::{files, none};

/// The facade: it alone may name the standard library's atomics and loom's.
const FACADE: [&str; 2] = [
    "crates/bywash-mem/src/sync.rs",
    "crates/bywash-mem/src/sync/",
];
/// How far above its use the comment on an ordering may stand, in lines: rustfmt puts one argument a
/// line.
const COMMENT_REACH: usize = 10;

/// The product code of a file: what stands before its unit tests.
fn product(text: &str) -> Vec<&str> {
    text.lines()
        .take_while(|line| !line.starts_with("#[cfg(test)]"))
        .collect()
}

fn is_test_file(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.contains("/tests/") || path.contains("/models/")
}

/// Lines that reach around the facade.
fn around_the_facade(text: &str) -> Vec<usize> {
    product(text)
        .iter()
        .enumerate()
        .filter(|(_, line)| {
            let line = line.trim_start();
            !line.starts_with("//")
                && [
                    "std::sync::atomic",
                    "core::sync::atomic",
                    "loom::sync",
                    "loom::cell",
                ]
                .iter()
                .any(|name| line.contains(name))
        })
        .map(|(number, _)| number + 1)
        .collect()
}

/// Lines that use an ordering with no comment on the line or within reach above it.
fn unexplained_orderings(text: &str) -> Vec<usize> {
    const ORDERINGS: [&str; 5] = ["Relaxed", "Acquire", "Release", "AcqRel", "SeqCst"];
    let lines = product(text);
    let uses = |line: &str| {
        let code = line.split("//").next().unwrap();
        !code.trim_start().starts_with("use ")
            && ORDERINGS
                .iter()
                .any(|name| code.contains(&format!("Ordering::{name}")))
    };
    (0..lines.len())
        .filter(|&at| uses(lines[at]))
        .filter(|&at| {
            !lines[at.saturating_sub(COMMENT_REACH)..=at]
                .iter()
                .any(|line| line.contains("//"))
        })
        .map(|at| at + 1)
        .collect()
}

fn findings(rule: impl Fn(&str) -> Vec<usize>) -> Vec<String> {
    files()
        .iter()
        .filter(|(path, _)| {
            path.starts_with("crates/bywash-mem/src/")
                && !FACADE.iter().any(|facade| path.starts_with(facade))
                && !is_test_file(path)
        })
        .flat_map(|(path, text)| {
            rule(text)
                .into_iter()
                .map(move |line| format!("{path}:{line}"))
        })
        .collect()
}

#[test]
fn atomics_come_through_the_facade() {
    none(
        "atomics that loom cannot see; import them from crate::sync",
        &findings(around_the_facade),
    );
    assert_eq!(
        around_the_facade("use crate::sync::AtomicU64;\nuse std::sync::atomic::AtomicU32;\n"),
        [2]
    );
}

#[test]
fn each_ordering_is_explained() {
    none(
        "an ordering without a comment that names its partner",
        &findings(unexplained_orderings),
    );
    let text = "a.load(Ordering::Acquire);\n// with publish\nb.load(Ordering::Acquire);\nc.cmp(&d) == Ordering::Less;\n";
    assert_eq!(unexplained_orderings(text), [1]);
}
