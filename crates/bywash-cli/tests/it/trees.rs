//! `bywash cp --recursive` with every kind of address.

use std::collections::BTreeMap;
use std::path::Path;

use crate::common::{
    Server, bywash, data_dir, json_lines, pattern, stderr, stdout, text, tree, write_tree,
};

/// Names that careless splitting, encoding or sorting would change.
const NAMES: [&str; 7] = [
    "a.txt",
    "dir/b.bin",
    "dir/sub/c d+e%20.txt",
    "dir/sub/größe.txt",
    "dir-x/empty",
    "z/~(1)'.txt",
    "z/.hidden",
];

fn sample() -> BTreeMap<String, Vec<u8>> {
    let sizes = [3, 9 << 20, 100, 7, 0, 1, 50_000];
    NAMES
        .iter()
        .zip(sizes)
        .map(|(name, size)| ((*name).to_owned(), pattern(size)))
        .collect()
}

#[test]
fn tree_round_trips_by_each_kind_of_address() {
    let (home, data) = data_dir(&["first", "second"]);
    let server = Server::start(&data, &["--memory", "256MiB"]);
    let (here, expected) = (home.path().join("here"), sample());
    write_tree(&here, &expected);

    server.run(&["cp", "-r", text(&here), "s3://first/up"]);
    // Within a bucket, to another bucket, and back to a folder.
    server.run(&["cp", "-r", "s3://first/up/", "s3://first/again"]);
    server.run(&["cp", "-r", "s3://first/again", "s3://second/"]);
    let back = home.path().join("back");
    server.run(&["cp", "-r", "s3://second", text(&back)]);
    assert_eq!(tree(&back), expected);

    // A folder store, and a plain folder.
    let store = home.path().join("store");
    let url = format!("file://{}", store.display());
    server.run(&["cp", "-r", "s3://first/up", &url]);
    assert!(store.join(".bywash").is_dir());
    assert!(
        !store.join("dir/.bywash").exists(),
        "one store in all, not one per folder"
    );
    let plain = home.path().join("plain");
    server.run(&["cp", "-r", &url, text(&plain)]);
    assert_eq!(tree(&plain), expected);
}

#[test]
fn globs_select_names_and_output_lists_the_copies() {
    let (home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &[]);
    let here = home.path().join("here");
    write_tree(&here, &sample());
    let copied = |args: &[&str]| -> Vec<String> {
        let lines = json_lines(&server.run(args));
        let mut names: Vec<_> = lines
            .iter()
            .map(|line| line["destination"].as_str().unwrap().to_owned())
            .collect();
        names.sort();
        names
    };
    assert_eq!(
        copied(&[
            "cp",
            "--json",
            "-r",
            "--include",
            "*.txt",
            "--exclude",
            "dir/**",
            text(&here),
            "s3://first/p"
        ]),
        ["s3://first/p/a.txt", "s3://first/p/z/~(1)'.txt"]
    );
    assert_eq!(
        copied(&[
            "cp",
            "--json",
            "-r",
            "--jobs",
            "1",
            "--exclude",
            "*.*",
            text(&here),
            "s3://first/q/"
        ]),
        ["s3://first/q/dir-x/empty"]
    );
    let printed =
        String::from_utf8(server.run(&["cp", "-r", text(&here), "s3://first/r"])).unwrap();
    assert!(printed.starts_with("7 copied, 9.05 MiB, "), "{printed}");
}

#[test]
fn failed_source_does_not_stop_copies_of_the_others() {
    let (home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &[]);
    let here = home.path().join("here");
    write_tree(&here, &sample());
    let (a, hidden) = (here.join("a.txt"), here.join("z/.hidden"));
    server.run(&["cp", text(&a), text(&hidden), "s3://first/dir/"]);
    assert!(server.run(&["cat", "s3://first/dir/.hidden"]) == pattern(50_000));

    let (code, message) = server.fail(&["cp", text(&a), text(&hidden), "s3://first/dir"]);
    assert_eq!(code, 2, "{message}");
    assert!(
        message.contains("end s3://first/dir with a slash"),
        "{message}"
    );
    let (code, message) = server.fail(&["cp", text(&here), "s3://first/dir/"]);
    assert_eq!(code, 2, "{message}");
    assert!(message.contains("--recursive"), "{message}");

    let (code, message) = server.fail(&["cp", "/none/1", text(&a), "/none/2", "s3://first/rest/"]);
    assert_eq!(code, 3, "{message}");
    assert!(
        message.contains("/none/1") && message.contains("/none/2"),
        "{message}"
    );
    assert!(message.contains("2 of 3 copies failed"), "{message}");
    assert_eq!(server.run(&["cat", "s3://first/rest/a.txt"]), pattern(3));
}

#[test]
fn failed_condition_keeps_the_destination() {
    let (home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &[]);
    let (one, two) = (home.path().join("one"), home.path().join("two"));
    std::fs::write(&one, b"one").unwrap();
    std::fs::write(&two, b"two").unwrap();
    for location in ["s3://first/k", text(&home.path().join("k"))] {
        server.run(&["cp", "--create-only", text(&one), location]);
        let (code, message) = server.fail(&["cp", "--create-only", text(&two), location]);
        assert_eq!(code, 1, "{message}");
        assert!(message.contains("it exists already"), "{message}");
        assert_eq!(server.run(&["cat", location]), b"one", "{location}");
    }
    let stat = json_lines(&server.run(&["stat", "--json", "s3://first/k"]));
    let e_tag = stat[0]["e_tag"].as_str().unwrap();
    server.run(&["cp", "--if-match", e_tag, text(&two), "s3://first/k"]);
    let (code, message) = server.fail(&["cp", "--if-match", e_tag, text(&one), "s3://first/k"]);
    assert_eq!(code, 1, "{message}");
    assert!(message.contains("it changed meanwhile"), "{message}");
    assert_eq!(server.run(&["cat", "s3://first/k"]), b"two");
    // With a condition, objects of one store are copied through the program, which can check it.
    let (code, message) = server.fail(&[
        "cp",
        "--create-only",
        "s3://first/k",
        "s3://first/k2",
        "--json",
    ]);
    assert_eq!((code, message.as_str()), (0, ""));
    assert_eq!(
        server
            .fail(&["cp", "--create-only", "s3://first/k", "s3://first/k2"])
            .0,
        1
    );
}

