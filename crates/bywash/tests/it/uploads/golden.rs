//! Upload tokens that earlier versions wrote, kept in `tests/golden/tokens`: every later version reads them.
//!
//! Each is of an upload that this test begins again, so the store has the same session and the same bytes; then the token of
//! the file takes the place of its own. A file is never changed. A new state, or a new format, gets a new file: run this test
//! with `BYWASH_GOLDEN=write` once.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use bywash::origin::ChunkRule;
use bywash::origin::memory::MemoryStore;
use bywash::origin::s3::S3Store;
use bywash::{Bucket, Consistency, Origin, UploadOptions, UploadToken};
use bywash_sim::server::Server;
use bywash_sim::server::s3::S3;
use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use object_store::{Attribute, Attributes, ObjectStoreExt, PutMode};

use super::fake::{Fake, IN_ORDER, SessionFault, crc32c, engine};

const LENGTH: usize = 150;

fn body() -> Bytes {
    bywash_support::pattern(150, LENGTH)
}

fn path() -> Path {
    Path::from("dir/golden")
}

/// An upload that was captured and then dropped.
struct Captured {
    /// Name of its file: the token's format, and the progress of the upload.
    name: &'static str,
    token: UploadToken,
    /// The store with its session, as in another process.
    bucket: Bucket,
    _server: Option<Server>,
}

fn bucket(origin: Arc<dyn Origin>) -> Bucket {
    engine(4 << 10)
        .mount("test", origin, Consistency::default())
        .unwrap()
}

async fn captured(
    name: &'static str,
    bucket: Bucket,
    options: UploadOptions,
    bytes: usize,
    change: Option<u64>,
) -> Captured {
    let mut upload = bucket.upload(&path(), options).await.unwrap();
    for at in 0..bytes {
        if at == 50
            && let Some(chunk) = change
        {
            upload.set_chunk(chunk).unwrap();
        }
        // A refusal in the middle leaves part of a chunk acknowledged.
        let _refused = upload.write(body().slice(at..=at)).await;
    }
    let token = upload.capture();
    Captured {
        name,
        token,
        bucket,
        _server: None,
    }
}

fn options(chunk: u64) -> UploadOptions {
    UploadOptions {
        chunk: Some(chunk),
        ..UploadOptions::default()
    }
}

async fn all() -> Vec<Captured> {
    let fake = |faults: &[SessionFault]| Fake::with(faults, &[]).bucket(4 << 10);
    let described = UploadOptions {
        mode: PutMode::Create,
        attributes: Attributes::from_iter([
            (Attribute::ContentType, "text/plain"),
            (Attribute::Metadata("k".into()), "v"),
        ]),
        length: Some(LENGTH as u64),
        crc32c: Some(crc32c(&body())),
        parallel: 4,
        ..options(40)
    };
    let faults = [
        SessionFault::None,
        SessionFault::Keep(13),
        SessionFault::Refuse,
    ];
    let numbered = ChunkRule {
        parallel: true,
        max_chunks: Some(10_000),
        ..IN_ORDER
    };
    let numbered = Fake::new(numbered).bucket(4 << 10);
    let server = Server::start(S3::new().with_limits(1000, 1)).await.unwrap();
    let builder = AmazonS3Builder::new()
        .with_bucket_name("data")
        .with_endpoint(server.url())
        .with_region("us-east-1")
        .with_access_key_id("key")
        .with_secret_access_key("secret");
    let s3 = S3Store::from_builder(builder, "data", &Path::ROOT).unwrap();
    // An engine for S3 has chunks of at least 5 MiB; the upload's are shorter.
    let engine = bywash::Engine::builder()
        .memory(64 << 20)
        .chunk_size(5 << 20)
        .build()
        .unwrap();
    let s3 = Arc::new(s3.with_min_part(1));
    let s3 = engine.mount("test", s3, Consistency::default()).unwrap();
    let memory = bucket(Arc::new(MemoryStore::new()));
    vec![
        captured("1-nothing-sent", fake(&[]), options(40), 30, None).await,
        captured("1-described", fake(&[]), described, 90, None).await,
        captured("1-part-of-a-chunk", fake(&faults), options(40), 81, None).await,
        captured("1-doubling-chunks", numbered, options(40), 90, None).await,
        captured("1-parts-remembered", memory, options(40), 90, None).await,
        Captured {
            _server: Some(server),
            ..captured("1-s3", s3, options(40), 90, None).await
        },
        captured("2-changed-chunks", fake(&[]), options(40), 110, Some(16)).await,
    ]
}

#[tokio::test]
async fn tokens_of_every_version_are_read_and_their_uploads_continued() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/tokens");
    let write = std::env::var_os("BYWASH_GOLDEN").is_some_and(|value| value == "write");
    let captured = all().await;
    for upload in &captured {
        let Captured { name, token, .. } = upload;
        let file = folder.join(name);
        let written = token.to_bytes().unwrap();
        if write && !file.exists() {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(&file, &written).unwrap();
        }
        let golden = std::fs::read(&file).unwrap_or_else(|error| {
            panic!(
                "{}: {error}; write it once with BYWASH_GOLDEN=write",
                file.display()
            )
        });
        assert_eq!(written, golden, "{name}: this version writes another token");
        let format = u32::from_le_bytes(golden[8..12].try_into().unwrap());
        assert_eq!(format.to_string(), name[..1]);
        let read = UploadToken::from_bytes(golden.into()).unwrap();
        let at = usize::try_from(read.position()).unwrap();
        assert_eq!(
            (read.path(), read.acknowledged()),
            (&path(), token.acknowledged())
        );
        let mut restored = upload.bucket.restore_upload(&read).await.unwrap();
        restored.write(body().slice(at..)).await.unwrap();
        let result = restored.finish().await.unwrap();
        assert_eq!(result.crc32c, crc32c(&body()), "{name}");
        assert_eq!(result.resent_bytes, 0, "{name}");
        let object = upload.bucket.get(&path()).await.unwrap();
        assert_eq!(object.bytes().await.unwrap(), body(), "{name}");
    }
    let files = std::fs::read_dir(&folder).unwrap();
    let mut files: Vec<_> = files
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    let mut names: Vec<_> = captured.iter().map(|upload| upload.name).collect();
    names.sort_unstable();
    assert_eq!(files, names, "each golden token is read");
}
