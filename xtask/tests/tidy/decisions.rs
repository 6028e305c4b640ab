//! Each decision has its number in its heading, and one line in the index of `docs/decisions`.

use std::collections::BTreeMap;

use super::{files, none};

const FOLDER: &str = "docs/decisions/";
const INDEX: &str = "docs/decisions/README.md";

/// Decisions by their number: file name and text.
fn decisions(files: &[(String, String)]) -> BTreeMap<u32, Vec<(&str, &str)>> {
    let mut found: BTreeMap<u32, Vec<_>> = BTreeMap::new();
    for (path, text) in files {
        let name = path.strip_prefix(FOLDER).filter(|_| path != INDEX);
        let Some(name) = name else { continue };
        let number = name.split('-').next().and_then(|text| text.parse().ok());
        let same = found.entry(number.unwrap_or(0)).or_default();
        same.push((name, text.as_str()));
    }
    found
}

/// What is wrong between the index and the decisions.
fn wrong_index(index: &str, files: &[(String, String)]) -> Vec<String> {
    let decisions = decisions(files);
    let mut wrong = Vec::new();
    for (number, same) in &decisions {
        if same.len() > 1 || *number == 0 {
            let names: Vec<_> = same.iter().map(|(name, _)| *name).collect();
            wrong.push(format!("{FOLDER}: not one number each: {names:?}"));
        }
        for (name, text) in same {
            if !text.starts_with(&format!("# {number}. ")) {
                wrong.push(format!(
                    "{FOLDER}{name}: the heading is not \"# {number}. ..\""
                ));
            }
            let link = format!("| [{number}]({name}) | ");
            let lines = index.lines().filter(|line| line.starts_with(&link));
            match lines.count() {
                1 => {}
                lines => wrong.push(format!("{INDEX}: {name} has {lines} lines")),
            }
        }
    }
    let rows = index.lines().filter(|line| line.starts_with("| ["));
    let names = decisions.values().flatten().map(|(name, _)| *name);
    let names: Vec<&str> = names.collect();
    let linked = rows.filter_map(|row| row.split(['(', ')']).nth(1));
    let gone = linked.filter(|name| !names.contains(name));
    wrong.extend(gone.map(|name| format!("{INDEX}: there is no {name}")));
    let last = decisions.keys().next_back().copied().unwrap_or(0);
    let missing = (1..last).filter(|number| !decisions.contains_key(number));
    let unexplained =
        missing.filter(|number| !index.contains(&format!("**{number} is not used.**")));
    wrong
        .extend(unexplained.map(|number| format!("{INDEX}: does not say why {number} is missing")));
    wrong
}

#[test]
fn each_decision_has_one_line_in_the_index() {
    let files = files();
    let (_, index) = files.iter().find(|(path, _)| path == INDEX).unwrap();
    none("decisions", &wrong_index(index, &files));
}

#[test]
fn planted_decisions_are_found() {
    let files = [
        ("docs/decisions/0001-a.md", "# 1. A\n"),
        ("docs/decisions/0003-c.md", "# C\n"),
        ("docs/decisions/0005-e.md", "# 5. E\n"),
        ("docs/decisions/0005-f.md", "# 5. F\n"),
        ("docs/decisions/odd.md", "# Odd\n"),
        ("docs/decisions/README.md", "# Decisions\n"),
    ];
    let files = files.map(|(path, text)| (path.to_owned(), text.to_owned()));
    let index = "| [1](0001-a.md) | a |\n| [3](0003-c.md) | c |\n| [3](0003-c.md) | again |\n| [5](0005-e.md) | e |\n\
                 | [5](0005-f.md) | f |\n| [0](odd.md) | odd |\n| [6](0006-g.md) | gone |\n\n**2 is not used.**\n";
    let expected = [
        "docs/decisions/: not one number each: [\"odd.md\"]",
        "docs/decisions/odd.md: the heading is not \"# 0. ..\"",
        "docs/decisions/0003-c.md: the heading is not \"# 3. ..\"",
        "docs/decisions/README.md: 0003-c.md has 2 lines",
        "docs/decisions/: not one number each: [\"0005-e.md\", \"0005-f.md\"]",
        "docs/decisions/README.md: there is no 0006-g.md",
        "docs/decisions/README.md: does not say why 4 is missing",
    ];
    assert_eq!(wrong_index(index, &files), expected);
}