#[test]
fn downloaded_file_gets_the_time_of_its_object() {
    let (home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &[]);
    let (file, back) = (home.path().join("file"), home.path().join("back"));
    std::fs::write(&file, pattern(10)).unwrap();
    server.run(&["cp", text(&file), "s3://first/k"]);
    server.run(&["cp", "s3://first/k", text(&back)]);
    let stat = json_lines(&server.run(&["stat", "--json", "s3://first/k"]));
    let printed = json_lines(&server.run(&["stat", "--json", text(&back)]));
    let seconds = |line: &serde_json::Value| line["modified"].as_str().unwrap()[..19].to_owned();
    assert_eq!(seconds(&stat[0]), seconds(&printed[0]));
}

#[test]
fn special_files_are_skipped_and_only_links_to_files_are_followed() {
    let (home, _) = data_dir(&[]);
    let here = home.path().join("here");
    write_tree(&here, &[("a".to_owned(), pattern(5))].into());
    std::os::unix::fs::symlink(here.join("a"), here.join("link")).unwrap();
    std::os::unix::fs::symlink(&here, here.join("loop")).unwrap();
    std::os::unix::fs::symlink("/nothing/there", here.join("broken")).unwrap();
    std::fs::write(here.join(".a.bywash-part"), b"half").unwrap();
    let to = home.path().join("to");
    let output = bywash(&["cp", "-r", text(&here), text(&to)])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let names: Vec<_> = tree(&to).into_keys().collect();
    assert_eq!(names, ["a", "link"], "{}", stdout(&output));
    assert!(stderr(&output).contains("broken"), "{}", stderr(&output));
    assert!(!Path::new(&to.join("link")).is_symlink());
}

#[test]
fn https_destinations_are_rejected() {
    let (home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &[]);
    let file = home.path().join("file");
    std::fs::write(&file, b"x").unwrap();
    for args in [
        &["cp", text(&file), "https://127.0.0.1/k"][..],
        &["sync", text(home.path()), "http://127.0.0.1/k"],
    ] {
        let (code, message) = server.fail(args);
        assert_eq!(code, 2, "{args:?}: {message}");
    }
}

#[test]
fn markers_of_folders_are_left_out() {
    let (home, data) = data_dir(&["first", "second"]);
    let server = Server::start(&data, &["--anonymous"]);
    write_tree(
        &home.path().join("here"),
        &[("dir/a".to_owned(), pattern(5))].into(),
    );
    server.run(&["cp", "-r", text(&home.path().join("here")), "s3://first"]);
    for marker in ["dir/", "empty/"] {
        crate::common::put_empty(&server.s3, &format!("/first/{marker}"));
    }
    server.run(&["cp", "-r", "s3://first", "s3://second/copy"]);
    let back = home.path().join("back");
    server.run(&["cp", "-r", "s3://second", text(&back)]);
    server.run(&["sync", "s3://first", text(&back)]);
    let names: Vec<_> = tree(&back).into_keys().collect();
    assert_eq!(names, ["copy/dir/a", "dir/a"]);
}

#[test]
fn links_below_the_target_are_refused_or_followed_on_request() {
    use std::os::unix::fs::symlink;
    let (home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &[]);
    let here = home.path().join("here");
    write_tree(&here, &sample());
    server.run(&["cp", "-r", text(&here), "s3://first/p"]);
    let (to, outside) = (home.path().join("to"), home.path().join("outside"));
    std::fs::create_dir_all(&to).unwrap();
    std::fs::create_dir_all(&outside).unwrap();
    std::fs::write(outside.join("file"), "precious").unwrap();
    symlink(&outside, to.join("dir")).unwrap();
    symlink(outside.join("file"), to.join("a.txt")).unwrap();
    for args in [
        &["cp", "-r", "s3://first/p", text(&to)][..],
        &["cp", "-r", text(&here), text(&to)],
        &["sync", "s3://first/p", text(&to)],
    ] {
        let (code, message) = server.fail(args);
        assert_eq!(code, 1, "{args:?}: {message}");
        assert!(message.contains("--keep-dirlinks"), "{args:?}: {message}");
        // Files that are not behind a link to a folder are copied, also over a link to a file.
        assert_eq!(std::fs::read(to.join("a.txt")).unwrap(), pattern(3));
        assert_eq!(tree(&outside).len(), 1, "{args:?}");
        assert_eq!(std::fs::read(outside.join("file")).unwrap(), b"precious");
    }
    server.run(&["cp", "-r", "--keep-dirlinks", "s3://first/p", text(&to)]);
    let mut found = tree(&to);
    assert_eq!(found.remove("dir/file").unwrap(), b"precious");
    assert!(found == sample());
    assert_eq!(tree(&outside).len(), 4);
    // The target itself may be a link: the user chose it.
    let link = home.path().join("link");
    symlink(&to, &link).unwrap();
    std::fs::remove_file(to.join("dir")).unwrap();
    server.run(&["mv", "-r", text(&here), text(&link)]);
    assert!(tree(&to) == sample());
}
