//! One ranged GET bound to a version, and the meaning of its response.

use std::ops::Range;

use bytes::Bytes;
use bywash_store::{OriginError, is_out_of_range};
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, Error, GetOptions, GetRange, GetResult, ObjectStore, Result,
};

use crate::error::EngineError;
use crate::retry::stalled;
use crate::shared::BucketShared;
use crate::versions::Version;

pub(super) type RangeBody = BoxStream<'static, Result<Bytes>>;

/// Requests bytes of this version. Returns an error unless the response is of this version and range.
pub(super) async fn get(
    bucket: &BucketShared,
    version: &Version,
    range: Range<u64>,
) -> Result<RangeBody> {
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
    if !version.matches(&result.meta) && !planted!("engine-version-not-compared") {
        return Err(changed(version));
    }
    version.file().keep_from(&result);
    if result.range != range && !planted!("engine-range-not-compared") {
        let detail = format!("requested {range:?}, received {:?}", result.range);
        return Err(bad_response(version, detail));
    }
    let encoding = encoding(&result.attributes);
    if version.is_partial() {
        // Whether the range alone was compressed on its way is not known.
        return match encoding {
            None => Ok(result.into_stream()),
            Some(_) => Err(changed(version)),
        };
    }
    if encoding != self::encoding(&version.attributes) {
        return Err(bad_response(version, other_encoding(encoding)));
    }
    Ok(result.into_stream())
}

pub(super) fn encoding(attributes: &Attributes) -> Option<&str> {
    Some(attributes.get(&Attribute::ContentEncoding)?.as_ref())
}

pub(super) fn other_encoding(encoding: Option<&str>) -> String {
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
    OriginError::bad_response(&version.meta.location, detail)
}

/// Returns the error of a response longer than the range requested.
pub(super) fn too_long(version: &Version) -> Error {
    let detail = "the response is longer than the range requested".to_owned();
    bad_response(version, detail)
}

/// Returns whether a read failed because its version is no longer the current one.
pub(super) fn is_version_change(error: &Error) -> bool {
    matches!(
        EngineError::find(error),
        Some(EngineError::VersionChanged { .. })
    )
}

/// Returns the bytes of `range` in this version.
///
/// # Errors
/// [`EngineError::RangeNotSatisfiable`].
pub(super) fn checked_range(version: &Version, range: Option<&GetRange>) -> Result<Range<u64>> {
    let length = version.meta.size;
    let Some(range) = range else {
        return Ok(0..length);
    };
    range
        .as_range(length - u64::from(planted!("engine-range-one-short") && length > 1))
        .map_err(|_| range_error(&version.meta.location, length))
}

pub(super) fn range_error(path: &Path, length: u64) -> Error {
    EngineError::RangeNotSatisfiable {
        object: path.to_string(),
        length,
    }
    .into()
}
