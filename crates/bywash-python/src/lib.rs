//! The Python extension: the local client's calls, with the interpreter released while they wait. `python/bywash` is the package.
#![allow(
    clippy::too_many_arguments,
    reason = "the arguments of Python signatures, beside `self` and the token of the interpreter"
)]
#![allow(
    unsafe_code,
    reason = "buffers of the interpreter are pointers; each block states what keeps them valid"
)]

mod buffers;
mod convert;
mod pending;
mod reads;
mod view;
mod writes;

use std::time::Duration;

use bywash_client::{Client, GetOptions, ListOptions};
use pyo3::exceptions::{PyImportError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;

use convert::{Metadata, Page, condition, metadata, page, raise, undeleted};

/// Number that each process gives its first interpreter.
const MAIN_INTERPRETER: i64 = 0;

/// A client of this user's server.
#[pyclass(frozen, module = "bywash._native", name = "Client")]
struct NativeClient {
    client: Client,
}

impl NativeClient {
    fn options(
        if_match: Option<String>,
        if_none_match: Option<String>,
        version: Option<String>,
    ) -> GetOptions {
        GetOptions {
            if_match,
            if_none_match,
            version,
            inline_bytes: None,
        }
    }
}

#[pymethods]
impl NativeClient {
    /// Connects to the server that listens at `socket`. Calls end after `deadline` seconds.
    #[new]
    fn new(py: Python<'_>, socket: std::path::PathBuf, deadline: f64) -> PyResult<Self> {
        let deadline = Duration::try_from_secs_f64(deadline)
            .map_err(|error| PyValueError::new_err(format!("deadline {deadline}: {error}")))?;
        let client = py
            .detach(|| Client::connect_to(socket))
            .map_err(|error| raise(py, &error))?;
        Ok(Self {
            client: client.with_deadline(deadline),
        })
    }

    /// Version of the server, URLs of its endpoints, and whether this process maps its memory.
    fn server(&self, py: Python<'_>) -> PyResult<(String, String, Option<String>, bool)> {
        let server = py
            .detach(|| self.client.server())
            .map_err(|error| raise(py, &error))?;
        Ok((server.version, server.s3, server.gcs, server.shares_memory))
    }

    fn buckets(&self, py: Python<'_>) -> PyResult<Vec<(String, String)>> {
        py.detach(|| self.client.buckets())
            .map_err(|error| raise(py, &error))
    }

    fn make_bucket(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let made = py.detach(|| self.client.make_bucket(name).map(drop));
        made.map_err(|error| raise(py, &error))
    }

    fn remove_bucket(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let removed = py.detach(|| self.client.remove_bucket(name));
        removed.map_err(|error| raise(py, &error))
    }

    fn attach(
        &self,
        py: Python<'_>,
        address: &str,
        options: Vec<(String, String)>,
    ) -> PyResult<String> {
        let attached = py.detach(|| {
            let pairs = options
                .iter()
                .map(|(name, value)| (name.as_str(), value.as_str()));
            let options: Vec<_> = pairs.collect();
            self.client.attach(address, &options)
        });
        let bucket = attached.map_err(|error| raise(py, &error))?;
        Ok(bucket.name().to_owned())
    }

    fn status(&self, py: Python<'_>) -> PyResult<String> {
        py.detach(|| self.client.status())
            .map_err(|error| raise(py, &error))
    }

    #[pyo3(signature = (bucket, key, if_match=None, if_none_match=None, version=None))]
    fn head(
        &self,
        py: Python<'_>,
        bucket: &str,
        key: &str,
        if_match: Option<String>,
        if_none_match: Option<String>,
        version: Option<String>,
    ) -> PyResult<Metadata> {
        let options = Self::options(if_match, if_none_match, version);
        let found = py.detach(|| self.client.bucket(bucket).head(key, &options));
        found.map(metadata).map_err(|error| raise(py, &error))
    }

    fn list_page(
        &self,
        py: Python<'_>,
        bucket: &str,
        prefix: &str,
        delimiter: &str,
        after: Option<&str>,
        limit: u32,
    ) -> PyResult<Page> {
        let options = ListOptions {
            prefix,
            delimiter,
            after,
            limit,
        };
        let listed = py.detach(|| self.client.bucket(bucket).list_page(options));
        listed.map(page).map_err(|error| raise(py, &error))
    }

    #[pyo3(signature = (from_bucket, from_key, to_bucket, to_key, if_match=None, create=false))]
    fn copy(
        &self,
        py: Python<'_>,
        from_bucket: &str,
        from_key: &str,
        to_bucket: &str,
        to_key: &str,
        if_match: Option<String>,
        create: bool,
    ) -> PyResult<()> {
        let condition = condition(if_match, create)?;
        let copied = py.detach(|| {
            let (from, to) = (
                self.client.bucket(from_bucket),
                self.client.bucket(to_bucket),
            );
            from.copy(from_key, &to, to_key, &condition)
        });
        copied.map_err(|error| raise(py, &error))
    }

    /// Deletes keys. Returns those that were not deleted, with the errors.
    #[pyo3(signature = (bucket, keys, if_match=None))]
    fn delete(
        &self,
        py: Python<'_>,
        bucket: &str,
        keys: Vec<String>,
        if_match: Option<&str>,
    ) -> PyResult<Vec<(String, Py<PyAny>)>> {
        let deleted = py.detach(|| {
            let bucket = self.client.bucket(bucket);
            match (if_match, keys.as_slice()) {
                (Some(etag), [key]) => bucket.delete_if(key, etag).map(|()| Vec::new()),
                _ => {
                    let keys: Vec<_> = keys.iter().map(String::as_str).collect();
                    bucket.delete_all(&keys)
                }
            }
        });
        let failed = deleted.map_err(|error| raise(py, &error))?;
        Ok(undeleted(py, failed))
    }

    fn sign(
        &self,
        py: Python<'_>,
        bucket: &str,
        method: &str,
        key: &str,
        expires: u64,
    ) -> PyResult<String> {
        let expires = Duration::from_secs(expires);
        let signed = py.detach(|| self.client.bucket(bucket).sign(method, key, expires));
        signed.map_err(|error| raise(py, &error))
    }
}

/// Fails in a subinterpreter: the types of the extension belong to the interpreter that made them first.
fn refuse_subinterpreters() -> PyResult<()> {
    // SAFETY: the module is being initialised, by a thread that is attached to the current interpreter.
    let current = unsafe { ffi::PyInterpreterState_Get() };
    // SAFETY: `current` is the interpreter of this thread, which lives while the thread is attached.
    let interpreter = unsafe { ffi::PyInterpreterState_GetID(current) };
    if interpreter == MAIN_INTERPRETER {
        return Ok(());
    }
    Err(PyImportError::new_err(
        "bywash cannot be imported in a subinterpreter: import it in the main one, or use processes",
    ))
}

#[pymodule(gil_used = false)]
mod _native {
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(_module: &Bound<'_, PyModule>) -> PyResult<()> {
        super::refuse_subinterpreters()
    }

    #[pymodule_export]
    use super::NativeClient;
    #[pymodule_export]
    use super::pending::NativePending;
    #[pymodule_export]
    use super::view::NativeObject;
    #[pymodule_export]
    use super::writes::NativeWriter;
}
