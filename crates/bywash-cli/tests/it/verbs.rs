//! The verbs over `gs://`, with a simulated server of Google's protocols. `testing/clients` tests `s3://` and `az://` with
//! third-party servers.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Output;

use crate::common::{bywash, json_lines, pattern, stderr, stdout, text, tree, write_tree};
use bywash_sim::server::Server;
use bywash_sim::server::gcs::Gcs;
use serde_json::Value;
use tokio::task::block_in_place;

/// A store, and a local folder.
struct VerbFixture {
    home: tempfile::TempDir,
    server: Server,
}

impl VerbFixture {
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
            // The default data folder is below it.
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

/// Returns small, large and empty files, some with names that must be encoded.
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
async fn tree_round_trips_and_is_listed() {
    let fixture = VerbFixture::new().await;
    let (up, down) = (fixture.folder("up"), fixture.folder("down"));
    write_tree(&up, &files());
    fixture.run(&["cp", "-r", text(&up), &fixture.url("t/")]);
    let keys: Vec<_> = files()
        .into_keys()
        .map(|name| format!("t/{name}"))
        .collect();
    assert_eq!(fixture.keys("t/"), keys);

    let level = fixture.lines(&["ls", &fixture.url("t/")]);
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
        let url = fixture.url(&format!("t/{name}"));
        assert!(fixture.run(&["cat", &url]).stdout == content, "{url}");
        let facts = &fixture.lines(&["stat", &url])[0];
        assert_eq!(facts["size"], content.len(), "{url}");
        assert!(
            facts["e_tag"].is_string() && facts["modified"].is_string(),
            "{facts}"
        );
    }
    let part = fixture
        .run(&["cat", "--range", "8388600-8388700", &fixture.url("t/large")])
        .stdout;
    assert_eq!(part, pattern((17 << 20) + 5)[8_388_600..=8_388_700]);
    let bytes: usize = files().values().map(Vec::len).sum();
    let sum = &fixture.lines(&["du", &fixture.url("t")])[0];
    assert_eq!(
        (&sum["objects"], &sum["bytes"]),
        (&Value::from(5), &Value::from(bytes))
    );

    fixture.run(&["cp", "-r", &fixture.url("t/"), text(&down)]);
    assert!(tree(&down) == files());
    let message = stderr(&fixture.try_run(&["cp", &fixture.url("t/dir"), text(&down)]));
    assert!(
        message.contains("does not exist; to copy all below it, add --recursive"),
        "{message}"
    );
    let one = fixture.folder("one");
    fixture.run(&["cp", &fixture.url("t/large"), text(&one)]);
    assert!(std::fs::read(one).unwrap() == files()["large"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_of_a_store_are_copied_moved_synced_and_removed() {
    let fixture = VerbFixture::new().await;
    let (up, down) = (fixture.folder("up"), fixture.folder("down"));
    write_tree(&up, &files());
    fixture.run(&["sync", text(&up), &fixture.url("t")]);
    assert_eq!(
        fixture.lines(&["sync", text(&up), &fixture.url("t")]).len(),
        0,
        "nothing differs"
    );

    fixture.run(&["cp", &fixture.url("t/large"), &fixture.url("copy/large")]);
    fixture.run(&[
        "mv",
        &fixture.url("t/dir/b c+d%20.bin"),
        &fixture.url("moved/"),
    ]);
    assert_eq!(fixture.keys("copy"), ["copy/large"]);
    assert_eq!(fixture.keys("moved"), ["moved/b c+d%20.bin"]);
    assert!(fixture.run(&["cat", &fixture.url("copy/large")]).stdout == files()["large"]);
    assert!(
        fixture
            .run(&["cat", &fixture.url("moved/b c+d%20.bin")])
            .stdout
            == pattern(1000)
    );
    let gone = fixture.try_run(&["stat", &fixture.url("t/dir/b c+d%20.bin")]);
    assert!(
        stderr(&gone).contains("does not exist"),
        "{}",
        stderr(&gone)
    );

    // A file moves to the store, and is removed locally.
    let single = fixture.folder("single");
    std::fs::write(&single, "single").unwrap();
    fixture.run(&["mv", text(&single), &fixture.url("t/single")]);
    assert!(!single.exists());

    fixture.run(&["sync", "--delete", &fixture.url("t"), text(&down)]);
    let mut expected = files();
    expected.remove("dir/b c+d%20.bin");
    expected.insert("single".to_owned(), b"single".to_vec());
    assert!(tree(&down) == expected);
    // With --delete, names missing at the source are deleted at the destination.
    std::fs::remove_file(down.join("a.txt")).unwrap();
    fixture.run(&["sync", "--delete", text(&down), &fixture.url("t")]);
    assert!(!fixture.keys("t").contains(&"t/a.txt".to_owned()));

    let refused = fixture.try_run(&[
        "cp",
        "--create-only",
        text(&down.join("single")),
        &fixture.url("t/single"),
    ]);
    assert!(
        stderr(&refused).contains("exists already"),
        "{}",
        stderr(&refused)
    );
    fixture.run(&[
        "rm",
        &fixture.url("copy/large"),
        &fixture.url("moved/b c+d%20.bin"),
    ]);
    let removed = fixture.lines(&["rm", "-r", &fixture.url("t")]);
    assert_eq!(removed.len(), 4, "{removed:?}");
    let nothing = fixture.try_run(&["ls", "-r", &fixture.url("t")]);
    assert_eq!(stdout(&nothing), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn piped_data_round_trips() {
    let fixture = VerbFixture::new().await;
    let file = fixture.folder("file");
    let content = pattern((9 << 20) + 1);
    std::fs::write(&file, &content).unwrap();
    let url = fixture.url("piped");
    let mut up = bywash(&["cp", "-", &url, "--data-dir", text(&fixture.folder("data"))]);
    up.env("STORAGE_EMULATOR_HOST", fixture.server.url())
        .stdin(std::fs::File::open(&file).unwrap());
    let output = block_in_place(|| up.output().unwrap());
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(fixture.run(&["cp", &url, "-"]).stdout == content);
}
