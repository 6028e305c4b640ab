//! `bywash sync`.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::common::{Server, bywash, data_dir, json_lines, stderr, text, tree, write_tree};

fn files(names: &[(&str, &str)]) -> BTreeMap<String, Vec<u8>> {
    names
        .iter()
        .map(|(name, content)| ((*name).to_owned(), content.as_bytes().to_vec()))
        .collect()
}

/// The changes that a run made or planned, as `copy NAME` and `delete NAME`.
fn actions(lines: &[u8]) -> Vec<String> {
    let lines = json_lines(lines);
    let mut actions: Vec<_> = lines
        .iter()
        .map(|line| {
            let location = line["removed"]
                .as_str()
                .or(line["destination"].as_str())
                .unwrap();
            let deleted = line.get("removed").is_some() || line["action"] == "delete";
            let verb = if deleted { "delete" } else { "copy" };
            format!("{verb} {}", location.rsplit_once("/to/").unwrap().1)
        })
        .collect();
    actions.sort();
    actions
}

#[test]
fn sync_copies_differences_only_and_deletes_on_request() {
    let (home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &[]);
    let here = home.path().join("here");
    let plain = home.path().join("plain/to");
    let store = format!("file://{}/to", home.path().join("store").display());
    for to in ["s3://first/to", text(&plain), &store] {
        std::fs::remove_dir_all(&here).ok();
        write_tree(
            &here,
            &files(&[("a", "1"), ("dir/b", "22"), ("dir/c", "333")]),
        );
        let sync = |more: &[&str]| {
            let args = [&["sync", "--json", text(&here), to][..], more].concat();
            actions(&server.run(&args))
        };
        assert_eq!(
            sync(&["--dry-run"]),
            ["copy a", "copy dir/b", "copy dir/c"],
            "{to}"
        );
        assert_eq!(sync(&[]), ["copy a", "copy dir/b", "copy dir/c"], "{to}");
        assert!(sync(&[]).is_empty(), "{to}: a second run copies nothing");

        std::fs::write(here.join("a"), "longer").unwrap();
        let later = SystemTime::now() + Duration::from_secs(60);
        let newer = std::fs::File::options()
            .write(true)
            .open(here.join("dir/b"))
            .unwrap();
        newer.set_modified(later).unwrap();
        std::fs::remove_file(here.join("dir/c")).unwrap();
        assert_eq!(sync(&[]), ["copy a", "copy dir/b"], "{to}");
        let planned = sync(&["--dry-run", "--delete", "--exclude", "b"]);
        assert_eq!(planned, ["delete dir/c"], "{to}");
        assert_eq!(sync(&["--delete", "--exclude", "dir/**"]), [""; 0], "{to}");
        newer.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(sync(&["--delete"]), ["delete dir/c"], "{to}");

        // Copied back, files get the times of the objects, so a second run has nothing to do.
        let back = home.path().join("back/to");
        let run = |args: &[&str]| actions(&server.run(args));
        let down = ["sync", "--json", to, text(&back)];
        if !to.starts_with("file://") {
            assert_eq!(run(&down), ["copy a", "copy dir/b"], "{to}");
            assert!(run(&down).is_empty(), "{to}");
            assert_eq!(tree(&back), tree(&here), "{to}");
            std::fs::remove_dir_all(&back).unwrap();
        }
    }
}

#[test]
fn checksum_sync_copies_changes_of_equal_size_and_time() {
    let (home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &[]);
    let here = home.path().join("here");
    write_tree(&here, &files(&[("same", "abc"), ("other", "abc")]));
    server.run(&["sync", text(&here), "s3://first/to"]);
    std::fs::write(here.join("other"), "abd").unwrap();
    for name in ["same", "other"] {
        let file = std::fs::File::options()
            .write(true)
            .open(here.join(name))
            .unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    }
    let sync = |more: &[&str]| {
        let args = [&["sync", "--json", text(&here), "s3://first/to"][..], more].concat();
        actions(&server.run(&args))
    };
    assert!(sync(&[]).is_empty());
    assert_eq!(sync(&["--checksum", "--dry-run"]), ["copy other"]);
    assert_eq!(sync(&["--checksum"]), ["copy other"]);
    assert!(sync(&["--checksum"]).is_empty());
    assert_eq!(server.run(&["cat", "s3://first/to/other"]), b"abd");
}

