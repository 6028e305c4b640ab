//! Reads of objects and ranges.

use bywash_client::{ByteRange, GetOptions, PendingGet, RangesOf, byte_range};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::NativeClient;
use crate::buffers::Bytes;
use crate::convert::{Metadata, metadata, raise};
use crate::pending::NativePending;
use crate::view::NativeObject;

/// A range as Python has it: from a start to before an end, from a start on, or (without a start) the last so many bytes.
type PyRange = (Option<u64>, Option<u64>);
fn range_of(range: PyRange) -> PyResult<ByteRange> {
    match range {
        (Some(start), Some(end)) if start < end => Ok(byte_range(start..end)),
        (Some(start), None) => Ok(ByteRange::From(start)),
        (None, Some(last)) => Ok(ByteRange::Last(last)),
        (None, None) => Ok(ByteRange::Whole(())),
        (Some(start), Some(end)) => Err(PyValueError::new_err(format!(
            "the range from {start} to {end} has no byte"
        ))),
    }
}

fn ranges_of(ranges: Vec<PyRange>) -> PyResult<Vec<ByteRange>> {
    ranges.into_iter().map(range_of).collect()
}

#[pymethods]
impl NativeClient {
    /// Reads ranges of one version of an object; without any, all of it. `copy`: the server leases nothing.
    #[pyo3(signature = (bucket, key, ranges, if_match=None, if_none_match=None, version=None, copy=false))]
    fn get(
        &self,
        py: Python<'_>,
        bucket: &str,
        key: &str,
        ranges: Vec<PyRange>,
        if_match: Option<String>,
        if_none_match: Option<String>,
        version: Option<String>,
        copy: bool,
    ) -> PyResult<Vec<NativeObject>> {
        let ranges = ranges_of(ranges)?;
        let options = GetOptions {
            inline_bytes: copy.then_some(u32::MAX),
            ..Self::options(if_match, if_none_match, version)
        };
        let read = py.detach(|| {
            let object = RangesOf {
                bucket,
                key,
                ranges: &ranges,
            };
            let mut results = self.client.get_many(&[object], &options)?;
            // One object has one result.
            results.remove(0).map(NativeObject::of)
        });
        read.map_err(|error| raise(py, &error))
    }

    /// Reads ranges of many objects by one message. Returns a result or an exception for each.
    #[pyo3(signature = (objects, copy=false))]
    fn get_many(
        &self,
        py: Python<'_>,
        objects: Vec<(String, String, Vec<PyRange>)>,
        copy: bool,
    ) -> PyResult<Vec<Py<PyAny>>> {
        let objects = checked(objects)?;
        let options = GetOptions {
            inline_bytes: copy.then_some(u32::MAX),
            ..GetOptions::default()
        };
        let read = py.detach(|| {
            let results = self.client.get_many(&borrowed(&objects), &options)?;
            let results = results.into_iter();
            Ok(results
                .map(|result| result.map(NativeObject::of))
                .collect::<Vec<_>>())
        });
        results(py, read.map_err(|error| raise(py, &error))?)
    }

    /// Sends the request of [`Self::get_many`], for an event loop.
    #[pyo3(signature = (objects, if_match=None, if_none_match=None, version=None))]
    fn begin_get(
        &self,
        py: Python<'_>,
        objects: Vec<(String, String, Vec<PyRange>)>,
        if_match: Option<String>,
        if_none_match: Option<String>,
        version: Option<String>,
    ) -> PyResult<NativePending> {
        let objects = checked(objects)?;
        let options = Self::options(if_match, if_none_match, version);
        let begun = py.detach(|| self.client.begin_get(&borrowed(&objects), &options));
        let pending = begun.map_err(|error| raise(py, &error))?;
        Ok(NativePending::new(PendingRead(pending)))
    }

    /// Reads a range into a writable buffer, which it fills.
    #[pyo3(signature = (bucket, key, start, buffer, if_match=None))]
    fn readinto(
        &self,
        py: Python<'_>,
        bucket: &str,
        key: &str,
        start: u64,
        buffer: &Bound<'_, PyAny>,
        if_match: Option<String>,
    ) -> PyResult<Metadata> {
        let mut target = Bytes::writable(buffer)?;
        let options = Self::options(if_match, None, None);
        let read = py.detach(|| {
            let bucket = self.client.bucket(bucket);
            bucket.read_into(key, start, target.as_mut_slice(), &options)
        });
        read.map(metadata).map_err(|error| raise(py, &error))
    }
}

type Checked = Vec<(String, String, Vec<ByteRange>)>;

fn checked(objects: Vec<(String, String, Vec<PyRange>)>) -> PyResult<Checked> {
    let checked = objects
        .into_iter()
        .map(|(bucket, key, ranges)| Ok((bucket, key, ranges_of(ranges)?)));
    checked.collect()
}

fn borrowed(objects: &Checked) -> Vec<RangesOf<'_>> {
    let borrowed = objects.iter().map(|(bucket, key, ranges)| RangesOf {
        bucket,
        key,
        ranges,
    });
    borrowed.collect()
}

/// Converts results: an exception in the place of each object that cannot be read.
pub(crate) fn results(
    py: Python<'_>,
    read: Vec<bywash_client::Result<Vec<NativeObject>>>,
) -> PyResult<Vec<Py<PyAny>>> {
    let results = read.into_iter().map(|result| match result {
        Ok(objects) => Ok(objects.into_pyobject(py)?.into_any().unbind()),
        Err(error) => Ok(raise(py, &error).into_value(py).into_any()),
    });
    results.collect()
}

/// A read whose reply has not arrived yet.
pub(crate) struct PendingRead(pub(crate) PendingGet);
