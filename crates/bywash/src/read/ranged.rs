//! One ranged GET tied to a version, and what its answers mean.

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
    version.file().keep_from(&result);
    if result.range != range {
        let detail = format!("asked for {range:?}, got {:?}", result.range);
        return Err(bad_answer(version, detail));
    }
    let encoding = encoding(&result.attributes);
    if encoding != self::encoding(&version.attributes) {
        return Err(bad_answer(version, other_encoding(encoding)));
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

/// Returns the Content-Encoding that a range of an object names. A proxy may have packed the range alone.
pub(super) fn encoding_of_range(result: &GetResult) -> Option<String> {
    if result.range == (0..result.meta.size) {
        return None;
    }
    encoding(&result.attributes).map(str::to_owned)
}

/// Asks whether the whole object has the Content-Encoding that a range of it names.
///
/// # Errors
/// [`EngineError::BadAnswer`] if it does not.
pub(super) async fn confirm_encoding(
    bucket: &Arc<Shared>,
    path: &Path,
    named: Option<String>,
) -> Result<()> {
    if named.is_none() {
        return Ok(());
    }
    let opened = super::open::head(bucket, path).await?;
    if named.as_deref() == encoding(&opened.version.attributes) {
        return Ok(());
    }
    Err(bad_answer(
        &opened.version,
        other_encoding(named.as_deref()),
    ))
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
