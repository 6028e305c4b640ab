//! `bywash ls`, `du`, `stat` and `cat`.

use crate::common::{Server, data_dir, json_lines, pattern, text, write_tree};

fn filled() -> (tempfile::TempDir, Server, String) {
    let (home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &[]);
    let here = home.path().join("here");
    let sizes = [("a", 1000), ("dir/b", 2000), ("dir/sub/c", 3072)];
    write_tree(
        &here,
        &sizes
            .map(|(name, size)| (name.to_owned(), pattern(size)))
            .into(),
    );
    server.run(&["cp", "-r", text(&here), "s3://first/up"]);
    let here = text(&here).to_owned();
    (home, server, here)
}

#[test]
fn listings_show_sizes_e_tags_and_sums() {
    let (_home, server, here) = filled();
    for location in ["s3://first/up/", &here] {
        let shown = String::from_utf8(server.run(&["ls", "-r", "-H", "-s", location])).unwrap();
        assert!(shown.contains(" 3.00 KiB "), "{shown}");
        assert!(
            shown.ends_with("3 objects, 0 prefixes, 5.93 KiB\n"),
            "{shown}"
        );
        let printed = json_lines(&server.run(&["ls", "--summary", "--json", location]));
        let expected =
            serde_json::json!({"kind": "summary", "objects": 1, "prefixes": 1, "bytes": 1000});
        assert_eq!(printed[2], expected, "{location}");
    }
    let stat = json_lines(&server.run(&["stat", "--json", "s3://first/up/a"]));
    let shown = String::from_utf8(server.run(&["ls", "-l", "s3://first/up/a"])).unwrap();
    assert!(
        shown.contains(stat[0]["e_tag"].as_str().unwrap()),
        "{shown}"
    );
}

#[test]
fn du_sums_folders_down_to_a_depth() {
    let (_home, server, here) = filled();
    for location in ["s3://first/up", &here] {
        let printed = json_lines(&server.run(&["du", "--json", "--depth", "1", location]));
        let line = |name: String, objects: u64, bytes: u64| serde_json::json!({"name": name, "objects": objects, "bytes": bytes});
        let expected = [
            line(location.to_owned(), 3, 6072),
            line(format!("{location}/dir/"), 2, 5072),
        ];
        assert_eq!(printed, expected);
        let printed = json_lines(&server.run(&["du", "--json", "--exclude", "c", location]));
        assert_eq!(printed[0]["bytes"], 3000);
    }
    assert_eq!(server.fail(&["du", "s3://first/nothing"]).0, 3);
}

#[test]
fn missing_object_does_not_stop_stat_of_the_others() {
    let (_home, server, here) = filled();
    let file = format!("{here}/a");
    let output = server
        .client(&[
            "stat",
            "--json",
            "s3://first/up/a",
            "s3://first/none",
            &file,
        ])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3));
    let printed = json_lines(&output.stdout);
    assert_eq!(
        (&printed[0]["size"], &printed[1]["name"]),
        (&1000.into(), &file.as_str().into())
    );
    let both = server.run(&["cat", "--range", "-3", "s3://first/up/a", &file]);
    assert_eq!(
        both,
        [&pattern(1000)[997..], &pattern(1000)[997..]].concat()
    );
}

#[test]
fn files_of_web_servers_are_read_and_not_listed() {
    let (home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &["--anonymous"]);
    let file = home.path().join("file");
    std::fs::write(&file, pattern(9 << 20)).unwrap();
    server.run(&["cp", text(&file), "s3://first/dir/a b"]);
    let url = format!("{}/first/dir/a%20b", server.s3);
    assert!(server.run(&["cat", &url]) == pattern(9 << 20));
    let stat = json_lines(&server.run(&["stat", "--json", &url]));
    assert_eq!(stat[0]["size"], 9 << 20);
    let back = home.path().join("back");
    server.run(&["cp", &url, text(&back)]);
    assert!(std::fs::read(&back).unwrap() == pattern(9 << 20));
    let (code, message) = server.fail(&["ls", &format!("{}/first/", server.s3)]);
    assert_eq!(code, 1, "{message}");
    assert_eq!(
        server
            .fail(&["cat", &format!("{}/first/none", server.s3)])
            .0,
        3
    );
}
