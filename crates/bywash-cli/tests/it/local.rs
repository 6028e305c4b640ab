//! Verbs that read over the socket of the user's server: they print the same as from its endpoint.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{Server, data_dir, pattern};
use rustix::process::Signal;

const MIB: usize = 1 << 20;
/// Settings of an endpoint's client.
type Settings<'a> = &'a [(&'a str, &'a str)];

/// Result of a verb: exit code, standard output and standard error.
type Printed = (Option<i32>, Vec<u8>, String);

/// The output of a verb with masked times and names, which differ from run to run.
fn printed(output: Output) -> Printed {
    let stderr = String::from_utf8(output.stderr).unwrap();
    let words = stderr.split(' ').map(|word| {
        let is_log_time = word.trim_start().starts_with("20") && word.ends_with('Z');
        let is_time = word.starts_with(|first: char| first.is_ascii_digit()) && word.ends_with('s');
        if is_log_time || is_time || word.starts_with("bucket=\"origin-") {
            "-"
        } else {
            word
        }
    });
    let words: Vec<_> = words.collect();
    (output.status.code(), output.stdout, words.join(" "))
}

/// A server with objects in the bucket `first`.
struct LocalFixture {
    home: tempfile::TempDir,
    server: Server,
    socket: PathBuf,
    big: Vec<u8>,
}

impl LocalFixture {
    fn new(args: &[&str]) -> Self {
        let (home, data) = data_dir(&["first", "empty"]);
        let bucket = data.join("buckets/first");
        let big = pattern(20 * MIB + 5);
        std::fs::create_dir_all(bucket.join("dir/sub")).unwrap();
        for (name, content) in [
            ("small", &b"content"[..]),
            ("nothing", b""),
            ("a b%20c+\u{fc}", b"odd name"),
            ("dir/one", b"1"),
            ("dir/sub/two", b"22"),
            ("dir-x", b"before dir/"),
            ("big", &big),
        ] {
            std::fs::write(bucket.join(name), content).unwrap();
        }
        let server = Server::start(&data, &[&["--memory", "256MiB"], args].concat());
        Self {
            home,
            server,
            socket: data.join("local.sock"),
            big,
        }
    }

    /// Requests at the socket, and bytes of objects that it returned.
    fn counters(&self) -> (u64, u64) {
        let stats = &self.server.stats()["local"];
        let count = |name: &str| stats[name].as_u64().unwrap();
        (
            count("requests"),
            count("shared_bytes") + count("copied_bytes"),
        )
    }

    fn verb(&self, args: &[&str], settings: Settings<'_>) -> Command {
        let mut command = self.server.client(args);
        command
            .env("BYWASH_LOCAL", &self.socket)
            .envs(settings.iter().copied())
            .current_dir(&self.home);
        command
    }

    fn printed(&self, args: &[&str], settings: Settings<'_>) -> Printed {
        let output = self.verb(args, settings).output().unwrap();
        printed(output)
    }

    /// Runs a verb with the socket, and twice without it. Returns the result, which must be the same, and the bytes that came over the
    /// socket in the first run.
    fn same(&self, args: &[&str], settings: Settings<'_>) -> (Printed, u64) {
        let (requests, bytes) = self.counters();
        let local = self.printed(args, settings);
        let after = self.counters();
        assert!(after.0 > requests, "{args:?}: the socket was not used");
        let remote = self.printed(&[args, &["--no-local"]].concat(), settings);
        assert_eq!(local, remote, "{args:?}");
        let refused = [settings, &[("BYWASH_NO_LOCAL", "1")]].concat();
        assert_eq!(local, self.printed(args, &refused), "{args:?}");
        assert_eq!(self.counters(), after, "{args:?}: the socket was used");
        (local, after.1 - bytes)
    }

    fn succeeds(&self, args: &[&str]) -> (Vec<u8>, u64) {
        let ((code, stdout, stderr), bytes) = self.same(args, &[]);
        assert_eq!((code, &*stderr), (Some(0), ""), "{args:?}");
        (stdout, bytes)
    }
}

