//! `bywash presign` and `bywash cp` to signed addresses, against Bywash's own endpoint, which verifies signatures, and
//! against a store with Google's protocol.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use crate::common::{Server, bywash, data_dir, json_lines, stderr, stdout, text};
use bywash_sim::server::gcs::Gcs;
use bywash_sim::server::{Server as Store, ServerFault};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const MIB: usize = 1 << 20;

fn content(length: usize) -> Vec<u8> {
    bywash_support::pattern(length as u64, length).to_vec()
}

/// A source file, and a data folder of copies.
struct Home {
    _folder: tempfile::TempDir,
    source: String,
    data: String,
    content: Vec<u8>,
}

impl Home {
    fn new(length: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let content = content(length);
        std::fs::write(folder.path().join("source"), &content).unwrap();
        let path = |name: &str| text(&folder.path().join(name)).to_owned();
        Self {
            source: path("source"),
            data: path("copies"),
            content,
            _folder: folder,
        }
    }

    fn write(&self, name: &str, content: &str) -> String {
        let path = Path::new(&self.source).with_file_name(name);
        std::fs::write(&path, content).unwrap();
        text(&path).to_owned()
    }

    /// `bywash cp` without credentials.
    fn cp(&self, args: &[&str]) -> Command {
        let mut command = bywash(&[&["cp"], args].concat());
        command.args(["--data-dir", &self.data]);
        command
    }

    fn copied(&self, args: &[&str]) {
        let done = self.cp(args).output().unwrap();
        assert!(done.status.success(), "{}", stderr(&done));
    }

    /// Exit code and message of a copy that fails.
    fn fails(&self, args: &[&str]) -> (i32, String) {
        let done = self.cp(args).output().unwrap();
        (done.status.code().unwrap(), stderr(&done))
    }
}

fn presign(server: &Server, args: &[&str]) -> String {
    let printed = server.run(&[&["presign"], args].concat());
    String::from_utf8(printed).unwrap().trim_end().to_owned()
}

#[test]
fn presigned_put_is_written_by_cp_whatever_the_length() {
    let (_home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &[]);
    for length in [0, 100, 8 * MIB, 20 * MIB + 7] {
        let home = Home::new(length);
        let url = presign(&server, &["--method", "put", "s3://first/dir/a b+c"]);
        home.copied(&[&home.source, &url]);
        let stored = server.run(&["cat", "s3://first/dir/a b+c"]);
        assert!(stored == home.content, "{length} bytes differ");
    }
    // From a pipe, up to a chunk; longer ones need their length.
    let home = Home::new(33 * MIB);
    let url = presign(&server, &["--method", "put", "s3://first/piped"]);
    let pipe = |length: usize| {
        let input = home.write("input", "");
        std::fs::write(&input, &home.content[..length]).unwrap();
        let mut cp = home.cp(&["-", &url]);
        let input = std::fs::File::open(&input).unwrap();
        let cat = Command::new("cat")
            .stdin(input)
            .stdout(Stdio::piped())
            .spawn();
        let mut cat = cat.unwrap();
        let done = cp.stdin(cat.stdout.take().unwrap()).output().unwrap();
        cat.wait().unwrap();
        done
    };
    assert!(pipe(3 * MIB).status.success());
    assert_eq!(
        server.run(&["cat", "s3://first/piped"]),
        home.content[..3 * MIB]
    );
    let refused = stderr(&pipe(33 * MIB));
    assert!(refused.contains("length, which is not known"), "{refused}");
    assert!(!refused.contains("Signature"), "{refused}");
}

