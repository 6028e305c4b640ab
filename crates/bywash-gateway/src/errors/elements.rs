//! Elements of error documents other than code and message: the object of the error, as clients
//! read it.
//!
//! Source: "Error responses", Amazon S3 API reference, and the documents that S3 sends. They travel as the source of an
//! [`S3Error`], which `s3s` does not write.

use std::borrow::Cow;
use std::fmt;

use s3s::{S3Error, S3ErrorCode};

/// Names and values of elements, in the order of the document.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Elements(Vec<(&'static str, String)>);

impl Elements {
    /// Elements of an error.
    pub(crate) fn of(error: &S3Error) -> Option<&Self> {
        error.source()?.downcast_ref()
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let mut all = self.0.iter();
        let found = all.find(|(known, _)| *known == name)?;
        Some(&found.1)
    }

    /// Removes an element, and returns its value.
    pub(crate) fn take(&mut self, name: &str) -> Option<String> {
        let at = self.0.iter().position(|(known, _)| *known == name)?;
        Some(self.0.remove(at).1)
    }

    /// Adds an element as the first one, unless there is one with its name.
    pub(crate) fn put_first(&mut self, name: &'static str, value: impl Into<String>) {
        if self.get(name).is_none() {
            self.0.insert(0, (name, value.into()));
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.0.iter().map(|(name, value)| (*name, value.as_str()))
    }
}

impl fmt::Display for Elements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, value)) in self.iter().enumerate() {
            write!(f, "{}{name}: {value}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl std::error::Error for Elements {}

/// Adds elements to an error.
pub(crate) trait WithElements: Sized {
    /// Adds elements after its own.
    #[must_use]
    fn with<'v, V: Into<Cow<'v, str>>>(
        self,
        elements: impl IntoIterator<Item = (&'static str, V)>,
    ) -> Self;
}

impl WithElements for S3Error {
    fn with<'v, V: Into<Cow<'v, str>>>(
        mut self,
        elements: impl IntoIterator<Item = (&'static str, V)>,
    ) -> Self {
        let mut all = Elements::of(&self).cloned().unwrap_or_default();
        let more = elements.into_iter();
        all.0
            .extend(more.map(|(name, value)| (name, value.into().into_owned())));
        self.set_source(Box::new(all));
        self
    }
}

/// An error about the value of a header or parameter.
pub(crate) fn invalid_argument(name: &str, value: &str, message: impl Into<String>) -> S3Error {
    super::fault(S3ErrorCode::InvalidArgument, message)
        .with([("ArgumentName", name), ("ArgumentValue", value)])
}
