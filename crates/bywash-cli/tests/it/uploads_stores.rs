//! Uploads to S3, Google and Azure stores: killed and resumed, and with faults of the store.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use crate::common::{bywash, stderr, stdout};
use bytes::Bytes;
use bywash::Origin;
use bywash::origin::SessionOptions;
use bywash::origin::s3::S3Store;
use bywash_sim::server::azure::Azure;
use bywash_sim::server::gcs::Gcs;
use bywash_sim::server::s3::S3;
use bywash_sim::server::{FaultPlan, Server, ServerFault, ServerFaultKind};
use bywash_support::proof::{Proof, Trial};
use bywash_support::settings::setting;
use chrono::TimeDelta;
use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// Number of kills with each store; overridden by `BYWASH_KILLS`. `BYWASH_SEED` sets the seed.
const KILLS: u64 = 5;
const LENGTH: usize = (80 << 20) + 777;
/// Number of chunks of 8 MiB in `LENGTH` bytes, without the last short one.
const CHUNKS: u64 = 10;

#[derive(Debug, Clone)]
enum Store {
    S3(Arc<S3>),
    Gcs(Arc<Gcs>),
    Azure(Arc<Azure>),
}

impl Store {
    fn all() -> [Self; 3] {
        [
            Self::S3(S3::new()),
            Self::Gcs(Gcs::new()),
            Self::Azure(Azure::new()),
        ]
    }

    async fn serve(&self) -> Server {
        let server = match self {
            Self::S3(store) => Server::start(Arc::<S3>::clone(store)).await,
            Self::Gcs(store) => Server::start(Arc::<Gcs>::clone(store)).await,
            Self::Azure(store) => Server::start(Arc::<Azure>::clone(store)).await,
        };
        server.unwrap()
    }

    fn url(&self) -> &'static str {
        match self {
            Self::S3(_) => "s3://data/dir/object",
            Self::Gcs(_) => "gs://data/dir/object",
            Self::Azure(_) => "az://data/dir/object",
        }
    }

    fn object(&self) -> Option<Bytes> {
        let (objects, container, key) = match self {
            Self::S3(store) => (store.objects(), "data", "dir/object"),
            Self::Gcs(store) => (store.objects(), "data", "dir/object"),
            Self::Azure(store) => (store.objects(), "account", "data/dir/object"),
        };
        objects.get(container, key).map(|stored| stored.bytes)
    }

    fn open(&self) -> usize {
        match self {
            Self::S3(store) => store.open_uploads(),
            Self::Gcs(store) => store.open_sessions(),
            // A commit drops all uncommitted blocks.
            Self::Azure(_) => 0,
        }
    }
}

/// A file to copy, a data folder, and the endpoint of a store.
struct StoreUploadFixture {
    home: TempDir,
    content: Vec<u8>,
    endpoint: String,
}

impl StoreUploadFixture {
    fn new(server: &Server, seed: u64) -> Self {
        let home = tempfile::tempdir().unwrap();
        let mut piece = vec![0; 1 << 20];
        rand::Rng::fill_bytes(&mut StdRng::seed_from_u64(seed), &mut piece);
        let mut content = Vec::with_capacity(LENGTH + piece.len());
        while content.len() < LENGTH {
            let index = content.len();
            piece[..8].copy_from_slice(&index.to_le_bytes());
            content.extend_from_slice(&piece);
        }
        content.truncate(LENGTH);
        std::fs::write(home.path().join("source"), &content).unwrap();
        Self {
            home,
            content,
            endpoint: server.url(),
        }
    }

    fn bywash(&self, args: &[&str]) -> Command {
        let mut command = bywash(args);
        command
            .arg("--data-dir")
            .arg(self.home.path().join("data"))
            .env("AWS_ENDPOINT_URL", &self.endpoint)
            .env("AWS_ACCESS_KEY_ID", "key")
            .env("AWS_SECRET_ACCESS_KEY", "secret")
            .env("AWS_REGION", "us-east-1")
            .env("STORAGE_EMULATOR_HOST", &self.endpoint)
            .env("AZURE_STORAGE_ACCOUNT_NAME", "account")
            .env("AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0")
            .env(
                "AZURE_STORAGE_ENDPOINT",
                format!("{}/account", self.endpoint),
            );
        command
    }

