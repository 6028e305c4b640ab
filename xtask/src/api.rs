//! The public interface of the crates that programs embed, as one list a crate, which the gate compares with `docs/api`.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use crate::run::{Failure, Step, doing, root, target};

/// The crates, and the options of their builds. `bywash` without its clients of stores, whose check has compiled what it needs.
const CRATES: [(&str, &[&str]); 2] = [
    ("bywash", &["--no-default-features"]),
    ("bywash-client", &[]),
];

/// Compares the interfaces with their lists in `docs/api`, or writes the lists if `update` is set.
///
/// # Errors
/// The items that were added and removed since.
pub(crate) fn run(update: bool) -> Result<(), Failure> {
    let mut changes = Vec::new();
    for (name, options) in CRATES {
        let found = interface(name, options)?;
        let path = root().join(format!("docs/api/{name}.txt"));
        if update {
            fs::write(&path, found).map_err(doing(format!("write {}", path.display())))?;
            println!("wrote {}", path.display());
            continue;
        }
        let known = fs::read_to_string(&path).map_err(doing(format!("read {}", path.display())))?;
        changes.extend(differences(&known, &found));
    }
    if changes.is_empty() {
        return Ok(());
    }
    Err(Failure::Missing(format!(
        "the public interface has changed; if that is meant, record it by `cargo xtask api --update`:\n  {}",
        changes.join("\n  ")
    )))
}

/// Lines that only one of two lists has, each with its sign.
fn differences(known: &str, found: &str) -> Vec<String> {
    let (known, found): (BTreeSet<_>, BTreeSet<_>) =
        (known.lines().collect(), found.lines().collect());
    let removed = known.difference(&found).map(|line| format!("- {line}"));
    let added = found.difference(&known).map(|line| format!("+ {line}"));
    removed.chain(added).collect()
}

/// Lists the public items of a crate, a line each, without what the compiler derives.
fn interface(name: &str, options: &[&str]) -> Result<String, Failure> {
    Step::cargo(["rustdoc", "--quiet", "--lib", "--package", name])
        .args(options)
        .target("package")
        .env("RUSTDOC", rustdoc_with_json()?)
        .args(["--", "-Z", "unstable-options", "--output-format", "json"])
        .run()?;
    let file = format!("package/doc/{}.json", name.replace('-', "_"));
    let json = target().join(file);
    let api = public_api::Builder::from_rustdoc_json(&json)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build()
        .map_err(|error| Failure::Missing(format!("read {}: {error}", json.display())))?;
    Ok(api.items().map(|item| format!("{item}\n")).collect())
}

/// Makes a program that is rustdoc with its unstable JSON. The variable is set for rustdoc alone: build scripts that saw it would
/// run again, and all that depends on them.
fn rustdoc_with_json() -> Result<PathBuf, Failure> {
    let path = target().join("rustdoc-with-json");
    let text = "#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc \"$@\"\n";
    let failed = || doing(format!("write {}", path.display()));
    fs::write(&path, text).map_err(failed())?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(failed())?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_the_lines_that_one_list_has() {
        assert_eq!(differences("a\nb\n", "a\nb\n"), [""; 0]);
        assert_eq!(differences("a\nb\n", "b\nc\n"), ["- a", "+ c"]);
    }
}
