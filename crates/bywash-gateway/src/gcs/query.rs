//! Parameters of a request's query.

use http::Uri;

use super::error::{GcsError, GcsResult};

/// Parameters that would change the effect of a request, and are not served.
const NOT_SERVED: [&str; 3] = ["kmsKeyName", "destinationKmsKeyName", "contentEncoding"];

/// Decoded parameters, in their order.
#[derive(Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn new(uri: &Uri) -> Self {
        let query = uri.query().unwrap_or_default().as_bytes();
        Self(form_urlencoded::parse(query).into_owned().collect())
    }

    /// The value of a parameter that is not empty.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(found, _)| found == name);
        found
            .map(|(_, value)| value.as_str())
            .filter(|value| !value.is_empty())
    }

    /// Whether there is a parameter of this name, with a value or without.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(found, _)| found == name)
    }

    /// Adds a parameter, unless the request has it.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        if self.get(name).is_none() {
            self.0.push((name.to_owned(), value.to_owned()));
        }
    }

    /// Parses a parameter that is a whole number.
    pub(crate) fn number(&self, name: &'static str) -> GcsResult<Option<i64>> {
        let parsed = self.get(name).map(|value| {
            value.parse::<i64>().map_err(|_| {
                let message = format!("{name} is a whole number, not {value:?}.");
                GcsError::parameter(name, message)
            })
        });
        parsed.transpose()
    }

    /// Whether a parameter is true; Google's Python client writes `True`.
    pub(crate) fn flag(&self, name: &str) -> bool {
        let value = self.get(name);
        value.is_some_and(|value| value.eq_ignore_ascii_case("true"))
    }

    /// Refuses parameters by name that would otherwise be ignored.
    pub(crate) fn refuse_not_served(&self) -> GcsResult<()> {
        match NOT_SERVED.into_iter().find(|name| self.get(name).is_some()) {
            None => Ok(()),
            Some(name) => Err(GcsError::not_served(format!(
                "The parameter {name} is not served here; leave it out."
            ))),
        }
    }
}
