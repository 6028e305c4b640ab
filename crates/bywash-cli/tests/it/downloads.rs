//! Large downloads that are killed and resumed.

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

/// A server with one object of several parts, and a folder for downloads of it.
struct DownloadFixture {
    home: tempfile::TempDir,
    server: Server,
    gate: Gate,
    content: Vec<u8>,
}

impl DownloadFixture {
    fn new() -> Self {
        let (home, data) = data_dir(&["first"]);
        let server = Server::start(&data, &["--memory", "256MiB"]);
        let content = pattern(usize::try_from(BYTES).unwrap());
        let fixture = Self {
            home,
            gate: Gate::before(&server.s3),
            server,
            content,
        };
        fixture.put(&fixture.content);
        fixture
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

    /// A command that downloads to `to` through the relay.
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

    /// Starts a download and stops it once `limit` bytes were received and at least `parts` are recorded.
    fn stop_after(&self, to: &Path, limit: u64, parts: usize, signal: Signal) -> String {
        self.gate.set_limit(limit);
        let mut child = self.cp(to).spawn().unwrap();
        self.gate.wait_for_limit();
        while self.recorded_parts(to) < parts {
            assert!(child.try_wait().unwrap().is_none(), "the copy ended");
            std::thread::yield_now();
        }
        stop(child, signal)
    }

    /// Resumes a download. Returns the bytes stored before, and those received now.
    fn resume(&self, to: &Path) -> (u64, u64) {
        self.gate.set_limit(u64::MAX);
        let output = self.cp(to).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        self.assert_nothing_came_twice();
        let printed = json_lines(&output.stdout);
        assert_eq!(printed[0]["bytes"], BYTES);
        (
            printed[0]["resumed_bytes"].as_u64().unwrap_or(0),
            self.gate.passed(),
        )
    }

    /// The digest of the whole object finds a part of other bytes too, but only after all were received, and all are received again.
    fn assert_nothing_came_twice(&self) {
        let received = self.gate.passed();
        assert!(received <= BYTES + (1 << 20), "{received} bytes received");
    }

    /// The state file of the download to `to`, if there is one. It contains the path.
    fn state(&self, to: &Path) -> Option<PathBuf> {
        let states = std::fs::read_dir(self.server.data.join("downloads")).ok()?;
        let paths = states.map(|entry| entry.unwrap().path());
        let of = |state: &PathBuf| {
            let state = std::fs::read_to_string(state).unwrap_or_default();
            state.contains(&format!("{:?}", text(to)))
        };
        paths.filter(of).last()
    }

    /// Number of parts recorded in the state of the download.
    fn recorded_parts(&self, to: &Path) -> usize {
        let state = self.state(to).and_then(|state| std::fs::read(state).ok());
        let lines = state
            .unwrap_or_default()
            .iter()
            .filter(|byte| **byte == b'\n')
            .count();
        lines.saturating_sub(1)
    }

    /// The names in the folder of downloads.
    fn downloads(&self) -> Vec<String> {
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
fn killed_download_resumes_from_its_recorded_parts() {
    let fixture = DownloadFixture::new();
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
        let to = fixture.file(&format!("big-{round}"));
        fixture.stop_after(&to, limit, parts, Signal::KILL);
        assert!(!to.exists(), "an incomplete file is visible");
        let recorded = fixture.recorded_parts(&to) as u64;
        let (resumed, received) = fixture.resume(&to);
        // The last part is shorter.
        assert!(
            resumed <= recorded * PART && resumed + PART >= recorded * PART,
            "{round}: {resumed}"
        );
        if parts > 1 {
            assert!(resumed > 0, "{round}: nothing was kept");
        }
        // Response heads, and bytes that the relay held for the killed process.
        let overhead = 1 << 20;
        assert!(
            received <= BYTES - resumed + overhead,
            "{round}: {received} bytes received, {resumed} stored before"
        );
        assert!(
            std::fs::read(&to).unwrap() == fixture.content,
            "{round}: different bytes"
        );
    }
    assert_eq!(
        fixture.downloads(),
        ["big-0", "big-1", "big-2", "big-3", "big-4"]
    );
}

#[test]
fn resumed_download_replaces_damaged_parts_and_restarts_for_another_version() {
    let fixture = DownloadFixture::new();
    let to = fixture.file("big");
    fixture.stop_after(&to, 5 * PART, 1, Signal::KILL);
    // A recorded part with other bytes is fetched again.
    let part = hidden(&to, ".bywash-part");
    let mut bytes = std::fs::read(&part).unwrap();
    bytes.iter_mut().for_each(|byte| *byte = !*byte);
    std::fs::write(&part, bytes).unwrap();
    assert_eq!(fixture.resume(&to).0, 0);
    assert!(std::fs::read(&to).unwrap() == fixture.content);

    let again = fixture.file("again");
    fixture.stop_after(&again, 5 * PART, 1, Signal::KILL);
    let mut other = fixture.content.clone();
    other.reverse();
    fixture.put(&other);
    fixture.gate.set_limit(u64::MAX);
    let mut cp = fixture.cp(&again);
    let output = cp.output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    fixture.assert_nothing_came_twice();
    assert!(json_lines(&output.stdout)[0].get("resumed_bytes").is_none());
    assert!(std::fs::read(&again).unwrap() == other);
    assert_eq!(fixture.downloads(), ["again", "big"]);
}

#[test]
fn second_download_to_a_file_is_rejected_while_the_first_runs() {
    let fixture = DownloadFixture::new();
    let to = fixture.file("big");
    fixture.gate.set_limit(3 * PART);
    let first = fixture.cp(&to).spawn().unwrap();
    fixture.gate.wait_for_limit();
    let (code, message) = fixture.server.fail(&["cp", "s3://first/big", text(&to)]);
    assert_eq!(code, 1, "{message}");
    assert!(message.contains("another process"), "{message}");
    let message = stop(first, Signal::INT);
    assert!(message.contains("interrupted"), "{message}");
    fixture.resume(&to);
    assert!(std::fs::read(&to).unwrap() == fixture.content);
}

/// A store that replaces its one object after each GET, and sends neither ETags nor dates.
#[derive(Default)]
struct ReplacingStore {
    version: AtomicU8,
}

impl Protocol for ReplacingStore {
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
    let store = Origin::start(Arc::new(ReplacingStore::default()))
        .await
        .unwrap();
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
