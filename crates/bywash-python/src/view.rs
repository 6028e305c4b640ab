//! Bytes of an object, with the buffer protocol.

use std::ffi::{c_int, c_void};

use bywash_client::{Ranges, View};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::convert::{Metadata, metadata};

/// Bytes of one version of an object, or of a range of it. They never change. An object of more than some kilobytes is in the server's
/// memory, uncopied and held there until this and all its buffers are gone.
#[pyclass(frozen, module = "bywash", name = "Object")]
pub(crate) struct NativeObject {
    view: View,
    start: u64,
    hit: bool,
    metadata: Metadata,
}

impl NativeObject {
    /// Takes the ranges of one reply; the bytes of each become one slice.
    pub(crate) fn of(ranges: Ranges) -> Vec<Self> {
        let (metadata, hit) = (metadata(ranges.metadata), ranges.hit);
        let objects = ranges.ranges.into_iter().map(|(start, view)| Self {
            view: view.into_contiguous(),
            start,
            hit,
            metadata: metadata.clone(),
        });
        objects.collect()
    }

    fn bytes(&self) -> &[u8] {
        self.view.contiguous().unwrap_or_default()
    }
}

#[pymethods]
impl NativeObject {
    fn __len__(&self) -> usize {
        self.bytes().len()
    }

    fn __repr__(&self) -> String {
        let (start, end) = (self.start, self.start + self.bytes().len() as u64);
        let place = if self.view.is_leased() {
            "in the server's memory"
        } else {
            "copied"
        };
        format!(
            "<bywash.Object {:?}, bytes {start} to {end}, {place}>",
            self.metadata.0
        )
    }

    /// The bytes as `bytes`, a copy.
    fn tobytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.bytes())
    }

    /// The bytes as a read-only array of `numpy.uint8`, uncopied.
    fn numpy<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let numpy = this.py().import("numpy")?;
        numpy.call_method1("frombuffer", (this, "u1"))
    }

    /// The key.
    #[getter]
    fn key(&self) -> &str {
        &self.metadata.0
    }

    /// Bytes of the whole object.
    #[getter]
    fn size(&self) -> u64 {
        self.metadata.1
    }

    /// Time of the last change, in nanoseconds since 1970.
    #[getter]
    fn modified_ns(&self) -> i64 {
        self.metadata.2
    }

    /// ETag, if the origin has one.
    #[getter]
    fn etag(&self) -> Option<&str> {
        self.metadata.3.as_deref()
    }

    /// Version or generation, if the origin has one.
    #[getter]
    fn version(&self) -> Option<&str> {
        self.metadata.4.as_deref()
    }

    /// Offset of the first byte in the object.
    #[getter]
    fn start(&self) -> u64 {
        self.start
    }

    /// Whether all bytes were in the server's memory.
    #[getter]
    fn hit(&self) -> bool {
        self.hit
    }

    /// Whether the bytes are in the server's memory.
    #[getter]
    fn leased(&self) -> bool {
        self.view.is_leased()
    }

    unsafe fn __getbuffer__(
        this: PyRef<'_, Self>,
        buffer: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        if flags & ffi::PyBUF_WRITABLE == ffi::PyBUF_WRITABLE {
            return Err(PyBufferError::new_err("an object's bytes are read-only"));
        }
        let bytes = this.bytes();
        let (start, len) = (bytes.as_ptr(), bytes.len() as ffi::Py_ssize_t);
        let start = start.cast_mut().cast::<c_void>();
        // SAFETY: the interpreter gives a buffer to fill. It keeps a reference to this object, whose bytes stay until it is gone.
        let filled = unsafe { ffi::PyBuffer_FillInfo(buffer, this.as_ptr(), start, len, 1, flags) };
        match filled {
            0 => Ok(()),
            _ => Err(PyErr::fetch(this.py())),
        }
    }
}
