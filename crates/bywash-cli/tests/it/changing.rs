//! Sources that change while they are copied: nothing is deleted that was not copied, and no copy is of two versions.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::gate::Gate;
use crate::common::{Server, bywash, data_dir, pattern, stderr, text, tree, write_tree};

/// Starts a verb whose requests reach the server, but whose responses wait, and returns once the first waits.
fn start_held(server: &Server, gate: &Gate, args: &[&str]) -> Child {
    gate.set_limit(0);
    start(server, gate, args)
}

/// Starts a verb whose responses are held from this request on, and waits for it.
fn start_held_from(server: &Server, gate: &Gate, from: &'static str, args: &[&str]) -> Child {
    gate.hold_from(from);
    start(server, gate, args)
}

fn start(server: &Server, gate: &Gate, args: &[&str]) -> Child {
    let mut command = server.client(args);
    let verb = command.args(["--endpoint", &gate.url]).spawn().unwrap();
    gate.wait_for_held();
    verb
}

/// Lets the responses pass, and waits for the end of the verb.
fn release(gate: &Gate, verb: Child) -> Output {
    gate.set_limit(u64::MAX);
    verb.wait_with_output().unwrap()
}

/// A change of a file by another program.
type Change = (&'static str, fn(&Path));

fn replace(path: &Path) {
    let beside = path.with_file_name("beside");
    std::fs::write(&beside, b"new").unwrap();
    std::fs::rename(beside, path).unwrap();
}

fn append(path: &Path) {
    let mut file = OpenOptions::new().append(true).open(path).unwrap();
    file.write_all(b"more").unwrap();
}

/// Writes bytes in place and sets size and time back.
fn rewrite(path: &Path) {
    let modified = path.metadata().unwrap().modified().unwrap();
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(b"new", 0).unwrap();
    file.set_modified(modified).unwrap();
}

/// As `replace`, with a file of the same size and time.
fn replace_alike(path: &Path) {
    let modified = path.metadata().unwrap().modified().unwrap();
    let beside = path.with_file_name("beside");
    let mut bytes = std::fs::read(path).unwrap();
    bytes[0] ^= 1;
    std::fs::write(&beside, bytes).unwrap();
    File::open(&beside).unwrap().set_modified(modified).unwrap();
    std::fs::rename(beside, path).unwrap();
}

fn truncate(path: &Path) {
    OpenOptions::new()
        .write(true)
        .open(path)
        .unwrap()
        .set_len(0)
        .unwrap();
}

/// Puts a link to another file in the place.
fn link_elsewhere(path: &Path) {
    let other = path.with_file_name("other");
    std::fs::write(&other, b"new").unwrap();
    std::fs::remove_file(path).unwrap();
    symlink(other, path).unwrap();
}

const CHANGES: [Change; 6] = [
    ("replaced", replace),
    ("appended to", append),
    ("rewritten in place", rewrite),
    ("replaced by one of the same size and time", replace_alike),
    ("truncated", truncate),
    ("replaced by a link", link_elsewhere),
];

#[test]
fn file_that_changes_during_its_move_is_left() {
    let (home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &[]);
    let gate = Gate::before(&server.s3);
    for (number, size) in [(0, 5), (1, 9 << 20)] {
        for (what, change) in CHANGES {
            let folder = home.path().join(format!("{number} {what}"));
            std::fs::create_dir(&folder).unwrap();
            let file = folder.join("file");
            std::fs::write(&file, pattern(size)).unwrap();
            let key = format!("s3://first/{number}/{}", what.replace(' ', "-"));
            let mv = start_held(&server, &gate, &["mv", text(&file), &key]);
            change(&file);
            let changed = std::fs::read(&file).unwrap();
            let ended = release(&gate, mv);
            let message = stderr(&ended);
            assert_eq!(ended.status.code(), Some(1), "{size} {what}: {message}");
            let says = ["changed while it was", "became shorter while it was"];
            assert!(
                says.iter().any(|words| message.contains(words)),
                "{size} {what}: {message}"
            );
            assert_eq!(std::fs::read(&file).unwrap(), changed, "{size} {what}");
            assert!(
                !names(&folder)
                    .iter()
                    .any(|name| name.starts_with(".bywash"))
            );
        }
    }
    let open = server.run(&["uploads", "--data-dir", text(&data), "list"]);
    assert_eq!(open, b"", "an upload that cannot be resumed is kept");
}

#[test]
fn link_that_changes_during_its_move_is_left_and_otherwise_removed() {
    let (home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &[]);
    let gate = Gate::before(&server.s3);
    let (file, other, link) = ["file", "other", "link"]
        .map(|name| home.path().join(name))
        .into();
    std::fs::write(&file, b"one").unwrap();
    std::fs::write(&other, b"two").unwrap();
    symlink(&file, &link).unwrap();
    let mv = start_held(&server, &gate, &["mv", text(&link), "s3://first/k"]);
    std::fs::remove_file(&link).unwrap();
    symlink(&other, &link).unwrap();
    let ended = release(&gate, mv);
    assert_eq!(ended.status.code(), Some(1), "{}", stderr(&ended));
    assert_eq!(std::fs::read_link(&link).unwrap(), other);

    let mv = start_held(&server, &gate, &["mv", text(&link), "s3://first/k"]);
    append(&other);
    let ended = release(&gate, mv);
    assert_eq!(ended.status.code(), Some(1), "{}", stderr(&ended));
    assert_eq!(std::fs::read_link(&link).unwrap(), other);

    server.run(&["mv", text(&link), "s3://first/k"]);
    assert!(!link.is_symlink() && other.exists() && file.exists());
    assert_eq!(server.run(&["cat", "s3://first/k"]), b"twomore");
}

#[test]
fn only_the_files_of_a_tree_that_changed_are_left_by_its_move() {
    let (home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &[]);
    let gate = Gate::before(&server.s3);
    let here = home.path().join("here");
    let files = ["a", "dir/b", "dir/c"].map(|name| (name.to_owned(), pattern(10)));
    write_tree(&here, &files.into());
    let mv = start_held(&server, &gate, &["mv", "-r", text(&here), "s3://first/up"]);
    append(&here.join("dir/b"));
    let ended = release(&gate, mv);
    assert_eq!(ended.status.code(), Some(1), "{}", stderr(&ended));
    assert_eq!(tree(&here).into_keys().collect::<Vec<_>>(), ["dir/b"]);
    assert_eq!(server.run(&["cat", "s3://first/up/dir/c"]), pattern(10));
}

#[test]
fn object_that_changes_during_its_move_is_left() {
    let (home, data) = data_dir(&["first", "second"]);
    let server = Server::start(&data, &["--memory", "256MiB"]);
    let gate = Gate::before(&server.s3);
    let new = home.path().join("new");
    std::fs::write(&new, b"new").unwrap();
    let file = home.path().join("file");
    for (size, to) in [
        (5, text(&home.path().join("to"))),
        (9 << 20, text(&home.path().join("to"))),
        (5, "s3://second/to"),
        (9 << 20, "s3://second/to"),
        (5, "s3://first/to"),
    ] {
        std::fs::write(&file, pattern(size)).unwrap();
        server.run(&["cp", text(&file), "s3://first/k"]);
        let args = ["mv", "s3://first/k", to];
        let mv = match to.starts_with("s3://second") {
            // The first response is only compared with the destination.
            true => start_held_from(&server, &gate, "GET /first/k", &args),
            false => start_held(&server, &gate, &args),
        };
        server.run(&["cp", text(&new), "s3://first/k"]);
        let ended = release(&gate, mv);
        let message = stderr(&ended);
        assert_eq!(ended.status.code(), Some(1), "{size} {to}: {message}");
        assert_eq!(server.run(&["cat", "s3://first/k"]), b"new", "{size} {to}");
    }
}

/// Rewrites a file in place, by turns with two bytes, until it is dropped.
struct Rewriter {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Rewriter {
    fn of(path: PathBuf, bytes: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let file = OpenOptions::new().write(true).open(path).unwrap();
            // Relaxed: the flag orders nothing.
            for byte in (0_u8..2).cycle() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                for at in (0..bytes).step_by(64 << 10) {
                    file.write_all_at(&[byte; 64 << 10], at as u64).unwrap();
                }
            }
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Rewriter {
    fn drop(&mut self) {
        // Relaxed: the flag orders nothing.
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

#[test]
fn copies_of_a_file_that_is_rewritten_are_never_of_two_versions() {
    let (home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &["--memory", "256MiB"]);
    let (from, to) = (home.path().join("from"), home.path().join("to"));
    let bytes = 24 << 20;
    std::fs::write(&from, vec![0; bytes]).unwrap();
    let rewriter = Rewriter::of(from.clone(), bytes);
    let store = format!("file://{}", home.path().join("store/k").display());
    for destination in [text(&to), text(&to), "s3://first/k", &store, "-"] {
        let copied = server
            .client(&["cp", text(&from), destination])
            .output()
            .unwrap();
        if !copied.status.success() {
            let message = stderr(&copied);
            assert!(
                message.contains("changed while it was read"),
                "{destination}: {message}"
            );
            continue;
        }
        let found = match destination {
            "-" => copied.stdout,
            place => server.run(&["cat", place]),
        };
        assert!(
            found.iter().all(|byte| *byte == found[0]),
            "{destination}: a mixture"
        );
    }
    drop(rewriter);
    server.run(&["cp", text(&from), text(&to)]);
    assert!(std::fs::read(&to).unwrap() == std::fs::read(&from).unwrap());
}

/// Another program replaces a file all the time: each version is replaced by the next one, moved, or still there.
#[allow(clippy::disallowed_methods, reason = "the pace of another program")]
#[test]
fn no_version_of_a_file_that_is_replaced_all_the_time_is_lost_by_moves() {
    const MOVES: usize = 12;
    let home = tempfile::tempdir().unwrap();
    let (from, beside) = (home.path().join("from"), home.path().join("beside"));
    let write = |version: u32| {
        let content = version.to_le_bytes().repeat(2 << 20);
        std::fs::write(&beside, content).unwrap();
        std::fs::rename(&beside, &from).unwrap();
    };
    write(0);
    let stop = AtomicBool::new(false);
    // Versions that were there no more when the next one came.
    let gone = std::thread::scope(|threads| {
        let writer = threads.spawn(|| {
            let mut gone = Vec::new();
            for version in 1.. {
                // Relaxed: the flag orders nothing.
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(5));
                if !from.exists() {
                    gone.push(version - 1);
                }
                write(version);
            }
            gone
        });
        for number in 0..MOVES {
            let to = home.path().join(format!("to {number}"));
            // With a condition the file is copied, not renamed.
            let mv = bywash(&["mv", "--create-only", text(&from), text(&to)])
                .output()
                .unwrap();
            let message = stderr(&mv);
            assert!(
                mv.status.success() || message.contains("changed while"),
                "{message}"
            );
        }
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap()
    });
    let moved: Vec<_> = (0..MOVES)
        .filter_map(|number| std::fs::read(home.path().join(format!("to {number}"))).ok())
        .map(|content| {
            assert!(
                content.chunks(4).all(|word| word == &content[..4]),
                "a mixture"
            );
            u32::from_le_bytes(content[..4].try_into().unwrap())
        })
        .collect();
    for version in gone {
        assert!(moved.contains(&version), "{version} is lost, of {moved:?}");
    }
    assert!(from.exists(), "the last version");
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn file_that_an_interrupted_move_set_aside_is_put_back_or_named() {
    let (home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &[]);
    let here = home.path().join("here");
    let aside = |name: &str| here.join(format!(".bywash-mv-{name}"));
    std::fs::create_dir(&here).unwrap();
    let set_aside = |name: &str| std::fs::write(aside(name), name).unwrap();

    // The same move again.
    set_aside("one");
    let moved = server
        .client(&["mv", text(&here.join("one")), "s3://first/one"])
        .output()
        .unwrap();
    assert!(
        moved.status.success() && stderr(&moved).contains("is put back"),
        "{}",
        stderr(&moved)
    );
    assert_eq!(names(&here), [""; 0]);
    assert_eq!(server.run(&["cat", "s3://first/one"]), b"one");

    // A tree; verbs that change nothing only name it.
    set_aside("two");
    let (code, message) = server.fail(&["du", text(&here)]);
    assert!(code == 1 && message.contains(".bywash-mv-two"), "{message}");
    assert!(aside("two").exists());
    server.run(&["cp", "-r", text(&here), "s3://first/all"]);
    assert_eq!(names(&here), ["two"]);
    assert_eq!(server.run(&["cat", "s3://first/all/two"]), b"two");

    // Another file has the name: both stay, and the copy at the destination too.
    set_aside("two");
    std::fs::write(here.join("two"), "newer").unwrap();
    for args in [
        &["mv", text(&here.join("two")), "s3://first/x"][..],
        &["sync", "--delete", text(&here), "s3://first/all"],
    ] {
        let (code, message) = server.fail(args);
        assert!(
            code == 1 && message.contains(".bywash-mv-two"),
            "{args:?}: {message}"
        );
        assert_eq!(
            std::fs::read(here.join("two")).unwrap(),
            b"newer",
            "{args:?}"
        );
        assert_eq!(std::fs::read(aside("two")).unwrap(), b"two", "{args:?}");
    }

    // A file that another process works on.
    std::fs::remove_dir_all(&here).unwrap();
    std::fs::create_dir(&here).unwrap();
    set_aside("three");
    let held = File::open(aside("three")).unwrap();
    held.lock().unwrap();
    let (code, message) = server.fail(&["cp", "-r", text(&here), "s3://first/all"]);
    assert!(
        code == 1 && message.contains("another process"),
        "{message}"
    );
    assert!(aside("three").exists());
}

#[test]
fn files_with_names_of_any_length_are_moved() {
    let (home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &[]);
    for length in [243, 244, 245, 255] {
        let file = home.path().join("n".repeat(length));
        std::fs::write(&file, b"x").unwrap();
        server.run(&["mv", text(&file), "s3://first/k"]);
        assert!(!file.exists(), "{length}");
    }
    assert_eq!(names(home.path()), ["data"]);
}

#[test]
fn what_is_no_regular_file_is_not_deleted_by_a_move() {
    let (home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &[]);
    let pipe = home.path().join("pipe");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, mode).unwrap();
    let (code, message) = server.fail(&["mv", text(&pipe), "s3://first/k"]);
    assert_eq!(code, 2, "{message}");
    assert!(pipe.exists() && message.contains("cp"), "{message}");
}

#[test]
fn name_that_changed_at_the_destination_since_the_listing_is_not_deleted_by_sync() {
    let (home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &[]);
    let gate = Gate::before(&server.s3);
    let (here, extra) = (home.path().join("here"), home.path().join("extra"));
    write_tree(&here, &[("a".to_owned(), pattern(10))].into());
    std::fs::write(&extra, b"old").unwrap();
    for key in ["gone", "changed"] {
        server.run(&["cp", text(&extra), &format!("s3://first/to/{key}")]);
    }
    let mut command = server.client(&["sync", "--delete", text(&here), "s3://first/to"]);
    gate.hold_from("PUT ");
    let sync = command.args(["--endpoint", &gate.url]).spawn().unwrap();
    gate.wait_for_held();
    std::fs::write(&extra, b"newer").unwrap();
    server.run(&["cp", text(&extra), "s3://first/to/changed"]);
    let ended = release(&gate, sync);
    let message = stderr(&ended);
    assert_eq!(ended.status.code(), Some(1), "{message}");
    assert!(message.contains("changed since it was listed"), "{message}");
    assert_eq!(server.run(&["cat", "s3://first/to/changed"]), b"newer");
    assert_eq!(server.fail(&["stat", "s3://first/to/gone"]).0, 3);
    assert_eq!(server.run(&["cat", "s3://first/to/a"]), pattern(10));

    let to = home.path().join("to");
    let files = ["gone", "changed"].map(|name| (name.to_owned(), pattern(1)));
    write_tree(&to, &files.into());
    server.run(&["cp", text(&extra), "s3://first/from/a"]);
    let mut command = server.client(&["sync", "--delete", "s3://first/from", text(&to)]);
    gate.hold_from("GET /first/from/");
    let sync = command.args(["--endpoint", &gate.url]).spawn().unwrap();
    gate.wait_for_held();
    append(&to.join("changed"));
    let ended = release(&gate, sync);
    let message = stderr(&ended);
    assert_eq!(ended.status.code(), Some(1), "{message}");
    assert_eq!(names(&to), ["a", "changed"], "{message}");
}
