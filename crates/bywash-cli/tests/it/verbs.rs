//! The verbs over `gs://`, at a server that speaks Google's protocols. Those over servers that others wrote, for `s3://` and
//! `az://`, are in the suite of real clients.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Output;

use crate::common::{bywash, json_lines, pattern, stderr, stdout, text, tree, write_tree};
use bywash_sim::server::Server;
use bywash_sim::server::gcs::Gcs;
use serde_json::Value;
use tokio::task::block_in_place;

/// A store, and a folder beside it.
struct Place {
    home: tempfile::TempDir,
    server: Server,
}

impl Place {
    async fn new() -> Self {
        Self {
            home: tempfile::tempdir().unwrap(),
            server: Server::start(Gcs::new()).await.unwrap(),
        }
    }

    fn url(&self, key: &str) -> String {
        format!("gs://data/{key}")
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn try_run(&self, args: &[&str]) -> Output {
        let mut command = bywash(args);
        command
            // The data folder of the verbs, where it is not named.
            .current_dir(&self.home)
            .env("STORAGE_EMULATOR_HOST", self.server.url());
        block_in_place(|| command.output().unwrap())
    }

    fn run(&self, args: &[&str]) -> Output {
        let output = self.try_run(args);
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        output
    }

    fn lines(&self, args: &[&str]) -> Vec<Value> {
        json_lines(&self.run(&[args, &["--json"]].concat()).stdout)
    }

    /// The keys below a prefix.
    fn keys(&self, prefix: &str) -> Vec<String> {
        let found = self.lines(&["ls", "-r", &self.url(prefix)]);
        let name = |line: &Value| line["name"].as_str().unwrap().to_owned();
        found.iter().map(name).collect()
    }
}

/// Small and large, empty, and with names that must be encoded.
fn files() -> BTreeMap<String, Vec<u8>> {
    let names = [
        "a.txt",
        "dir/b c+d%20.bin",
        "dir/deep/\u{fc}\u{2713}",
        "dir/empty",
        "large",
    ];
    let lengths = [3, 1000, 70_000, 0, (17 << 20) + 5];
    let named = names.iter().zip(lengths);
    named
        .map(|(name, length)| ((*name).to_owned(), pattern(length)))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tree_goes_there_is_looked_at_and_comes_back() {
    let place = Place::new().await;
    let (up, down) = (place.folder("up"), place.folder("down"));
    write_tree(&up, &files());
    place.run(&["cp", "-r", text(&up), &place.url("t/")]);
    let keys: Vec<_> = files()
        .into_keys()
        .map(|name| format!("t/{name}"))
        .collect();
    assert_eq!(place.keys("t/"), keys);

    let level = place.lines(&["ls", &place.url("t/")]);
    let shown = level.iter().map(|line| {
        (
            line["kind"].as_str().unwrap(),
            line["name"].as_str().unwrap(),
        )
    });
    let shown: Vec<_> = shown.collect();
    assert!(
        shown.contains(&("prefix", "t/dir/")) && shown.contains(&("object", "t/a.txt")),
        "{shown:?}"
    );
    assert_eq!(shown.len(), 3, "{shown:?}");

    for (name, content) in files() {
        let url = place.url(&format!("t/{name}"));
        assert!(place.run(&["cat", &url]).stdout == content, "{url}");
        let facts = &place.lines(&["stat", &url])[0];
        assert_eq!(facts["size"], content.len(), "{url}");
        assert!(
            facts["e_tag"].is_string() && facts["modified"].is_string(),
            "{facts}"
        );
    }
    let part = place
        .run(&["cat", "--range", "8388600-8388700", &place.url("t/large")])
        .stdout;
    assert_eq!(part, pattern((17 << 20) + 5)[8_388_600..=8_388_700]);
    let bytes: usize = files().values().map(Vec::len).sum();
    let sum = &place.lines(&["du", &place.url("t")])[0];
    assert_eq!(
        (&sum["objects"], &sum["bytes"]),
        (&Value::from(5), &Value::from(bytes))
    );

    place.run(&["cp", "-r", &place.url("t/"), text(&down)]);
    assert!(tree(&down) == files());
    let told = stderr(&place.try_run(&["cp", &place.url("t/dir"), text(&down)]));
    assert!(
        told.contains("does not exist; to copy all below it, add --recursive"),
        "{told}"
    );
    let one = place.folder("one");
    place.run(&["cp", &place.url("t/large"), text(&one)]);
    assert!(std::fs::read(one).unwrap() == files()["large"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_are_copied_moved_synced_and_removed_where_they_are() {
    let place = Place::new().await;
    let (up, down) = (place.folder("up"), place.folder("down"));
    write_tree(&up, &files());
    place.run(&["sync", text(&up), &place.url("t")]);
    assert_eq!(
        place.lines(&["sync", text(&up), &place.url("t")]).len(),
        0,
        "all is there"
    );

    place.run(&["cp", &place.url("t/large"), &place.url("copy/large")]);
    place.run(&["mv", &place.url("t/dir/b c+d%20.bin"), &place.url("moved/")]);
    assert_eq!(place.keys("copy"), ["copy/large"]);
    assert_eq!(place.keys("moved"), ["moved/b c+d%20.bin"]);
    assert!(place.run(&["cat", &place.url("copy/large")]).stdout == files()["large"]);
    assert!(place.run(&["cat", &place.url("moved/b c+d%20.bin")]).stdout == pattern(1000));
    let gone = place.try_run(&["stat", &place.url("t/dir/b c+d%20.bin")]);
    assert!(
        stderr(&gone).contains("does not exist"),
        "{}",
        stderr(&gone)
    );

    // A file moves up, and is no longer here.
    let single = place.folder("single");
    std::fs::write(&single, "single").unwrap();
    place.run(&["mv", text(&single), &place.url("t/single")]);
    assert!(!single.exists());

    place.run(&["sync", "--delete", &place.url("t"), text(&down)]);
    let mut expected = files();
    expected.remove("dir/b c+d%20.bin");
    expected.insert("single".to_owned(), b"single".to_vec());
    assert!(tree(&down) == expected);
    // What one side lost, the other loses when told.
    std::fs::remove_file(down.join("a.txt")).unwrap();
    place.run(&["sync", "--delete", text(&down), &place.url("t")]);
    assert!(!place.keys("t").contains(&"t/a.txt".to_owned()));

    let refused = place.try_run(&[
        "cp",
        "--create-only",
        text(&down.join("single")),
        &place.url("t/single"),
    ]);
    assert!(
        stderr(&refused).contains("exists already"),
        "{}",
        stderr(&refused)
    );
    place.run(&[
        "rm",
        &place.url("copy/large"),
        &place.url("moved/b c+d%20.bin"),
    ]);
    let removed = place.lines(&["rm", "-r", &place.url("t")]);
    assert_eq!(removed.len(), 4, "{removed:?}");
    let nothing = place.try_run(&["ls", "-r", &place.url("t")]);
    assert_eq!(stdout(&nothing), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pipes_go_up_and_come_down() {
    let place = Place::new().await;
    let file = place.folder("file");
    let content = pattern((9 << 20) + 1);
    std::fs::write(&file, &content).unwrap();
    let url = place.url("piped");
    let mut up = bywash(&["cp", "-", &url, "--data-dir", text(&place.folder("data"))]);
    up.env("STORAGE_EMULATOR_HOST", place.server.url())
        .stdin(std::fs::File::open(&file).unwrap());
    let output = block_in_place(|| up.output().unwrap());
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(place.run(&["cp", &url, "-"]).stdout == content);
}
