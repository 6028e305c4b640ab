//! A promise in the documentation names the test that holds it, and that test exists.

use std::collections::BTreeSet;

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

/// Whether a path is a source of the product, which the code map covers.
fn is_mapped_source(path: &str) -> bool {
    let left_out = ["/tests/", "tests.rs", "fuzz.rs"];
    path.starts_with("crates/")
        && path.contains("/src/")
        && path.ends_with(".rs")
        && !left_out.iter().any(|part| path.contains(part))
}

/// Folders that the lines of the code map name, in full: the first cell of a row has them below the crate of its heading, or from the root.
fn mapped_folders(map: &str) -> BTreeSet<String> {
    let mut folders = BTreeSet::new();
    let mut package = "";
    for line in map.lines() {
        if line.starts_with("## ") {
            package = "";
        } else if line.starts_with("### ") {
            package = line.split('`').nth(1).unwrap_or_default();
        } else if let Some(cells) = cells(line).filter(|_| package.starts_with("crates/")) {
            let quoted = cells[0].split('`').skip(1).step_by(2);
            folders.extend(quoted.filter_map(|name| {
                let name = name.strip_suffix('/')?;
                Some(match name {
                    "src" => format!("{package}/src"),
                    _ if name.starts_with("crates/") => name.to_owned(),
                    _ => format!("{package}/src/{name}"),
                })
            }));
        }
    }
    folders
}

/// What is wrong between the code map and the sources: folders without a line, lines without a folder, files that do not say what they are.
fn wrong_map(map: &str, files: &[(String, String)]) -> Vec<String> {
    let mapped = mapped_folders(map);
    let sources = || files.iter().filter(|(path, _)| is_mapped_source(path));
    let folder = |path: &str| path.rsplit_once('/').map(|(folder, _)| folder.to_owned());
    let folders: BTreeSet<String> = sources().filter_map(|(path, _)| folder(path)).collect();
    let missing = folders.difference(&mapped);
    let mut wrong: Vec<String> = missing
        .map(|folder| format!("{folder} has no line"))
        .collect();
    let gone = mapped.difference(&folders);
    wrong.extend(gone.map(|folder| format!("{folder} has no sources")));
    let silent = sources().filter(|(_, text)| !text.starts_with("//! "));
    wrong.extend(silent.map(|(path, _)| format!("{path} does not begin with a sentence (`//!`)")));
    wrong
}

#[test]
fn code_map_has_each_folder_and_each_file_says_what_it_is() {
    let files = files();
    let map = files.iter().find(|(path, _)| path == "ARCHITECTURE.md");
    let (_, map) = map.unwrap();
    none("the code map", &wrong_map(map, &files));
    let map = "### `crates/a`: a\n| folder | what |\n|---|---|\n| `src/`, `b/` | all |\n| `gone/` | nothing |\n| `crates/c/src/` | c |\n\n\
               ## Invariants\n| `x/` | no folder |\n";
    let planted = [
        ("crates/a/src/lib.rs", "//! All."),
        ("crates/a/src/b/mod.rs", "mod silent;"),
        ("crates/a/src/d/mod.rs", "//! Unmapped."),
        ("crates/a/src/e/tests/cases.rs", "mod tests_are_left_out;"),
        ("crates/c/src/lib.rs", "//! C."),
    ];
    let planted = planted.map(|(path, text)| (path.to_owned(), text.to_owned()));
    let expected = [
        "crates/a/src/d has no line",
        "crates/a/src/gone has no sources",
        "crates/a/src/b/mod.rs does not begin with a sentence (`//!`)",
    ];
    assert_eq!(wrong_map(map, &planted), expected);
}
