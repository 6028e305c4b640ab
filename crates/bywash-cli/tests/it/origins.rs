//! Addresses, settings and requests of origins, observed in the request logs of servers.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use crate::common::{Server, bywash, fails, pattern, stderr, stdout, succeeds, text, tree};
use bywash_sim::server::s3::S3;
use bywash_sim::server::web::{Web, WebServerOptions};
use bywash_sim::server::{LoggedRequest, Server as Origin};
use tokio::task::block_in_place;

const MIB: usize = 1 << 20;

async fn web(options: WebServerOptions) -> (Arc<Web>, Origin) {
    let web = Arc::new(Web::new(options));
    let server = Origin::start(Arc::<Web>::clone(&web)).await.unwrap();
    (web, server)
}

/// The ranges of the logged GETs of this path.
fn ranges(log: &[LoggedRequest], path: &str) -> Vec<String> {
    let gets = log
        .iter()
        .filter(|one| one.line.starts_with("GET") && one.line.contains(path));
    gets.map(|one| one.headers["range"].to_str().unwrap().to_owned())
        .collect()
}

fn serve(data: &Path, toml: &str) -> Server {
    let settings = data.with_file_name("bywash.toml");
    std::fs::write(&settings, toml).unwrap();
    Server::start(data, &["--config", text(&settings), "--memory", "64MiB"])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn buckets_read_in_blocks_of_their_own_size() {
    let (files, origin) = web(WebServerOptions::default()).await;
    let body = pattern(3 * MIB);
    files.put("/small/k", body.clone());
    files.put("/large/k", body.clone());
    let home = tempfile::tempdir().unwrap();
    let url = origin.url();
    let toml = format!(
        "[[bucket]]\nurl = '{url}/small'\nblock-size = '64KiB'\n[[bucket]]\nurl = '{url}/large'\nblock-size = '2MiB'\n\
         [[bucket]]\nname = 'usual'\nurl = '{url}/small'"
    );
    let server = block_in_place(|| serve(&home.path().join("data"), &toml));
    let read = |bucket: &str, range: &str| {
        let url = format!("s3://{bucket}/k");
        succeeds(server.client(&["cat", "--range", range, &url])).stdout
    };
    for (bucket, path, requested) in [
        ("small", "/small/k", "bytes=1048576-1114111"),
        ("large", "/large/k", "bytes=0-2097151"),
        ("usual", "/small/k", "bytes=1048576-2097151"),
    ] {
        let at = MIB + 17..MIB + 27;
        let _before = origin.take_log();
        assert_eq!(read(bucket, "1048593-1048602"), body[at], "{bucket}");
        assert_eq!(ranges(&origin.take_log(), path), [requested], "{bucket}");
    }
    // The rest of the bucket's block is in memory.
    assert_eq!(
        read("small", "1114111-1114111"),
        body[1_114_111..=1_114_111]
    );
    assert_eq!(read("large", "0-9"), body[..10]);
    assert_eq!(ranges(&origin.take_log(), "/k"), [""; 0]);
    assert_eq!(
        read("small", "1114112-1114112"),
        body[1_114_112..=1_114_112]
    );
    assert_eq!(ranges(&origin.take_log(), "/k"), ["bytes=1114112-1179647"]);
}

#[test]
fn invalid_block_size_is_rejected_with_the_name_of_the_bucket() {
    let home = tempfile::tempdir().unwrap();
    let settings = home.path().join("bywash.toml");
    for (size, memory, expected) in [
        (
            "100KiB",
            "64MiB",
            "102400 is not a power of two from 4 KiB to 4 MiB",
        ),
        ("8MiB", "256MiB", "8388608 is not a power of two"),
        (
            "4MiB",
            "16MiB",
            "at least 33554432 are needed, which is 8 blocks of 4194304",
        ),
        ("much", "64MiB", "write 64KiB, 1MiB or another power of two"),
    ] {
        let toml = format!("[[bucket]]\nname = 'first'\nurl = 'memory://'\nblock-size = '{size}'");
        std::fs::write(&settings, toml).unwrap();
        let data = home.path().join("data");
        let mut command = bywash(&["serve", "--config", text(&settings), "--memory", memory]);
        command.args([
            "--s3-addr",
            "127.0.0.1:0",
            "--admin-addr",
            "127.0.0.1:0",
            "--gcs-addr=off",
            "--data-dir",
        ]);
        let output = command.arg(data).output().unwrap();
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(
            message.contains("[[bucket]] first") && message.contains(expected),
            "{message}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn query_of_an_address_is_sent_and_never_shown() {
    let (files, origin) = web(WebServerOptions::default()).await;
    let body = pattern(20 * MIB + 3);
    files.put("/dir/a b", body.clone());
    files.put("/small", "small");
    let (home, url) = (tempfile::tempdir().unwrap(), origin.url());
    let down = home.path().join("down");
    std::fs::create_dir(&down).unwrap();
    let large = format!("{url}/dir/a%20b?sig=s%2Fecret&x=1#part");
    let small = [
        format!("{url}/small?sig=secret1"),
        format!("{url}/small?sig=secret2"),
    ];
    let output = succeeds(bywash(&["cp", "--json", &large, text(&down)]));
    assert_eq!(tree(&down)["a b"], body);
    assert!(
        stdout(&output).contains("/dir/a%20b\""),
        "{}",
        stdout(&output)
    );
    let all = stdout(&output) + &stderr(&output);
    assert!(!all.contains("ecret"), "{all}");
    let log = origin.take_log();
    assert!(log.len() > 2, "several parts: {log:?}");
    assert!(
        log.iter()
            .all(|one| one.line.ends_with("/dir/a%20b?sig=s%2Fecret&x=1"))
    );
    // Two queries are two objects, also in one command.
    let output = succeeds(bywash(&["cat", &small[0], &small[1]]));
    assert_eq!(stdout(&output), "smallsmall");
    let log = origin.take_log();
    for query in ["?sig=secret1", "?sig=secret2"] {
        assert!(log.iter().any(|one| one.line.ends_with(query)), "{query}");
    }
    for verb in ["stat", "ls"] {
        let printed = stdout(&succeeds(bywash(&[verb, &small[0]])));
        assert!(
            printed.contains("small") && !printed.contains("secret"),
            "{printed}"
        );
    }
    let message = fails(bywash(&["cat", &format!("{url}/none?sig=secret")]));
    assert!(
        message.contains("/none") && !message.contains("secret"),
        "{message}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listing_or_writing_a_web_server_fails_with_the_next_step() {
    let (files, origin) = web(WebServerOptions::default()).await;
    files.put("/dir/a", "a");
    let (home, folder) = (
        tempfile::tempdir().unwrap(),
        format!("{}/dir/", origin.url()),
    );
    let down = text(home.path());
    for verb in [
        &["ls", &folder][..],
        &["du", &folder],
        &["cp", "-r", &folder, down],
        &["sync", &folder, down],
    ] {
        let message = fails(bywash(verb));
        assert!(
            message.contains("has no listing") && message.contains("whole address"),
            "{message}"
        );
    }
    let file = format!("{folder}a");
    for verb in [
        &["rm", &file][..],
        &["mv", &file, down],
        &["cp", down, &file],
    ] {
        let message = fails(bywash(verb));
        let refused = message.contains("read only") || message.contains("read-only");
        assert!(refused, "{verb:?}: {message}");
    }
    assert!(origin.take_log().is_empty(), "no request was sent");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_rejected_before_sending_are_not_counted() {
    let (files, origin) = web(WebServerOptions::default()).await;
    files.put("/web/k", "k");
    let s3 = S3::new();
    let store = Origin::start(Arc::<S3>::clone(&s3)).await.unwrap();
    let home = tempfile::tempdir().unwrap();
    let toml = format!(
        "[[bucket]]\nurl = '{}/web'\n[[bucket]]\nurl = 's3://shut'\nread-only = true\n\
         options = {{ endpoint = '{}', access_key_id = 'env:PATH', secret_access_key = 'env:PATH' }}",
        origin.url(),
        store.url()
    );
    let server = block_in_place(|| serve(&home.path().join("data"), &toml));
    let origin_requests = |bucket: &str| {
        let stats = block_in_place(|| server.stats());
        stats["buckets"][bucket]["origin_requests"]
            .as_u64()
            .unwrap()
    };
    let file = home.path().join("file");
    std::fs::write(&file, pattern(20 * MIB)).unwrap();
    for bucket in ["web", "shut"] {
        let url = format!("s3://{bucket}/new");
        let small = home.path().join("bywash.toml");
        for verb in [
            &["cp", text(&file), &url][..],
            &["cp", text(&small), &url],
            &["rm", &url],
        ] {
            fails(server.client(verb));
        }
    }
    fails(server.client(&["ls", "s3://web/"]));
    assert_eq!((origin_requests("web"), origin_requests("shut")), (0, 0));
    assert_eq!((origin.take_log().len(), store.take_log().len()), (0, 0));
    // Requests that are sent are counted as in the logs.
    succeeds(server.client(&["cat", "s3://web/k"]));
    succeeds(server.client(&["ls", "s3://shut/"]));
    assert_eq!(origin_requests("web"), origin.take_log().len() as u64);
    assert_eq!(origin_requests("shut"), store.take_log().len() as u64);
    assert!(origin_requests("shut") > 0);
}

/// A command that runs the program with this umask.
fn with_umask(mask: &str, args: &[&str]) -> Command {
    let own = bywash(args);
    let mut shell = Command::new("sh");
    shell.args(["-c", "umask \"$0\" && exec \"$@\"", mask]);
    shell.arg(own.get_program()).args(own.get_args());
    shell
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_and_small_downloads_get_the_same_permissions() {
    let (files, origin) = web(WebServerOptions::default()).await;
    files.put("/small", "small");
    files.put("/large", pattern(20 * MIB));
    let home = tempfile::tempdir().unwrap();
    for (mask, mode) in [
        ("022", 0o644),
        ("027", 0o640),
        ("077", 0o600),
        ("002", 0o664),
    ] {
        for name in ["small", "large"] {
            let to = home.path().join(format!("{name}-{mask}"));
            let url = format!("{}/{name}", origin.url());
            succeeds(with_umask(mask, &["cp", &url, text(&to)]));
            let got = to.metadata().unwrap().permissions().mode() & 0o777;
            assert_eq!(got, mode, "{name} with umask {mask}: {got:o}");
        }
    }
    // A replaced file keeps its permissions under any umask.
    for name in ["small", "large"] {
        let to = home.path().join(format!("{name}-022"));
        std::fs::set_permissions(&to, std::fs::Permissions::from_mode(0o751)).unwrap();
        let url = format!("{}/{name}", origin.url());
        succeeds(with_umask("077", &["cp", &url, text(&to)]));
        assert_eq!(
            to.metadata().unwrap().permissions().mode() & 0o777,
            0o751,
            "{name}"
        );
    }
}
