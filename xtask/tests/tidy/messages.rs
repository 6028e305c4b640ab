//! The language of messages: errors, refusals and log lines that users read.
//!
//! `cargo test -p xtask --test tidy messages -- --nocapture` prints all of them as one list, which can be read as a whole.

use super::words::{PHRASES, occurrences};
use super::{files, none};

/// Calls and attributes whose text reaches users.
const SOURCES: [&str; 13] = [
    "#[error(",
    "tracing::error!(",
    "tracing::warn!(",
    "tracing::info!(",
    "format!(",
    "println!(",
    "Failure::usage(",
    "Failure::failed(",
    "GcsError::invalid(",
    "GcsError::forbidden(",
    "GcsError::new(",
    "fault(",
    "malformed(",
];
/// Words from which on a text counts as a message; shorter ones are names and formats.
const LEAST_WORDS: usize = 4;
/// Phrases that no message has: pronoun chains, private words and phrasal verbs.
const REFUSED: [&[&str]; 3] = [PHRASES[0], PHRASES[2], PHRASES[4]];
/// The one phrase among them that a message may have: "leave one of them out" reads well after a list.
const ALLOWED: &str = "of them";

/// Returns the end of a call's arguments: the first parenthesis that closes more than was opened, outside of text.
fn end_of_arguments(source: &str) -> usize {
    let (mut depth, mut in_text, mut escaped) = (1_usize, false, false);
    for (at, letter) in source.char_indices() {
        match letter {
            _ if escaped => escaped = false,
            '\\' if in_text => escaped = true,
            '"' => in_text = !in_text,
            '(' if !in_text => depth += 1,
            ')' if !in_text => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    source.len()
}

/// Returns the texts in double quotes, lines that a backslash continues joined.
fn texts(arguments: &str) -> Vec<String> {
    let (mut found, mut text, mut escaped) = (Vec::new(), None, false);
    for letter in arguments.chars() {
        let Some(current) = &mut text else {
            if letter == '"' {
                text = Some(String::new());
            }
            continue;
        };
        match letter {
            '\n' | ' ' if current.ends_with('\n') => {}
            '\n' if escaped => current.push('\n'),
            _ if escaped => current.push(letter),
            '\\' => {}
            '"' => found.extend(text.take()),
            _ => {
                if current.ends_with('\n') {
                    current.pop();
                }
                current.push(letter);
            }
        }
        escaped = letter == '\\' && !escaped;
    }
    found
}

/// Words of a message, in lower case. What it inserts, and punctuation, is a dot.
fn words(message: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut depth = 0_usize;
    for part in message.split_inclusive(|letter: char| !letter.is_ascii_alphabetic()) {
        let (word, after) = match part.char_indices().last() {
            Some((at, letter)) if !letter.is_ascii_alphabetic() => (&part[..at], Some(letter)),
            _ => (part, None),
        };
        if depth == 0 && !word.is_empty() {
            words.push(word.to_ascii_lowercase());
        }
        match after {
            Some('{') => depth += 1,
            Some('}') => depth = depth.saturating_sub(1),
            _ => {}
        }
        if after.is_some_and(|letter| !letter.is_whitespace()) {
            words.push(".".to_owned());
        }
    }
    words
}

/// All messages of product code, with the file of each.
fn messages() -> Vec<(String, String)> {
    let product = |path: &str| {
        let is_test = [
            "/tests/",
            "/tests.rs",
            "/models/",
            "/stress/",
            "fuzz",
            "/testing",
        ];
        path.contains("/src/") && !is_test.iter().any(|part| path.contains(part))
    };
    let mut found = Vec::new();
    for (path, source) in files() {
        if !path.starts_with("crates/") || !product(&path) {
            continue;
        }
        let source = source.split("#[cfg(test)]\nmod tests {").next();
        let source = source.unwrap_or_default();
        for call in SOURCES {
            for (at, _) in source.match_indices(call) {
                let rest = &source[at + call.len()..];
                let texts = texts(&rest[..end_of_arguments(rest)]);
                let long = |text: &String| words(text).iter().filter(|word| *word != ".").count();
                found.extend(
                    texts
                        .into_iter()
                        .filter(|text| long(text) >= LEAST_WORDS)
                        .map(|text| (path.clone(), text)),
                );
            }
        }
    }
    found.sort();
    found.dedup();
    found
}

#[test]
fn messages_are_in_the_words_of_the_field() {
    let mut findings = Vec::new();
    let messages = messages();
    assert!(messages.len() > 500, "{} are not all", messages.len());
    for (path, message) in &messages {
        println!("{path}: {message}");
        let words = words(message);
        for phrase in REFUSED.concat() {
            if phrase != ALLOWED && occurrences(&words, phrase) > 0 {
                findings.push(format!("{path}: {phrase:?} in {message:?}"));
            }
        }
    }
    none(
        "a message has a phrase that readers stumble over",
        &findings,
    );
}

#[test]
fn texts_of_a_call_are_found_with_their_continued_lines() {
    let source = "#[error(\"no {name}: a \\\"b\\\" (c) \\\n        d\")] more(\"e\")";
    let rest = source.strip_prefix(SOURCES[0]).unwrap_or_default();
    let arguments = &rest[..end_of_arguments(rest)];
    assert_eq!(texts(arguments), ["no {name}: a \"b\" (c) d"]);
    assert_eq!(
        words("no {name}: it's"),
        ["no", ".", ".", ".", "it", ".", "s"]
    );
}
