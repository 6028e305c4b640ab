//! The arrows between our crates, and one TLS stack in the tree.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

/// Normal dependencies between our own crates that the design allows, and no others.
const ALLOWED: [(&str, &[&str]); 13] = [
    (
        "bywash-cli",
        &[
            "bywash-gateway",
            "bywash-local",
            "bywash-client",
            "bywash-cluster",
            "bywash-console",
            "bywash-series",
            "bywash",
        ],
    ),
    ("bywash-console", &["bywash-series", "bywash"]),
    ("bywash-gateway", &["bywash"]),
    // Keys, ETags, headers and listings are those of the endpoints, and the messages those of the client.
    (
        "bywash-local",
        &["bywash-gateway", "bywash-client", "bywash"],
    ),
    ("bywash-client", &[]),
    ("bywash-c", &["bywash-client"]),
    ("bywash-python", &["bywash-client"]),
    ("bywash-cluster", &["bywash"]),
    ("bywash-series", &["bywash-mem"]),
    ("bywash", &["bywash-store", "bywash-mem", "bywash-disk"]),
    ("bywash-store", &[]),
    ("bywash-mem", &[]),
    ("bywash-disk", &[]),
];

/// A second TLS stack doubles the code that guards every connection; these would bring one.
const OTHER_TLS: [&str; 6] = [
    "aws-lc-rs",
    "aws-lc-sys",
    "native-tls",
    "openssl",
    "openssl-sys",
    "boring",
];

fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps"])
        .current_dir(super::root())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Whether the package may use anything: what only tests, measures or runs tasks.
fn is_tooling(package: &Value) -> bool {
    let manifest = package["manifest_path"].as_str().unwrap();
    ["/testing/", "/bench/", "/xtask/", "/fuzz/"]
        .iter()
        .any(|part| manifest.contains(part))
}

/// Every arrow that the design does not have.
fn wrong_arrows(metadata: &Value) -> Vec<String> {
    let packages = metadata["packages"].as_array().unwrap();
    let ours: BTreeSet<&str> = packages
        .iter()
        .map(|package| package["name"].as_str().unwrap())
        .collect();
    let mut wrong = Vec::new();
    for package in packages.iter().filter(|package| !is_tooling(package)) {
        let name = package["name"].as_str().unwrap();
        let Some((_, allowed)) = ALLOWED.iter().find(|(from, _)| *from == name) else {
            wrong.push(format!("{name} is not a room of the design"));
            continue;
        };
        for dependency in package["dependencies"].as_array().unwrap() {
            let to = dependency["name"].as_str().unwrap();
            // A build dependency ends up in what is shipped as much as a normal one does.
            if dependency["kind"] != "dev" && ours.contains(to) && !allowed.contains(&to) {
                wrong.push(format!("{name} -> {to}"));
            }
        }
    }
    wrong
}

#[test]
fn crates_depend_only_along_the_arrows_of_the_design() {
    super::none(
        "arrows the design does not have",
        &wrong_arrows(&metadata()),
    );
}

#[test]
fn a_planted_arrow_is_found() {
    let mut metadata = metadata();
    let packages = metadata["packages"].as_array_mut().unwrap();
    let mem = packages
        .iter_mut()
        .find(|package| package["name"] == "bywash-mem")
        .unwrap();
    let dependencies = mem["dependencies"].as_array_mut().unwrap();
    dependencies.push(serde_json::json!({"name": "bywash", "kind": null}));
    dependencies.push(serde_json::json!({"name": "bywash-sim", "kind": null}));
    dependencies.push(serde_json::json!({"name": "bywash-bench", "kind": "dev"}));
    assert_eq!(
        wrong_arrows(&metadata),
        ["bywash-mem -> bywash", "bywash-mem -> bywash-sim"]
    );
}

/// The names in a lock file that bring a TLS stack other than rustls with ring.
fn other_tls(lock: &str) -> Vec<String> {
    lock.lines()
        .filter_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'))
        .filter(|name| OTHER_TLS.contains(name))
        .map(str::to_owned)
        .collect()
}

#[test]
fn ring_is_the_one_tls_provider() {
    let lock = std::fs::read_to_string(super::root().join("Cargo.lock")).unwrap();
    assert!(
        lock.contains("name = \"ring\""),
        "the lock file names no ring: what does TLS run on?"
    );
    super::none(
        "a second TLS provider in Cargo.lock (see `cargo tree -i NAME`)",
        &other_tls(&lock),
    );
    assert_eq!(
        other_tls("name = \"aws-lc-rs\"\nversion = \"1\"\nname = \"ring\""),
        ["aws-lc-rs"]
    );
}
