//! One ranged GET bound to a version, and the meaning of its response.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, Error, GetOptions, GetRange, GetResult, ObjectStore, Result,
};

use crate::bucket::Shared;
use crate::error::EngineError;
use crate::retry::{is_out_of_range, stalled};
use crate::versions::Version;

pub(super) type Body = BoxStream<'static, Result<Bytes>>;

/// Requests bytes of this version. Returns an error unless the response is of this version and range.
pub(super) async fn get(bucket: &Shared, version: &Version, range: Range<u64>) -> Result<Body> {
    let mut options = GetOptions {
        range: Some(GetRange::Bounded(range.clone())),
        ..GetOptions::default()
    };
    version.apply_precondition(&mut options);
    bucket.counters.origin_data_request();
    version.cost.request();
    let response = bucket.origin.get_opts(&version.meta.location, options);
    let policy = bucket.engine.retry;
    let result = tokio::time::timeout(policy.stall, response)
        .await
        .map_err(|_| stalled(policy))??;
    // The origin may have ignored the precondition: the response itself must show the same version.
    if !version.matches(&result.meta) {
        return Err(changed(version));
    }
    version.file().keep_from(&result);
    if result.range != range {
        let detail = format!("requested {range:?}, received {:?}", result.range);
        return Err(bad_response(version, detail));
    }
    let encoding = encoding(&result.attributes);
    if encoding != self::encoding(&version.attributes) {
        return Err(bad_response(version, other_encoding(encoding)));
    }
    Ok(result.into_stream())
}

fn encoding(attributes: &Attributes) -> Option<&str> {
    Some(attributes.get(&Attribute::ContentEncoding)?.as_ref())
}

fn other_encoding(encoding: Option<&str>) -> String {
    let named = encoding.unwrap_or("none");
    format!("its range has the Content-Encoding {named}, and the whole object another")
}

/// Returns the Content-Encoding of a response to a range. A proxy may have compressed the range alone.
pub(super) fn encoding_of_range(result: &GetResult) -> Option<String> {
    if result.range == (0..result.meta.size) {
        return None;
    }
    encoding(&result.attributes).map(str::to_owned)
}

/// Checks by a HEAD request that the whole object has the Content-Encoding `named` in the response to a range.
///
/// # Errors
/// [`EngineError::BadResponse`] if it does not.
pub(super) async fn confirm_encoding(
    bucket: &Arc<Shared>,
    path: &Path,
    named: Option<String>,
) -> Result<()> {
    if named.is_none() {
        return Ok(());
    }
    let opened = super::resolve::head(bucket, path).await?;
    if named.as_deref() == encoding(&opened.version.attributes) {
        return Ok(());
    }
    Err(bad_response(
        &opened.version,
        other_encoding(named.as_deref()),
    ))
}

/// Maps the errors of a conditional request: "not found" and "precondition failed" both mean that the version
/// changed.
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

pub(super) fn bad_response(version: &Version, detail: String) -> Error {
    EngineError::BadResponse {
        object: version.meta.location.to_string(),
        detail,
    }
    .into()
}
