//! Copies compared with the digest that the store states, or that the user gives.

use std::path::PathBuf;
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bywash_sim::server::objects::crc32c;
use bywash_sim::server::s3::S3;
use bywash_sim::server::{HttpRequest, HttpResponse, Protocol, Server};
use tokio::task::block_in_place;

use crate::common::{bywash, pattern, stderr, text};
use crate::hostile::{base64, sha256};

const BYTES: usize = 20 << 20;

/// A store that flips a bit in each of its next `flips` bodies of at least 1 MiB.
struct FlippingS3 {
    store: Arc<S3>,
    flips: AtomicUsize,
}

impl Protocol for FlippingS3 {
    fn respond(&self, request: &HttpRequest) -> HttpResponse {
        let mut response = self.store.respond(request);
        let taken = |left: usize| left.checked_sub(1);
        // Relaxed: a counter that publishes nothing.
        if response.body.len() >= 1 << 20
            && self.flips.fetch_update(Relaxed, Relaxed, taken).is_ok()
        {
            let mut body = response.body.to_vec();
            body[77] ^= 1;
            response.body = body.into();
        }
        response
    }
}

/// A store with one object, and a folder for copies of it.
struct DigestFixture {
    home: tempfile::TempDir,
    content: Vec<u8>,
    server: Server,
}

impl DigestFixture {
    /// Starts a store with one object and its CRC32C, which flips a bit in `flips` bodies.
    async fn new(flips: usize) -> Self {
        let content = pattern(BYTES);
        let store = S3::new();
        let headers = [
            (
                "x-amz-checksum-crc32c",
                base64(&crc32c(&content).to_be_bytes()),
            ),
            ("x-amz-checksum-type", "FULL_OBJECT".to_owned()),
        ];
        let headers = headers.map(|(name, value)| (name.to_owned(), value)).into();
        let bytes = content.clone().into();
        store.objects().put("data", "big", bytes, headers, |_| true);
        let flips = AtomicUsize::new(flips);
        let server = Server::start(Arc::new(FlippingS3 { store, flips })).await;
        Self {
            home: tempfile::tempdir().unwrap(),
            content,
            server: server.unwrap(),
        }
    }

    fn to(&self) -> PathBuf {
        self.home.path().join("big")
    }

    /// Copies the object to a destination.
    fn cp(&self, to: &str, more: &[&str]) -> Output {
        let mut command = bywash(&["cp", "--endpoint", &self.server.url(), "s3://data/big", to]);
        command
            .args(more)
            .env("AWS_ACCESS_KEY_ID", "key")
            .env("AWS_SECRET_ACCESS_KEY", "secret")
            .env("BYWASH_LOG", "warn")
            .current_dir(&self.home);
        block_in_place(|| command.output().unwrap())
    }

    /// The files in the folder, without the data folder.
    fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.home.path()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name != "bywash-data").collect()
    }

    fn states(&self) -> usize {
        let states = std::fs::read_dir(self.home.path().join("bywash-data/downloads"));
        states.unwrap().count()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn download_with_a_flipped_bit_starts_over_once() {
    let fixture = DigestFixture::new(1).await;
    let output = fixture.cp(text(&fixture.to()), &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    let message = stderr(&output);
    assert!(message.contains("do not match its digest"), "{message}");
    assert!(std::fs::read(fixture.to()).unwrap() == fixture.content);
    assert_eq!(
        (fixture.files(), fixture.states()),
        (vec!["big".to_owned()], 0)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn download_with_flipped_bits_again_fails_and_leaves_no_file() {
    let fixture = DigestFixture::new(usize::MAX).await;
    let output = fixture.cp(text(&fixture.to()), &[]);
    assert!(!output.status.success());
    assert!(stderr(&output).contains("CRC32C"), "{}", stderr(&output));
    assert_eq!((fixture.files(), fixture.states()), (vec![], 0));
    // Negative control: without verification the flipped bit is stored.
    let output = fixture.cp(text(&fixture.to()), &["--verify", "off"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(std::fs::read(fixture.to()).unwrap() != fixture.content);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copy_to_an_object_with_a_flipped_bit_stores_nothing() {
    let fixture = DigestFixture::new(usize::MAX).await;
    let folder = fixture.home.path().join("store");
    std::fs::create_dir(&folder).unwrap();
    let to = format!("file://{}/copy", text(&folder));
    let output = fixture.cp(&to, &[]);
    assert!(!output.status.success());
    assert!(stderr(&output).contains("CRC32C"), "{}", stderr(&output));
    assert!(!folder.join("copy").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn given_sha256_is_compared_at_every_destination() {
    let fixture = DigestFixture::new(0).await;
    let (right, wrong) = (sha256(&fixture.content), sha256(b"other"));
    for to in [text(&fixture.to()), "-"] {
        let output = fixture.cp(to, &["--sha256", &wrong]);
        assert!(!output.status.success(), "{to}");
        assert!(stderr(&output).contains("SHA-256"), "{}", stderr(&output));
        assert_eq!(fixture.files(), [""; 0], "{to}");
    }
    let output = fixture.cp(text(&fixture.to()), &["--sha256", &right]);
    assert!(output.status.success(), "{}", stderr(&output));
    let output = fixture.cp("-", &["--sha256", &right]);
    assert!(output.status.success() && output.stdout == fixture.content);
    for (sources, digest) in [("local", &*right), ("s3://data/big", "abc")] {
        let output = bywash(&["cp", "--sha256", digest, sources, "to"]).output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    }
}
