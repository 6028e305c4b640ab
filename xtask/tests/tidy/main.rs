//! House rules that no lint holds: arrows between crates, layers and circles of modules, one TLS stack, file sizes, left-over words, atomics and
//! their comments, the words of comments, and claims in the documentation that name their tests. Each rule is a function from text to
//! findings, so each has a control with a planted fault beside it.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "tests")]

mod ancestors;
mod arrows;
mod atomics;
mod circles;
mod claims;
mod decisions;
mod layers;
mod limits;
mod messages;
mod programs;
mod promises;
mod sources;
mod words;

use std::path::{Path, PathBuf};

/// The root of the workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_path_buf()
}

/// Every file the project keeps, with its path from the root and its text; what is not text is left out.
fn files() -> Vec<(String, String)> {
    let mut found = Vec::new();
    walk(&root(), &mut found);
    assert!(
        found.len() > 10,
        "the walk found only {} files",
        found.len()
    );
    found.sort();
    found
}

fn walk(folder: &Path, found: &mut Vec<(String, String)>) {
    const NOT_OURS: [&str; 6] = [
        "target",
        ".git",
        "bywash-data",
        "node_modules",
        "__pycache__",
        ".venv",
    ];
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if !NOT_OURS.contains(&name.as_str()) {
                walk(&path, found);
            }
        } else if let Ok(text) = std::fs::read_to_string(&path) {
            let from_root = path.strip_prefix(root()).unwrap();
            found.push((from_root.to_string_lossy().into_owned(), text));
        }
    }
}

/// Fails with every finding on a line of its own.
#[track_caller]
fn none(rule: &str, findings: &[String]) {
    assert!(findings.is_empty(), "{rule}:\n  {}", findings.join("\n  "));
}
