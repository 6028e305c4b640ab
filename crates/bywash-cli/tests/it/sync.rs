//! `bywash sync`.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use crate::common::{Server, bywash, data_dir, json_lines, stderr, text, tree, write_tree};

fn files(names: &[(&str, &str)]) -> BTreeMap<String, Vec<u8>> {
    names
        .iter()
        .map(|(name, content)| ((*name).to_owned(), content.as_bytes().to_vec()))
        .collect()
}

/// Returns the changes that a run made or planned, as `copy NAME` and `delete NAME`.
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
    // A name that cannot be listed.
    let odd = here.join(std::ffi::OsStr::from_bytes(b"\xff"));
    std::fs::write(&odd, b"x").unwrap();
    let (code, message) = sync(text(&here));
    assert_eq!(code, Some(1), "{message}");
    assert_eq!(tree(&to).len(), 1, "{message}");
    std::fs::remove_file(&odd).unwrap();
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
