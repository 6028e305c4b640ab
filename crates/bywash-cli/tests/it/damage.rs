//! Damaged files of the server's own: features that depend on them are not served, and all else is.

use std::path::Path;
use std::process::Stdio;

use crate::common::{Server, bywash, data_dir, stderr, stdout, text};

/// Writes a file, and its folders.
fn write(path: &Path, content: &[u8]) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, content).unwrap();
}

/// Each file, with the damaged file as the server names it, relative to the home of the test.
const DAMAGED: [(&str, &str); 6] = [
    (
        "data/bucket-rules/first.json",
        "data/bucket-rules/first.json",
    ),
    ("data/gcs-accounts/token.key", "data/gcs-accounts/token.key"),
    ("data/multipart/0123.upload", "data/multipart/0123.upload"),
    ("data/series/files/manifest", "data/series"),
    ("data/history/files/manifest", "data/history"),
    ("tier/format", "tier"),
];

#[test]
fn damaged_file_stops_only_what_depends_on_it() {
    let (home, data) = data_dir(&["first", "other"]);
    for (file, _) in DAMAGED {
        write(&home.path().join(file), b"{");
    }
    let tier = format!("{}:1GiB", text(&home.path().join("tier")));
    let server = Server::start(&data, &["--memory", "64MiB", "--disk", &tier]);
    let file = home.path().join("file");
    std::fs::write(&file, b"hello").unwrap();
    for bucket in ["first", "other"] {
        let object = format!("s3://{bucket}/file");
        server.run(&["cp", text(&file), &object]);
        assert_eq!(server.run(&["cat", &object]), b"hello");
    }
    let (status, ready) = server.admin("/readyz");
    assert!(status == 200 && ready.starts_with("ready\n"), "{ready}");
    let stats = server.stats();
    let shown = stats["damaged"].as_array().unwrap();
    assert_eq!(shown.len(), DAMAGED.len(), "{stats}");
    for (_, named) in DAMAGED {
        let named = home.path().join(named);
        assert!(
            ready.contains(&format!("damaged {}: ", named.display())),
            "{ready}"
        );
        assert!(
            shown.iter().any(|shown| shown["file"] == text(&named)),
            "{stats}"
        );
    }
    let (_, metrics) = server.admin("/metrics");
    assert!(metrics.contains("bywash_damaged_files 6\n"));
    drop(server);
    // Mended, they are served.
    for (file, _) in DAMAGED {
        std::fs::remove_file(home.path().join(file)).unwrap();
    }
    let server = Server::start(&data, &["--memory", "64MiB", "--disk", &tier]);
    assert_eq!(server.admin("/readyz").1, "ready\n");
    assert!(server.stats().get("damaged").is_none());
}

/// A folder that cannot be opened ends the start before the line `ready` and before the first response.
#[test]
fn server_that_cannot_open_its_folders_is_never_ready() {
    for folder in ["multipart", "bucket-rules", "gcs-sessions"] {
        let (_home, data) = data_dir(&["first"]);
        write(&data.join(folder), b"a file in the place of the folder");
        let addresses = ["--s3-addr", "--gcs-addr", "--admin-addr"];
        let mut command = bywash(&["serve", "--data-dir", text(&data)]);
        for address in addresses {
            command.args([address, "127.0.0.1:0"]);
        }
        let ended = command.stdout(Stdio::piped()).output().unwrap();
        assert!(!ended.status.success());
        assert!(
            !stdout(&ended).contains("ready"),
            "{folder}: {}",
            stdout(&ended)
        );
        assert!(
            stderr(&ended).contains("cannot use"),
            "{folder}: {}",
            stderr(&ended)
        );
    }
}
