//! `bywash mv`: the object is at the destination, and no longer at the source.

use crate::common::{Server, data_dir, pattern, text, tree, write_tree};

#[test]
fn moved_object_is_at_the_destination_only() {
    let (home, data) = data_dir(&["first", "second"]);
    let server = Server::start(&data, &["--memory", "256MiB"]);
    let content = pattern((9 << 20) + 5);
    let (file, back) = (home.path().join("file"), home.path().join("deep/down/back"));
    std::fs::write(&file, &content).unwrap();
    let steps = [
        text(&file),
        "s3://first/a",
        "s3://first/b",
        "s3://second/c",
        text(&back),
    ];
    for pair in steps.windows(2) {
        server.run(&["mv", pair[0], pair[1]]);
        assert_eq!(
            server.fail(&["stat", pair[0]]).0,
            3,
            "{} is still there",
            pair[0]
        );
        assert!(
            server.run(&["cat", pair[1]]) == content,
            "{} is different",
            pair[1]
        );
    }
    let renamed = home.path().join("renamed");
    server.run(&["mv", text(&back), text(&renamed)]);
    assert!(!back.exists() && std::fs::read(&renamed).unwrap() == content);
}

#[test]
fn tree_is_moved_under_the_same_names() {
    let (home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &[]);
    let here = home.path().join("here");
    let files = ["a.txt", "dir/b.txt", "dir/c.bin"].map(|name| (name.to_owned(), pattern(10)));
    write_tree(&here, &files.into());
    server.run(&[
        "mv",
        "-r",
        "--include",
        "*.txt",
        text(&here),
        "s3://first/up",
    ]);
    assert_eq!(tree(&here).into_keys().collect::<Vec<_>>(), ["dir/c.bin"]);
    server.run(&["mv", "-r", "s3://first/up", "s3://first/other"]);
    assert_eq!(server.fail(&["ls", "s3://first/up"]).0, 3);
    let back = home.path().join("back");
    server.run(&["mv", "-r", "s3://first/other", text(&back)]);
    assert_eq!(
        tree(&back).into_keys().collect::<Vec<_>>(),
        ["a.txt", "dir/b.txt"]
    );
}

#[test]
fn failed_move_keeps_the_source() {
    let (home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &[]);
    let file = home.path().join("file");
    std::fs::write(&file, b"x").unwrap();
    server.run(&["cp", text(&file), "s3://first/taken"]);
    for (args, code) in [
        (&["mv", text(&file), "s3://absent/k"][..], 3),
        (&["mv", "--create-only", text(&file), "s3://first/taken"], 1),
        (&["mv", text(&file), text(&file)], 2),
        (&["mv", text(&file), "-"], 2),
        (&["mv", "s3://first/taken", "s3://first/taken"], 2),
        (&["mv", "https://127.0.0.1:1/k", "s3://first/k"], 2),
    ] {
        let (found, message) = server.fail(args);
        assert_eq!(found, code, "{args:?}: {message}");
        assert_eq!(std::fs::read(&file).unwrap(), b"x", "{args:?}");
    }
    assert_eq!(server.run(&["cat", "s3://first/taken"]), b"x");
}
