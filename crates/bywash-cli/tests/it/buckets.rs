//! `bywash mb`, `rb`, `ls` of buckets, and `presign`.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::common::{Server, bywash, data_dir, json_lines, stderr, stdout, text};

#[test]
fn buckets_are_made_listed_and_removed_when_empty() {
    let (home, data) = data_dir(&[]);
    for more in [&[][..], &["--anonymous"]] {
        let server = Server::start(&data, more);
        let run = |args: &[&str]| {
            let mut command = match more {
                [] => server.client(args),
                _ => bywash(args),
            };
            let output = command
                .env("AWS_ENDPOINT_URL", &server.s3)
                .output()
                .unwrap();
            (
                output.status.code().unwrap(),
                stdout(&output),
                stderr(&output),
            )
        };
        let names = || -> Vec<String> {
            let (code, printed, message) = run(&["ls", "--json"]);
            assert_eq!(code, 0, "{message}");
            let lines = json_lines(printed.as_bytes());
            lines
                .iter()
                .map(|line| line["name"].as_str().unwrap().to_owned())
                .filter(|name| name != "bywash-history")
                .collect()
        };
        assert!(names().is_empty());
        let (code, printed, message) = run(&["mb", "--json", "s3://new"]);
        assert_eq!(
            (code, printed.as_str()),
            (0, "{\"made\":\"s3://new/\"}\n"),
            "{message}"
        );
        assert_eq!(names(), ["new"]);
        let file = home.path().join("file");
        std::fs::write(&file, b"x").unwrap();
        assert_eq!(run(&["cp", text(&file), "s3://new/a"]).0, 0);
        let (code, _, message) = run(&["rb", "s3://new"]);
        assert_eq!(code, 1, "{message}");
        assert!(
            message.contains("bywash rm -r --force s3://new"),
            "{message}"
        );
        assert_eq!(run(&["rm", "-r", "--force", "s3://new"]).0, 0);
        let (code, _, message) = run(&["rb", "s3://new"]);
        assert_eq!(code, 0, "{message}");
        assert!(names().is_empty());
        assert_eq!(run(&["rb", "s3://new"]).0, 3);
        for bad in ["s3://new/key", "gs://new", "-"] {
            assert_eq!(run(&["mb", bad]).0, 2, "{bad}");
        }
        let folder = home.path().join("folder");
        assert_eq!(run(&["mb", text(&folder)]).0, 0);
        assert!(folder.is_dir());
        assert_eq!(run(&["rb", text(&folder)]).0, 0);
    }
    let gone = bywash(&["mb", "s3://new", "--endpoint", "http://127.0.0.1:1"])
        .output()
        .unwrap();
    assert_eq!(gone.status.code(), Some(5), "{}", stderr(&gone));
}

/// Sends a request without credentials. Returns status and body.
fn request(method: &str, url: &str, body: &str) -> (u16, String) {
    let rest = url.strip_prefix("http://").unwrap();
    let (host, path) = rest.split_once('/').unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    let length = body.len();
    write!(
        stream,
        "{method} /{path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
    .unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    (
        head.split(' ').nth(1).unwrap().parse().unwrap(),
        body.to_owned(),
    )
}

#[test]
fn presigned_url_allows_its_method_only() {
    let (_home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &[]);
    let signed = |args: &[&str]| -> String {
        let args = [&["presign", "s3://first/dir/a b+c"][..], args].concat();
        String::from_utf8(server.run(&args))
            .unwrap()
            .trim_end()
            .to_owned()
    };
    let put = signed(&["--method", "put", "--expires", "5m"]);
    assert!(put.contains("X-Amz-Expires=300"), "{put}");
    assert_eq!(request("PUT", &put, "hello").0, 200);
    assert_eq!(request("GET", &put, "").0, 403);
    assert_eq!(request("GET", &signed(&[]), ""), (200, "hello".to_owned()));
    assert_eq!(server.run(&["cat", "s3://first/dir/a b+c"]), b"hello");
    let printed = json_lines(&server.run(&["presign", "--json", "s3://first/k"]));
    assert_eq!(printed[0]["method"], "GET");
    for (args, code) in [
        (&["presign", "s3://first"][..], 2),
        (&["presign", "file"], 2),
        (&["presign", "s3://first/k", "--expires", "8d"], 2),
        (&["presign", "https://host/k"], 2),
    ] {
        let (found, message) = server.fail(args);
        assert_eq!(found, code, "{args:?}: {message}");
    }
}

#[test]
fn azure_urls_are_signed_with_the_account_key() {
    let signed = bywash(&["presign", "az://box/k"])
        .env("AZURE_STORAGE_ACCOUNT_NAME", "account")
        .env("AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0")
        .output()
        .unwrap();
    assert!(signed.status.success(), "{}", stderr(&signed));
    let url = stdout(&signed);
    assert!(
        url.starts_with("https://account.blob.core.windows.net/box/k?"),
        "{url}"
    );
    assert!(url.contains("sig="), "{url}");
}
