//! Programs of tests: one a crate, and no file that none of them compiles.

use crate::{files, none};

/// Test programs beside `tests/it` that count what a process has.
const OF_THEIR_OWN: [&str; 3] = [
    "crates/bywash/tests/folder_held_files.rs",
    "crates/bywash/tests/many_buckets.rs",
    "crates/bywash/tests/many_objects.rs",
];

#[test]
fn each_file_of_a_test_program_is_compiled() {
    let files = files();
    let mut findings = Vec::new();
    for (path, _) in &files {
        let Some((crate_folder, file)) = path.split_once("/tests/") else {
            continue;
        };
        let main = format!("{crate_folder}/tests/it/main.rs");
        let Some((_, text)) = files.iter().find(|(path, _)| *path == main) else {
            continue;
        };
        let Some(file) = file.strip_prefix("it/") else {
            if path.ends_with(".rs") && !OF_THEIR_OWN.contains(&path.as_str()) {
                findings.push(format!("{path} is a program of its own; move it to {crate_folder}/tests/it, or state why not"));
            }
            continue;
        };
        let module = file.split(['/', '.']).next().unwrap_or_default();
        if module != "main" && !text.contains(&format!("mod {module};")) {
            findings.push(format!(
                "{path} is in no program: {main} lacks `mod {module};`"
            ));
        }
    }
    none("programs of tests", &findings);
}
