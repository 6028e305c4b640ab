//! The operations, one file a group of verbs.

pub(crate) mod buckets;
pub(crate) mod copy;
pub(crate) mod delete;
pub(crate) mod list;
pub(crate) mod multipart;
pub(crate) mod read;
pub(crate) mod write;

use std::sync::Arc;

use s3s::{S3Error, S3ErrorCode, S3Request};

use crate::body::RequestContext;
use crate::errors::fault;

/// What the front noted about a request.
fn context<T>(request: &S3Request<T>) -> Result<Arc<RequestContext>, S3Error> {
    let found = request
        .extensions
        .get::<Arc<RequestContext>>()
        .map(Arc::clone);
    found.ok_or_else(|| {
        fault(
            S3ErrorCode::InternalError,
            "The request did not come through the front.",
        )
    })
}
