//! Credentials from the places where the vendors' own clients find them, observed in the request logs of servers.

use std::process::Command;
use std::sync::Arc;

use crate::common::{Server, bywash, data_dir, fails, pattern, stderr, stdout, succeeds, text};
use bywash_sim::server::azure::Azure;
use bywash_sim::server::s3::S3;
use bywash_sim::server::{HttpRequest, HttpResponse, Protocol, Server as Origin};
use tokio::task::block_in_place;

/// A store, and a home folder with AWS profiles that name its endpoint.
struct Home {
    store: Origin,
    folder: tempfile::TempDir,
}

impl Home {
    async fn new() -> Self {
        let store = Origin::start(S3::new()).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let aws = folder.path().join(".aws");
        std::fs::create_dir(&aws).unwrap();
        let credentials = "[default]\naws_access_key_id = plain\naws_secret_access_key = s\n\
                           [named]\naws_access_key_id = other\naws_secret_access_key = s\n";
        let config = format!(
            "[profile named]\nregion = eu-west-7\nendpoint_url = {}\n[profile sso]\nsso_session = corp\n",
            store.url()
        );
        std::fs::write(aws.join("credentials"), credentials).unwrap();
        std::fs::write(aws.join("config"), config).unwrap();
        std::fs::write(folder.path().join("file"), "content").unwrap();
        Self { store, folder }
    }

    /// A command that runs the program in this home folder with these variables.
    fn verb(&self, args: &[&str], variables: &[(&str, &str)]) -> Command {
        let mut command = bywash(args);
        command
            .env_remove("AWS_SHARED_CREDENTIALS_FILE")
            .env_remove("AWS_CONFIG_FILE")
            .env("HOME", self.folder.path())
            .envs(variables.iter().copied())
            .current_dir(&self.folder);
        command
    }

