//! Each promise has an id and an entry of tests: `docs/behaviour.md` states it, `docs/promises.toml` names the tests that verify it.

use std::collections::BTreeSet;

use super::claims::{cells, wrong_tests};
use super::{files, none};

const DOCUMENT: &str = "docs/behaviour.md";
const TESTS: &str = "docs/promises.toml";

/// Columns of tables whose rows are promises.
const PROMISING: [&str; 2] = ["promise", "served"];

/// Reads the ids of the promises, each with its line number, and what is wrong with tables that have none.
fn ids(document: &str) -> (Vec<(usize, String)>, Vec<String>) {
    let (mut found, mut wrong) = (Vec::new(), Vec::new());
    let mut column = None;
    for (number, line) in (1..).zip(document.lines()) {
        let Some(cells) = cells(line) else {
            column = None;
            continue;
        };
        let is_rule = cells.iter().all(|cell| cell.starts_with("---"));
        match column {
            None => {
                let at = cells.iter().position(|cell| *cell == "id");
                if at.is_none() && cells.iter().any(|cell| PROMISING.contains(cell)) {
                    wrong.push(format!("{DOCUMENT}:{number}: promises without ids"));
                }
                column = Some(at);
            }
            Some(Some(at)) if !is_rule => {
                let id = cells.get(at).copied().unwrap_or("");
                if id.is_empty() {
                    wrong.push(format!("{DOCUMENT}:{number}: a promise without id"));
                }
                found.push((number, id.to_owned()));
            }
            Some(_) => {}
        }
    }
    (found, wrong)
}

/// Reads the entries of `text`: line number, id and tests. Knows the subset of TOML that the file has: `id = [`, a quoted test a line, `]`.
fn entries(text: &str) -> Vec<(usize, String, Vec<String>)> {
    let mut found: Vec<(usize, String, Vec<String>)> = Vec::new();
    for (number, line) in (1..).zip(text.lines().map(str::trim)) {
        if let Some(id) = line.strip_suffix(" = [") {
            found.push((number, id.to_owned(), Vec::new()));
        } else if let Some(test) = line.strip_prefix('"') {
            let test = test.trim_end_matches(['"', ',']).to_owned();
            if let Some((_, _, tests)) = found.last_mut() {
                tests.push(test);
            }
        } else if !["", "]"].contains(&line) && !line.starts_with('#') {
            found.push((number, format!("not understood: {line}"), Vec::new()));
        }
    }
    found
}

/// What is wrong between the promises of `document` and the entries of `tests`.
fn wrong_promises(document: &str, tests: &str, files: &[(String, String)]) -> Vec<String> {
    let (ids, mut wrong) = ids(document);
    let mut stated = BTreeSet::new();
    for (number, id) in &ids {
        if !stated.insert(id.as_str()) {
            wrong.push(format!("{DOCUMENT}:{number}: {id} is there twice"));
        }
    }
    let mut tested = BTreeSet::new();
    for (number, id, tests) in &entries(tests) {
        let place = format!("{TESTS}:{number}");
        if !tested.insert(id.clone()) {
            wrong.push(format!("{place}: {id} is there twice"));
        }
        if !stated.contains(id.as_str()) {
            wrong.push(format!("{place}: {DOCUMENT} has no promise {id}"));
        }
        if tests.is_empty() {
            wrong.push(format!("{place}: {id} names no test"));
        }
        wrong.extend(wrong_tests(&place, tests.iter().map(String::as_str), files));
    }
    let untested = ids.iter().filter(|(_, id)| !tested.contains(id));
    wrong.extend(
        untested.map(|(number, id)| format!("{DOCUMENT}:{number}: {TESTS} names no test of {id}")),
    );
    wrong
}

#[test]
fn every_promise_has_an_id_with_tests_that_exist() {
    let files = files();
    let text = |wanted: &str| {
        let found = files.iter().find(|(path, _)| path == wanted);
        found.map(|(_, text)| text.as_str()).unwrap()
    };
    let (document, tests) = (text(DOCUMENT), text(TESTS));
    assert!(
        ids(document).0.len() > 100,
        "{DOCUMENT} has lost its promises"
    );
    none("promises", &wrong_promises(document, tests, &files));
}

#[test]
fn planted_promises_are_found() {
    let files = [("a/b.rs".to_owned(), "#[test]\nfn holds() {}\n".to_owned())];
    let document = "| id | promise |\n|---|---|\n| a-1 | holds |\n| a-2 | is tested nowhere |\n| a-1 | again |\n|  | no id |\n\n\
                    | promise |\n|---|\n| no column |\n\n| term | bytes |\n|---|---|\n| no | promise |\n";
    let tests = "# tests\n\na-1 = [\n  \"a/b.rs::holds\",\n]\n\na-3 = [\n  \"a/b.rs::hold\",\n]\n\na-4 = [\n]\nodd\n";
    let wrong = wrong_promises(document, tests, &files);
    let expected = [
        "docs/behaviour.md:6: a promise without id",
        "docs/behaviour.md:8: promises without ids",
        "docs/behaviour.md:5: a-1 is there twice",
        "docs/promises.toml:7: docs/behaviour.md has no promise a-3",
        "docs/promises.toml:7: a/b.rs::hold: a/b.rs has no test hold",
        "docs/promises.toml:11: docs/behaviour.md has no promise a-4",
        "docs/promises.toml:11: a-4 names no test",
        "docs/promises.toml:13: docs/behaviour.md has no promise not understood: odd",
        "docs/promises.toml:13: not understood: odd names no test",
        "docs/behaviour.md:4: docs/promises.toml names no test of a-2",
        "docs/behaviour.md:6: docs/promises.toml names no test of ",
    ];
    assert_eq!(wrong, expected);
}