    fn journal(&self) -> Option<PathBuf> {
        let files = std::fs::read_dir(self.home.path().join("data/uploads")).ok()?;
        files
            .map(|file| file.unwrap().path())
            .find(|path| path.to_string_lossy().ends_with(".upload"))
    }

    /// Starts a copy and kills it once its journal has grown by `records`. Returns whether it was killed before its end.
    fn kill_after(&self, url: &str, records: u64) -> bool {
        let mut cp = self.cp(url);
        let mut child = cp
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        if !self.wait_for_records(&mut child, records) {
            return false;
        }
        kill_process(Pid::from_child(&child), Signal::KILL).unwrap();
        !child.wait().unwrap().success()
    }

    fn cp(&self, url: &str) -> Command {
        let source = self.home.path().join("source");
        self.bywash(&["cp", source.to_str().unwrap(), url])
    }

    /// Waits until the journal of a copy has grown by `records`. Returns `false` if the copy ended before.
    fn wait_for_records(&self, copy: &mut Child, records: u64) -> bool {
        let mut first = 0;
        loop {
            let length = self
                .journal()
                .and_then(|path| path.metadata().ok())
                .map_or(0, |meta| meta.len());
            if first == 0 {
                first = length;
            }
            // Length of the smallest record.
            if first > 0 && length >= first + records * 32 {
                return true;
            }
            if copy.try_wait().unwrap().is_some() {
                return false;
            }
            std::thread::yield_now();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_copies_to_each_store_are_resumed() {
    let repeat = "cargo test -p bywash-cli --test it killed_copies_to_each_store";
    let proof = Proof::new("store-kills", repeat, 815..816, &[KILL]);
    while let Some(mut trial) = proof.next() {
        kill_copies(&mut trial).await;
    }
}

const KILL: &str = "kill";

async fn kill_copies(trial: &mut Trial<'_>) {
    let seed = trial.seed();
    let kills = setting("BYWASH_KILLS", KILLS);
    let mut random = StdRng::seed_from_u64(seed);
    for store in Store::all() {
        let server = store.serve().await;
        let (mut round, mut killed) = (0, 0);
        // On a busy machine most copies end before their kill; more rounds are then run.
        while round < kills || (killed * 3 < kills && round < 20 * kills) {
            let fixture = StoreUploadFixture::new(&server, seed + round);
            let records = random.random_range(0..CHUNKS);
            let case = format!(
                "{} seed {seed} round {round}: {records} records",
                store.url()
            );
            let was_killed =
                tokio::task::block_in_place(|| fixture.kill_after(store.url(), records));
            let uploads = |arguments: &[&str]| {
                let mut uploads = fixture.bywash(&[&["uploads", "--json"], arguments].concat());
                let output = tokio::task::block_in_place(|| uploads.output().unwrap());
                let printed = stdout(&output);
                assert!(
                    output.status.success(),
                    "{case}: {printed}{}",
                    stderr(&output)
                );
                (!printed.is_empty()).then(|| serde_json::from_str::<Value>(&printed).unwrap())
            };
            let listed = uploads(&["list"]);
            let printed = uploads(&["resume", "--all"]);
            if was_killed && let Some(printed) = printed {
                killed += 1;
                trial.fault(KILL, 1);
                let number = |name: &str| printed[name].as_u64().unwrap();
                assert_eq!(printed["ok"], true, "{case}");
                let whole = number("resumed_bytes") + number("sent_bytes");
                assert_eq!(whole, LENGTH as u64, "{case}");
                let listed = listed.expect("resumed uploads were listed");
                let acknowledged = listed["acknowledged_bytes"].as_u64().unwrap();
                let resumed = number("resumed_bytes");
                assert!(
                    resumed >= acknowledged,
                    "{case}: {acknowledged} bytes were acknowledged, but only {resumed} not sent again"
                );
            }
            let object = store.object().expect("there is an object");
            assert!(object == fixture.content, "{case}: the object differs");
            assert_eq!(fixture.journal(), None, "{case}");
            assert_eq!(store.open(), 0, "{case}");
            trial.operations(1);
            round += 1;
        }
        assert!(
            killed * 3 >= kills,
            "only {killed} of {round} copies were killed midway"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interrupted_copy_of_a_file_prints_the_resume_command() {
    let store = Store::S3(S3::new());
    let server = store.serve().await;
    let fixture = StoreUploadFixture::new(&server, 815);
    // These parts get no response, also when they are sent again, so the copy is in progress when it is interrupted.
    for part in 5..=11 {
        for _ in 0..5 {
            server.script(&format!("partNumber={part}&"), ServerFault::StallResponse);
        }
    }
    let mut cp = fixture.cp(store.url()).spawn().unwrap();
    let begun = tokio::task::block_in_place(|| fixture.wait_for_records(&mut cp, 1));
    assert!(begun, "the copy ended");
    kill_process(Pid::from_child(&cp), Signal::INT).unwrap();
    let ended = tokio::task::block_in_place(|| cp.wait_with_output().unwrap());
    assert_eq!(ended.status.code(), Some(130));
    let message = stderr(&ended);
    let (_, id) = message.trim().rsplit_once(' ').unwrap();
    assert!(message.contains("bywash uploads resume"), "{message}");
    server.set_fault_plan(FaultPlan::none());
    let resumed = crate::common::succeeds(fixture.bywash(&["uploads", "resume", id, "--json"]));
    let printed: Value = serde_json::from_str(&stdout(&resumed)).unwrap();
    assert!(
        printed["resumed_bytes"].as_u64().unwrap() >= 8 << 20,
        "{printed}"
    );
    assert!(store.object().unwrap() == fixture.content);
    assert_eq!((fixture.journal(), store.open()), (None, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copy_from_a_pipe_survives_transient_faults() {
    let seed = setting("BYWASH_SEED", 815);
    // Stalls are left out: the program notices them only after a long timeout.
    let slow = [ServerFaultKind::StallAfter, ServerFaultKind::StallResponse];
    let kinds =
        ServerFaultKind::TRANSIENT.map(|kind| (kind, if slow.contains(&kind) { 0.0 } else { 0.2 }));
    for store in Store::all() {
        let server = store.serve().await;
        server.set_fault_plan(FaultPlan::seeded(seed, &kinds, 6));
        let fixture = StoreUploadFixture::new(&server, seed);
        let mut cp = fixture.bywash(&["cp", "-", store.url()]);
        let mut child = cp.stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let content = fixture.content.clone();
        let written = std::thread::spawn(move || stdin.write_all(&content));
        let output = tokio::task::block_in_place(|| child.wait_with_output().unwrap());
        assert!(
            output.status.success(),
            "{}: {}",
            store.url(),
            stderr(&output)
        );
        written.join().unwrap().unwrap();
        assert!(
            store.object().unwrap() == fixture.content,
            "{}",
            store.url()
        );
        // A session whose response was lost stays open at the store, so only the journal is checked.
        assert_eq!(fixture.journal(), None);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sweep_drops_old_orphans_of_an_s3_store_and_nothing_else() {
    let s3 = S3::new().with_limits(2, 5 << 20);
    let store = Store::S3(Arc::clone(&s3));
    let server = store.serve().await;
    let fixture = StoreUploadFixture::new(&server, 815);
    let killed =
        tokio::task::block_in_place(|| (0..10).any(|_| fixture.kill_after(store.url(), 1)));
    assert!(killed, "every copy was faster than its kill");
    let builder = AmazonS3Builder::new()
        .with_bucket_name("data")
        .with_endpoint(server.url())
        .with_region("us-east-1")
        .with_access_key_id("key")
        .with_secret_access_key("secret");
    let origin = S3Store::from_builder(builder, "data", &Path::ROOT).unwrap();
    let (orphans, young) = (["dir/a", "dir/b c+d", "e"], "dir/young");
    for key in orphans.into_iter().chain([young]) {
        let options = SessionOptions::default();
        let opened = origin.open_session(&Path::from(key), &options).await;
        opened.unwrap();
    }
    let journaled = "dir/object";
    for key in orphans.into_iter().chain([journaled]) {
        s3.age_uploads("data", key, TimeDelta::days(8));
    }
    let sweep = |urls: &[&str]| {
        let args = [&["uploads", "--json", "sweep", "--older-than", "7d"], urls].concat();
        let output = tokio::task::block_in_place(|| fixture.bywash(&args).output().unwrap());
        assert!(output.status.success(), "{}", stderr(&output));
        let printed = stdout(&output);
        let lines = printed.lines().map(|line| {
            let line: Value = serde_json::from_str(line).unwrap();
            line["url"].as_str().unwrap().to_owned()
        });
        lines.collect::<Vec<_>>()
    };

    // Other programs may use the bucket too: it is searched only on request, not because the journal names it.
    assert_eq!(sweep(&[]), [""; 0]);
    assert_eq!(store.open(), 5);
    assert_eq!(
        sweep(&["s3://data/dir"]),
        ["s3://data/dir/a", "s3://data/dir/b c+d"]
    );
    let _before = server.take_log();
    assert_eq!(sweep(&["s3://data"]), ["s3://data/e"]);
    let log = server.take_log();
    let pages = log
        .iter()
        .filter(|logged| logged.line.contains("max-uploads"));
    assert_eq!(pages.count(), 2, "three uploads on pages of two");
    assert_eq!(s3.open_keys("data"), [journaled, young]);

    // An unreadable upload file of a server may belong to any of these uploads.
    let multipart = fixture.home.path().join("data/multipart");
    std::fs::create_dir_all(&multipart).unwrap();
    std::fs::write(multipart.join("some.upload"), "no upload").unwrap();
    s3.age_uploads("data", young, TimeDelta::days(8));
    let mut all = fixture.bywash(&["uploads", "sweep", "s3://data"]);
    let output = tokio::task::block_in_place(|| all.output().unwrap());
    assert!(!output.status.success() && stderr(&output).contains("some.upload"));
    assert_eq!(s3.open_keys("data"), [journaled, young]);

    let mut resume = fixture.bywash(&["uploads", "resume", "--all"]);
    let output = tokio::task::block_in_place(|| resume.output().unwrap());
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(store.object().unwrap() == fixture.content);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sweep_spares_uploads_that_only_the_running_server_knows() {
    let s3 = S3::new();
    let store = Store::S3(Arc::clone(&s3)).serve().await;
    let fixture = StoreUploadFixture::new(&store, 815);
    let data = fixture.home.path().join("data");
    let mut serve = fixture.bywash(&["serve", "s3://data", "--anonymous", "--gcs-addr=off"]);
    serve.args(["--s3-addr", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0"]);
    let server = tokio::task::block_in_place(|| crate::common::Server::spawn(serve, &data));
    let address = server.s3.trim_start_matches("http://").parse().unwrap();
    let begin = bywash_support::http::send(address, "POST", "/data/kept?uploads", &[], b"");
    begin.await.expect(200);
    // As of another node: no folder here has it.
    for file in std::fs::read_dir(data.join("multipart")).unwrap() {
        std::fs::remove_file(file.unwrap().path()).unwrap();
    }
    s3.age_uploads("data", "kept", TimeDelta::days(8));
    let sweep = || {
        let mut sweep = fixture.bywash(&["uploads", "sweep", "s3://data"]);
        let output = tokio::task::block_in_place(|| sweep.output().unwrap());
        assert!(output.status.success(), "{}", stderr(&output));
        s3.open_keys("data")
    };
    assert_eq!(sweep(), ["kept"]);
    drop(server);
    assert_eq!(sweep(), [""; 0]);
}