#[test]
fn nothing_is_deleted_when_a_listing_or_a_copy_fails() {
    use std::os::unix::ffi::OsStrExt;

    let (home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &[]);
    let (here, to) = (home.path().join("here"), home.path().join("to"));
    write_tree(&here, &files(&[("a", "new"), ("keep/x", "1")]));
    write_tree(&to, &files(&[("extra", "1")]));
    let sync = |source: &str| {
        let output = bywash(&["sync", "--delete", source, text(&to)])
            .output()
            .unwrap();
        (output.status.code(), stderr(&output))
    };
    // A name that cannot be compared with keys: the others are copied.
    let odd = here.join(std::ffi::OsStr::from_bytes(b"\xff"));
    std::fs::write(&odd, b"x").unwrap();
    let (code, message) = sync(text(&here));
    assert_eq!(code, Some(1), "{message}");
    assert!(message.contains("nothing is deleted"), "{message}");
    assert_eq!(
        tree(&to).into_keys().collect::<Vec<_>>(),
        ["a", "extra", "keep/x"],
        "{message}"
    );
    std::fs::remove_file(&odd).unwrap();
    std::fs::remove_dir_all(&to).unwrap();
    write_tree(&to, &files(&[("extra", "1")]));
    // A missing source.
    let (code, message) = sync(text(&home.path().join("gone")));
    assert_eq!(code, Some(3), "{message}");
    let (code, message) = server.fail(&["sync", "--delete", "s3://first/gone", text(&to)]);
    assert_eq!(code, 3, "{message}");
    let (code, message) = server.fail(&["sync", "--delete", "s3://absent", text(&to)]);
    assert_eq!(code, 3, "{message}");
    assert_eq!(tree(&to).len(), 1);
    // A copy that fails, because its destination is a folder.
    std::fs::create_dir_all(to.join("a")).unwrap();
    let (code, message) = sync(text(&here));
    assert_eq!(code, Some(1), "{message}");
    assert!(message.contains("nothing was deleted"), "{message}");
    assert!(to.join("extra").exists());
    std::fs::remove_dir(to.join("a")).unwrap();
    assert_eq!(sync(text(&here)).0, Some(0));
    assert_eq!(tree(&to), tree(&here));
}

