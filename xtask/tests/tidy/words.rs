//! The language of comments, and two forms of code: each crate has a limit for each pattern, which only falls.
//!
//! When a change lowers a count, lower its limit with it: `cargo test -p xtask --test tidy words -- --nocapture` prints those that
//! can be lowered. A limit is never raised.

use super::{files, none};

/// Patterns, in the order of the limits.
const PATTERNS: [&str; 8] = [
    "pronoun chains",
    "what",
    "private words",
    "comes and goes",
    "phrasal verbs",
    "doc comments that begin with Returns",
    "match on a bool",
    "tuple parameters",
];

/// Phrases of the first five patterns, in comments.
pub(super) const PHRASES: [&[&str]; 5] = [
    &[
        "that of",
        "those of",
        "those that",
        "of which",
        "of them",
        "is none",
    ],
    &["what"],
    &[
        "meanwhile",
        "beside",
        "anew",
        "of late",
        "in vain",
        "for ever",
        "so many",
        "whatever",
        "besides",
        "lies",
    ],
    &["comes", "goes", "came back"],
    &[
        "take in",
        "takes in",
        "taken in",
        "carry out",
        "carries out",
        "carried out",
        "look again",
        "looks again",
        "looked again",
        "go on",
        "goes on",
    ],
];

/// Limits of each crate.
const LIMITS: [(&str, [usize; 8]); 13] = [
    ("bywash", [1, 1, 0, 0, 0, 244, 1, 11]),
    ("bywash-c", [3, 1, 0, 4, 0, 3, 0, 0]),
    ("bywash-cli", [10, 9, 3, 0, 0, 69, 4, 11]),
    ("bywash-client", [0, 0, 0, 0, 0, 17, 0, 0]),
    ("bywash-cluster", [0, 0, 0, 0, 0, 38, 2, 9]),
    ("bywash-console", [0, 0, 0, 0, 0, 37, 0, 6]),
    ("bywash-disk", [0, 0, 0, 0, 0, 29, 2, 1]),
    ("bywash-gateway", [0, 0, 0, 0, 0, 96, 4, 22]),
    ("bywash-local", [0, 0, 0, 0, 0, 4, 0, 0]),
    ("bywash-mem", [1, 0, 0, 0, 0, 74, 1, 1]),
    ("bywash-python", [2, 2, 2, 0, 0, 1, 0, 1]),
    ("bywash-series", [0, 0, 0, 0, 0, 24, 1, 22]),
    ("bywash-store", [0, 0, 0, 0, 0, 264, 4, 11]),
];

/// Words of the comments of a source, in lower case. Code, punctuation and text in backticks are a dot.
fn comment_words(source: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut is_code = false;
    let mut add = |text: &str| {
        let mut word = String::new();
        for letter in text.chars().chain([' ']) {
            if letter == '`' {
                is_code = !is_code;
            }
            if letter.is_ascii_alphabetic() && !is_code {
                word.push(letter.to_ascii_lowercase());
                continue;
            }
            if !word.is_empty() {
                words.push(std::mem::take(&mut word));
            }
            if !letter.is_whitespace() {
                words.push(".".to_owned());
            }
        }
    };
    for line in source.lines().map(str::trim) {
        match line.strip_prefix("//") {
            Some(comment) => add(comment.trim_start_matches(['/', '!'])),
            None => {
                add(".");
                add(line.split_once(" // ").map_or(".", |(_, comment)| comment));
            }
        }
    }
    words
}

/// Number of times that a phrase is in a sequence of words.
pub(super) fn occurrences(words: &[String], phrase: &str) -> usize {
    let phrase: Vec<&str> = phrase.split(' ').collect();
    let windows = words.windows(phrase.len());
    windows
        .filter(|window| *window == phrase.as_slice())
        .count()
}

