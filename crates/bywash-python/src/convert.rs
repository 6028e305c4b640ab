//! Values of the client as those of Python.

use std::time::{Duration, SystemTime};

use bywash_client::{Error, PutOptions, WriteCondition};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

/// Key, size, time of the last change in nanoseconds since 1970, ETag, version, attributes.
pub(crate) type Metadata = (
    String,
    u64,
    i64,
    Option<String>,
    Option<String>,
    Vec<(String, String)>,
);

/// Converts an object's metadata.
pub(crate) fn metadata(found: bywash_client::Metadata) -> Metadata {
    let nanoseconds = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
    let modified = match found.modified.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => nanoseconds(after),
        Err(before) => -nanoseconds(before.duration()),
    };
    (
        found.key,
        found.size,
        modified,
        found.etag,
        found.version,
        found.attributes,
    )
}

/// Returns the exception of an error: `bywash.errors.of(code, message)`.
pub(crate) fn raise(py: Python<'_>, error: &Error) -> PyErr {
    let text = error.to_string();
    let made = py
        .import("bywash.errors")
        .and_then(|errors| errors.call_method1("of", (error.code().name(), &text)));
    match made {
        Ok(exception) => PyErr::from_value(exception),
        // The package is being torn down, or was not installed whole.
        Err(_) => PyRuntimeError::new_err(text),
    }
}

/// Converts the condition of a write.
pub(crate) fn condition(if_match: Option<String>, create: bool) -> PyResult<WriteCondition> {
    match (if_match, create) {
        (None, false) => Ok(WriteCondition::None),
        (None, true) => Ok(WriteCondition::Create),
        (Some(etag), false) => Ok(WriteCondition::IfMatch(etag)),
        (Some(_), true) => Err(PyValueError::new_err(
            "a write replaces a version (if_match) or creates (create), not both",
        )),
    }
}

/// A page of a listing: objects, prefixes, token of the next page.
pub(crate) type Page = (Vec<Metadata>, Vec<String>, Option<String>);

/// Converts a page of a listing.
pub(crate) fn page(page: bywash_client::ListPage) -> Page {
    let objects = page.objects.into_iter().map(metadata).collect();
    (objects, page.prefixes, page.next)
}

/// ETag and version of a write.
pub(crate) type Written = (Option<String>, Option<String>);

/// Converts the result of a write.
pub(crate) fn written(written: bywash_client::Written) -> Written {
    (written.etag, written.version)
}

/// Converts the options of a write.
pub(crate) fn put_options(
    attributes: Vec<(String, String)>,
    if_match: Option<String>,
    create: bool,
    chunk: Option<u64>,
) -> PyResult<PutOptions> {
    Ok(PutOptions {
        condition: condition(if_match, create)?,
        attributes,
        chunk,
    })
}

/// Converts the keys that were not deleted.
pub(crate) fn undeleted(py: Python<'_>, failed: Vec<(String, Error)>) -> Vec<(String, Py<PyAny>)> {
    let failed = failed.into_iter();
    let pair = |(key, error): (String, Error)| (key, raise(py, &error).into_value(py).into_any());
    failed.map(pair).collect()
}
