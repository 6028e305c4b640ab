//! Large downloads that are killed, and go on.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::common::gate::Gate;
use crate::common::{Server, bywash, data_dir, json_lines, pattern, stderr, succeeds, text};
use bywash_sim::server::{HttpRequest, HttpResponse, Protocol, Server as Origin};
use rustix::process::{Pid, Signal, kill_process};

const PART: u64 = 8 << 20;
const BYTES: u64 = 6 * PART + 5;

/// A server with one object of several parts, and a place for it.
struct Place {
    home: tempfile::TempDir,
    server: Server,
    gate: Gate,
    content: Vec<u8>,
}

impl Place {
    fn new() -> Self {
        let (home, data) = data_dir(&["first"]);
        let server = Server::start(&data, &["--memory", "256MiB"]);
        let content = pattern(usize::try_from(BYTES).unwrap());
        let place = Self {
            home,
            gate: Gate::before(&server.s3),
            server,
            content,
        };
        place.put(&place.content);
        place
    }

    fn put(&self, content: &[u8]) {
        let file = self.home.path().join("file");
        std::fs::write(&file, content).unwrap();
        self.server.run(&["cp", text(&file), "s3://first/big"]);
    }

    fn file(&self, name: &str) -> PathBuf {
        let folder = self.home.path().join("down");
        std::fs::create_dir_all(&folder).unwrap();
        folder.join(name)
    }

    /// A download to `to` through a relay.
    fn cp(&self, to: &Path) -> Command {
        self.server.client(&[
            "cp",
            "--json",
            "--endpoint",
            &self.gate.url,
            "s3://first/big",
            text(to),
        ])
    }

    /// Begins a download and stops it when `limit` bytes came and at least `parts` were written.
    fn killed(&self, to: &Path, limit: u64, parts: usize, signal: Signal) -> String {
        self.gate.let_through(limit);
        let mut child = self.cp(to).spawn().unwrap();
        self.gate.wait_until_shut();
        while self.noted(to) < parts {
            assert!(child.try_wait().unwrap().is_none(), "the copy ended");
            std::thread::yield_now();
        }
        stop(child, signal)
    }

    /// Ends a download; tells the bytes that were there, and those that came now.
    fn resumed(&self, to: &Path) -> (u64, u64) {
        self.gate.let_through(u64::MAX);
        let output = self.cp(to).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let told = json_lines(&output.stdout);
        assert_eq!(told[0]["bytes"], BYTES);
        (
            told[0]["resumed_bytes"].as_u64().unwrap_or(0),
            self.gate.passed(),
        )
    }

    /// The state of the download to `to`, if there is one: its name is made of the path.
    fn state(&self, to: &Path) -> Option<PathBuf> {
        let states = std::fs::read_dir(self.server.data.join("downloads")).ok()?;
        let paths = states.map(|entry| entry.unwrap().path());
        let of = |state: &PathBuf| {
            let state = std::fs::read_to_string(state).unwrap_or_default();
            state.contains(&format!("{:?}", text(to)))
        };
        paths.filter(of).last()
    }

    /// Parts that the state of the download says are there.
    fn noted(&self, to: &Path) -> usize {
        let state = self.state(to).and_then(|state| std::fs::read(state).ok());
        let lines = state
            .unwrap_or_default()
            .iter()
            .filter(|byte| **byte == b'\n')
            .count();
        lines.saturating_sub(1)
    }