#[test]
fn listings_are_the_same_over_the_socket() {
    let fixture = LocalFixture::new(&[]);
    for place in [
        "s3://first",
        "s3://first/dir",
        "s3://first/dir/",
        "s3://empty",
    ] {
        for options in [
            &[][..],
            &["-r"],
            &["--json"],
            &["-r", "--json"],
            &["-lHs"],
            &["-rs"],
        ] {
            fixture.succeeds(&[&["ls", place], options].concat());
        }
    }
    let (stdout, _) = fixture.succeeds(&["ls", "-r", "s3://first"]);
    assert_eq!(stdout.iter().filter(|byte| **byte == b'\n').count(), 7);
    fixture.succeeds(&["ls", "--json", "s3://first/small"]);
    fixture.succeeds(&["du", "--depth", "2", "s3://first"]);
    for (missing, code) in [("s3://first/none/", 3), ("s3://first/none", 3)] {
        let ((found, ..), _) = fixture.same(&["ls", missing], &[]);
        assert_eq!(found, Some(code), "{missing}");
    }
}

#[test]
fn left_out_names_are_counted_over_the_socket() {
    let fixture = LocalFixture::new(&[]);
    let bucket = fixture.server.data.join("buckets/first");
    for name in ["dir/a\u{1}b", "dir/tab\tc"] {
        std::fs::write(bucket.join(name), "x").unwrap();
    }
    for args in [
        &["ls", "-r", "s3://first"][..],
        &["ls", "s3://first/dir/"],
        &["du", "s3://first"],
    ] {
        fixture.same(args, &[]);
    }
    let client = bywash_client::Client::connect_to(&fixture.socket).unwrap();
    let page = client
        .bucket("first")
        .list_page(Default::default())
        .unwrap();
    assert_eq!((page.objects.len(), page.left_out), (7, 2));
}

#[test]
fn long_listings_are_the_same_over_the_socket() {
    let fixture = LocalFixture::new(&[]);
    let folder = fixture.server.data.join("buckets/first/many");
    std::fs::create_dir(&folder).unwrap();
    for number in 0..2100 {
        std::fs::write(folder.join(format!("{number:04}")), "x").unwrap();
    }
    let (stdout, _) = fixture.succeeds(&["ls", "-r", "s3://first/many/"]);
    assert_eq!(stdout.iter().filter(|byte| **byte == b'\n').count(), 2100);
    fixture.succeeds(&["ls", "--json", "s3://first/many/"]);
}

#[test]
fn objects_are_the_same_over_the_socket() {
    let fixture = LocalFixture::new(&[]);
    let (big, bytes) = fixture.succeeds(&["cat", "s3://first/big"]);
    assert!(big == fixture.big, "wrong bytes");
    assert!(bytes >= big.len() as u64, "{bytes} over the socket");
    for key in ["small", "nothing", "a b%20c+\u{fc}"] {
        let address = format!("s3://first/{key}");
        fixture.succeeds(&["cat", &address]);
        fixture.succeeds(&["cat", "--verify", "off", &address]);
        fixture.succeeds(&["stat", &address]);
        fixture.succeeds(&["stat", "--json", &address]);
    }
    for range in ["0-0", "3-", "-2", "0-99", "2097151-4194305", "20971520-"] {
        fixture.succeeds(&["cat", "--range", range, "s3://first/big"]);
    }
    for bad in [
        &["cat", "--range", "7-", "s3://first/small"][..],
        &["cat", "--range", "0-", "s3://first/nothing"],
        &[
            "cat",
            "s3://first/small",
            "s3://first/none",
            "s3://first/big",
        ],
        &["stat", "s3://first/small", "s3://first/none"],
        &["stat", "--json", "s3://first/none"],
        &["stat", "s3://none/small"],
        &["ls", "s3://none"],
        &["cat", "s3://none/small"],
        &["cp", "s3://none/small", "x"],
    ] {
        fixture.same(bad, &[]);
    }
}

