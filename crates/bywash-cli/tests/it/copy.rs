//! `bywash cp | ls | cat | stat | rm` against the real server, with credentials.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::common::{Server, bywash, data_dir, json_lines, pattern, stderr, stdout, text, tree};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};

#[test]
fn small_and_large_objects_round_trip() {
    let (home, data) = data_dir(&["first", "second"]);
    let server = Server::start(&data, &["--memory", "256MiB"]);
    for (name, length) in [
        ("empty", 0),
        ("small", 1_000),
        ("one-part", 8 << 20),
        ("large", (40 << 20) + 7),
    ] {
        let content = pattern(length);
        let (file, back) = (home.path().join(name), home.path().join("back"));
        std::fs::write(&file, &content).unwrap();
        let url = format!("s3://first/dir/{name}");
        let printed = json_lines(&server.run(&["cp", "--json", text(&file), "s3://first/dir/"]));
        assert_eq!(
            (&printed[0]["destination"], &printed[0]["bytes"]),
            (&url.as_str().into(), &length.into()),
            "{printed:?}"
        );
        let stat = json_lines(&server.run(&["stat", "--json", &url]));
        assert_eq!(stat[0]["size"], length, "{name}");
        assert_eq!(stat[0]["e_tag"], printed[0]["e_tag"], "{name}");

        server.run(&["cp", &url, text(&back)]);
        assert!(
            std::fs::read(&back).unwrap() == content,
            "{name} differs after the round trip"
        );
        // Within a bucket, and to another bucket.
        server.run(&["cp", &url, &format!("s3://first/copy/{name}")]);
        server.run(&["cp", &format!("s3://first/copy/{name}"), "s3://second"]);
        assert!(
            server.run(&["cat", &format!("s3://second/{name}")]) == content,
            "the copy of {name} differs"
        );
    }
    let left: Vec<_> = std::fs::read_dir(home.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left.len(), 6, "staged files are left: {left:?}");
}

#[test]
fn standard_streams_are_copied() {
    let (_home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &["--memory", "256MiB"]);
    for length in [0, 5, (33 << 20) + 1] {
        let content = pattern(length);
        let mut cp = server
            .client(&["cp", "-", "s3://first/piped"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        cp.stdin.take().unwrap().write_all(&content).unwrap();
        let done = cp.wait_with_output().unwrap();
        assert!(done.status.success(), "{}", stderr(&done));
        assert!(
            server.run(&["cp", "s3://first/piped", "-"]) == content,
            "{length} bytes differ after the round trip"
        );
    }
}

#[test]
fn killed_copy_leaves_no_file_in_the_folder() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("to");
    std::fs::create_dir(&folder).unwrap();
    let unnamed = OFlags::TMPFILE | OFlags::RDWR;
    if rustix::fs::open(&folder, unnamed, Mode::RWXU).is_err() {
        // Without unnamed files, a killed copy leaves a file with a reserved name.
        return;
    }
    let mut cp = bywash(&["cp", "-", text(&folder.join("file"))])
        .current_dir(&home)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let open = PathBuf::from(format!("/proc/{}/fd", cp.id()));
    let has_begun = || {
        let files = std::fs::read_dir(&open).unwrap().flatten();
        let mut files = files.filter_map(|file| std::fs::read_link(file.path()).ok());
        files.any(|file| file.starts_with(&folder))
    };
    while !has_begun() {
        assert!(cp.try_wait().unwrap().is_none(), "the copy ended");
        std::thread::yield_now();
    }
    kill_process(Pid::from_child(&cp), Signal::KILL).unwrap();
    cp.wait().unwrap();
    assert!(tree(&folder).is_empty(), "{:?}", tree(&folder));
}

#[test]
fn cat_ranges_select_bytes_as_in_http() {
    let (home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &[]);
    let file = home.path().join("digits");
    std::fs::write(&file, b"0123456789").unwrap();
    server.run(&["cp", text(&file), "s3://first/digits"]);
    for location in ["s3://first/digits", text(&file)] {
        for (range, expected) in [
            ("0-0", "0"),
            ("2-5", "2345"),
            ("7-", "789"),
            ("-3", "789"),
            ("8-100", "89"),
        ] {
            assert_eq!(
                server.run(&["cat", location, "--range", range]),
                expected.as_bytes(),
                "{location} {range}"
            );
        }
        assert_eq!(server.fail(&["cat", location, "--range", "10-"]).0, 1);
    }
    let (code, message) = server.fail(&["cat", "s3://first/digits", "--range", "5-2"]);
    assert_eq!(code, 2, "{message}");
}

#[test]
fn listings_show_prefixes_and_keys() {
    let (home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &[]);
    let tree = home.path().join("tree");
    for name in ["a", "dir/b", "dir/sub/c"] {
        let file = tree.join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, b"x").unwrap();
        server.run(&["cp", text(&file), &format!("s3://first/{name}")]);
    }
    let names = |args: &[&str]| -> Vec<String> {
        let lines = json_lines(&server.run(args));
        lines
            .iter()
            .map(|line| line["name"].as_str().unwrap().to_owned())
            .collect()
    };
    for location in ["s3://first", text(&tree)] {
        assert_eq!(
            names(&["ls", "--json", location]),
            ["a", "dir/"],
            "{location}"
        );
        assert_eq!(
            names(&["ls", "--json", "-r", location]),
            ["a", "dir/b", "dir/sub/c"],
            "{location}"
        );
    }
    assert_eq!(
        names(&["ls", "--json", "s3://first/dir"]),
        ["dir/b", "dir/sub/"]
    );
    assert_eq!(names(&["ls", "--json", "s3://first/a"]), ["a"]);
    let shown = String::from_utf8(server.run(&["ls", "s3://first"])).unwrap();
    assert!(shown.lines().next().unwrap().ends_with(" 1 a"), "{shown}");
    assert!(
        shown.lines().nth(1).unwrap().ends_with("PRE dir/"),
        "{shown}"
    );
    for missing in [
        "s3://first/nothing",
        "s3://first/nothing/",
        "s3://absent",
        "/nothing/at/all",
    ] {
        let (code, message) = server.fail(&["ls", missing]);
        assert_eq!(code, 3, "{missing}: {message}");
    }
}

