//! File sizes, left-over words, and what must be absent: `unsafe`, locks held across an await and retries outside their places.

use super::{files, none};

/// Above this a file of `crates/` is more than one room.
const MOST_LINES: usize = 700;
/// Above this it is worth a look; printed, not an error.
const MANY_LINES: usize = 400;

#[test]
fn no_file_has_grown_past_its_limit() {
    let mut long: Vec<(usize, String)> = files()
        .into_iter()
        .filter(|(path, _)| path.starts_with("crates/") && path.ends_with(".rs"))
        .map(|(path, text)| (text.lines().count(), path))
        .filter(|(lines, _)| *lines > MANY_LINES)
        .collect();
    long.sort();
    for (lines, path) in &long {
        println!("{lines} lines: {path}");
    }
    let too_long: Vec<String> = long
        .iter()
        .filter(|(lines, _)| *lines > MOST_LINES)
        .map(|(lines, path)| format!("{path}: {lines} lines; the limit is {MOST_LINES}"))
        .collect();
    none("files to split", &too_long);
}

/// Words that mark unfinished work, put together here so that this file does not hold them.
fn left_over_words() -> Vec<String> {
    [
        ("todo", "!("),
        ("unimplemented", "!("),
        ("FIX", "ME"),
        ("dbg", "!("),
        ("XX", "X:"),
        ("/wo", "rk/"),
    ]
    .map(|(head, tail)| format!("{head}{tail}"))
    .to_vec()
}

fn left_overs(path: &str, text: &str) -> Vec<String> {
    let words = left_over_words();
    text.lines()
        .enumerate()
        .flat_map(|(number, line)| {
            words
                .iter()
                .filter(|word| line.contains(word.as_str()))
                .map(move |word| format!("{path}:{}: {word}", number + 1))
        })
        .collect()
}

#[test]
fn nothing_is_left_over() {
    let kinds = [".rs", ".md", ".toml", ".py", ".sh", ".ci/run"];
    let found: Vec<String> = files()
        .iter()
        .filter(|(path, _)| kinds.iter().any(|kind| path.ends_with(kind)))
        .flat_map(|(path, text)| left_overs(path, text))
        .collect();
    none("unfinished work, or a path of one machine", &found);
    let planted = format!("fn f() {{\n    {});\n}}\n", left_over_words()[0]);
    assert_eq!(left_overs("a.rs", &planted).len(), 1);
}

/// Places whose design has `unsafe`, each with its reason in the design: the memory core, the map of the local client, and the bridges to
/// other languages.
const UNSAFE_ROOMS: [&str; 4] = [
    "crates/bywash-mem/",
    "crates/bywash-client/src/sys.rs",
    "crates/bywash-c/",
    "crates/bywash-python/",
];

/// What lets `unsafe` stand outside its places: a crate that does not forbid it, a file that allows it.
fn unsafe_outside(files: &[(String, String)]) -> Vec<String> {
    let in_room = |path: &str| UNSAFE_ROOMS.iter().any(|room| path.starts_with(room));
    // A crate with an unsafe file cannot forbid it as a whole: the workspace denies it.
    let has_unsafe_file = |root: &str| {
        let folder = root.rsplit_once('/').map_or("", |(folder, _)| folder);
        UNSAFE_ROOMS.iter().any(|room| room.starts_with(folder))
    };
    let mut found = Vec::new();
    for (path, text) in files.iter().filter(|(path, _)| path.ends_with(".rs")) {
        let root = path.ends_with("/src/lib.rs") || path.ends_with("/src/main.rs");
        let forbids = text.contains("#![forbid(unsafe_code)]");
        if root && !forbids && !in_room(path) && !has_unsafe_file(path) {
            found.push(format!("{path}: no #![forbid(unsafe_code)]"));
        }
        let mut code = text.lines().map(str::trim);
        if !in_room(path) && code.any(|line| line == "unsafe_code,") {
            found.push(format!("{path}: allows unsafe_code"));
        }
    }
    found
}

#[test]
fn unsafe_is_forbidden_outside_the_memory_core() {
    none("unsafe outside its places", &unsafe_outside(&files()));
    let planted = [
        ("crates/a/src/lib.rs", ""),
        (
            "crates/bywash-client/src/pool.rs",
            "#![allow(\n    unsafe_code,\n)]",
        ),
    ];
    for (path, text) in planted {
        let planted = [(path.to_owned(), text.to_owned())];
        assert_eq!(unsafe_outside(&planted).len(), 1, "{path}");
    }
}

