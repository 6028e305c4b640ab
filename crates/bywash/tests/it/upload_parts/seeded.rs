//! Uploads to a fake store over real sockets, with seeded faults: the exact object, or an error with the reason.

use bytes::Bytes;
use bywash::{Bucket, EngineError, OriginError, UploadOptions};
use bywash_support::pattern;
use object_store::path::Path;
use object_store::{Error, PutMode, Result};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::CHUNK;

/// Objects of one seed.
const UPLOADS: u64 = 6;

/// One upload of a seed: its content and its result.
pub(crate) struct Tried {
    pub(crate) path: Path,
    pub(crate) body: Bytes,
    pub(crate) outcome: Result<()>,
}

/// Uploads objects of random sizes in random pieces; some are captured in the middle and restored.
pub(crate) async fn upload_all(seed: u64, bucket: &Bucket) -> Vec<Tried> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut tried = Vec::new();
    for number in 0..UPLOADS {
        // More than one chunk: less is one atomic put, without a session.
        let length = match rng.random_range(0..3) {
            0 => rng.random_range(2..=5) * CHUNK,
            _ => rng.random_range(CHUNK + 1..=6 * CHUNK),
        };
        let body = pattern(seed ^ number, usize::try_from(length).unwrap());
        let path = Path::from(format!("dir/object-{number}"));
        let outcome = upload(&mut rng, bucket, &path, &body).await;
        tried.push(Tried {
            path,
            body,
            outcome,
        });
    }
    tried
}

async fn upload(rng: &mut StdRng, bucket: &Bucket, path: &Path, body: &Bytes) -> Result<()> {
    let options = UploadOptions {
        mode: if rng.random_bool(0.5) {
            PutMode::Create
        } else {
            PutMode::Overwrite
        },
        length: rng.random_bool(0.5).then_some(body.len() as u64),
        chunk: Some(CHUNK),
        ..UploadOptions::default()
    };
    let mut upload = bucket.upload(path, options).await?;
    let (mut at, mut restored) = (0, false);
    while at < body.len() {
        if !restored && rng.random_bool(0.1) {
            let token = upload.capture();
            drop(upload);
            upload = bucket.restore_upload(&token).await?;
            restored = true;
        }
        let piece = rng.random_range(1..=3 * usize::try_from(CHUNK).unwrap());
        let end = (at + piece).min(body.len());
        upload.write(body.slice(at..end)).await?;
        at = end;
    }
    let result = upload.finish().await?;
    assert_eq!(result.length, body.len() as u64);
    Ok(())
}

/// Returns whether an error means that the store lost or damaged acknowledged bytes, or that the object cannot be
/// verified.
pub(crate) fn is_honest(error: &Error) -> bool {
    let of_origin = matches!(
        OriginError::find(error),
        Some(OriginError::UploadLost { .. } | OriginError::UploadDamaged { .. })
    );
    of_origin
        || matches!(
            EngineError::find(error),
            Some(EngineError::UploadUnproven { .. })
        )
}
