//! File sizes, left-over words, and `unsafe` kept where the design has it.

use super::{files, none};

/// Above this a file of `crates/` is more than one room.
const MOST_LINES: usize = 700;
/// Above this it is worth a look; printed, not an error.
const MANY_LINES: usize = 400;

#[test]
fn no_file_has_grown_past_its_limit() {
    let mut long: Vec<(usize, String)> = files()
        .into_iter()
        .filter(|(path, _)| path.starts_with("crates/") && path.ends_with(".rs"))
        .map(|(path, text)| (text.lines().count(), path))
        .filter(|(lines, _)| *lines > MANY_LINES)
        .collect();
    long.sort();
    for (lines, path) in &long {
        println!("{lines} lines: {path}");
    }
    let too_long: Vec<String> = long
        .iter()
        .filter(|(lines, _)| *lines > MOST_LINES)
        .map(|(lines, path)| format!("{path}: {lines} lines; the limit is {MOST_LINES}"))
        .collect();
    none("files to split", &too_long);
}

/// Words that mark unfinished work, put together here so that this file does not hold them.
fn left_over_words() -> Vec<String> {
    [
        ("todo", "!("),
        ("unimplemented", "!("),
        ("FIX", "ME"),
        ("dbg", "!("),
        ("XX", "X:"),
        ("/wo", "rk/"),
    ]
    .map(|(head, tail)| format!("{head}{tail}"))
    .to_vec()
}

fn left_overs(path: &str, text: &str) -> Vec<String> {
    let words = left_over_words();
    text.lines()
        .enumerate()
        .flat_map(|(number, line)| {
            words
                .iter()
                .filter(|word| line.contains(word.as_str()))
                .map(move |word| format!("{path}:{}: {word}", number + 1))
        })
        .collect()
}

#[test]
fn nothing_is_left_over() {
    let kinds = [".rs", ".md", ".toml", ".py", ".sh", ".ci/run"];
    let found: Vec<String> = files()
        .iter()
        .filter(|(path, _)| kinds.iter().any(|kind| path.ends_with(kind)))
        .flat_map(|(path, text)| left_overs(path, text))
        .collect();
    none("unfinished work, or a path of one machine", &found);
    let planted = format!("fn f() {{\n    {});\n}}\n", left_over_words()[0]);
    assert_eq!(left_overs("a.rs", &planted).len(), 1);
}

/// Crates whose design has `unsafe`, each with its reason in the design.
const UNSAFE_ROOMS: [&str; 1] = ["crates/bywash-mem/"];

#[test]
fn unsafe_is_forbidden_outside_the_memory_core() {
    let missing: Vec<String> = files()
        .into_iter()
        .filter(|(path, _)| {
            let root = path.ends_with("/src/lib.rs") || path.ends_with("/src/main.rs");
            root && !UNSAFE_ROOMS.iter().any(|room| path.starts_with(room))
        })
        .filter(|(_, text)| !text.contains("#![forbid(unsafe_code)]"))
        .map(|(path, _)| path)
        .collect();
    none("crates without #![forbid(unsafe_code)]", &missing);
}