#[test]
fn copies_are_the_same_over_the_socket() {
    let fixture = LocalFixture::new(&[]);
    let home = fixture.home.path();
    let copy = |source: &str, to: &str, settings: Settings<'_>| {
        let (requests, bytes) = fixture.counters();
        let printed = fixture.printed(&["cp", "-r", source, to], settings);
        let after = fixture.counters();
        (printed, after.0 - requests, after.1 - bytes)
    };
    let (local, _, bytes) = copy("s3://first/", "local/", &[]);
    let (remote, requests, _) = copy("s3://first/", "remote/", &[("BYWASH_NO_LOCAL", "1")]);
    assert_eq!((local.0, requests), (Some(0), 0), "{}", local.2);
    assert!(bytes > 20 * MIB as u64, "{bytes} over the socket");
    let spelled = remote.2.replace("remote/", "local/");
    assert_eq!(local.2, spelled);
    let (local, remote) = (home.join("local"), home.join("remote"));
    assert!(crate::common::tree(&local) == crate::common::tree(&remote));
    let modified = |folder: &Path| {
        folder
            .join("dir/one")
            .metadata()
            .unwrap()
            .modified()
            .unwrap()
    };
    assert_eq!(modified(&local), modified(&remote));
    for key in ["small", "nothing", "big"] {
        let source = format!("s3://first/{key}");
        let (stdout, _) = fixture.succeeds(&["cp", &source, "-"]);
        fixture.succeeds(&["cp", &source, "once"]);
        assert!(std::fs::read(home.join("once")).unwrap() == stdout, "{key}");
        fixture.succeeds(&["cp", &source, "s3://empty/copied"]);
        let (copied, _) = fixture.succeeds(&["cat", "s3://empty/copied"]);
        assert!(copied == stdout, "{key}");
    }
    fixture.same(&["cp", "s3://first/none", "none"], &[]);
    assert!(!home.join("none").exists());
}

#[test]
fn command_with_another_key_is_refused_as_by_the_endpoint() {
    let fixture = LocalFixture::new(&[]);
    let (_, before) = fixture.counters();
    for settings in [
        &[("AWS_SECRET_ACCESS_KEY", "another")][..],
        &[("AWS_ACCESS_KEY_ID", "another")],
        &[("AWS_SESSION_TOKEN", "another")],
    ] {
        for args in [
            &["cat", "s3://first/small"][..],
            &["stat", "s3://first/small"],
            &["ls", "s3://first"],
            &["cp", "s3://first/small", "-"],
        ] {
            fixture.same(args, settings);
        }
    }
    let wrong = fixture.printed(
        &["cat", "s3://first/small"],
        &[("AWS_SECRET_ACCESS_KEY", "another")],
    );
    assert_eq!((wrong.0, &*wrong.1), (Some(4), &b""[..]), "{}", wrong.2);
    assert_eq!(fixture.counters().1, before, "bytes without the right key");
}

/// Puts an object with headers at an anonymous server.
fn put(server: &str, path: &str, headers: &str) {
    let host = server.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    write!(
        stream,
        "PUT {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 3\r\nConnection: close\r\n{headers}\r\nabc"
    )
    .unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    assert!(response.starts_with("HTTP/1.1 200"), "{path}: {response}");
}

