//! `bywash cache` against a running server.

use std::process::Output;
use std::time::{Duration, Instant};

use crate::common::{Server, bywash, data_dir, stderr, stdout};

fn cache(server: &Server, args: &[&str]) -> Output {
    let mut command = bywash(&["cache"]);
    command.args(args).arg("--data-dir").arg(&server.data);
    command.output().unwrap()
}

fn json(server: &Server, args: &[&str]) -> Vec<serde_json::Value> {
    let output = cache(server, &[args, &["--json"]].concat());
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    let lines = stdout(&output);
    lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn cache_verbs_show_and_change_a_running_server() {
    let (_home, data) = data_dir(&["data"]);
    let logs = data.join("buckets/data/logs");
    std::fs::create_dir_all(&logs).unwrap();
    std::fs::write(logs.join("a b.txt"), vec![1; 3000]).unwrap();
    std::fs::write(logs.join("c.txt"), vec![2; 2_000_000]).unwrap();
    let server = Server::start(&data, &["--memory", "64MiB"]);
    assert!(json(&server, &["ls"]).is_empty());
    server.run(&["cat", "s3://data/logs/a b.txt"]);

    let listed = json(&server, &["ls", "s3://data/logs/"]);
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!(listed[0]["key"], "logs/a b.txt");
    assert_eq!(
        (&listed[0]["bucket"], &listed[0]["resident_bytes"]),
        (&"data".into(), &3000.into())
    );

    let why = json(&server, &["why", "s3://data/logs/a b.txt"]);
    assert_eq!(
        (&why[0]["outcome"], &why[0]["tier"]),
        (&"hit".into(), &"memory".into())
    );
    let printed = stdout(&cache(&server, &["why", "s3://data/logs/a b.txt"]));
    assert!(
        printed.starts_with("hit: s3://data/logs/a b.txt\n"),
        "{printed}"
    );
    assert!(
        printed.contains("1 requests to the origin, 3000 bytes"),
        "{printed}"
    );

    let warmed = json(&server, &["warm", "s3://data/logs/"]);
    assert_eq!(
        (&warmed[0]["objects"], &warmed[0]["bytes"]),
        (&2.into(), &2_003_000.into())
    );
    let dropped = json(&server, &["drop", "s3://data"]);
    assert_eq!(dropped[0]["objects"], 2);
    assert_eq!(
        json(&server, &["why", "s3://data/logs/c.txt"])[0]["outcome"],
        "miss"
    );
}

/// Polls `reached` until it returns `true`.
fn wait_until(what: &str, reached: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !reached() {
        assert!(Instant::now() < deadline, "not within a minute: {what}");
    }
}

#[test]
fn objects_unread_for_the_idle_age_leave_the_memory() {
    let (_home, data) = data_dir(&["data"]);
    std::fs::write(data.join("buckets/data/a"), vec![7; 3 << 20]).unwrap();
    let server = Server::start(&data, &["--memory", "64MiB", "--idle-age", "1s"]);
    server.run(&["cat", "s3://data/a"]);
    let gone = || server.stats()["pool"]["idle_evicted_bytes"] == 3 << 20;
    wait_until("the object is evicted", gone);
    let listed = json(&server, &["ls"]);
    assert_eq!(listed[0]["resident_bytes"], 0, "{listed:?}");
    let given_back = || server.stats()["budget"]["idle"] == 0;
    wait_until("its pages are given back", given_back);
    server.run(&["cat", "s3://data/a"]);
}

#[test]
fn slow_evictions_are_counted_by_the_settings_of_the_server() {
    for (time, is_slow) in [("1h", false), ("0s", true)] {
        let (_home, data) = data_dir(&["data"]);
        std::fs::write(data.join("buckets/data/a"), vec![7; 40 << 20]).unwrap();
        // All blocks may be pinned by responses for a moment, which adds rounds: only the time counts.
        let rounds = ["--slow-eviction-rounds", "1000000"];
        let args = ["--memory", "32MiB", "--slow-eviction", time];
        let server = Server::start(&data, &[&args[..], &rounds].concat());
        // Backwards, so that no block is read ahead: evictions by readahead are no pass.
        for block in (0..40).rev() {
            let range = format!("{}-{}", block << 20, (block << 20) + 9);
            server.run(&["cat", "--range", &range, "s3://data/a"]);
        }
        let pool = &server.stats()["pool"];
        assert!(pool["evictions"].as_u64().unwrap() > 0, "{pool}");
        let slow = pool["slow_evictions"].as_u64().unwrap();
        assert_eq!(slow > 0, is_slow, "{pool}");
        let (_, metrics) = server.admin("/metrics");
        let line = format!("\nbywash_slow_evictions_total {slow}\n");
        assert!(metrics.contains(&line), "{metrics}");
    }
}

#[test]
fn memory_limit_of_a_running_server_is_shown_and_changed() {
    let (_home, data) = data_dir(&["data"]);
    let object = data.join("buckets/data/a");
    std::fs::write(&object, vec![7; 48 << 20]).unwrap();
    let server = Server::start(&data, &["--memory", "64MiB"]);
    let limit = |args: &[&str]| json(&server, &[&["limit"], args].concat()).remove(0);
    let before = limit(&[]);
    assert_eq!(before["memory"]["limit"], 64 << 20);
    assert_eq!(
        limit(&["--memory", "96MiB"])["memory"]["limit"],
        96 << 20,
        "{before}"
    );
    let warmed = json(&server, &["warm", "s3://data"]);
    assert_eq!(warmed[0]["bytes"], 48 << 20);
    let lowered = limit(&["--memory", "32MiB"]);
    assert_eq!(lowered["memory"]["limit"], 32 << 20);
    assert!(lowered["memory"]["used"].as_u64().unwrap() <= 32 << 20);
    let object = &json(&server, &["ls", "s3://data/a"])[0];
    let resident = object["resident_bytes"].as_u64().unwrap();
    assert!((16 << 20..=32 << 20).contains(&resident), "{object}");

    for (size, code, reason) in [
        ("1MiB", 2, "at least 8388608 are needed"),
        ("16MiB", 2, "less than two upload chunks"),
        ("25%", 2, "write 512MiB"),
    ] {
        let output = cache(&server, &["limit", "--memory", size]);
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        assert!(stderr(&output).contains(reason), "{}", stderr(&output));
    }
    let text = stdout(&cache(&server, &["limit"]));
    assert!(text.contains("of 32.00 MiB used"), "{text}");
    server.run(&["cat", "s3://data/a"]);
}

#[test]
fn failed_cache_verbs_name_the_next_step() {
    let (_home, data) = data_dir(&["data"]);
    let without_server = bywash(&["cache", "ls", "--data-dir"])
        .arg(&data)
        .output()
        .unwrap();
    assert_eq!(
        without_server.status.code(),
        Some(3),
        "{}",
        stderr(&without_server)
    );
    assert!(
        stderr(&without_server).contains("bywash serve"),
        "{}",
        stderr(&without_server)
    );

    let server = Server::start(&data, &[]);
    for (args, code, expected) in [
        (&["why", "s3://data"][..], 2, "write s3://data/key"),
        (&["ls", "./file"], 2, "write s3://bucket/prefix"),
        (&["warm", "s3://missing"], 3, "no bucket missing"),
        (&["ls", "--admin-addr", "192.0.2.1:80"], 2, "not loopback"),
    ] {
        let output = cache(&server, args);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{args:?}: {}",
            stderr(&output)
        );
        assert!(
            stderr(&output).contains(expected),
            "{args:?}: {}",
            stderr(&output)
        );
    }
    let data = server.data.clone();
    drop(server);
    let gone = bywash(&["cache", "ls", "--data-dir"])
        .arg(&data)
        .output()
        .unwrap();
    assert_eq!(gone.status.code(), Some(5), "{}", stderr(&gone));
}