    /// Asserts that each request since the last call was signed with this scope.
    fn assert_signed_with(&self, scope: &str) {
        let log = self.store.take_log();
        assert!(!log.is_empty());
        for one in log {
            // Writes are signed in the URL.
            let header = one.headers.get("authorization");
            let header = header.map(|text| text.to_str().unwrap().to_owned());
            let signature = header.or(one.signed_by).unwrap();
            assert!(signature.contains(scope), "{scope}: {signature}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn verbs_sign_with_the_aws_profile() {
    let home = Home::new().await;
    let named = [("AWS_PROFILE", "named")];
    succeeds(home.verb(&["cp", "file", "s3://data/k"], &named));
    home.assert_signed_with("other/");
    succeeds(home.verb(&["ls", "s3://data/"], &named));
    home.assert_signed_with("/eu-west-7/s3");
    let url = home.store.url();
    succeeds(home.verb(&["ls", "s3://data/", "--endpoint", &url], &[]));
    home.assert_signed_with("plain/");
    let own = [
        ("AWS_ACCESS_KEY_ID", "own"),
        ("AWS_SECRET_ACCESS_KEY", "s"),
        ("AWS_PROFILE", "named"),
    ];
    succeeds(home.verb(&["cat", "s3://data/k"], &own));
    home.assert_signed_with("own/");
    for (profile, expected) in [
        ("none", "no profile \"none\""),
        ("sso", "export-credentials --profile sso"),
    ] {
        let message = fails(home.verb(&["ls", "s3://data/"], &[("AWS_PROFILE", profile)]));
        assert!(message.contains(expected), "{message}");
    }
    assert!(home.store.take_log().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bucket_requests_are_signed_with_its_profile() {
    let home = Home::new().await;
    succeeds(home.verb(&["cp", "file", "s3://data/k"], &[("AWS_PROFILE", "named")]));
    home.assert_signed_with("other/");
    let (settings, data) = (
        home.folder.path().join("bywash.toml"),
        home.folder.path().join("data"),
    );
    let bucket =
        "[[bucket]]\nurl = 's3://data'\noptions = { profile = 'named', region = 'own-region' }";
    std::fs::write(&settings, bucket).unwrap();
    let mut serve = home.verb(&["serve", "--config", text(&settings)], &[]);
    serve.args(["--s3-addr", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0"]);
    serve.arg("--gcs-addr=off");
    serve.args(["--memory", "64MiB", "--data-dir", text(&data)]);
    let server = block_in_place(|| Server::spawn(serve, &data));
    let output = succeeds(server.client(&["cat", "s3://data/k"]));
    assert_eq!(stdout(&output), "content");
    home.assert_signed_with("/own-region/s3");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn azure_connection_string_suffices() {
    let azure = Azure::new();
    let store = Origin::start(Arc::<Azure>::clone(&azure)).await.unwrap();
    let string = format!(
        "DefaultEndpointsProtocol=http;AccountName=account;AccountKey=c2VjcmV0;BlobEndpoint={}/account;",
        store.url()
    );
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("file");
    std::fs::write(&file, pattern(100 << 10)).unwrap();
    let verb = |args: &[&str], string: &str| {
        let mut command = bywash(args);
        command
            .current_dir(&home)
            .env("AZURE_STORAGE_CONNECTION_STRING", string);
        // Credentials of another account, which must not be mixed with the string's.
        command
            .env("AZURE_STORAGE_ACCOUNT_NAME", "another")
            .env("AZURE_STORAGE_SAS_KEY", "sig=another");
        command
    };
    succeeds(verb(&["cp", text(&file), "az://data/dir/k"], &string));
    assert_eq!(
        succeeds(verb(&["cat", "az://data/dir/k"], &string)).stdout,
        pattern(100 << 10)
    );
    let log = store.take_log();
    assert!(
        log.iter()
            .all(|one| one.line.contains("/account/data/dir/k") && !one.line.contains("sig="))
    );
    for one in &log {
        let signature = one.headers["authorization"].to_str().unwrap();
        assert!(signature.starts_with("SharedKey account:"), "{signature}");
    }
    let signed = succeeds(verb(&["presign", "az://data/dir/k"], &string));
    assert!(stdout(&signed).starts_with(&format!("{}/account/data/dir/k?", store.url())));
    let message = fails(verb(&["cat", "az://data/dir/k"], "AccountKey"));
    assert!(message.contains("connection string"), "{message}");
}

/// A store that redirects each request once.
struct RedirectingS3 {
    /// Target of the redirect; empty for the same host.
    host: String,
    store: Arc<S3>,
}

impl Protocol for RedirectingS3 {
    fn respond(&self, request: &HttpRequest) -> HttpResponse {
        match request.query("moved") {
            Some(_) => self.store.respond(request),
            None => {
                let target = request.target();
                let mark = if target.contains('?') { '&' } else { '?' };
                let to = format!("{}{target}{mark}moved=1", self.host);
                HttpResponse::status(307).with("location", &to)
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redirected_verbs_stay_on_the_host_and_send_no_referer() {
    let verbs: [&[&str]; 6] = [
        &["ls"],
        &["ls", "s3://data/"],
        &["stat", "s3://data/k"],
        &["cp", "s3://data/k", "got"],
        &["rm", "s3://data/k"],
        &["mb", "s3://made"],
    ];
    let key = [("AWS_ACCESS_KEY_ID", "own"), ("AWS_SECRET_ACCESS_KEY", "s")];
    let home = Home::new().await;
    let other = Origin::start(S3::new()).await.unwrap();
    for host in [String::new(), other.url()] {
        let store = S3::new();
        let bytes = "content".into();
        store.objects().put("data", "k", bytes, [].into(), |_| true);
        let is_other = !host.is_empty();
        let near = Origin::start(Arc::new(RedirectingS3 { host, store })).await;
        let near = near.unwrap();
        for args in verbs {
            let mut command = home.verb(args, &key);
            command.args(["--endpoint", &near.url()]);
            let output = block_in_place(|| command.output().unwrap());
            let log = near.take_log();
            assert!(!log.is_empty(), "{args:?}");
            for one in log {
                assert!(!one.headers.contains_key("referer"), "{args:?}: {one:?}");
            }
            if is_other {
                assert_eq!(output.status.code(), Some(1), "{args:?}");
            }
        }
        assert_eq!(other.take_log().len(), 0, "a request left its host");
    }
}

#[test]
fn large_files_go_to_and_from_a_loopback_endpoint_without_credentials() {
    let (home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &["--anonymous"]);
    let (file, back) = (home.path().join("file"), home.path().join("back"));
    let content = pattern(20 << 20);
    std::fs::write(&file, &content).unwrap();
    for (from, to) in [
        (text(&file), "s3://first/big"),
        ("s3://first/big", text(&back)),
    ] {
        let mut cp = bywash(&["cp", from, to, "--endpoint", &server.s3]);
        // The metadata service of a cloud machine, which must not be required.
        cp.env("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1");
        let output = cp.current_dir(&home).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
    }
    assert!(std::fs::read(&back).unwrap() == content);
}
