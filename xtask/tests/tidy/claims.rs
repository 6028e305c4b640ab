//! A promise in the documentation names the test that holds it, and that test exists.

use super::{files, none};

/// The cells of a table line, or nothing when it is not one.
pub(crate) fn cells(line: &str) -> Option<Vec<&str>> {
    let inner = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    Some(inner.split('|').map(str::trim).collect())
}

/// Every row of every table with a column `test`: the line number and what stands in that column.
fn rows(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut column = None;
    for (number, line) in text.lines().enumerate() {
        let Some(cells) = cells(line) else {
            column = None;
            continue;
        };
        let rule = cells
            .iter()
            .all(|cell| !cell.is_empty() && cell.chars().all(|c| c == '-' || c == ':'));
        match column {
            None => {
                column = Some(
                    cells
                        .iter()
                        .position(|cell| cell.eq_ignore_ascii_case("test")),
                )
            }
            Some(Some(at)) if !rule => {
                found.push((number + 1, cells.get(at).copied().unwrap_or("").to_owned()))
            }
            Some(_) => {}
        }
    }
    found
}

/// Whether `file` defines the test `name`.
pub(crate) fn defines(file: &str, name: &str) -> bool {
    ["fn ", "def "].iter().any(|word| {
        file.match_indices(&format!("{word}{name}"))
            .any(|(at, found)| file[at + found.len()..].starts_with(['(', '<']))
    })
}

/// What is wrong with these tests, each a `file::test`; `place` names them.
pub(crate) fn wrong_tests<'a>(
    place: &str,
    tests: impl Iterator<Item = &'a str>,
    files: &[(String, String)],
) -> Vec<String> {
    let mut wrong = Vec::new();
    for test in tests {
        let Some((file, name)) = test.rsplit_once("::") else {
            wrong.push(format!("{place}: {test} is no `file::test`"));
            continue;
        };
        match files.iter().find(|(path, _)| path == file) {
            None => wrong.push(format!("{place}: {test}: there is no file {file}")),
            Some((_, source)) if !defines(source, name) => {
                wrong.push(format!("{place}: {test}: {file} has no test {name}"));
            }
            Some(_) => {}
        }
    }
    wrong
}

/// What is wrong with the tests that a document names.
fn wrong_claims(path: &str, text: &str, files: &[(String, String)]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (number, cell) in rows(text) {
        let named: Vec<&str> = cell
            .split('`')
            .skip(1)
            .step_by(2)
            .filter(|name| name.contains("::"))
            .collect();
        if named.is_empty() {
            wrong.push(format!("{path}:{number}: names no test as `path::name`"));
        }
        let place = format!("{path}:{number}");
        wrong.extend(wrong_tests(&place, named.into_iter(), files));
    }
    wrong
}

#[test]
fn every_claim_of_a_document_names_a_test_that_exists() {
    let files = files();
    let documents = files.iter().filter(|(path, _)| path.ends_with(".md"));
    let wrong: Vec<String> = documents
        .flat_map(|(path, text)| wrong_claims(path, text, &files))
        .collect();
    none("claims without their test", &wrong);
}

#[test]
fn a_planted_claim_is_found() {
    let files = [("a/b.rs".to_owned(), "#[test]\nfn holds() {}\n".to_owned())];
    let table = "| promise | test |\n|---|---|\n| a | `a/b.rs::holds` |\n| b | `a/b.rs::hold` |\n| c | soon |\n\
                 | d | `a/c.rs::holds` |\n\n| no | such column |\n|---|---|\n| x | y |\n";
    let wrong = wrong_claims("d.md", table, &files);
    let lines: Vec<&str> = wrong
        .iter()
        .map(|line| line.split(": ").next().unwrap())
        .collect();
    assert_eq!(lines, ["d.md:4", "d.md:5", "d.md:6"]);
}

/// The glossary, whose sections name a folder and whose rows name files below it.
const GLOSSARY: &str = "docs/glossary.md";

/// Files that the glossary names and that are not there.
fn missing_files(glossary: &str, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let mut folder = "";
    let mut missing = Vec::new();
    for line in glossary.lines() {
        let quoted: Vec<&str> = line.split('`').skip(1).step_by(2).collect();
        if line.starts_with("## ") {
            folder = quoted.first().copied().unwrap_or_default();
            continue;
        }
        let paths = quoted.iter().filter(|name| name.ends_with(".rs"));
        let paths = paths.map(|name| format!("{folder}/{name}"));
        missing.extend(paths.filter(|path| !exists(path)));
    }
    missing
}

#[test]
fn each_term_of_the_glossary_names_files_that_exist() {
    let files = files();
    let (_, text) = files.iter().find(|(path, _)| path == GLOSSARY).unwrap();
    let exists = |path: &str| files.iter().any(|(file, _)| file == path);
    none("files of the glossary", &missing_files(text, exists));
    let planted = "## Core: `crates/a/src`\n| pin | holds | `pin.rs`, `gone.rs` |\n";
    let exists = |path: &str| path == "crates/a/src/pin.rs";
    assert_eq!(missing_files(planted, exists), ["crates/a/src/gone.rs"]);
}

/// Source files of a crate whose names the code map does not have.
fn unmapped<'a>(map: &str, files: impl Iterator<Item = &'a str>) -> Vec<String> {
    let is_source = |path: &&str| {
        path.starts_with("crates/")
            && path.contains("/src/")
            && path.ends_with(".rs")
            && !["/tests/", "tests.rs", "fuzz.rs", "/lib.rs", "/mod.rs"]
                .iter()
                .any(|left_out| path.contains(left_out))
    };
    let is_mapped = |path: &&str| {
        let name = path.rsplit('/').next().unwrap_or(path);
        map.contains(&format!("`{name}`")) || map.contains(&format!("/{name}`"))
    };
    files
        .filter(is_source)
        .filter(|path| !is_mapped(path))
        .map(str::to_owned)
        .collect()
}

#[test]
fn code_map_names_each_source_file() {
    let files = files();
    let (_, map) = files
        .iter()
        .find(|(path, _)| path == "ARCHITECTURE.md")
        .unwrap();
    let paths = files.iter().map(|(path, _)| path.as_str());
    none("files that the code map lacks", &unmapped(map, paths));
    let planted = [
        "crates/a/src/pin.rs",
        "crates/a/src/b/gone.rs",
        "crates/a/src/lib.rs",
    ];
    let found = unmapped("| `pin.rs` | pins |", planted.into_iter());
    assert_eq!(found, ["crates/a/src/b/gone.rs"]);
}
