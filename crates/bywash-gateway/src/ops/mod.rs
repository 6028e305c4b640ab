//! The S3 operations, one file a group.

pub(crate) mod acl;
pub(crate) mod attributes;
pub(crate) mod buckets;
mod checksums;
pub(crate) mod copy;
pub(crate) mod cors;
pub(crate) mod delete;
pub(crate) mod list;
pub(crate) mod multipart;
pub(crate) mod read;
pub(crate) mod settings;
pub(crate) mod tagging;
pub(crate) mod upload_lists;
pub(crate) mod write;

pub(crate) use copy::late;
pub(crate) use delete::{deleted, is_absent, missing_result};
pub(crate) use write::WriteCondition;

use std::sync::Arc;

use s3s::{S3Error, S3ErrorCode, S3Request};

use crate::body::RequestContext;
use crate::documents::RequestDocuments;
use crate::errors::fault;

/// Returns the context that the middleware attached to a request.
pub(crate) fn context<T>(request: &S3Request<T>) -> Result<Arc<RequestContext>, S3Error> {
    let found = request
        .extensions
        .get::<Arc<RequestContext>>()
        .map(Arc::clone);
    found.ok_or_else(outside_middleware)
}

/// Returns the memory of the request's documents.
fn documents<T>(request: &S3Request<T>) -> Result<Arc<RequestDocuments>, S3Error> {
    let found = request.extensions.get::<Arc<RequestDocuments>>();
    found.map(Arc::clone).ok_or_else(outside_middleware)
}

fn outside_middleware() -> S3Error {
    fault(
        S3ErrorCode::InternalError,
        "The request did not pass through the middleware.",
    )
}

/// Sets the field of a [`crate::digest::Checksum`]'s algorithm: the generated types have the same five fields, but no
/// common trait.
macro_rules! set_checksum {
    ($target:ident, $checksum:expr) => {{
        let checksum = &$checksum;
        let value = Some(checksum.value.clone());
        match checksum.algorithm {
            crate::digest::Algorithm::Crc32 => $target.checksum_crc32 = value,
            crate::digest::Algorithm::Crc32c => $target.checksum_crc32c = value,
            crate::digest::Algorithm::Crc64Nvme => $target.checksum_crc64nvme = value,
            crate::digest::Algorithm::Sha1 => $target.checksum_sha1 = value,
            crate::digest::Algorithm::Sha256 => $target.checksum_sha256 = value,
        }
    }};
}
pub(crate) use set_checksum;
