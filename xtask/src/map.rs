//! The code map, a line a file: the first sentence of its own documentation.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use crate::run::{Failure, doing, root};

/// Returns the first sentence of a file's documentation, without its mark.
fn first_sentence(text: &str) -> String {
    let lines = text.lines().map_while(|line| line.strip_prefix("//!"));
    let paragraph: Vec<&str> = lines
        .map(str::trim)
        .take_while(|line| !line.is_empty())
        .collect();
    let paragraph = paragraph.join(" ");
    match paragraph.split_once(". ") {
        Some((sentence, _)) => format!("{sentence}."),
        None => paragraph,
    }
}

/// Adds the sources below `folder` with their first sentences, the files of a folder before its folders.
fn collect(folder: &Path, found: &mut Vec<(String, String)>) -> Result<(), Failure> {
    let entries = fs::read_dir(folder).map_err(doing(format!("read {}", folder.display())))?;
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    // The files of a folder stand together.
    paths.sort_by_key(|path| (path.is_dir(), path.clone()));
    for path in paths {
        if path.is_dir() {
            collect(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text =
                fs::read_to_string(&path).map_err(doing(format!("read {}", path.display())))?;
            let name = path.strip_prefix(root()).unwrap_or(&path);
            found.push((name.display().to_string(), first_sentence(&text)));
        }
    }
    Ok(())
}

/// Prints each source file of `crates/` whose path contains `filter`, with the first sentence of its documentation. Without tests, unless
/// `filter` names them.
pub(crate) fn run(filter: Option<&str>) -> Result<(), Failure> {
    let mut found = Vec::new();
    collect(&root().join("crates"), &mut found)?;
    let filter = filter.unwrap_or_default();
    let is_test = |path: &str| path.contains("/tests/") || path.ends_with("/tests.rs");
    let mut folder = String::new();
    let mut out = io::stdout().lock();
    for (path, sentence) in found {
        if !path.contains(filter) || (is_test(&path) && !filter.contains("tests")) {
            continue;
        }
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", &path));
        let heading = if parent == folder {
            String::new()
        } else {
            format!("\n{parent}\n")
        };
        parent.clone_into(&mut folder);
        if writeln!(out, "{heading}  {name:<24} {sentence}").is_err() {
            // Its reader, such as `head`, has seen enough.
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentence_ends_at_its_point_or_at_the_paragraph() {
        let of = |text| first_sentence(text);
        assert_eq!(of("//! Pins. More.\n\nmod a;\n"), "Pins.");
        assert_eq!(
            of("//! A name such as `a.b`,\n//! and one more.\n//!\n//! Next.\n"),
            "A name such as `a.b`, and one more."
        );
        assert_eq!(of("mod a;\n"), "");
    }
}
