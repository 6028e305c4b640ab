//! The command line with hostile stores: names, messages and sizes that are dangerous to display, sum or write.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use crate::common::gate::Gate;
use crate::common::{bywash, json_lines, pattern, stderr, stdout, text, tree};
use bywash_sim::server::s3::S3;
use bywash_sim::server::{HttpRequest, HttpResponse, Protocol, Server};
use rustix::process::{Pid, Signal, kill_process};
use tokio::task::block_in_place;

/// Terminal controls and invisible characters: ESC, BEL, DEL, C1's CSI, a right-to-left override, an isolate, a zero width space.
const UNSAFE: [char; 7] = [
    '\u{1b}', '\u{7}', '\u{7f}', '\u{9b}', '\u{202e}', '\u{2066}', '\u{200b}',
];
/// A key with the unsafe characters that keys can contain.
const KEY: &str = "evil\u{9b}2J\u{202e}txt.exe\u{2066}\u{200b}";

/// A store that lists these objects with these sizes, and returns three bytes for each.
struct LyingStore {
    objects: Vec<(String, u64)>,
}

impl Protocol for LyingStore {
    fn respond(&self, request: &HttpRequest) -> HttpResponse {
        let (bucket, key) = request.bucket_and_key();
        let date = "2026-01-01T00:00:00.000Z";
        match (bucket.as_str(), key.as_str()) {
            ("", _) => HttpResponse::status(200).body(format!(
                "<ListAllMyBucketsResult><Buckets><Bucket><Name>{KEY}&#x1b;]0;x&#7;&#x7f;</Name>\
                 <CreationDate>{date}</CreationDate></Bucket></Buckets></ListAllMyBucketsResult>"
            )),
            ("flood", _) => HttpResponse::status(200).body(vec![b'x'; (16 << 20) + 1]),
            ("denied", _) => HttpResponse::status(403).body(format!(
                "<Error><Code>AccessDenied</Code><Message>{KEY}&#x1b;[2J\nbywash: done&#7;&#x7f;</Message></Error>"
            )),
            (_, "") => {
                let contents: String = self
                    .objects
                    .iter()
                    .map(|(key, size)| {
                        format!(
                            "<Contents><Key>{key}</Key><LastModified>{date}</LastModified>\
                             <ETag>\"tag\"</ETag><Size>{size}</Size></Contents>"
                        )
                    })
                    .collect();
                HttpResponse::status(200).body(format!(
                    "<ListBucketResult><Name>{bucket}</Name><IsTruncated>false</IsTruncated>{contents}</ListBucketResult>"
                ))
            }
            _ => {
                let response = match request.header("range") {
                    Some(_) => HttpResponse::status(206).with("content-range", "bytes 0-2/3"),
                    None => HttpResponse::status(200),
                };
                response
                    .with("etag", "\"tag\"")
                    .with("last-modified", "Thu, 01 Jan 2026 00:00:00 GMT")
                    .body("lie")
            }
        }
    }
}

/// A hostile store, and a folder in which verbs run.
struct LyingStoreFixture {
    home: tempfile::TempDir,
    server: Server,
}

impl LyingStoreFixture {
    async fn new(objects: &[(&str, u64)]) -> Self {
        let objects = objects
            .iter()
            .map(|(key, size)| ((*key).to_owned(), *size))
            .collect();
        Self {
            home: tempfile::tempdir().unwrap(),
            server: Server::start(Arc::new(LyingStore { objects }))
                .await
                .unwrap(),
        }
    }

    /// Runs a verb without credentials. Its data folder is the default, `bywash-data` in the working folder.
    fn try_run(&self, args: &[&str]) -> Output {
        let mut command = bywash(args);
        command
            .current_dir(&self.home)
            .args(["--endpoint", &self.server.url()]);
        block_in_place(|| command.output().unwrap())
    }
}

