//! Trees inside each other: copies between them are refused, and change nothing.

use std::os::unix::fs::symlink;

use crate::common::{Server, data_dir, pattern, text, tree, write_tree};

const VERBS: [&[&str]; 4] = [
    &["sync"],
    &["sync", "--delete"],
    &["cp", "-r"],
    &["mv", "-r"],
];

#[test]
fn copies_between_prefixes_inside_each_other_are_refused() {
    let (home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &[]);
    let here = home.path().join("here");
    let files = ["a", "new/a", "new/new/a", "newer/a"].map(|name| (name.to_owned(), pattern(9)));
    write_tree(&here, &files.into());
    server.run(&["cp", "-r", text(&here), "s3://first"]);
    let listed = || server.run(&["ls", "-r", "s3://first"]);
    let before = listed();
    let gcs = server.gcs.clone().unwrap();
    // By its folder too.
    let folder = text(&data.join("buckets/first")).to_owned();
    let inside = format!("{folder}/new");
    for verb in VERBS {
        for (from, to) in [
            ("s3://first/new", "s3://first/"),
            ("s3://first/new/", "s3://first"),
            ("s3://first", "s3://first/new"),
            ("s3://first/", "s3://first/absent/deep/"),
            ("s3://first/new/new", "s3://first/new/"),
            ("s3://first/new/", "s3://first/new"),
            ("gs://first/new", "gs://first"),
            ("gs://first", "gs://first/new/"),
            ("s3://first/new", "gs://first/"),
            ("gs://first", "s3://first/new"),
            ("s3://first/new", &folder),
            (&inside, "s3://first/"),
            (&inside, "gs://first"),
            ("s3://first", &format!("file://{inside}/deep")),
        ] {
            let args = [verb, &[from, to]].concat();
            let output = server
                .client(&args)
                .env("STORAGE_EMULATOR_HOST", &gcs)
                .output()
                .unwrap();
            let message = crate::common::stderr(&output);
            assert_eq!(output.status.code(), Some(2), "{args:?}: {message}");
            let says = ["is inside of", "onto itself"];
            assert!(
                says.iter().any(|words| message.contains(words)),
                "{args:?}: {message}"
            );
            assert_eq!(listed(), before, "{args:?}");
        }
    }
    // Names that begin alike are apart.
    server.run(&["sync", "--delete", "s3://first/new", "s3://first/newer"]);
    assert_eq!(server.fail(&["stat", "s3://first/newer/new/a"]).0, 0);
}

#[test]
fn copies_between_folders_inside_each_other_are_refused_whatever_their_spelling() {
    let (home, data) = data_dir(&[]);
    let server = Server::start(&data, &[]);
    let here = home.path().join("here");
    let files = ["a", "new/a", "new/new/a"].map(|name| (name.to_owned(), pattern(9)));
    write_tree(&here, &files.into());
    symlink(&here, home.path().join("link")).unwrap();
    symlink(here.join("new"), home.path().join("deep")).unwrap();
    let before = tree(&here);
    let at = |name: &str| format!("{}/{name}", home.path().display());
    for verb in VERBS {
        for (from, to) in [
            ("here", "here/new"),
            ("here", "here/absent/deep"),
            ("here/new", "here"),
            ("here/", "link"),
            ("here", "link/new/"),
            ("link", "deep"),
            ("deep", "here/"),
            ("here", "absent/../here/new"),
            ("here/new/..", "here/new/new"),
        ] {
            let from = at(from);
            for to in [at(to), format!("file://{}", at(to))] {
                let args = [verb, &[&from, &to]].concat();
                let (code, message) = server.fail(&args);
                assert_eq!(code, 2, "{args:?}: {message}");
                assert_eq!(tree(&here), before, "{args:?}: {message}");
            }
        }
    }
    // A relative path.
    let mut command = server.client(&["sync", "new", "."]);
    let output = command.current_dir(&here).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    // A link below the destination that leads back to the source.
    let to = home.path().join("to");
    std::fs::create_dir(&to).unwrap();
    symlink(&here, to.join("new")).unwrap();
    let (code, message) = server.fail(&["cp", "-r", "--keep-dirlinks", text(&here), text(&to)]);
    assert!(
        code == 1 && message.contains("which is copied"),
        "{message}"
    );
    assert_eq!(tree(&here), before);
}
