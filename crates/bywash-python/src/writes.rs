//! Writes of objects.

use std::sync::{Mutex, PoisonError};

use bywash_client::Writer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::NativeClient;
use crate::buffers::Bytes;
use crate::convert::{Written, put_options, raise, written};

#[pymethods]
impl NativeClient {
    #[pyo3(signature = (bucket, key, data, attributes, if_match=None, create=false))]
    fn put(
        &self,
        py: Python<'_>,
        bucket: &str,
        key: &str,
        data: &Bound<'_, PyAny>,
        attributes: Vec<(String, String)>,
        if_match: Option<String>,
        create: bool,
    ) -> PyResult<Written> {
        let data = Bytes::of(data)?;
        let options = put_options(attributes, if_match, create, None)?;
        let put = py.detach(|| {
            self.client
                .bucket(bucket)
                .put(key, data.as_slice(), &options)
        });
        put.map(written).map_err(|error| raise(py, &error))
    }

    #[pyo3(signature = (bucket, key, attributes, if_match=None, create=false, chunk=None))]
    fn writer(
        &self,
        py: Python<'_>,
        bucket: &str,
        key: &str,
        attributes: Vec<(String, String)>,
        if_match: Option<String>,
        create: bool,
        chunk: Option<u64>,
    ) -> PyResult<NativeWriter> {
        let options = put_options(attributes, if_match, create, chunk)?;
        let begun = py.detach(|| self.client.bucket(bucket).writer(key, &options));
        begun
            .map(NativeWriter::new)
            .map_err(|error| raise(py, &error))
    }

    fn resume(&self, py: Python<'_>, bucket: &str, token: &[u8]) -> PyResult<NativeWriter> {
        let resumed = py.detach(|| self.client.bucket(bucket).resume(token));
        resumed
            .map(NativeWriter::new)
            .map_err(|error| raise(py, &error))
    }
}

/// An object being written. Nothing is visible until it is finished.
#[pyclass(frozen, module = "bywash._native", name = "Writer")]
pub(crate) struct NativeWriter(Mutex<Option<Writer>>);

impl NativeWriter {
    fn new(writer: Writer) -> Self {
        Self(Mutex::new(Some(writer)))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Writer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a call on the writer. The lock is taken without the interpreter, which the holder may wait for.
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut Option<Writer>) -> bywash_client::Result<Option<T>> + Send,
    ) -> PyResult<T> {
        let result = py.detach(|| call(&mut self.lock()));
        let result = result.map_err(|error| raise(py, &error))?;
        result.ok_or_else(|| PyValueError::new_err("the write has ended"))
    }
}

#[pymethods]
impl NativeWriter {
    /// Offset of the next byte; `None` after the end.
    #[getter]
    fn position(&self) -> Option<u64> {
        self.lock().as_ref().map(Writer::position)
    }

    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let data = Bytes::of(data)?;
        self.call(py, |writer| {
            let Some(writer) = writer else {
                return Ok(None);
            };
            writer.write_all(data.as_slice()).map(Some)
        })
    }

    /// Token and offset from which another process can continue.
    fn capture(&self, py: Python<'_>) -> PyResult<(Vec<u8>, u64)> {
        self.call(py, |writer| {
            let Some(writer) = writer else {
                return Ok(None);
            };
            writer
                .capture()
                .map(|captured| Some((captured.token, captured.position)))
        })
    }

    fn finish(&self, py: Python<'_>) -> PyResult<Written> {
        self.call(py, |writer| match writer.take() {
            None => Ok(None),
            Some(writer) => writer.finish().map(|result| Some(written(result))),
        })
    }

    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, |writer| match writer.take() {
            None => Ok(None),
            Some(writer) => writer.abort().map(Some),
        })
    }
}
