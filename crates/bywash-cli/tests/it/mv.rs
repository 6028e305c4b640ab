//! `bywash mv`: the object is at the destination, and no longer at the source.

use std::time::UNIX_EPOCH;

use crate::common::{Server, bywash, data_dir, pattern, stderr, text, tree, write_tree};

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

/// The client does not know the folders of the server: it has another data folder.
#[test]
fn object_moved_onto_itself_by_another_address_is_kept() {
    let (home, data) = data_dir(&[]);
    let folder = home.path().join("photos");
    std::fs::create_dir(&folder).unwrap();
    let buckets = ["photos", "again"].map(|name| format!("{name}=file://{}", folder.display()));
    let server = Server::start(&data, &[&buckets[0], &buckets[1]]);
    let gcs = server.gcs.clone().unwrap();
    let apart = home.path().join("apart");
    let client = |args: &[&str]| {
        let mut command = bywash(args);
        command.args(["--data-dir", text(&apart)]);
        command
            .envs(server.env())
            .env("STORAGE_EMULATOR_HOST", &gcs);
        command.output().unwrap()
    };
    let place = text(&folder);
    let url = format!("file://{place}");
    for (from, to) in [
        ("s3://photos", "gs://photos"),
        ("s3://photos", "s3://again"),
        ("s3://photos", &*url),
        ("gs://photos", place),
        (place, "s3://photos"),
    ] {
        for dated in ["fresh", "old"] {
            let files = ["2024/a", "2024/b"].map(|name| (name.to_owned(), pattern(70)));
            write_tree(&folder, &files.clone().into());
            if dated == "old" {
                let then = std::time::SystemTime::now() - std::time::Duration::from_hours(1);
                let file = std::fs::File::open(folder.join("2024/a")).unwrap();
                file.set_modified(then).unwrap();
            }
            let ends = [from, to].map(|root| format!("{root}/2024"));
            let output = client(&["mv", "-r", &ends[0], &ends[1]]);
            let message = stderr(&output);
            assert!(!output.status.success(), "{dated} {ends:?}: {message}");
            assert_eq!(tree(&folder), files.into(), "{dated} {ends:?}: {message}");
        }
    }
    let output = client(&["mv", "s3://photos/2024/a", text(&folder.join("2024/a"))]);
    let message = stderr(&output);
    assert!(message.contains("by another address"), "{message}");
}

#[test]
fn object_is_moved_over_its_copy_of_the_same_date() {
    let (home, data) = data_dir(&["first", "second"]);
    let server = Server::start(&data, &[]);
    let (file, out) = (home.path().join("file"), home.path().join("out"));
    std::fs::write(&file, b"x").unwrap();
    std::fs::create_dir(&out).unwrap();
    let copy = out.join("copy");
    server.run(&["cp", text(&file), "s3://first/k"]);
    server.run(&["cp", "s3://first/k", text(&copy)]);
    let modified = || copy.metadata().unwrap().modified().unwrap();
    let before = modified();
    server.run(&["mv", "s3://first/k", text(&copy)]);
    assert_eq!(server.fail(&["stat", "s3://first/k"]).0, 3);
    assert_eq!(modified(), before);
    assert_eq!(tree(&out), [("copy".to_owned(), b"x".to_vec())].into());
    // To an object of another date.
    server.run(&["cp", text(&file), "s3://first/k"]);
    let second = |bucket: &str| {
        let file = data.join("buckets").join(bucket).join("k");
        let modified = file.metadata().unwrap().modified().unwrap();
        modified.duration_since(UNIX_EPOCH).unwrap().as_secs()
    };
    loop {
        server.run(&["cp", "s3://first/k", "s3://second/k"]);
        if second("first") != second("second") {
            break;
        }
    }
    server.run(&["mv", "s3://first/k", "s3://second/k"]);
    assert_eq!(server.fail(&["stat", "s3://first/k"]).0, 3);
    assert_eq!(server.run(&["cat", "s3://second/k"]), b"x");
}

#[test]
fn second_source_of_one_destination_is_refused_and_kept() {
    let (home, data) = data_dir(&["first", "third"]);
    let server = Server::start(&data, &[]);
    let here = home.path().join("here");
    let files = ["x1/n", "x2/n", "x2/other"];
    let files = files.map(|name| (name.to_owned(), name.as_bytes().to_vec()));
    write_tree(&here, &files.clone().into());
    server.run(&["cp", "-r", text(&here), "s3://first"]);
    let out = home.path().join("out");
    let at = |root: &str, name: &str| format!("{root}/{name}");
    for root in ["s3://first", text(&here)] {
        for (index, to) in ["s3://third/", &format!("{}/", text(&out))]
            .into_iter()
            .enumerate()
        {
            for (verb, options) in [
                ("cp", &[][..]),
                ("cp", &["-r"]),
                ("mv", &["-r"]),
                ("mv", &[]),
            ] {
                // Each to a place of its own.
                let to = format!("{to}{index}{verb}{}{}/", options.len(), root.len());
                if to.starts_with('/') {
                    std::fs::create_dir_all(&to).unwrap();
                }
                write_tree(&here, &files.clone().into());
                server.run(&["cp", "-r", text(&here), "s3://first"]);
                let names = if options.is_empty() {
                    ["x1/n", "x2/n"]
                } else {
                    ["x1", "x2"]
                };
                let sources = names.map(|name| at(root, name));
                let args = [&[verb], options, &[&*sources[0], &sources[1], &to]].concat();
                let (code, message) = server.fail(&args);
                assert!(
                    code == 1 && message.contains("will not overwrite"),
                    "{args:?}: {message}"
                );
                let written = server.run(&["cat", &format!("{to}n")]);
                let sources =
                    ["x1/n", "x2/n"].map(|name| server.fail(&["stat", &at(root, name)]).0);
                let (written_from, kept) = match &*written {
                    b"x1/n" => (0, 1),
                    other => (1, usize::from(other != b"x2/n")),
                };
                assert_eq!(sources[kept], 0, "{args:?}");
                assert_eq!(
                    sources[written_from] == 0,
                    verb == "cp",
                    "{args:?}: {sources:?}"
                );
            }
        }
    }
}
