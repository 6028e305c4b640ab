//! Requests whose replies an event loop waits for.

use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};

use bywash_client::{ListOptions, Pending};
use pyo3::prelude::*;

use crate::NativeClient;
use crate::buffers::Bytes;
use crate::convert::{Page, Written, metadata, page, put_options, raise, undeleted, written};
use crate::reads::{PendingRead, results};
use crate::view::NativeObject;

type Converted = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

/// A request of any kind: its descriptor, what it waits for, and its result as a value of Python.
pub(crate) trait Poll: Send {
    fn descriptor(&self) -> bywash_client::Result<i32>;
    fn writes(&self) -> bool;
    fn poll(&mut self) -> bywash_client::Result<Option<Converted>>;
}

struct Reply<T> {
    pending: Pending<T>,
    convert: fn(Python<'_>, T) -> PyResult<Py<PyAny>>,
}

impl<T: Send + 'static> Poll for Reply<T> {
    fn descriptor(&self) -> bywash_client::Result<i32> {
        self.pending
            .descriptor()
            .map(|descriptor| descriptor.as_raw_fd())
    }

    fn writes(&self) -> bool {
        self.pending.has_unsent()
    }

    fn poll(&mut self) -> bywash_client::Result<Option<Converted>> {
        let (result, convert) = (self.pending.poll()?, self.convert);
        Ok(result.map(|result| -> Converted { Box::new(move |py| convert(py, result)) }))
    }
}

impl Poll for PendingRead {
    fn descriptor(&self) -> bywash_client::Result<i32> {
        self.0.descriptor().map(|descriptor| descriptor.as_raw_fd())
    }

    fn writes(&self) -> bool {
        self.0.has_unsent()
    }

    fn poll(&mut self) -> bywash_client::Result<Option<Converted>> {
        let Some(read) = self.0.poll()? else {
            return Ok(None);
        };
        let read: Vec<_> = read
            .into_iter()
            .map(|result| result.map(NativeObject::of))
            .collect();
        Ok(Some(Box::new(move |py| {
            let list = results(py, read)?;
            Ok(list.into_pyobject(py)?.into_any().unbind())
        })))
    }
}

/// A request whose reply has not arrived yet.
#[pyclass(frozen, module = "bywash._native", name = "Pending")]
pub(crate) struct NativePending(Mutex<Box<dyn Poll>>);

impl NativePending {
    pub(crate) fn new(pending: impl Poll + 'static) -> Self {
        Self(Mutex::new(Box::new(pending)))
    }

    fn of<T: Send + 'static>(
        py: Python<'_>,
        begun: bywash_client::Result<Pending<T>>,
        convert: fn(Python<'_>, T) -> PyResult<Py<PyAny>>,
    ) -> PyResult<Self> {
        let pending = begun.map_err(|error| raise(py, &error))?;
        Ok(Self::new(Reply { pending, convert }))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Box<dyn Poll>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl NativePending {
    /// Descriptor to wait for.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        self.lock().descriptor().map_err(|error| raise(py, &error))
    }

    /// Whether to wait until it can be written to, as well.
    fn writes(&self) -> bool {
        self.lock().writes()
    }

    /// Takes what has arrived. Returns whether the result is there, and the result.
    fn poll(&self, py: Python<'_>) -> PyResult<(bool, Option<Py<PyAny>>)> {
        let polled = py.detach(|| self.lock().poll());
        match polled.map_err(|error| raise(py, &error))? {
            None => Ok((false, None)),
            Some(convert) => convert(py).map(|result| (true, Some(result))),
        }
    }
}

#[pymethods]
impl NativeClient {
    #[pyo3(signature = (bucket, key, if_match=None, if_none_match=None, version=None))]
    fn begin_head(
        &self,
        py: Python<'_>,
        bucket: &str,
        key: &str,
        if_match: Option<String>,
        if_none_match: Option<String>,
        version: Option<String>,
    ) -> PyResult<NativePending> {
        let options = Self::options(if_match, if_none_match, version);
        let begun = py.detach(|| self.client.bucket(bucket).begin_head(key, &options));
        NativePending::of(py, begun, |py, found| {
            Ok(metadata(found).into_pyobject(py)?.into_any().unbind())
        })
    }

    fn begin_list_page(
        &self,
        py: Python<'_>,
        bucket: &str,
        prefix: &str,
        delimiter: &str,
        after: Option<&str>,
        limit: u32,
    ) -> PyResult<NativePending> {
        let options = ListOptions {
            prefix,
            delimiter,
            after,
            limit,
        };
        let begun = py.detach(|| self.client.bucket(bucket).begin_list_page(options));
        NativePending::of(py, begun, |py, found| {
            let page: Page = page(found);
            Ok(page.into_pyobject(py)?.into_any().unbind())
        })
    }

    #[pyo3(signature = (bucket, key, data, attributes, if_match=None, create=false))]
    fn begin_put(
        &self,
        py: Python<'_>,
        bucket: &str,
        key: &str,
        data: &Bound<'_, PyAny>,
        attributes: Vec<(String, String)>,
        if_match: Option<String>,
        create: bool,
    ) -> PyResult<NativePending> {
        let data = Bytes::of(data)?;
        let options = put_options(attributes, if_match, create, None)?;
        let begun = py.detach(|| {
            let bucket = self.client.bucket(bucket);
            bucket.begin_put(key, data.as_slice(), &options)
        });
        NativePending::of(py, begun, |py, result| {
            let written: Written = written(result);
            Ok(written.into_pyobject(py)?.into_any().unbind())
        })
    }

    #[pyo3(signature = (bucket, keys, if_match=None))]
    fn begin_delete(
        &self,
        py: Python<'_>,
        bucket: &str,
        keys: Vec<String>,
        if_match: Option<&str>,
    ) -> PyResult<NativePending> {
        let begun = py.detach(|| {
            let keys: Vec<_> = keys.iter().map(String::as_str).collect();
            self.client.bucket(bucket).begin_delete(&keys, if_match)
        });
        NativePending::of(py, begun, |py, failed| {
            Ok(undeleted(py, failed).into_pyobject(py)?.into_any().unbind())
        })
    }
}