/// What lets a lock be held across an await: a lint that is not denied, a package without the workspace's lints, an exception.
fn locks_across_awaits(path: &str, text: &str) -> Option<String> {
    const LINT: &str = "await_holding_lock";
    let lines = || text.lines().map(str::trim);
    if path == "Cargo.toml" {
        let denied = lines().any(|line| line == format!("{LINT} = \"deny\""));
        return (!denied).then(|| format!("{path}: {LINT} is not denied"));
    }
    if path.ends_with("/Cargo.toml") && !path.starts_with("fuzz/") {
        let inherited = text.contains("[lints]\nworkspace = true");
        return (!inherited).then(|| format!("{path}: not under the workspace's lints"));
    }
    let mut code = lines().filter(|line| !line.starts_with("//") && !line.contains("const LINT"));
    let excepted = path.ends_with(".rs") && code.any(|line| line.contains(LINT));
    excepted.then(|| format!("{path}: names {LINT}"))
}

#[test]
fn no_lock_is_held_across_an_await() {
    let planted = [
        ("Cargo.toml", "[workspace.lints.clippy]\n"),
        ("crates/a/Cargo.toml", "[package]\n"),
        ("crates/a/src/b.rs", "#![allow(clippy::await_holding_lock)]"),
    ];
    for (path, text) in planted {
        assert!(locks_across_awaits(path, text).is_some(), "{path}");
    }
    let own = "xtask/tests/tidy/sources.rs";
    let found: Vec<String> = files()
        .iter()
        .filter(|(path, _)| path != own)
        .filter_map(|(path, text)| locks_across_awaits(path, text))
        .collect();
    none("locks that clippy may miss", &found);
}

/// Words of what builds a client of a store.
const CLIENT_WORDS: [&str; 5] = [
    "client_builder(",
    "builder_from_env(",
    "from_builder(",
    "StorageBuilder",
    "S3Builder",
];

#[test]
fn only_the_endpoint_of_the_command_line_builds_clients() {
    const CLI: &str = "crates/bywash-cli/src/";
    let builds = |text: &str| CLIENT_WORDS.iter().any(|word| text.contains(word));
    let files = files();
    let own = files
        .iter()
        .filter_map(|(path, text)| Some((path.strip_prefix(CLI)?, text)));
    let building: Vec<_> = own.filter(|(_, text)| builds(text)).collect();
    let allowed = |path: &str| path.starts_with("endpoint/") || path == "admin.rs";
    let others = building.iter().filter(|(path, _)| !allowed(path));
    let others: Vec<_> = others.map(|(path, _)| (*path).to_owned()).collect();
    none("clients of stores built outside endpoint/", &others);
    assert!(building.len() > others.len());
}

/// Words of retry loops and of clients that retry. `RetryPolicy` is the engine's setting, which its callers may choose.
fn retries(path: &str, text: &str) -> Vec<String> {
    const WORDS: [&str; 4] = ["RetryConfig", "Retries", "with_retries", "back_off"];
    let numbered = text.lines().enumerate();
    let code = numbered.filter(|(_, line)| !line.trim_start().starts_with("//"));
    code.filter(|(_, line)| WORDS.iter().any(|word| line.contains(word)))
        .map(|(number, _)| format!("{path}:{}", number + 1))
        .collect()
}

/// Settings of object_store's clients, which turn its retries off.
const CLIENTS: &str = "crates/bywash-store/src/cloud.rs";

#[test]
fn only_the_engine_retries_requests_to_stores() {
    let files = files();
    let text = |wanted: &str| files.iter().find(|(path, _)| path == wanted).unwrap();
    let outside = |path: &str| {
        let product = path.starts_with("crates/") && path.contains("/src/");
        product && !path.starts_with("crates/bywash/") && path != CLIENTS
    };
    let found: Vec<String> = files
        .iter()
        .filter(|(path, _)| path.ends_with(".rs") && outside(path))
        .flat_map(|(path, text)| retries(path, text))
        .collect();
    none("retries outside the engine", &found);
    // The clients of the engine's own stores have none either: its policy alone repeats.
    let (_, clients) = text(CLIENTS);
    assert!(clients.contains("max_retries: 0"));
    let (path, control) = text("crates/bywash/src/read/fetch.rs");
    assert!(!retries(path, control).is_empty());
}
