//! One ranged GET tied to a version, and what its answers mean.

use std::ops::Range;

use bytes::Bytes;
use futures::stream::BoxStream;
use object_store::{Error, GetOptions, GetRange, ObjectStore, Result};

use crate::bucket::Shared;
use crate::error::EngineError;
use crate::retry::{is_out_of_range, stalled};
use crate::versions::Version;

pub(super) type Body = BoxStream<'static, Result<Bytes>>;

/// Asks for bytes of this version. The answer is of this version and range, or an error.
pub(super) async fn ask(bucket: &Shared, version: &Version, range: Range<u64>) -> Result<Body> {
    let mut options = GetOptions {
        range: Some(GetRange::Bounded(range.clone())),
        ..GetOptions::default()
    };
    version.tie(&mut options);
    bucket.counters.origin_data_request();
    version.cost.request();
    let answer = bucket.origin.get_opts(&version.meta.location, options);
    let policy = bucket.engine.retry;
    let result = tokio::time::timeout(policy.stall, answer)
        .await
        .map_err(|_| stalled(policy))??;
    // The condition may have been ignored: the answer itself must show the same version.
    if !version.is(&result.meta) {
        return Err(changed(version));
    }
    if result.range != range {
        let detail = format!("asked for {range:?}, got {:?}", result.range);
        return Err(bad_answer(version, detail));
    }
    Ok(result.into_stream())
}

/// On a request tied to a version, "not there" and "not that" both mean: it changed.
pub(super) fn classify(version: &Version, error: Error) -> Error {
    match error {
        Error::Precondition { .. } | Error::NotFound { .. } | Error::NotModified { .. } => {
            changed(version)
        }
        error if is_out_of_range(&error) => changed(version),
        error => error,
    }
}

pub(super) fn changed(version: &Version) -> Error {
    EngineError::VersionChanged {
        object: version.meta.location.to_string(),
    }
    .into()
}

pub(super) fn bad_answer(version: &Version, detail: String) -> Error {
    EngineError::BadAnswer {
        object: version.meta.location.to_string(),
        detail,
    }
    .into()
}
