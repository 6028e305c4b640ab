//! Each behaviour of the ancestors has one line in `docs/ancestors.md`, whose files and tests exist.

use std::collections::BTreeSet;

use super::claims::{cells, wrong_tests};
use super::{files, none};

const DOCUMENT: &str = "docs/ancestors.md";

/// The systems by the letter of their ids, and the number of behaviours of each: 133 in all.
const SYSTEMS: [(char, usize); 4] = [('K', 31), ('D', 37), ('J', 34), ('C', 31)];

/// A behaviour: a line of one of the tables.
struct Behaviour<'a> {
    line: usize,
    id: &'a str,
    files: &'a str,
    held_by: &'a str,
    door: &'a str,
    state: &'a str,
}

impl Behaviour<'_> {
    fn is_in(&self, state: &str) -> bool {
        self.state == state || self.state.starts_with(&format!("{state}: "))
    }
}

/// Reads the lines of tables with the columns of a behaviour.
fn behaviours(document: &str) -> Vec<Behaviour<'_>> {
    let numbered = (1..).zip(document.lines());
    let rows = numbered.filter_map(|(line, text)| Some((line, cells(text)?)));
    rows.filter_map(|(line, cells)| {
        let [id, _, files, held_by, door, state] = cells.try_into().ok()?;
        let is_row = id != "id" && !id.starts_with("---");
        is_row.then_some(Behaviour {
            line,
            id,
            files,
            held_by,
            door,
            state,
        })
    })
    .collect()
}

fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// The sentence of the document with the number of lines in each state.
fn summary(behaviours: &[Behaviour<'_>]) -> String {
    let count = |state| {
        let in_state = behaviours.iter().filter(|behaviour| behaviour.is_in(state));
        in_state.count()
    };
    let [works, in_part, left_out] = ["works", "in part", "left out"].map(count);
    format!(
        "{} behaviours: {works} work, {in_part} in part, {left_out} left out.",
        behaviours.len()
    )
}

/// What is wrong with the ids: each system has its numbers once.
fn wrong_ids(behaviours: &[Behaviour<'_>], systems: &[(char, usize)]) -> Vec<String> {
    let numbers = |&(letter, count): &(char, usize)| {
        (1..=count).map(move |number| format!("{letter}{number}"))
    };
    let mut missing: BTreeSet<String> = systems.iter().flat_map(numbers).collect();
    let mut wrong = Vec::new();
    for behaviour in behaviours {
        if !missing.remove(behaviour.id) {
            let Behaviour { line, id, .. } = behaviour;
            wrong.push(format!("{DOCUMENT}:{line}: {id} is unknown or there twice"));
        }
    }
    wrong.extend(missing.iter().map(|id| format!("{DOCUMENT}: no line {id}")));
    wrong
}

/// What is wrong with one line.
fn wrong_line(behaviour: &Behaviour<'_>, files: &[(String, String)]) -> Vec<String> {
    let place = format!("{DOCUMENT}:{}", behaviour.line);
    let mut wrong = Vec::new();
    let exists = |path: &str| files.iter().any(|(file, _)| file == path);
    let (tests, pages): (Vec<_>, Vec<_>) =
        quoted(behaviour.held_by).partition(|name| name.contains("::"));
    wrong.extend(wrong_tests(&place, tests.iter().copied(), files));
    let named = quoted(behaviour.files).chain(pages.iter().copied());
    let missing = named.filter(|path| !exists(path));
    wrong.extend(missing.map(|path| format!("{place}: there is no file {path}")));
    let states = ["works", "in part", "left out"];
    let is_known = states.iter().any(|state| behaviour.is_in(state));
    let has_reason = behaviour.is_in("works") || behaviour.state.contains(": ");
    if !is_known || !has_reason {
        wrong.push(format!(
            "{place}: the state is none of works, in part, left out with a reason"
        ));
    }
    if behaviour.is_in("works") {
        if tests.is_empty() && pages.is_empty() {
            wrong.push(format!("{place}: works, and names nothing that holds it"));
        }
        if ["", "none"].contains(&behaviour.door) {
            wrong.push(format!("{place}: works, and no door reaches it"));
        }
    }
    if !behaviour.is_in("left out") && quoted(behaviour.files).next().is_none() {
        wrong.push(format!("{place}: names no file"));
    }
    wrong
}

/// What is wrong with the document.
fn wrong_behaviours(
    document: &str,
    systems: &[(char, usize)],
    files: &[(String, String)],
) -> Vec<String> {
    let behaviours = behaviours(document);
    let mut wrong = wrong_ids(&behaviours, systems);
    wrong.extend(behaviours.iter().flat_map(|line| wrong_line(line, files)));
    let summary = summary(&behaviours);
    if !document.contains(&summary) {
        wrong.push(format!("{DOCUMENT}: does not say \"{summary}\""));
    }
    wrong
}

#[test]
fn each_behaviour_of_the_ancestors_has_a_line_with_files_and_tests_that_exist() {
    let files = files();
    let document = files.iter().find(|(path, _)| path == DOCUMENT);
    let (_, document) = document.unwrap();
    let all: usize = SYSTEMS.iter().map(|(_, count)| count).sum();
    assert_eq!(all, 133);
    none("ancestors", &wrong_behaviours(document, &SYSTEMS, &files));
}

#[test]
fn planted_behaviours_are_found() {
    let files = [("a/b.rs".to_owned(), "#[test]\nfn holds() {}\n".to_owned())];
    let document = "7 behaviours: 4 work, 1 in part, 1 left out.\n\
                    | id | behaviour | file | held by | door | state |\n|---|---|---|---|---|---|\n\
                    | K1 | right | `a/b.rs` | `a/b.rs::holds` | GET | works |\n\
                    | K2 | gone | none | none | none | left out: decision 1 |\n\
                    | K2 | again | `a/c.rs` | `a/b.rs::held` | GET | works |\n\
                    | K3 | held by nothing | `a/b.rs` | none | none | works |\n\
                    | K5 | no reason | `a/b.rs` | `a/c.md` | GET | in part |\n\
                    | D1 | no file | none | `a/b.rs` | GET | works |\n\
                    | D2 | odd | `a/b.rs` | `a/b.rs::holds` | GET | mostly |\n";
    let expected = [
        "docs/ancestors.md:6: K2 is unknown or there twice",
        "docs/ancestors.md:8: K5 is unknown or there twice",
        "docs/ancestors.md: no line K4",
        "docs/ancestors.md:6: a/b.rs::held: a/b.rs has no test held",
        "docs/ancestors.md:6: there is no file a/c.rs",
        "docs/ancestors.md:7: works, and names nothing that holds it",
        "docs/ancestors.md:7: works, and no door reaches it",
        "docs/ancestors.md:8: there is no file a/c.md",
        "docs/ancestors.md:8: the state is none of works, in part, left out with a reason",
        "docs/ancestors.md:9: names no file",
        "docs/ancestors.md:10: the state is none of works, in part, left out with a reason",
    ];
    let systems = [('K', 4), ('D', 2)];
    assert_eq!(wrong_behaviours(document, &systems, &files), expected);
    let miscounted = document.replace("4 work", "5 work");
    let wrong = wrong_behaviours(&miscounted, &systems, &files);
    assert_eq!(
        wrong.last().unwrap(),
        "docs/ancestors.md: does not say \"7 behaviours: 4 work, 1 in part, 1 left out.\""
    );
}
