//! The origins' sessions that open sessions use, for another program.

use std::fs;
use std::io;
use std::path::{Path as FsPath, PathBuf};

use bywash::origin::SessionToken;

use super::record::{OPEN, parse, present};

/// The origins' sessions of open resumable sessions.
#[derive(Debug, Default)]
pub struct GcsSessionTokens {
    /// One for each that has begun at its origin.
    pub tokens: Vec<SessionToken>,
    /// Files that are damaged, with the reason. Their sessions can never be continued.
    pub damaged: Vec<(PathBuf, String)>,
}

/// Returns the origins' sessions of the open resumable sessions in a folder, which a server may be
/// using. Changes nothing, and reads one file after the other. Blocks.
///
/// # Errors
/// If a file cannot be read.
pub fn gcs_session_tokens(folder: &FsPath) -> io::Result<GcsSessionTokens> {
    let mut found = GcsSessionTokens::default();
    let Some(entries) = present(fs::read_dir(folder))? else {
        return Ok(found);
    };
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_none_or(|kind| kind != OPEN) {
            continue;
        }
        // It may have ended in between.
        let Some(content) = present(fs::read(&path))? else {
            continue;
        };
        match parse(content) {
            Ok((_, token)) => found.tokens.extend(token.session().cloned()),
            Err(reason) => found.damaged.push((path, reason)),
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn damaged_files_are_named_and_others_read() {
        let home = tempfile::tempdir().unwrap();
        assert!(gcs_session_tokens(&home.path().join("none")).is_ok());
        for (name, content) in [
            ("a.open", "no line"),
            ("b.open", "{}\ntoken"),
            ("c.done", "{}"),
        ] {
            fs::write(home.path().join(name), content).unwrap();
        }
        let found = gcs_session_tokens(home.path()).unwrap();
        assert!(found.tokens.is_empty());
        let mut names: Vec<_> = found.damaged.iter().map(|(path, _)| path.clone()).collect();
        names.sort();
        assert_eq!(
            names,
            ["a.open", "b.open"].map(|name| home.path().join(name))
        );
    }
}