#[test]
fn metadata_and_markers_are_the_same_over_the_socket_of_an_anonymous_server() {
    let fixture = LocalFixture::new(&["--anonymous"]);
    let s3 = &fixture.server.s3;
    let headers = "Content-Type: text/x-a\r\nCache-Control: no-cache\r\nContent-Encoding: x\r\n\
                   Content-Language: de\r\nContent-Disposition: inline\r\nExpires: never\r\n\
                   x-amz-meta-name: value\r\nx-amz-meta-two: a b\r\n";
    put(s3, "/first/headers", headers);
    put(s3, "/first/tagged", "x-amz-tagging: a=b\r\n");
    put(s3, "/first/checked", "x-amz-checksum-crc32: NSRBwg==\r\n");
    crate::common::put_empty(s3, "/first/marked/");
    let created = fixture.printed(&["cp", "--create-only", "-", "s3://first/created"], &[]);
    assert_eq!(created.0, Some(0), "{}", created.2);
    for key in ["headers", "tagged", "checked", "created"] {
        let address = format!("s3://first/{key}");
        for args in [
            &["stat"][..],
            &["stat", "--json"],
            &["cat"],
            &["ls", "--json"],
        ] {
            fixture.succeeds(&[args, &[&*address]].concat());
        }
    }
    let (stdout, _) = fixture.succeeds(&["stat", "s3://first/headers"]);
    let stdout = String::from_utf8(stdout).unwrap();
    assert!(stdout.contains("x-amz-meta-two: a b\n"), "{stdout}");
    for options in [&[][..], &["-r"], &["--json"], &["-r", "--json"]] {
        for place in ["s3://first", "s3://first/marked/"] {
            fixture.same(&[&["ls", place], options].concat(), &[]);
        }
    }
    // Any key, and none.
    fixture.same(
        &["cat", "s3://first/headers"],
        &[("AWS_SECRET_ACCESS_KEY", "x")],
    );
    fixture.same(&["cat", "s3://first/headers"], &[("AWS_ACCESS_KEY_ID", "")]);
}

#[test]
fn socket_of_another_server_is_not_used() {
    let (one, other) = (LocalFixture::new(&[]), LocalFixture::new(&[]));
    std::fs::write(other.server.data.join("buckets/first/small"), "other").unwrap();
    let mut cat = one.verb(&["cat", "s3://first/small"], &[]);
    let output = cat.env("BYWASH_LOCAL", &other.socket).output().unwrap();
    assert_eq!(output.stdout, b"content");
    assert_eq!((one.counters().0, other.counters().1), (0, 0));
}

#[test]
fn killed_server_is_reported_as_by_the_endpoint() {
    let fixture = LocalFixture::new(&[]);
    let commands = [&["stat", "s3://first/small"][..], &["ls", "s3://first"]];
    let env = fixture.server.env();
    fixture.server.signal(Signal::KILL);
    for args in commands {
        let run = |no_local: &[&str]| {
            let mut command = crate::common::bywash(&[args, no_local].concat());
            command
                .envs(env.clone())
                .env("BYWASH_LOCAL", &fixture.socket);
            printed(command.output().unwrap())
        };
        let local = run(&[]);
        assert_eq!(local.0, Some(5), "{args:?}");
        assert_eq!(local, run(&["--no-local"]), "{args:?}");
    }
}

/// Forwards connections to a socket, and cuts all connections after the server has sent `n` bytes. It forwards no descriptors, so the server's
/// memory is not mapped.
fn cut_after(bytes: usize, server: &Path, at: &Path) {
    let (listener, server) = (UnixListener::bind(at).unwrap(), server.to_owned());
    let left = Arc::new(AtomicUsize::new(bytes));
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (client, server) = (client.unwrap(), UnixStream::connect(&server).unwrap());
            let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            let left = Arc::clone(&left);
            std::thread::spawn(move || forward(&server, &client, &left));
        }
    });
}

fn forward(mut server: &UnixStream, mut client: &UnixStream, left: &AtomicUsize) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = server.read(&mut buffer) {
        let take = |left: usize| left.checked_sub(count);
        if left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, take)
            .is_err()
            || client.write_all(&buffer[..count]).is_err()
        {
            break;
        }
    }
    let _ = client.shutdown(Shutdown::Both);
    let _ = server.shutdown(Shutdown::Both);
}

#[test]
fn read_goes_on_at_the_endpoint_when_the_socket_is_cut() {
    let fixture = LocalFixture::new(&[]);
    for (number, bytes) in [0, 200, 3000, 3 * MIB, 7 * MIB].into_iter().enumerate() {
        let relay = fixture.home.path().join(format!("relay-{number}"));
        cut_after(bytes, &fixture.socket, &relay);
        let mut cat = fixture.verb(&["cat", "s3://first/big"], &[]);
        let output = cat.env("BYWASH_LOCAL", &relay).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{bytes}");
        assert!(output.stderr.is_empty(), "{bytes}");
        assert!(output.stdout == fixture.big, "{bytes}: wrong bytes");
    }
}