    /// What is in the folder of downloads.
    fn left(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.home.path().join("down")).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

fn stop(child: Child, signal: Signal) -> String {
    kill_process(Pid::from_child(&child), signal).unwrap();
    let ended = child.wait_with_output().unwrap();
    assert!(!ended.status.success());
    stderr(&ended)
}

fn hidden(to: &Path, end: &str) -> PathBuf {
    to.with_file_name(format!(
        ".{}{end}",
        to.file_name().unwrap().to_str().unwrap()
    ))
}

#[test]
fn a_download_killed_at_any_moment_goes_on_where_it_was() {
    let place = Place::new();
    for (round, (limit, parts)) in [
        (1 << 10, 0),
        (PART, 0),
        (4 * PART + PART / 2, 1),
        (5 * PART + PART / 2, 2),
        (BYTES - 1, 3),
    ]
    .into_iter()
    .enumerate()
    {
        let to = place.file(&format!("big-{round}"));
        place.killed(&to, limit, parts, Signal::KILL);
        assert!(!to.exists(), "half a file is seen");
        let there = place.noted(&to) as u64;
        let (resumed, came) = place.resumed(&to);
        // The last part is shorter.
        assert!(
            resumed <= there * PART && resumed + PART >= there * PART,
            "{round}: {resumed}"
        );
        if parts > 1 {
            assert!(resumed > 0, "{round}: nothing was kept");
        }
        // Heads of answers, and what the relay held for the process that is gone.
        let overhead = 1 << 20;
        assert!(
            came <= BYTES - resumed + overhead,
            "{round}: {came} came, {resumed} were there"
        );
        assert!(
            std::fs::read(&to).unwrap() == place.content,
            "{round}: different bytes"
        );
    }
    assert_eq!(place.left(), ["big-0", "big-1", "big-2", "big-3", "big-4"]);
}

#[test]
fn another_version_starts_over_and_damage_is_mended() {
    let place = Place::new();
    let to = place.file("big");
    place.killed(&to, 5 * PART, 1, Signal::KILL);
    // What was noted is not believed if it is not so.
    let part = hidden(&to, ".bywash-part");
    let mut bytes = std::fs::read(&part).unwrap();
    bytes.iter_mut().for_each(|byte| *byte = !*byte);
    std::fs::write(&part, bytes).unwrap();
    assert_eq!(place.resumed(&to).0, 0);
    assert!(std::fs::read(&to).unwrap() == place.content);

    let again = place.file("again");
    place.killed(&again, 5 * PART, 1, Signal::KILL);
    let mut other = place.content.clone();
    other.reverse();
    place.put(&other);
    place.gate.let_through(u64::MAX);
    let mut cp = place.cp(&again);
    let output = cp.output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(json_lines(&output.stdout)[0].get("resumed_bytes").is_none());
    assert!(std::fs::read(&again).unwrap() == other);
    assert_eq!(place.left(), ["again", "big"]);
}

#[test]
fn two_downloads_to_one_file_do_not_meet_and_an_interrupted_one_says_how_to_go_on() {
    let place = Place::new();
    let to = place.file("big");
    place.gate.let_through(3 * PART);
    let first = place.cp(&to).spawn().unwrap();
    place.gate.wait_until_shut();
    let (code, told) = place.server.fail(&["cp", "s3://first/big", text(&to)]);
    assert_eq!(code, 1, "{told}");
    assert!(told.contains("another process"), "{told}");
    let told = stop(first, Signal::INT);
    assert!(told.contains("interrupted"), "{told}");
    place.resumed(&to);
    assert!(std::fs::read(&to).unwrap() == place.content);
}

/// A store that replaces its one object after each request for bytes, and has neither ETags nor dates.
#[derive(Default)]
struct Replaced {
    version: AtomicU8,
}

impl Protocol for Replaced {
    fn respond(&self, request: &HttpRequest) -> HttpResponse {
        let found = HttpResponse::status(200);
        if request.method == http::Method::HEAD {
            return found.with("content-length", &BYTES.to_string());
        }
        let byte = self.version.fetch_add(1, Ordering::Relaxed);
        let Some(range) = request.header("range") else {
            return found.body(vec![byte; usize::try_from(BYTES).unwrap()]);
        };
        let (start, end) = range
            .strip_prefix("bytes=")
            .unwrap()
            .split_once('-')
            .unwrap();
        let length = end.parse::<usize>().unwrap() + 1 - start.parse::<usize>().unwrap();
        let part = HttpResponse {
            status: http::StatusCode::PARTIAL_CONTENT,
            ..found
        };
        part.with("content-range", &format!("bytes {start}-{end}/{BYTES}"))
            .body(vec![byte; length])
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn object_without_etag_and_date_is_read_by_one_request() {
    let store = Origin::start(Arc::new(Replaced::default())).await.unwrap();
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("file");
    for verb in [
        &["cat", "s3://data/k"][..],
        &["cp", "s3://data/k", text(&file)],
    ] {
        let mut command = bywash(verb);
        command
            .args(["--endpoint", &store.url()])
            .current_dir(&home);
        let mut content = succeeds(command).stdout;
        if verb[0] == "cp" {
            content = std::fs::read(&file).unwrap();
        }
        assert_eq!(content.len() as u64, BYTES);
        assert!(content.iter().all(|byte| *byte == content[0]), "{verb:?}");
    }
}