#[test]
fn refused_addresses_name_the_reason_and_no_secret() {
    let (_home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &[]);
    for length in [100, 20 * MIB] {
        let home = Home::new(length);
        let url = presign(&server, &["--method", "put", "s3://first/k"]);
        // Signed for reading, and changed.
        let reading = presign(&server, &["s3://first/k"]);
        for (wrong, code, says) in [
            (&*reading, 4, "SignatureDoesNotMatch"),
            (
                &*url.replace("/first/k", "/first/other"),
                4,
                "SignatureDoesNotMatch",
            ),
            (
                &*url.replace("X-Amz-Date=20", "X-Amz-Date=19"),
                4,
                "was valid until 19",
            ),
            (
                "https://127.0.0.1:9/first/k?token=hidden",
                2,
                "presign --method PUT",
            ),
        ] {
            let (exit, message) = home.fails(&[&home.source, wrong]);
            assert_eq!(exit, code, "{message}");
            assert!(message.contains(says), "{says}: {message}");
            assert!(!message.contains("X-Amz-Signature"), "{message}");
            assert!(!message.contains("hidden"), "{message}");
        }
    }
    let home = Home::new(100);
    let url = presign(&server, &["--method", "put", "s3://first/k"]);
    for (args, says) in [
        (&[&*home.source, &home.source, &url][..], "name one source"),
        (&["-r", &home.source, &url], "name one source"),
        (
            &[
                "--header",
                "content-type:text/plain",
                &home.source,
                "s3://first/k",
            ],
            "presign --method PUT",
        ),
        (&["--header", "plain", &home.source, &url], "NAME:VALUE"),
    ] {
        let (exit, message) = home.fails(args);
        assert_eq!(exit, 2, "{message}");
        assert!(message.contains(says), "{says}: {message}");
    }
    assert!(server.run(&["ls", "s3://first/"]).is_empty());
}

