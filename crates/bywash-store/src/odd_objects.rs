//! Objects with odd keys ([`super::odd_keys`]) at clouds, by requests of their own.

use futures::{StreamExt, TryStreamExt};
use http::{HeaderMap, HeaderValue, Method};
use object_store::path::Path;
use object_store::{Attribute, Attributes, Error, GetOptions, GetResult, Result};

use super::object_head::{Head, checked, conditions};
use super::response::Expected;
use super::tag_document::stated_count;
use crate::error::{OriginError, StatusError, generic_error, not_supported_error};

/// Names of a cloud.
#[derive(Debug)]
pub(crate) struct Names {
    /// The kind of store in errors.
    pub(super) store: &'static str,
    /// The prefix of headers with user metadata.
    pub(super) metadata: &'static str,
    /// The header of versions.
    pub(super) version: &'static str,
}

/// A request for an object that is read.
pub(super) struct OddRead {
    pub(super) method: Method,
    /// Range and conditions.
    pub(super) headers: HeaderMap,
    expected: Expected,
}

impl OddRead {
    /// Returns the request for `options`.
    pub(super) fn new(options: &GetOptions) -> Result<Self> {
        if options.version.is_some() {
            return Err(not_supported_error(
                "a version of an object with such a key is not read; read the newest",
            ));
        }
        let mut headers = HeaderMap::new();
        for (name, value) in conditions(options) {
            let value =
                HeaderValue::try_from(value).map_err(|error| generic_error("HTTP", error))?;
            headers.insert(name, value);
        }
        let method = if options.head {
            Method::HEAD
        } else {
            Method::GET
        };
        let expected = Expected::of(&method, &headers);
        Ok(Self {
            method,
            headers,
            expected,
        })
    }

    /// Returns the object in the response.
    pub(super) fn read(
        &self,
        names: &Names,
        path: &Path,
        options: &GetOptions,
        response: reqwest::Response,
    ) -> Result<GetResult> {
        let bad = |detail| -> Error {
            let object = path.to_string();
            OriginError::bad_response(object, detail)
        };
        let (status, headers) = (response.status(), response.headers());
        self.expected.check(status, headers).map_err(bad)?;
        if !status.is_success() {
            return Err(
                StatusError::new(status, format!("read {path}")).of(names.store, path.as_ref())
            );
        }
        let head = Head::read(path, status, headers).map_err(bad)?;
        let Some(mut head) = head else {
            return Err(bad("it has no length".to_owned()));
        };
        let host = response.url().host_str().unwrap_or_default();
        head = head.with_digest(host, status, headers);
        head.attributes = with_metadata(head.attributes, headers, names.metadata);
        let version = headers
            .get(names.version)
            .and_then(|text| text.to_str().ok());
        head.meta.version = version.map(str::to_owned);
        let tags = stated_count(headers);
        let store = names.store;
        let body = response
            .bytes_stream()
            .map_err(move |error| generic_error(store, error.without_url()));
        let mut found = checked(options, head, body.boxed())?;
        if let Some(tags) = tags {
            found.extensions.insert(tags);
        }
        Ok(found)
    }
}

/// Adds the user metadata of a response.
fn with_metadata(attributes: Attributes, headers: &HeaderMap, prefix: &str) -> Attributes {
    let metadata = headers.iter().filter_map(|(name, value)| {
        let name = name.as_str().strip_prefix(prefix)?;
        let value = value.to_str().ok()?;
        Some((
            Attribute::Metadata(name.to_owned().into()),
            value.to_owned(),
        ))
    });
    let mut all = attributes;
    for (attribute, value) in metadata {
        all.insert(attribute, value.into());
    }
    all
}
