//! Settings of one origin, for several origins at once that cannot share the environment's.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use http::{HeaderMap, HeaderName, HeaderValue};
#[cfg(feature = "network")]
use object_store::ClientConfigKey;

/// Hosts to which redirects of a web origin are followed; never from `https` to `http`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redirects {
    /// Only the host of the URL, by name and port.
    SameHost,
    /// Any host. The URL's query and user info and the bucket's headers are not sent there.
    Any,
}

impl FromStr for Redirects {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "same-host" => Ok(Self::SameHost),
            "any" => Ok(Self::Any),
            other => Err(format!(
                "redirects {other:?} is not known; write same-host or any"
            )),
        }
    }
}

impl fmt::Display for Redirects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SameHost => "same-host",
            Self::Any => "any",
        })
    }
}

/// Settings of one origin. If there are any, the environment is ignored: an origin has credentials from one source,
/// never half of two.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct OriginOptions {
    /// By the names `object_store`, and with it delta-rs, Polars and others, knows them: `endpoint`, `region`,
    /// `access_key_id`, `secret_access_key`, and `profile`, which names one of `~/.aws/credentials`;
    /// `service_account_key`, `base_url`; `account_name`, `account_key`, `sas_key`, `use_emulator`,
    /// `connection_string`; ...
    pub options: BTreeMap<String, String>,
    /// Headers sent with each request; for `http://` and `https://` origins.
    pub headers: BTreeMap<String, String>,
    /// Allowed targets of redirects; for `http://` and `https://` origins. `None`: any host, but only the same host
    /// for a URL with a query or headers.
    pub redirects: Option<Redirects>,
}

/// Names only: values are often secrets.
impl fmt::Debug for OriginOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OriginOptions")
            .field("options", &self.options.keys())
            .field("headers", &self.headers.keys())
            .field("redirects", &self.redirects)
            .finish()
    }
}

/// Invalid setting for this kind of origin. Messages contain no values, which may be secrets.
#[derive(Debug, thiserror::Error)]
pub enum OriginOptionsError {
    /// The kind of origin has no such option.
    #[error(
        "a {kind} origin has no option {name:?}; see the names in object_store's documentation of its builder"
    )]
    UnknownOption {
        /// The kind of origin.
        kind: &'static str,
        /// The option.
        name: String,
    },
    /// The option is set by the engine.
    #[error(
        "option {name:?} is not taken: time limits and connections are the engine's; remove it"
    )]
    EnginesOwn {
        /// The option.
        name: String,
    },
    /// Headers for an origin that is not a web server.
    #[error("a {kind} origin takes no headers; they are for http:// and https:// origins")]
    NoHeaders {
        /// The kind of origin.
        kind: &'static str,
    },
    /// A redirect rule for an origin that is not a web server.
    #[error("a {kind} origin takes no redirects; the setting is for http:// and https:// origins")]
    NoRedirects {
        /// The kind of origin.
        kind: &'static str,
    },
    /// The text is not allowed in a header.
    #[error("header {name:?} has a name or value that HTTP does not allow")]
    BadHeader {
        /// The header.
        name: String,
    },
}

impl From<OriginOptionsError> for object_store::Error {
    fn from(error: OriginOptionsError) -> Self {
        Self::Generic {
            store: "Bywash",
            source: Box::new(error),
        }
    }
}

impl OriginOptions {
    /// Whether there are no settings, so that the environment is used.
    pub(super) fn is_empty(&self) -> bool {
        self.options.is_empty() && self.headers.is_empty() && self.redirects.is_none()
    }

    /// Returns the value of the option with one of these names, and all other options.
    pub(super) fn split_off(&self, names: &[&str]) -> (Option<String>, Self) {
        let mut rest = self.clone();
        let is_named = |name: &String| names.contains(&&*name.to_ascii_lowercase());
        let found = self.options.iter().find(|(name, _)| is_named(name));
        rest.options.retain(|name, _| !is_named(name));
        (found.map(|(_, value)| value.clone()), rest)
    }

