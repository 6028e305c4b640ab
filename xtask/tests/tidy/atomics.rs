//! The memory core: atomics come through its facade, so that loom sees them all, and each ordering is explained.

use std::collections::BTreeSet;

use super::{files, none};

/// The facade: it alone may name the standard library's atomics and loom's.
const FACADE: [&str; 2] = [
    "crates/bywash-mem/src/sync.rs",
    "crates/bywash-mem/src/sync/",
];
/// How far above its use the comment on an ordering may stand, in lines: rustfmt puts one argument a
/// line.
const COMMENT_REACH: usize = 10;

/// The product code of a file: what stands before its unit tests, a module that is there under some `cfg` with `test`.
fn product(text: &str) -> Vec<&str> {
    let lines: Vec<&str> = text.lines().collect();
    let tests = lines.windows(2).position(|pair| {
        pair[0].starts_with("#[cfg(") && pair[0].contains("test") && pair[1].ends_with("tests {")
    });
    let product = tests.unwrap_or(lines.len());
    lines[..product].to_vec()
}

fn is_test_file(path: &str) -> bool {
    path.ends_with("/tests.rs")
        || path.contains("/tests/")
        || path.contains("/models/")
        || path.contains("/stress/")
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

/// The comments on a line and within reach above it.
fn comments<'a>(lines: &[&'a str], at: usize) -> String {
    let near = &lines[at.saturating_sub(COMMENT_REACH)..=at];
    let parts: Vec<&'a str> = near
        .iter()
        .filter_map(|line| line.split_once("//").map(|(_, comment)| comment))
        .collect();
    parts.join(" ")
}

/// The orderings that code on this line names.
fn orderings(line: &str) -> impl Iterator<Item = &'static str> {
    let code = line.split("//").next().unwrap();
    let code = if code.trim_start().starts_with("use ") {
        ""
    } else {
        code
    };
    ["Relaxed", "Acquire", "Release", "AcqRel", "SeqCst"]
        .into_iter()
        .filter(move |name| code.contains(&format!("Ordering::{name}")))
}

/// Lines that use an ordering with no comment on the line or within reach above it.
fn unexplained_orderings(text: &str) -> Vec<usize> {
    let lines = product(text);
    (0..lines.len())
        .filter(|&at| orderings(lines[at]).next().is_some() && comments(&lines, at).is_empty())
        .map(|at| at + 1)
        .collect()
}

/// The functions that a text defines.
fn functions(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices("fn ").filter_map(|(at, _)| {
        let name = text[at + 3..].split(['(', '<']).next()?;
        let named = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_');
        named.then_some(name)
    })
}