/// Number of parameters of the form `(a, b): (A, B)`.
fn tuple_parameters(source: &str) -> usize {
    let ends = source.match_indices("): (");
    let is_tuple = |end: usize| {
        let names = source[..end]
            .rsplit_once('(')
            .map_or("", |(_, names)| names);
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || "_, ".contains(letter);
        names.contains(", ") && names.chars().all(is_name)
    };
    ends.filter(|(end, _)| is_tuple(*end)).count()
}

/// Counts of a source, in the order of [`PATTERNS`].
fn counts(source: &str) -> [usize; 8] {
    let words = comment_words(source);
    let count = |phrases: &[&str]| -> usize {
        phrases
            .iter()
            .map(|phrase| occurrences(&words, phrase))
            .sum()
    };
    let [chains, what, private, comes, phrasal] = PHRASES.map(count);
    let lines = |start: &str| {
        let lines = source.lines().map(str::trim_start);
        lines.filter(|line| line.starts_with(start)).count()
    };
    [
        chains,
        what,
        private,
        comes,
        phrasal,
        lines("/// Returns "),
        lines("true =>"),
        tuple_parameters(source),
    ]
}

/// Counts of a crate that are above its limits, and those that are below them.
fn compare(name: &str, counts: [usize; 8], limits: [usize; 8]) -> (Vec<String>, Vec<String>) {
    let all = PATTERNS.iter().zip(counts).zip(limits);
    let row = |pattern: &str, count, limit| format!("{name}: {pattern}: {count}, limit {limit}");
    let (mut above, mut below) = (Vec::new(), Vec::new());
    for ((pattern, count), limit) in all {
        match count.cmp(&limit) {
            std::cmp::Ordering::Greater => above.push(row(pattern, count, limit)),
            std::cmp::Ordering::Less => below.push(row(pattern, count, limit)),
            std::cmp::Ordering::Equal => {}
        }
    }
    (above, below)
}

/// Counts of the sources of each crate, tests included, by its name.
fn crates(files: &[(String, String)]) -> std::collections::BTreeMap<&str, [usize; 8]> {
    let mut found = std::collections::BTreeMap::new();
    for (path, source) in files.iter().filter(|(path, _)| path.ends_with(".rs")) {
        let below = path
            .strip_prefix("crates/")
            .and_then(|path| path.split_once('/'));
        let Some((name, _)) = below else { continue };
        let sum: &mut [usize; 8] = found.entry(name).or_default();
        for (sum, count) in sum.iter_mut().zip(counts(source)) {
            *sum += count;
        }
    }
    found
}

#[test]
fn words_and_forms_of_each_crate_are_within_its_limits() {
    let files = files();
    let crates = crates(&files);
    let mut wrong = Vec::new();
    for (name, counts) in &crates {
        let Some((_, limits)) = LIMITS.iter().find(|(limited, _)| limited == name) else {
            wrong.push(format!("{name}: no limits; its counts are {counts:?}"));
            continue;
        };
        let (above, below) = compare(name, *counts, *limits);
        wrong.extend(above);
        for row in below {
            println!("{row}: lower it");
        }
    }
    let gone = LIMITS.iter().filter(|(name, _)| !crates.contains_key(name));
    wrong.extend(gone.map(|(name, _)| format!("{name}: limits without a crate")));
    none("words and forms above the limit of their crate", &wrong);
}

#[test]
fn planted_words_and_forms_are_found() {
    let source = "//! Those that it takes, and what\n//! comes back.\n\
                  /// Returns the block. Waits meanwhile: none\n/// of them lies `beside whatever`, and it goes\n/// on.\n\
                  fn take((a, b): (A, B), c: (A, B), (d): (A)) { // what is none\n    match c {\n        true => a,\n    }\n}\n\
                  // none of\nfn which() {}\n";
    assert_eq!(counts(source), [3, 2, 2, 2, 1, 1, 1, 1]);
    let (above, below) = compare("a", [1, 2, 3, 0, 0, 0, 0, 0], [1, 1, 4, 0, 0, 0, 0, 0]);
    assert_eq!(above, ["a: what: 2, limit 1"]);
    assert_eq!(below, ["a: private words: 3, limit 4"]);
}