    /// Returns the options with the builder's own keys.
    #[cfg(feature = "network")]
    pub(super) fn keys<K: FromStr>(
        &self,
        kind: &'static str,
    ) -> Result<Vec<(K, String)>, OriginOptionsError> {
        self.no_web(kind)?;
        let mut keys = Vec::with_capacity(self.options.len());
        for (name, value) in &self.options {
            let name = name.to_ascii_lowercase();
            match name.parse::<ClientConfigKey>() {
                // Always allowed: ignored.
                Ok(ClientConfigKey::AllowHttp) => continue,
                Ok(_) => return Err(OriginOptionsError::EnginesOwn { name }),
                Err(_) => {}
            }
            match name.parse() {
                Ok(key) => keys.push((key, value.clone())),
                Err(_) => return Err(OriginOptionsError::UnknownOption { kind, name }),
            }
        }
        Ok(keys)
    }

    /// Fails unless there are no options.
    pub(super) fn no_options(&self, kind: &'static str) -> Result<(), OriginOptionsError> {
        match self.options.keys().next() {
            None => Ok(()),
            Some(name) => Err(OriginOptionsError::UnknownOption {
                kind,
                name: name.clone(),
            }),
        }
    }

    /// Fails if there is a setting for web servers only.
    pub(super) fn no_web(&self, kind: &'static str) -> Result<(), OriginOptionsError> {
        match (self.headers.is_empty(), self.redirects) {
            (true, None) => Ok(()),
            (false, _) => Err(OriginOptionsError::NoHeaders { kind }),
            (true, Some(_)) => Err(OriginOptionsError::NoRedirects { kind }),
        }
    }

    /// The headers, marked sensitive so that they are not logged.
    pub(super) fn header_map(&self) -> Result<HeaderMap, OriginOptionsError> {
        let header = |(name, value): (&String, &String)| {
            let bad = || OriginOptionsError::BadHeader { name: name.clone() };
            let mut value = HeaderValue::from_str(value).map_err(|_| bad())?;
            value.set_sensitive(true);
            Ok((HeaderName::from_str(name).map_err(|_| bad())?, value))
        };
        self.headers.iter().map(header).collect()
    }
}

#[cfg(all(test, feature = "s3"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use object_store::aws::AmazonS3ConfigKey;

    use super::*;

    fn options(pairs: &[(&str, &str)]) -> OriginOptions {
        let text = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        OriginOptions {
            options: pairs.iter().map(text).collect(),
            ..OriginOptions::default()
        }
    }

    #[test]
    fn options_use_object_stores_names_and_others_are_rejected() {
        let known = options(&[
            ("endpoint", "http://e"),
            ("AWS_REGION", "r"),
            ("allow_http", "true"),
        ]);
        let keys: Vec<(AmazonS3ConfigKey, String)> = known.keys("s3").unwrap();
        assert_eq!(keys.len(), 2);
        assert!(keys.contains(&(AmazonS3ConfigKey::Region, "r".to_owned())));
        for (bad, says) in [("secret", "no option"), ("timeout", "engine's")] {
            let error = options(&[(bad, "hidden")])
                .keys::<AmazonS3ConfigKey>("s3")
                .unwrap_err();
            let text = error.to_string();
            assert!(text.contains(says) && !text.contains("hidden"), "{text}");
        }
    }

    #[test]
    fn values_are_not_displayed() {
        let mut settings = options(&[("secret_access_key", "hidden")]);
        settings
            .headers
            .insert("x-key".to_owned(), "hidden\n".to_owned());
        assert!(!format!("{settings:?}").contains("hidden"));
        let error = settings.header_map().unwrap_err().to_string();
        assert!(
            error.contains("x-key") && !error.contains("hidden"),
            "{error}"
        );
    }
}