/// Lines with an ordering above Relaxed whose comment names no partner, or a partner that is no function of the crate. A
/// partner is `` `function` `` or `` `Type::function` ``; other quoted names may stand beside it.
fn orderings_without_partner(text: &str, functions: &BTreeSet<&str>) -> Vec<usize> {
    let lines = product(text);
    let alone = |at: usize| {
        let comments = comments(&lines, at);
        let quoted = || comments.split('`').skip(1).step_by(2);
        let known = |name: &str| functions.contains(name.rsplit("::").next().unwrap());
        let of_a_type = |name: &&str| {
            name.rsplit_once("::")
                .is_some_and(|(_, name)| name.starts_with(|c: char| c.is_ascii_lowercase()))
        };
        !quoted().any(known) || !quoted().filter(of_a_type).all(known)
    };
    (0..lines.len())
        .filter(|&at| orderings(lines[at]).any(|name| name != "Relaxed") && alone(at))
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

#[test]
fn each_ordering_names_its_partner() {
    let files = files();
    let functions: BTreeSet<&str> = files
        .iter()
        .filter(|(path, _)| path.starts_with("crates/bywash-mem/src/"))
        .flat_map(|(_, text)| functions(text))
        .collect();
    none(
        "an ordering above Relaxed whose comment names no function of the crate as its partner in backquotes",
        &findings(|text| orderings_without_partner(text, &functions)),
    );
}

#[test]
fn a_planted_partner_is_found() {
    let functions = functions("fn publish(&self) {}\nasync fn wait<T>() {}\nfn (no)").collect();
    let wrong = |comment: &str| {
        let text = format!("// {comment}\nx.load(Ordering::Acquire);\n");
        !orderings_without_partner(&text, &functions).is_empty()
    };
    assert!(!wrong("what `publish` released"));
    assert!(!wrong("with `StateWord::publish`, `PINS` as before"));
    assert!(wrong("what publish released"), "not quoted");
    assert!(wrong("what `publisher` released"), "not there");
    assert!(wrong("`publish`, or `Word::gone`"), "one of them is gone");
    let relaxed = "// a counter\nx.load(Ordering::Relaxed);\n";
    assert!(orderings_without_partner(relaxed, &functions).is_empty());
}

/// The document that explains every shared word.
const MODEL: &str = "docs/memory-model.md";

/// The atomics that a file's product code shares: `Type`, or `Type::field`, and the line.
fn atomic_words(text: &str) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    let mut of = String::new();
    for (number, line) in product(text).iter().enumerate() {
        let code = line.split("//").next().unwrap();
        let mut words = code.split(|c: char| !c.is_alphanumeric() && c != '_');
        if words.any(|word| word == "struct") {
            words.next().unwrap_or_default().clone_into(&mut of);
        } else if code.starts_with('}') {
            of.clear();
        }
        let Some(at) = code.find("Atomic").filter(|_| !of.is_empty()) else {
            continue;
        };
        let field = code[..at]
            .split_once(':')
            .map(|(name, _)| name.trim().rsplit(' ').next().unwrap());
        match field {
            Some(field) => found.push((format!("{of}::{field}"), number + 1)),
            None => found.push((of.clone(), number + 1)),
        }
        if code.contains(';') {
            of.clear();
        }
    }
    found
}

/// Whether a table of the document has a row for the word, or for all words of its type.
fn is_explained(word: &str, document: &str) -> bool {
    let of = word.split("::").next().unwrap();
    document.lines().any(|line| {
        [word, of]
            .iter()
            .any(|name| line.starts_with(&format!("| `{name}` |")))
    })
}

#[test]
fn each_shared_word_is_explained() {
    let files = files();
    let (_, model) = files.iter().find(|(path, _)| path == MODEL).unwrap();
    let section = model.split("## The shared words").nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let mut words = 0;
    let missing: Vec<String> = files
        .iter()
        .filter(|(path, _)| {
            path.starts_with("crates/bywash-mem/src/")
                && !FACADE.iter().any(|facade| path.starts_with(facade))
                && !is_test_file(path)
        })
        .flat_map(|(path, text)| {
            atomic_words(text)
                .into_iter()
                .map(move |(word, line)| (format!("{path}:{line}: {word}"), word))
        })
        .inspect(|_| words += 1)
        .filter(|(_, word)| !is_explained(word, section))
        .map(|(finding, _)| finding)
        .collect();
    none(
        "atomics that docs/memory-model.md does not explain",
        &missing,
    );
    assert!(words > 10, "only {words} atomics were found");
}

#[test]
fn unit_tests_are_no_product() {
    let text = "#[cfg(test)]\nfn help() {}\n#[cfg(all(test, not(loom)))]\nmod tests {\n}\n";
    assert_eq!(product(text), ["#[cfg(test)]", "fn help() {}"]);
}

#[test]
fn a_planted_word_is_found() {
    let text = "struct Word(AtomicU64);\nimpl Word {\n    fn new() -> Self { Self(AtomicU64::new(0)) }\n}\n\
                pub struct Pool {\n    pub(crate) hand: Padded<AtomicU32>,\n    name: String,\n}\n";
    let found: Vec<(String, usize)> = atomic_words(text);
    assert_eq!(
        found,
        [("Word".to_owned(), 1), ("Pool::hand".to_owned(), 6)]
    );
    let table = "| word |\n|---|\n| `Word` | x |\n";
    assert!(is_explained("Word", table) && is_explained("Word::field", table));
    assert!(!is_explained("Pool::hand", table));
}
