//! `bywash rm`: deletes what it names, and nothing else.

use std::sync::Arc;

use crate::common::{Server, bywash, data_dir, fails, json_lines, put, text, tree, write_tree};
use bywash_sim::server::{HttpRequest, HttpResponse, Protocol, Server as Origin};

#[test]
fn dry_run_lists_what_rm_deletes() {
    let (home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &[]);
    let here = home.path().join("here");
    let files = ["a.txt", "dir/b.txt", "dir/c.bin", "dirt"].map(|name| (name.to_owned(), vec![1]));
    write_tree(&here, &files.clone().into());
    server.run(&["cp", "-r", text(&here), "s3://first/up"]);
    for location in ["s3://first/up", text(&here)] {
        let below = format!("{location}/dir");
        let would = json_lines(&server.run(&["rm", "-r", "--dry-run", "--json", &below]));
        let mut names: Vec<_> = would
            .iter()
            .map(|line| line["would_remove"].as_str().unwrap())
            .collect();
        names.sort_unstable();
        assert_eq!(names, [format!("{below}/b.txt"), format!("{below}/c.bin")]);
        assert_eq!(
            server
                .run(&["du", location])
                .split(|b| *b == b' ')
                .filter(|w| *w == b"4")
                .count(),
            2
        );

        let gone = json_lines(&server.run(&["rm", "-r", "--json", "--include", "*.txt", &below]));
        assert_eq!(gone[0]["removed"], format!("{below}/b.txt"));
        server.run(&["rm", "-r", &below]);
        let left = json_lines(&server.run(&["ls", "-r", "--json", location]));
        assert_eq!(left.len(), 2, "{left:?}");
    }
    assert!(!here.join("dir").exists(), "an empty folder is left");
    assert_eq!(
        tree(&here).into_keys().collect::<Vec<_>>(),
        ["a.txt", "dirt"]
    );
}

#[test]
fn deleting_all_of_a_bucket_or_folder_requires_an_option() {
    let (home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &[]);
    let here = home.path().join("here");
    write_tree(&here, &[("a".to_owned(), vec![1])].into());
    server.run(&["cp", "-r", text(&here), "s3://first"]);
    for args in [
        &["rm", "-r", "s3://first"][..],
        &["rm", "-r", "s3://first/"],
        &["rm", "-r", "/"],
        &["rm", "s3://first"],
        &["rm", text(&here)],
        &["rm", "-r", "s3://first/a", "-"],
    ] {
        let (code, message) = server.fail(args);
        assert_eq!(
            code,
            if args.contains(&"s3://first/a") { 3 } else { 2 },
            "{args:?}: {message}"
        );
    }
    assert_eq!(server.run(&["cat", "s3://first/a"]), [1]);
    server.run(&["rm", "-r", "--force", "s3://first"]);
    assert!(server.run(&["ls", "s3://first"]).is_empty());
    assert_eq!(tree(&here).len(), 1);
}

/// A store that responds to each request with 503.
struct Overloaded;

impl Protocol for Overloaded {
    fn respond(&self, _: &HttpRequest) -> HttpResponse {
        HttpResponse::status(503)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_a_failing_store_are_not_retried_one_by_one() {
    let store = Origin::start(Arc::new(Overloaded)).await.unwrap();
    let keys: Vec<_> = (0..50).map(|n| format!("s3://data/{n}")).collect();
    let mut rm = bywash(&["rm", "--endpoint", &store.url()]);
    rm.args(&keys);
    assert!(fails(rm).contains("50 of 50 could not be deleted"));
    // The bulk delete, and the retries of one key.
    let requests = store.take_log().len();
    assert!(requests < keys.len(), "{requests}");
}

#[test]
fn objects_that_rm_cannot_name_are_a_failure() {
    let (_home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &["--anonymous"]);
    put(&server.s3, "/first/p/a", "a");
    put(&server.s3, "/first/p/odd/", "content");
    put(&server.s3, "/first/p/empty/", "");
    for (args, code) in [
        (&["rm", "-r", "--include", "*.txt", "s3://first/p"][..], 0),
        (&["rm", "-r", "--force", "s3://first"], 1),
    ] {
        let (found, message) = server.fail(args);
        assert_eq!(found, code, "{args:?}: {message}");
        assert_eq!(
            message.contains("2 objects below s3://first/ are left"),
            code == 1,
            "{message}"
        );
    }
    assert_eq!(server.fail(&["stat", "s3://first/p/a"]).0, 3);
}