/// The kind of entry at `dir/hidden` of the source, how it is made, and whether the verb fails for
/// it.
type Hidden = (&'static str, fn(&Path), bool);

const HIDDEN: [Hidden; 7] = [
    (
        "a link into a folder without permission",
        |place| {
            let closed = place.with_file_name("closed");
            std::fs::create_dir(&closed).unwrap();
            std::fs::write(closed.join("file"), "1").unwrap();
            std::fs::set_permissions(&closed, Permissions::from_mode(0o0)).unwrap();
            symlink("closed/file", place).unwrap();
        },
        true,
    ),
    (
        "a folder without permission",
        |place| {
            std::fs::create_dir(place).unwrap();
            std::fs::set_permissions(place, Permissions::from_mode(0o0)).unwrap();
        },
        true,
    ),
    (
        "a link with a name that is too long",
        |place| symlink("n".repeat(300), place).unwrap(),
        true,
    ),
    (
        "a link that points nowhere",
        |place| symlink("/nothing/there", place).unwrap(),
        false,
    ),
    (
        "a link to itself",
        |place| symlink("hidden", place).unwrap(),
        false,
    ),
    (
        "a link below a file",
        |place| symlink("other/below", place).unwrap(),
        false,
    ),
    (
        "a link to a folder",
        |place| symlink("/usr", place).unwrap(),
        false,
    ),
];

#[test]
fn names_that_the_listing_of_the_source_left_out_are_kept_by_delete() {
    let (home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &[]);
    let (one, copies) = (home.path().join("one"), home.path().join("copies"));
    std::fs::write(&one, "1").unwrap();
    std::fs::create_dir(&copies).unwrap();
    for (path, mode) in [(home.path(), 0o755), (&copies, 0o777)] {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
    for (number, (what, hide, fails)) in HIDDEN.into_iter().enumerate() {
        let (here, to) = (
            home.path().join(number.to_string()),
            format!("s3://first/{number}/to"),
        );
        for key in ["a", "dir/hid", "dir/hidden", "dir/hidden/below/b", "gone"] {
            server.run(&["cp", text(&one), &format!("{to}/{key}")]);
        }
        write_tree(&here, &files(&[("a", "1"), ("dir/other", "1")]));
        hide(&here.join("dir/hidden"));
        for more in [&["--dry-run"][..], &["--json"]] {
            let mut command = bywash(&[&["sync", "--delete", text(&here), &to][..], more].concat());
            command
                .envs(server.env())
                .args(["--data-dir", text(&copies)]);
            if rustix::process::geteuid().is_root() {
                // Nothing is denied to root.
                command.uid(65_534).gid(65_534);
            }
            let done = command.output().unwrap();
            let message = stderr(&done);
            assert_eq!(
                done.status.code(),
                Some(i32::from(fails)),
                "{what}: {message}"
            );
            assert!(message.contains("2 names at"), "{what}: {message}");
            assert!(message.contains("dir/hidden"), "{what}: {message}");
        }
        let listed = server.run(&["ls", "-r", "--json", &to]);
        let found: Vec<_> = json_lines(&listed)
            .iter()
            .map(|line| {
                line["name"]
                    .as_str()
                    .unwrap()
                    .rsplit_once("to/")
                    .unwrap()
                    .1
                    .to_owned()
            })
            .collect();
        let expected = ["a", "dir/hidden", "dir/hidden/below/b", "dir/other"];
        assert_eq!(found, expected, "{what}");
    }
}

#[test]
fn names_left_out_are_kept_in_a_folder_and_excluded_ones_are_not_reported() {
    let home = tempfile::tempdir().unwrap();
    let (here, to) = (home.path().join("here"), home.path().join("to"));
    write_tree(&here, &files(&[("a", "1")]));
    write_tree(
        &to,
        &files(&[("link", "1"), ("gone", "1"), ("folder/b", "1")]),
    );
    symlink("n".repeat(300), here.join("link")).unwrap();
    symlink("n".repeat(300), here.join("folder")).unwrap();
    let sync = |more: &[&str]| {
        let args = [
            &["sync", "--delete", "--json", text(&here), text(&to)][..],
            more,
        ]
        .concat();
        let done = bywash(&args).output().unwrap();
        (
            done.status.code(),
            stderr(&done),
            String::from_utf8(done.stdout).unwrap(),
        )
    };
    let (code, message, printed) = sync(&[]);
    assert_eq!(code, Some(1), "{message}");
    assert_eq!(
        tree(&to).into_keys().collect::<Vec<_>>(),
        ["a", "folder/b", "link"],
        "{message}"
    );
    assert_eq!(printed.matches("\"kept\"").count(), 2, "{printed}");
    let (code, message, _) = sync(&["--exclude", "link", "--exclude", "folder"]);
    assert_eq!((code, message.as_str()), (Some(0), ""));
    // Copies and moves of the tree do all else, and say so.
    for verb in ["cp", "mv"] {
        let done = bywash(&[verb, "-r", text(&here), text(&home.path().join(verb))])
            .output()
            .unwrap();
        let message = stderr(&done);
        assert_eq!(done.status.code(), Some(1), "{message}");
        assert!(message.contains("2 names below"), "{message}");
        assert!(home.path().join(verb).join("a").exists());
    }
    assert!(here.join("link").is_symlink() && here.join("folder").is_symlink());
}