#[test]
fn failed_condition_of_a_signed_address_advises_no_resume_and_leaves_no_entry() {
    let (_home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &[]);
    for length in [100, 20 * MIB] {
        let home = Home::new(length);
        let url = presign(&server, &["--method", "put", "s3://first/k"]);
        home.copied(&[&home.source, &url]);
        let condition = ["--header", "if-none-match:*"];
        let (exit, message) = home.fails(&[&condition[..], &[&*home.source, &*url]].concat());
        assert_eq!(exit, 1, "{message}");
        assert!(message.contains("have an address signed"), "{message}");
        for wrong in ["--create-only", "uploads resume", "try again"] {
            assert!(!message.contains(wrong), "{message}");
        }
        let entries = std::fs::read_dir(Path::new(&home.data).join("uploads"));
        let left: Vec<_> = entries.into_iter().flatten().flatten().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn presigned_parts_are_written_by_cp_and_continued_by_another_run() {
    let (_home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &[]);
    for length in [0, 100, 40 * MIB + 7] {
        let home = Home::new(length);
        let printed = presign(&server, &["--parts", "12", "s3://first/dir/object"]);
        let urls: Value = serde_json::from_str(&printed).unwrap();
        assert_eq!(urls["parts"].as_array().unwrap().len(), 12);
        assert!(urls["upload_id"].is_string() && urls["expires"].is_string());
        let file = home.write("urls.json", &printed);
        let done = home
            .cp(&[&home.source, "--parts", &file, "--json"])
            .output()
            .unwrap();
        assert!(done.status.success(), "{}", stderr(&done));
        let line = &json_lines(&done.stdout)[0];
        assert_eq!(line["destination"], "s3://first/dir/object");
        assert_eq!(line["bytes"], length);
        assert!(server.run(&["cat", "s3://first/dir/object"]) == home.content);
    }
    let home = Home::new(100);
    let (exit, message) = home.fails(&[&home.source, "s3://first/k", "--parts", "urls.json"]);
    assert_eq!(exit, 2);
    assert!(message.contains("cannot be used with"), "{message}");
    let file = home.write("urls.json", "{\"parts\": []}");
    let (exit, message) = home.fails(&[&home.source, "--parts", &file]);
    assert_eq!(exit, 2, "{message}");
    for args in [
        &["--parts", "0", "s3://first/k"][..],
        &["--parts", "10001", "s3://first/k"],
        &["--parts", "2", "--method", "put", "s3://first/k"],
        &["--upload-id", "id", "s3://first/k"],
        &["--parts", "2", "gs://first/k"],
        &["--method", "post", "s3://first/k"],
    ] {
        let (exit, message) = server.fail(&[&["presign"], args].concat());
        assert_eq!(exit, 2, "{args:?}: {message}");
    }
}

/// Copies to signed parts, and kills the copy once the journal has recorded parts. Panics if the
/// copy is done before.
fn kill_once_recorded(home: &Home, file: &str) {
    let mut cp = home.cp(&[&home.source, "--parts", file]);
    let mut child = cp.stderr(Stdio::null()).spawn().unwrap();
    // A file with a temporary name is not an entry yet, and its length grows while the header is written.
    let journal = Path::new(&home.data).join("uploads");
    let recorded = || {
        let files = std::fs::read_dir(&journal).into_iter().flatten().flatten();
        files
            .filter(|file| file.path().extension().is_none_or(|end| end != "new"))
            .filter_map(|file| file.metadata().ok())
            .map(|meta| meta.len())
            .max()
    };
    let mut first = None;
    while child.try_wait().unwrap().is_none() {
        let length = recorded();
        first = first.or(length.filter(|length| *length > 0));
        if let (Some(first), Some(length)) = (first, length)
            && length > first
        {
            let id = i32::try_from(child.id()).unwrap();
            kill_process(Pid::from_raw(id).unwrap(), Signal::KILL).unwrap();
            break;
        }
        std::thread::yield_now();
    }
    assert!(
        !child.wait().unwrap().success(),
        "it was done before it was killed"
    );
}

/// Killed midway; then the same command again, and on another upload `bywash uploads resume`, with
/// addresses signed again.
#[test]
fn killed_copy_to_presigned_parts_is_continued() {
    let (_home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &[]);
    for again in [true, false] {
        let home = Home::new(96 * MIB);
        let printed = presign(&server, &["--parts", "12", "s3://first/object"]);
        let file = home.write("urls.json", &printed);
        let urls: Value = serde_json::from_str(&printed).unwrap();
        kill_once_recorded(&home, &file);
        let journal = Path::new(&home.data).join("uploads");
        let id = urls["upload_id"].as_str().unwrap();
        if again {
            // The addresses may have expired: others for the same upload.
            let more = ["--parts", "12", "--upload-id", id, "s3://first/object"];
            let file = home.write("more.json", &presign(&server, &more));
            home.copied(&[&home.source, "--parts", &file]);
        } else {
            let resume = [
                "uploads",
                "resume",
                "--all",
                "--json",
                "--data-dir",
                &home.data,
            ];
            let done = bywash(&resume).output().unwrap();
            assert!(done.status.success(), "{}", stderr(&done));
            let lines = json_lines(&done.stdout);
            let line = lines.first().expect("the killed copy is in the journal");
            assert_eq!(line["url"], "s3://first/object");
            assert!(line["resumed_bytes"].as_u64().unwrap() > 0, "{line}");
        }
        assert!(server.run(&["cat", "s3://first/object"]) == home.content);
        // Neither an entry nor an address is left.
        assert!(uploads(&home, &["list"]).0.is_empty());
        assert_eq!(std::fs::read_dir(&journal).unwrap().count(), 0);
    }
}

/// Output of `bywash uploads`, and whether it succeeded.
fn uploads(home: &Home, args: &[&str]) -> (String, bool) {
    let all = [&["uploads"], args, &["--data-dir", &home.data]].concat();
    let done = bywash(&all).output().unwrap();
    (stdout(&done) + &stderr(&done), done.status.success())
}

/// Sends a DELETE to a signed address of a server on loopback.
fn delete(url: &str) {
    let rest = url.strip_prefix("http://").unwrap();
    let (host, target) = rest.split_once('/').unwrap();
    let mut socket = std::net::TcpStream::connect(host).unwrap();
    let head = format!("DELETE /{target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    socket.write_all(head.as_bytes()).unwrap();
    let mut response = String::new();
    socket.read_to_string(&mut response).unwrap();
    assert!(response.starts_with("HTTP/1.1 204"), "{response}");
}

/// As after a kill between the completion at the store and the removal of the entry.
#[test]
fn repeated_copy_to_completed_parts_succeeds_and_leaves_no_entry() {
    let (_home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &[]);
    for (length, with_list) in [
        (0, true),
        (100, true),
        (40 * MIB + 7, true),
        (40 * MIB + 7, false),
        (0, false),
    ] {
        let home = Home::new(length);
        let printed = presign(&server, &["--parts", "12", "s3://first/object"]);
        let mut urls: Value = serde_json::from_str(&printed).unwrap();
        if !with_list {
            // Addresses of another program, of fewer requests.
            for name in ["list", "abort"] {
                urls.as_object_mut().unwrap().remove(name);
            }
        }
        let file = home.write("urls.json", &urls.to_string());
        home.copied(&[&home.source, "--parts", &file]);
        let repeat = [&*home.source, "--parts", &file, "--json"];
        let done = home.cp(&repeat).output().unwrap();
        assert!(done.status.success(), "{length}: {}", stderr(&done));
        assert_eq!(json_lines(&done.stdout)[0]["bytes"], length);
        assert!(server.run(&["cat", "s3://first/object"]) == home.content);
        assert_eq!(uploads(&home, &["list"]), (String::new(), true));

        // Another source, or another object since.
        let other = home.write("other", "not these bytes");
        let (exit, message) = home.fails(&[&other, "--parts", &file]);
        assert_eq!(exit, 1, "{message}");
        assert!(message.contains("nothing proves"), "{message}");
        assert!(!message.contains("X-Amz"), "{message}");
        server.run(&["rm", "s3://first/object"]);
        let (exit, message) = home.fails(&[&home.source, "--parts", &file]);
        assert_eq!(exit, 1, "{message}");
        assert!(message.contains("no such upload any more"), "{message}");
        let journal = Path::new(&home.data).join("uploads");
        let entries = std::fs::read_dir(&journal).into_iter().flatten().count();
        assert_eq!(entries, 0, "{length} {with_list}");
    }
}

#[test]
fn upload_that_was_ended_elsewhere_is_named_and_leaves_no_entry() {
    let (_home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &[]);
    let home = Home::new(96 * MIB);
    let journal = Path::new(&home.data).join("uploads");
    let kept = tempfile::tempdir().unwrap();
    // Entries of killed copies of three uploads, set aside so that each is alone when it is written.
    for name in ["over", "aborted", "open"] {
        let address = format!("s3://first/{name}");
        let file = home.write(name, &presign(&server, &["--parts", "12", &address]));
        kill_once_recorded(&home, &file);
        for entry in std::fs::read_dir(&journal).unwrap() {
            let entry = entry.unwrap();
            std::fs::rename(entry.path(), kept.path().join(entry.file_name())).unwrap();
        }
        if name == "over" {
            home.copied(&[&home.source, "--parts", &file]);
        }
        if name == "aborted" {
            let urls: Value =
                serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
            delete(urls["abort"].as_str().unwrap());
        }
    }
    for entry in std::fs::read_dir(kept.path()).unwrap() {
        let entry = entry.unwrap();
        std::fs::rename(entry.path(), journal.join(entry.file_name())).unwrap();
    }
    let (text, succeeded) = uploads(&home, &["resume", "--all"]);
    assert!(!succeeded, "{text}");
    assert_eq!(text.matches("no such upload any more").count(), 1, "{text}");
    assert!(text.contains("s3://first/open: complete"), "{text}");
    // Another run has completed it.
    let over = "s3://first/over: complete; the store had 100663296 bytes, 0 were sent";
    assert!(text.contains(over), "{text}");
    assert!(
        text.contains("1 of 3 uploads could not be resumed"),
        "{text}"
    );
    assert!(!text.contains("X-Amz"), "{text}");
    for name in ["over", "open"] {
        assert!(server.run(&["cat", &format!("s3://first/{name}")]) == home.content);
    }
    assert_eq!(std::fs::read_dir(&journal).unwrap().count(), 0);
    assert_eq!(uploads(&home, &["resume", "--all"]), (String::new(), true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn googles_signed_start_is_written_by_cp_and_resumed_from_the_journal() {
    let gcs = Gcs::new();
    let store = Store::start(Arc::<Gcs>::clone(&gcs)).await.unwrap();
    gcs.require_token("only for starts with credentials");
    let home = Home::new(40 * MIB + 9);
    let url = format!(
        "{}/data/dir/object?X-Goog-SignedHeaders=host%3Bx-goog-resumable&X-Goog-Signature=SECRET",
        store.url()
    );
    home.copied(&[&home.source, &url]);
    let stored = |key: &str| gcs.objects().get("data", key).unwrap().bytes;
    assert!(stored("dir/object") == home.content);
    // Refused midway for good: the message names the command that resumes it.
    let other = url.replace("dir/object", "other");
    store.script("bytes 16777216-", ServerFault::ForgetUpload);
    let (exit, message) = home.fails(&[&home.source, &other]);
    assert_eq!(exit, 1, "{message}");
    assert!(message.contains("bywash uploads resume"), "{message}");
    assert!(!message.contains("SECRET"), "{message}");
}
