//! The inner loop of a change: formatting, house rules, lints and the fast tests of the crates that changed since main.

use std::collections::BTreeSet;
use std::fs;
use std::time::Instant;

use crate::counts::Counts;
use crate::run::{Failure, Step, doing, root};
use crate::shard;

/// Folders whose children are packages of the workspace.
const PACKAGE_FOLDERS: [&str; 2] = ["crates", "testing"];
/// The package of the house rules, which each run has, and the one whose rivals are 40 packages that nothing else needs.
const NOT_TESTED: [&str; 2] = ["xtask", "bywash-bench"];

/// A package of the workspace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Package {
    /// From the root, with a slash at the end.
    folder: String,
    name: String,
    manifest: String,
}

impl Package {
    fn read(folder: &str) -> Option<Self> {
        let manifest = fs::read_to_string(root().join(folder).join("Cargo.toml")).ok()?;
        let name = manifest
            .lines()
            .find_map(|line| line.strip_prefix("name = \""))?
            .trim_end_matches('"')
            .to_owned();
        Some(Self {
            folder: format!("{folder}/"),
            name,
            manifest,
        })
    }

    fn has(&self, path: &str) -> bool {
        root().join(&self.folder).join(path).exists()
    }

    /// Whether its manifest names `other`.
    fn depends_on(&self, other: &str) -> bool {
        let mut names = self.manifest.lines();
        names.any(|line| {
            line.starts_with(&format!("{other}.")) || line.starts_with(&format!("{other} ="))
        })
    }
}

fn packages() -> Result<Vec<Package>, Failure> {
    let mut found: Vec<Package> = ["bench", "xtask"]
        .into_iter()
        .filter_map(Package::read)
        .collect();
    for parent in PACKAGE_FOLDERS {
        let entries = fs::read_dir(root().join(parent)).map_err(doing(format!("read {parent}")))?;
        let names = entries.flatten().map(|entry| entry.file_name());
        found.extend(
            names.filter_map(|name| Package::read(&format!("{parent}/{}", name.to_string_lossy()))),
        );
    }
    found.sort();
    Ok(found)
}

/// Returns the files that differ from where this branch left main, committed or not.
fn changed_files() -> Result<Vec<String>, Failure> {
    let git = |args: &[&str]| Step::new("git").args(args).output();
    let main = ["main", "origin/main"].into_iter().find(|name| {
        Step::new("git")
            .args(["rev-parse", "--verify", "--quiet", name])
            .succeeds()
    });
    let base = match main {
        Some(main) => git(&["merge-base", main, "HEAD"])?,
        None => git(&["rev-parse", "HEAD"])?,
    };
    let changed = git(&["diff", "--name-only", base.trim()])?;
    let added = git(&["ls-files", "--others", "--exclude-standard"])?;
    let files = changed.lines().chain(added.lines());
    Ok(files.map(str::to_owned).collect())
}

/// Returns the packages that own these files.
fn owners<'a>(files: &[String], packages: &'a [Package]) -> Vec<&'a Package> {
    let is_owner = |package: &&Package| files.iter().any(|file| file.starts_with(&package.folder));
    packages.iter().filter(is_owner).collect()
}

/// The options that choose unit tests and `--test it`, as far as one of the packages has them.
fn targets(packages: &[&Package]) -> Vec<&'static str> {
    let mut targets = vec!["--bins"];
    if packages.iter().any(|package| package.has("src/lib.rs")) {
        targets.push("--lib");
    }
    if packages.iter().any(|package| package.has("tests/it")) {
        targets.extend(["--test", "it"]);
    }
    targets
}

