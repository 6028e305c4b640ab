//! Bodies of requests: a small document, or a stream that is checked against its digests.

use std::sync::{Arc, OnceLock};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use bywash::PartBody;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::Attributes;
use s3s::S3ErrorCode;

use super::error::{GcsError, GcsResult};
use super::metadata::GivenMetadata;
use crate::body::{BodyError, RequestContext};
use crate::digest::{Algorithm, hex};
use crate::limits::MAX_JSON_BYTES;
use crate::meta::{keep_checksum, keep_e_tag};
use crate::passing::{PassedDigests, PassingDigests};

/// Bytes of a request's body as they arrive.
pub(crate) type BodyStream = BoxStream<'static, Result<Bytes, BodyError>>;

/// Reads a whole document. The caller has charged [`MAX_JSON_BYTES`].
pub(crate) async fn document(body: BodyStream) -> GcsResult<Vec<u8>> {
    limited(body, MAX_JSON_BYTES, METADATA).await
}

/// Reads a whole body of at most `max` bytes, which the caller has charged. `what` names it in the error of a longer one.
pub(crate) async fn limited(mut body: BodyStream, max: usize, what: &str) -> GcsResult<Vec<u8>> {
    let mut whole = Vec::new();
    while let Some(piece) = body.next().await {
        let piece = piece.map_err(|error| GcsError::invalid(error.to_string()))?;
        if whole.len() + piece.len() > max {
            return Err(longer(what, max));
        }
        whole.extend_from_slice(&piece);
    }
    Ok(whole)
}

const METADATA: &str = "The metadata of a request";

pub(crate) fn too_long() -> GcsError {
    longer(METADATA, MAX_JSON_BYTES)
}

fn longer(what: &str, max: usize) -> GcsError {
    GcsError::invalid(format!("{what} is longer than {max} bytes."))
}

/// The bytes of an object, with digests that are computed as they pass and compared with the
/// client's.
pub(crate) struct CheckedBody {
    pub(crate) body: PartBody,
    passed: Arc<OnceLock<PassedDigests>>,
}

impl CheckedBody {
    /// Wraps a body. `md5`: whether the MD5 is computed, also if the client states none.
    pub(crate) fn new(
        body: BodyStream,
        given: &GivenMetadata,
        md5: bool,
        context: &Arc<RequestContext>,
    ) -> GcsResult<Self> {
        let expected = match &given.md5 {
            None => None,
            Some(text) => Some(md5_digits(text)?),
        };
        let digests = PassingDigests::new(md5 || expected.is_some(), Some(Algorithm::Crc32c));
        let body = body.map_err(|error| object_store::Error::Generic {
            store: "request body",
            source: Box::new(error),
        });
        let body = digests.clone().of(body.boxed());
        let passed = Arc::new(OnceLock::new());
        let end = {
            let (passed, context) = (Arc::clone(&passed), Arc::clone(context));
            let (crc32c, stated_md5) = (given.crc32c.clone(), given.md5.clone());
            async move {
                let found = digests.finish();
                let differs = |name: &str, stated: Option<String>, found: Option<String>| {
                    let message = format!(
                        "The bytes have the {name} {}, not {}, which the request states; nothing was stored.",
                        found.unwrap_or_default(),
                        stated.unwrap_or_default(),
                    );
                    let error = context.note(S3ErrorCode::BadDigest, message);
                    object_store::Error::Generic {
                        store: "request body",
                        source: Box::new(error),
                    }
                };
                let found_crc = found.checksum.as_ref().map(|checksum| &checksum.value);
                if crc32c.is_some() && crc32c.as_ref() != found_crc {
                    return Err(differs("CRC32C", crc32c, found_crc.cloned()));
                }
                if expected.is_some() && expected != found.md5 {
                    return Err(differs("MD5", stated_md5, found.md5_hash()));
                }
                // Set once: the end of the body is polled once.
                let _ = passed.set(found);
                Ok(None)
            }
        };
        let body = body.chain(stream::once(end).try_filter_map(|piece| async move { Ok(piece) }));
        Ok(Self {
            body: body.boxed(),
            passed,
        })
    }

    /// The place of the digests, which is filled at the end of the body.
    pub(crate) fn passed(&self) -> Arc<OnceLock<PassedDigests>> {
        Arc::clone(&self.passed)
    }

    /// The attributes that are known at the end of the body. `md5`: whether the MD5 is kept.
    pub(crate) fn late(&self, md5: bool) -> Box<dyn FnOnce() -> Attributes + Send> {
        let passed = Arc::clone(&self.passed);
        Box::new(move || match passed.get() {
            Some(passed) => kept(passed, md5),
            None => Attributes::new(),
        })
    }
}

/// Converts an MD5 from base64 to hexadecimal digits.
pub(crate) fn md5_digits(text: &str) -> GcsResult<String> {
    let digest = BASE64_STANDARD.decode(text).ok();
    let digest = digest.filter(|digest| digest.len() == 16);
    let invalid = || GcsError::invalid(format!("md5Hash is 16 bytes in base64, not {text:?}."));
    Ok(hex(&digest.ok_or_else(invalid)?))
}

/// The attributes of digests. `md5`: whether the MD5 is kept.
pub(crate) fn kept(passed: &PassedDigests, md5: bool) -> Attributes {
    let mut late = Attributes::new();
    if let Some(checksum) = &passed.checksum {
        keep_checksum(&mut late, checksum);
    }
    if let Some(digest) = passed.md5.clone().filter(|_| md5) {
        keep_e_tag(&mut late, digest);
    }
    late
}