#[test]
fn deleted_objects_and_files_are_gone() {
    let (home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &[]);
    let file = home.path().join("file");
    std::fs::write(&file, b"x").unwrap();
    let keys = ["s3://first/a", "s3://first/b", "s3://first/keep"];
    for key in keys {
        server.run(&["cp", text(&file), key]);
    }
    let printed = json_lines(&server.run(&["rm", "--json", keys[0], keys[1], text(&file)]));
    assert_eq!(printed.len(), 3, "{printed:?}");
    assert!(!file.exists());
    assert!(!server.run(&["stat", keys[2]]).is_empty());
    for verb in ["stat", "cat"] {
        let (code, message) = server.fail(&[verb, keys[0]]);
        assert_eq!(code, 3, "{verb}: {message}");
    }
    assert_eq!(server.fail(&["rm", text(&file)]).0, 3);
    assert_eq!(server.fail(&["cp", keys[0], text(&file)]).0, 3);
    assert!(!file.exists(), "a failed copy left a file");
}

#[test]
fn copy_over_a_file_keeps_links_permissions_and_devices() {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt};

    let (home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &[]);
    let (file, link) = (home.path().join("file"), home.path().join("link"));
    std::fs::write(&file, b"old").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let source = home.path().join("source");
    std::fs::write(&source, b"new").unwrap();
    server.run(&["cp", text(&source), "s3://first/key"]);
    server.run(&["cp", "s3://first/key", text(&link)]);
    assert!(link.symlink_metadata().unwrap().is_symlink());
    assert_eq!(std::fs::read(&file).unwrap(), b"new");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o640);

    server.run(&["cp", "s3://first/key", "/dev/null"]);
    assert!(
        Path::new("/dev/null")
            .metadata()
            .unwrap()
            .file_type()
            .is_char_device()
    );

    let (code, message) = server.fail(&["cp", text(&source), text(&source)]);
    assert_eq!(code, 2, "{message}");
    assert_eq!(std::fs::read(&source).unwrap(), b"new");
}

#[test]
fn failures_have_their_exit_codes() {
    let (home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &[]);
    let file = home.path().join("file");
    std::fs::write(&file, b"x").unwrap();
    let denied = server
        .client(&["cp", "--json", text(&file), "s3://first/a"])
        .env("AWS_SECRET_ACCESS_KEY", "wrong")
        .output()
        .unwrap();
    assert_eq!(denied.status.code(), Some(4), "{}", stderr(&denied));
    let printed: serde_json::Value =
        serde_json::from_str(stderr(&denied).lines().last().unwrap()).unwrap();
    assert_eq!(printed["error"]["kind"], "denied");
    assert!(
        printed["error"]["message"]
            .as_str()
            .unwrap()
            .contains("SignatureDoesNotMatch"),
        "{printed}"
    );

    for (args, code) in [
        (&["cp", text(&file), "s3://absent/a"][..], 3),
        (&["cp", "/nothing/at/all", "s3://first/a"], 3),
        (&["cp", text(&file), "s3://first//a"], 2),
        (&["cp", text(&file)], 2),
        (&["cat", "s3://first"], 2),
        (&["cat", "ftp://first/a"], 2),
        (&["fly"], 2),
    ] {
        let (found, message) = server.fail(args);
        assert_eq!(found, code, "{args:?}: {message}");
    }
    let unsigned = bywash(&["ls", "s3://first", "--endpoint", "http://bywash.invalid"])
        .env("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")
        .output()
        .unwrap();
    assert_eq!(unsigned.status.code(), Some(4), "{}", stderr(&unsigned));
    assert!(
        stderr(&unsigned).contains("neither AWS_ACCESS_KEY_ID is set nor a profile"),
        "{}",
        stderr(&unsigned)
    );
    let endpoint = server.s3.clone();
    drop(server);
    let gone = bywash(&["ls", "s3://first", "--endpoint", &endpoint])
        .output()
        .unwrap();
    assert_eq!(
        gone.status.code(),
        Some(5),
        "{}{}",
        stdout(&gone),
        stderr(&gone)
    );
}

#[test]
fn interrupted_copy_leaves_no_file_and_no_upload() {
    let (home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &["--memory", "256MiB"]);
    let file = home.path().join("file");
    for destination in ["s3://first/half", text(&file)] {
        let mut cp = server
            .client(&["cp", "-", destination])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = cp.stdin.take().unwrap();
        // More than two parts and the buffer of a pipe: once all is written, a multipart upload is in progress.
        stdin.write_all(&pattern(97 << 20)).unwrap();
        kill_process(Pid::from_child(&cp), Signal::INT).unwrap();
        let ended = cp.wait_with_output().unwrap();
        assert_eq!(
            ended.status.code(),
            Some(130),
            "{destination}: {}",
            stderr(&ended)
        );
        drop(stdin);
    }
    assert_eq!(server.fail(&["stat", "s3://first/half"]).0, 3);
    let left: Vec<_> = std::fs::read_dir(home.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["data"], "a staged file is left");
    let uploads = data.join("buckets/first/.bywash/uploads");
    assert_eq!(
        std::fs::read_dir(&uploads).unwrap().count(),
        0,
        "an upload is left in {}",
        uploads.display()
    );
}