/// Runs the inner loop for the packages with these names, or for those that changed since main. Prints the time of each step, and what is left to the
/// gate.
pub(crate) fn run(names: &[String]) -> Result<(), Failure> {
    let all = packages()?;
    let changed = if names.is_empty() {
        owners(&changed_files()?, &all)
    } else {
        let known = |name: &String| all.iter().find(|package| package.name == *name);
        let unknown = |name: &String| Failure::Missing(format!("there is no package {name}"));
        let found = names
            .iter()
            .map(|name| known(name).ok_or_else(|| unknown(name)));
        found.collect::<Result<_, _>>()?
    };
    let (left, tested): (Vec<&Package>, Vec<&Package>) = changed
        .into_iter()
        .partition(|package| NOT_TESTED.contains(&&*package.name));
    let start = Instant::now();
    let mut counts = Counts::default();
    let mut step = |name: &str, step: Step| {
        let begun = Instant::now();
        println!("== {name}");
        let outcome = step.run_counted(&mut counts);
        println!("== {name}: {:.1} s", begun.elapsed().as_secs_f64());
        outcome
    };
    step("fmt", Step::cargo(["fmt", "--all", "--check"]))?;
    step(
        "tidy",
        Step::linting_cargo(["test", "--quiet", "-p", "xtask"]),
    )?;
    let tested_names: Vec<&str> = tested.iter().map(|package| &*package.name).collect();
    if !tested.is_empty() {
        let skips = shard::slow_tests().iter().flat_map(|name| ["--skip", name]);
        let chosen = tested_names.iter().flat_map(|name| ["-p", name]);
        let tests = Step::linting_cargo(["test", "--quiet", "--no-fail-fast"])
            .args(chosen)
            .args(targets(&tested))
            .args(["--"])
            .args(skips)
            .env("CARGO_INCREMENTAL", "1")
            .env("RUST_TEST_THREADS", "4");
        step(
            &format!("clippy and tests of {}", tested_names.join(", ")),
            tests,
        )?;
    }
    println!("\nall {:>7.1} s, {counts}", start.elapsed().as_secs_f64());
    for line in left_out(&tested, &left, &all) {
        println!("left to the gate: {line}");
    }
    Ok(())
}

/// What the inner loop does not run.
fn left_out(tested: &[&Package], left: &[&Package], all: &[Package]) -> Vec<String> {
    let mut lines = Vec::new();
    let is_tested = |package: &Package| tested.iter().any(|other| other.name == package.name);
    let depends = |package: &&Package| {
        !is_tested(package)
            && tested
                .iter()
                .any(|changed| package.depends_on(&changed.name))
    };
    let dependents: BTreeSet<&str> = all
        .iter()
        .filter(depends)
        .map(|package| &*package.name)
        .collect();
    if !dependents.is_empty() {
        let names: Vec<&str> = dependents.into_iter().collect();
        lines.push(format!("what imports them: {}", names.join(", ")));
    }
    if left.iter().any(|package| package.name == "bywash-bench") {
        lines.push("bywash-bench: cargo xtask test --only bench".to_owned());
    }
    if !tested.is_empty() {
        lines.push(format!(
            "{} slow tests, documentation tests, examples",
            shard::slow_tests().len()
        ));
    }
    lines.push("deny, package, loom, shuttle, clients, siege".to_owned());
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(folder: &str, name: &str, dependency: &str) -> Package {
        Package {
            folder: folder.to_owned(),
            name: name.to_owned(),
            manifest: format!("[dependencies]\n{dependency}.workspace = true\n"),
        }
    }

    #[test]
    fn files_belong_to_the_package_of_their_folder() {
        let all = [
            package("crates/a/", "a", "x"),
            package("crates/ab/", "ab", "a"),
        ];
        let files = ["README.md", "crates/ab/src/lib.rs"].map(str::to_owned);
        assert_eq!(owners(&files, &all), [&all[1]]);
        assert!(owners(&files[..1], &all).is_empty());
    }

    #[test]
    fn packages_that_import_a_changed_one_are_named() {
        let all = [
            package("crates/a/", "a", "x"),
            package("crates/ab/", "ab", "a"),
        ];
        let lines = left_out(&[&all[0]], &[], &all);
        assert_eq!(lines[0], "what imports them: ab");
        assert_eq!(left_out(&[], &[], &all).len(), 1);
    }

    #[test]
    fn packages_of_the_workspace_are_found() {
        let all = packages().unwrap();
        let of = |name: &str| all.iter().find(|package| package.name == name).unwrap();
        assert_eq!(of("bywash-series-proofs").folder, "testing/series/");
        assert!(of("bywash-gateway").depends_on("bywash"));
        assert_eq!(targets(&[of("bywash-cli")]), ["--bins", "--test", "it"]);
        assert_eq!(targets(&[of("bywash-mem")]), ["--bins", "--lib"]);
    }
}