fn assert_plain(output: &Output) {
    let all = stdout(output) + &stderr(output);
    assert!(!all.contains(UNSAFE), "{all:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn text_of_a_store_reaches_a_terminal_escaped_from_every_verb() {
    let fixture = LyingStoreFixture::new(&[(KEY, 3), ("fine/größe", 3)]).await;
    for args in [
        &["ls"][..],
        &["ls", "s3://data"],
        &["ls", "-r", "s3://data", "--long"],
        &["du", "s3://data"],
        &["rm", "-r", "--force", "--dry-run", "s3://data"],
        &["sync", "--dry-run", "s3://data", "here"],
    ] {
        for json in [false, true] {
            let args = [args, if json { &["--json"] } else { &[] }].concat();
            let output = fixture.try_run(&args);
            assert!(output.status.success(), "{args:?}: {}", stderr(&output));
            assert_plain(&output);
        }
    }
    let listed = stdout(&fixture.try_run(&["ls", "-r", "s3://data"]));
    assert!(listed.contains("evil\\u{9b}2J\\u{202e}txt.exe"), "{listed}");
    assert!(listed.contains("fine/größe"), "{listed}");
    let lines = json_lines(&fixture.try_run(&["ls", "-r", "--json", "s3://data"]).stdout);
    assert_eq!(lines[0]["name"], KEY);
    for args in [
        &["ls", "s3://denied"][..],
        &["cat", "s3://denied/k"],
        &["cp", "s3://denied/k", "k"],
        &["stat", "s3://denied/k"],
        &["mb", "s3://denied"],
    ] {
        let output = fixture.try_run(args);
        assert!(!output.status.success(), "{args:?}");
        assert_plain(&output);
        let message = stderr(&output);
        assert!(
            message
                .lines()
                .filter(|line| line.starts_with("bywash:"))
                .count()
                <= 1,
            "text of the store looks like a message of the program: {message}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn response_about_a_bucket_above_the_limit_is_rejected() {
    let fixture = LyingStoreFixture::new(&[]).await;
    let output = fixture.try_run(&["mb", "s3://flood"]);
    assert_eq!(output.status.code(), Some(1));
    let message = stderr(&output);
    assert!(message.contains("more than 16 MiB"), "{message}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overflowing_sums_of_sizes_saturate_and_are_marked() {
    let fixture = LyingStoreFixture::new(&[("a/x", u64::MAX), ("a/y", u64::MAX), ("b", 5)]).await;
    let largest = format!(">{}", u64::MAX);
    let printed = stdout(&fixture.try_run(&["du", "-d", "1", "s3://data"]));
    assert_eq!(printed.matches(&largest).count(), 2, "{printed}");
    let lines = json_lines(&fixture.try_run(&["du", "--json", "s3://data"]).stdout);
    assert_eq!(lines[0]["bytes"], u64::MAX);
    assert_eq!(lines[0]["bytes_exceeded"], true);
    let printed = stdout(&fixture.try_run(&["ls", "-r", "--summary", "s3://data"]));
    assert!(printed.contains(&largest), "{printed}");
    let lines = json_lines(
        &fixture
            .try_run(&["ls", "-r", "-s", "--json", "s3://data"])
            .stdout,
    );
    assert_eq!(lines.last().unwrap()["bytes_exceeded"], true);
    // Copies show such a sum as their total. Their objects are shorter than listed.
    for verb in ["cp", "sync"] {
        let args: &[&str] = match verb {
            "cp" => &["cp", "-r", "s3://data", "to"],
            _ => &["sync", "s3://data", "to"],
        };
        let output = fixture.try_run(args);
        assert!(output.status.code().is_some(), "{verb}: a signal");
        assert!(!stderr(&output).contains("panicked"), "{}", stderr(&output));
    }
    let plain = LyingStoreFixture::new(&[("b", 5)]).await;
    let lines = json_lines(&plain.try_run(&["du", "--json", "s3://data"]).stdout);
    assert!(lines[0].get("bytes_exceeded").is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reserved_names_and_the_data_folder_are_not_written_for_a_store() {
    let fixture = LyingStoreFixture::new(&[
        (".bywash/keys/a", 3),
        (".bywash-cp-x", 3),
        (".bywash-folder", 0),
        ("bywash-data/credentials.json", 3),
        ("bywash-data/downloads/x.download", 3),
        ("dir/.big.bywash-part", 3),
        ("dir/.big.bywash-part.state", 3),
        ("fine", 3),
        ("dir/.bywashrc", 3),
    ])
    .await;
    for args in [
        &["cp", "-r", "s3://data", "."][..],
        &["sync", "s3://data", "."],
    ] {
        let output = fixture.try_run(args);
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(message.contains("6 of "), "{message}");
        let found: Vec<_> = tree(fixture.home.path()).into_keys().collect();
        assert_eq!(found, ["dir/.bywashrc", "fine"], "{args:?}");
        assert!(!fixture.home.path().join(".bywash").exists());
    }
    let output = fixture.try_run(&["cp", "s3://data/dir/.big.bywash-part", "."]);
    assert!(
        stderr(&output).contains("Bywash's own"),
        "{}",
        stderr(&output)
    );
}

const PART: usize = 8 << 20;

/// A store with one object and its checksum, behind a relay.
struct ChecksumStoreFixture {
    home: tempfile::TempDir,
    content: Vec<u8>,
    gate: Gate,
    _server: Server,
}

impl ChecksumStoreFixture {
    async fn new() -> Self {
        let content = pattern(8 * PART);
        let store = S3::new();
        let digest = u32::to_be_bytes(bywash_sim::server::objects::crc32c(&content));
        let headers = [
            ("x-amz-checksum-crc32c", base64(&digest)),
            ("x-amz-checksum-type", "FULL_OBJECT".to_owned()),
        ];
        let headers = headers.map(|(name, value)| (name.to_owned(), value)).into();
        let bytes = content.clone().into();
        store.objects().put("data", "big", bytes, headers, |_| true);
        let server = Server::start(store).await.unwrap();
        Self {
            home: tempfile::tempdir().unwrap(),
            content,
            gate: Gate::before(&server.url()),
            _server: server,
        }
    }

    fn cp(&self) -> Command {
        let mut command = bywash(&["cp", "--json", "--endpoint", &self.gate.url]);
        command
            .args(["s3://data/big", text(&self.to())])
            .env("AWS_ACCESS_KEY_ID", "key")
            .env("AWS_SECRET_ACCESS_KEY", "secret")
            .current_dir(&self.home);
        command
    }

    fn to(&self) -> PathBuf {
        self.home.path().join("big")
    }

    fn part(&self) -> PathBuf {
        self.home.path().join(".big.bywash-part")
    }

    /// Downloads the object. Returns the bytes stored before, and the messages.
    fn download(&self) -> (u64, String) {
        self.gate.set_limit(u64::MAX);
        let mut command = self.cp();
        command.env("BYWASH_LOG", "warn");
        let output = block_in_place(|| command.output().unwrap());
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(std::fs::read(self.to()).unwrap() == self.content);
        assert!(!self.part().exists());
        let printed = json_lines(&output.stdout);
        (
            printed[0]["resumed_bytes"].as_u64().unwrap_or(0),
            stderr(&output),
        )
    }

    /// The only state file, and its lines.
    fn state(&self) -> Option<(PathBuf, Vec<String>)> {
        let states = std::fs::read_dir(self.home.path().join("bywash-data/downloads")).ok()?;
        let path = states.last()?.unwrap().path();
        let lines = std::fs::read_to_string(&path).ok()?;
        Some((path, lines.lines().map(str::to_owned).collect()))
    }

    /// Kills a download once two parts are recorded.
    fn kill(&self) {
        self.gate.set_limit(5 * PART as u64);
        let mut child = self.cp().spawn().unwrap();
        block_in_place(|| self.gate.wait_for_limit());
        while self.state().is_none_or(|(_, lines)| lines.len() < 3) {
            assert!(child.try_wait().unwrap().is_none(), "the copy ended");
            std::thread::yield_now();
        }
        kill_process(Pid::from_child(&child), Signal::KILL).unwrap();
        child.wait().unwrap();
    }
}

pub(crate) fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let text = bytes.chunks(3).flat_map(|chunk| {
        let at = |n: usize| u32::from(chunk.get(n).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        (0..4).map(move |n| {
            if n <= chunk.len() {
                char::from(DIGITS[(bits >> (18 - 6 * n) & 63) as usize])
            } else {
                '='
            }
        })
    });
    text.collect()
}

/// Plants a part file of zeros with a matching state next to it, in the format of earlier versions.
fn plant(fixture: &ChecksumStoreFixture, e_tag: &str) {
    let bytes = fixture.content.len();
    let zeros = vec![0; PART];
    let crc = bywash_sim::server::objects::crc32c(&zeros);
    let header = serde_json::json!({
        "url": "s3://data/big", "endpoint": format!("{}/", fixture.gate.url), "e_tag": e_tag,
        "version": null, "bytes": bytes, "part_bytes": PART
    });
    let parts: String = (0..bytes / PART)
        .map(|part| format!("{part} {crc:08x}.\n"))
        .collect();
    std::fs::write(fixture.part(), vec![0; bytes]).unwrap();
    let state = fixture.home.path().join(".big.bywash-part.state");
    std::fs::write(state, format!("{header}\n{parts}")).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn planted_part_file_is_not_resumed() {
    let fixture = ChecksumStoreFixture::new().await;
    let stat = bywash(&[
        "stat",
        "--json",
        "s3://data/big",
        "--endpoint",
        &fixture.gate.url,
    ]);
    fixture.gate.set_limit(u64::MAX);
    let facts = json_lines(&crate::common::succeeds(stat).stdout);
    plant(&fixture, facts[0]["e_tag"].as_str().unwrap());
    assert_eq!(fixture.download().0, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resumed_download_is_compared_with_the_checksum_of_the_store() {
    let fixture = ChecksumStoreFixture::new().await;
    fixture.kill();
    let (resumed, message) = fixture.download();
    assert!(resumed >= PART as u64, "{message}");

    // Part file and state that match each other, but not the object.
    fixture.kill();
    let (path, mut lines) = fixture.state().unwrap();
    let part: usize = lines[1].split(' ').next().unwrap().parse().unwrap();
    let mut bytes = std::fs::read(fixture.part()).unwrap();
    bytes[part * PART..][..PART].fill(0);
    write_over(&fixture.part(), &bytes);
    lines[1] = format!("{part} {}.", sha256(&vec![0; PART]));
    write_over(&path, (lines.join("\n") + "\n").as_bytes());
    assert_eq!(fixture.download().0, 0, "the download starts over");
}

/// Overwrites a file in fixture, so that its inode stays.
fn write_over(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap();
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    use sha2::{Digest, Sha256};
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
