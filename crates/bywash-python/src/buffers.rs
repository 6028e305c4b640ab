//! Buffers of other objects of the interpreter.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;

/// Bytes of an object with the buffer protocol, which is held while this lives.
pub(crate) struct Bytes(PyBuffer<u8>);

impl Bytes {
    /// Takes the bytes of any contiguous buffer.
    ///
    /// # Errors
    /// `TypeError` if the object has none.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let view = memory(object)?;
        let buffer = PyBuffer::<u8>::get(&view)?;
        if buffer.is_c_contiguous() {
            return Ok(Self(buffer));
        }
        Err(PyBufferError::new_err("the buffer is not contiguous"))
    }

    /// As [`Self::of`], to write to.
    ///
    /// # Errors
    /// `TypeError` if the object cannot be written to.
    pub(crate) fn writable(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let bytes = Self::of(object)?;
        if bytes.0.readonly() {
            return Err(PyTypeError::new_err("the buffer is read-only"));
        }
        Ok(bytes)
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        if self.0.len_bytes() == 0 {
            return &[];
        }
        // SAFETY: the buffer is contiguous and of this length while it is held. A program that changes it during a call writes changed
        // bytes, as with every write of the interpreter.
        unsafe { std::slice::from_raw_parts(self.0.buf_ptr().cast(), self.0.len_bytes()) }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        if self.0.len_bytes() == 0 {
            return &mut [];
        }
        // SAFETY: as above, and it was checked to be writable. The caller alone has this value.
        unsafe { std::slice::from_raw_parts_mut(self.0.buf_ptr().cast(), self.0.len_bytes()) }
    }
}

// SAFETY: the pointer is valid in all threads while the buffer is held.
unsafe impl Send for Bytes {}
// SAFETY: as above.
unsafe impl Sync for Bytes {}

/// A view of an object's buffer as bytes, whatever its elements are.
fn memory<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let view = object
        .py()
        .import("builtins")?
        .getattr("memoryview")?
        .call1((object,))?;
    view.call_method1("cast", ("B",))
}
