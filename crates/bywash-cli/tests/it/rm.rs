//! `bywash rm`: deletes the named objects and files, and nothing else.

use std::sync::Arc;

use crate::common::{Server, bywash, data_dir, fails, json_lines, put, text, tree, write_tree};
use crate::serve::get;
use bywash_sim::server::s3::S3;
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
fn keys_that_end_with_a_slash_are_deleted() {
    let (_home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &["--anonymous"]);
    let keys = || {
        let listed = get(&format!("{}/first?list-type=2", server.s3)).1;
        let keys = listed.split("<Key>").skip(1);
        keys.map(|rest| rest.split('<').next().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    for key in ["p/", "p/a", "p/odd/", "p/odd/b", "q/"] {
        put(&server.s3, &format!("/first/{key}"), "content");
    }
    // Objects below it stay.
    server.run(&["rm", "s3://first/p/odd/"]);
    assert_eq!(keys(), ["p/", "p/a", "p/odd/b", "q/"]);
    server.run(&["rm", "s3://first/absent/"]);
    put(&server.s3, "/first/p/odd/", "content");
    server.run(&["rm", "-r", "--include", "*.txt", "s3://first/p"]);
    assert_eq!(keys().len(), 5);
    let would = server.run(&["rm", "-r", "--dry-run", "--json", "s3://first/p"]);
    let mut would: Vec<String> = json_lines(&would)
        .iter()
        .map(|line| line["would_remove"].as_str().unwrap().to_owned())
        .collect();
    would.sort_unstable();
    let of = |key: &str| format!("s3://first/{key}");
    assert_eq!(would, ["p/", "p/a", "p/odd/", "p/odd/b"].map(of));
    server.run(&["rm", "-r", "s3://first/p"]);
    assert_eq!(keys(), ["q/"]);
    // Nothing else is below it.
    server.run(&["rm", "-r", "s3://first/q/"]);
    assert!(keys().is_empty());
    put(&server.s3, "/first/p/empty/", "");
    server.run(&["rm", "-r", "--force", "s3://first"]);
    assert!(keys().is_empty());
    assert_eq!(server.fail(&["rm", "-r", "s3://first/p"]).0, 3);
    assert_eq!(server.fail(&["rm", "s3://first/"]).0, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_no_url_has_are_a_failure() {
    let s3 = S3::new();
    for key in ["p/a", "p/./b", "p/odd/"] {
        let put = s3
            .objects()
            .put("data", key, "x".into(), Default::default(), |_| true);
        assert!(put.is_some());
    }
    let store = Origin::start(Arc::<S3>::clone(&s3)).await.unwrap();
    let rm = bywash(&["rm", "-r", "--endpoint", &store.url(), "s3://data/p"]);
    let message = fails(rm);
    assert!(message.contains("p/./b"), "{message}");
    // All others are deleted.
    for (key, is_left) in [("p/a", false), ("p/./b", true), ("p/odd/", false)] {
        assert_eq!(s3.objects().get("data", key).is_some(), is_left, "{key}");
    }
}
