//! Programs of tests: `tests/it` of each crate, and no file that none of them compiles.

use std::collections::BTreeMap;

use crate::{files, none};

/// Test programs beside `tests/it`: what they measure or exhaust belongs to a process.
const OF_THEIR_OWN: [&str; 3] = [
    "crates/bywash/tests/folder_held_files",
    "crates/bywash/tests/many_buckets",
    "crates/bywash/tests/many_objects",
];
/// The first words of their reason, which stands in the head of the file.
const REASON: &str = "//! A process of its own: ";
/// Tests of this repository's rules, not of a crate.
const RULES: &str = "xtask";

/// Returns the crate's folder and the path below its `tests`; `None` for modules of unit tests.
fn in_tests(path: &str) -> Option<(&str, &str)> {
    let (folder, rest) = path.split_once("/tests/")?;
    let is_crate = path.ends_with(".rs") && folder != RULES && !folder.contains("/src");
    is_crate.then_some((folder, rest))
}

fn wrong_programs(files: &[(String, String)]) -> Vec<String> {
    let mains: BTreeMap<&str, &str> = files
        .iter()
        .filter_map(|(path, text)| Some((path.strip_suffix("/tests/it/main.rs")?, text.as_str())))
        .collect();
    let mut findings = Vec::new();
    for (path, text) in files {
        let Some((folder, rest)) = in_tests(path) else {
            continue;
        };
        if let Some(file) = rest.strip_prefix("it/") {
            let module = file.split(['/', '.']).next().unwrap_or_default();
            let main = mains.get(folder).copied().unwrap_or_default();
            if module != "main" && !main.contains(&format!("mod {module};")) {
                findings.push(format!(
                    "{path} is in no program: {folder}/tests/it/main.rs lacks `mod {module};`"
                ));
            }
            continue;
        }
        let program = rest.split(['/', '.']).next().unwrap_or_default();
        let program = format!("{folder}/tests/{program}");
        if !OF_THEIR_OWN.contains(&program.as_str()) {
            findings.push(format!(
                "{path} is a program of its own; move it to {folder}/tests/it"
            ));
        } else if !text.lines().take(10).any(|line| line.starts_with(REASON)) {
            findings.push(format!("{path} lacks its reason: `{REASON}..`"));
        }
    }
    findings
}

#[test]
fn each_crate_has_one_program_of_tests() {
    none("programs of tests", &wrong_programs(&files()));
}

#[test]
fn second_programs_and_files_of_none_are_found() {
    let main = "mod known;";
    for (path, text, wrong) in [
        ("crates/a/tests/it/known.rs", "", false),
        ("crates/a/tests/it/known/part.rs", "", false),
        ("crates/a/tests/it/unknown.rs", "", true),
        ("crates/b/tests/it/known.rs", "", true),
        ("crates/a/tests/second.rs", "", true),
        ("crates/a/tests/second/main.rs", "", true),
        ("crates/a/src/tests/unit.rs", "", false),
        ("xtask/tests/tidy/main.rs", "", false),
        (
            "crates/bywash/tests/many_buckets.rs",
            "//! Buckets.\n",
            true,
        ),
        (
            "crates/bywash/tests/many_buckets.rs",
            "//! Buckets.\n//!\n//! A process of its own: descriptors.\n",
            false,
        ),
    ] {
        let files = [
            ("crates/a/tests/it/main.rs".to_owned(), main.to_owned()),
            (path.to_owned(), text.to_owned()),
        ];
        let findings = wrong_programs(&files);
        assert_eq!(!findings.is_empty(), wrong, "{path}: {findings:?}");
    }
}
