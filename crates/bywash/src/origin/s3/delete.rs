//! Conditional deletes: If-Match of a DELETE.
//!
//! A server that does not know the condition deletes whatever is there. So the request is sent to Amazon, and to another server only
//! if the setting of its bucket states that it heeds the condition.

use http::header::{HeaderValue, IF_MATCH};
use http::{HeaderMap, Method};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path;
use object_store::{Error, Result};
use url::Url;

use super::S3Store;
use super::client::STORE;
use super::tags::{is_unknown, outcome_of};
use crate::origin::interface::{DeleteCondition, lacks};

/// Names of the setting, among those of `object_store`.
pub(super) const SETTING: [&str; 2] = ["conditional_delete", "aws_conditional_delete"];
/// The setting in the environment.
pub(super) const VARIABLE: &str = "AWS_CONDITIONAL_DELETE";
const NOT_SENT: &str = "conditional deletes, as far as is known (set aws_conditional_delete to etag if it heeds If-Match of a DELETE)";
const NOT_HEEDED: &str = "conditional deletes";
const ONLY_E_TAGS: &str = "deletes on the condition of a size or a time";

impl S3Store {
    /// Returns the store with this setting, as `aws_conditional_delete` of the options has it: `etag` if the server heeds If-Match of a
    /// DELETE, `disabled` if not. Without one, only Amazon does.
    ///
    /// # Errors
    /// If the setting has another value.
    pub fn with_conditional_delete(mut self, setting: Option<&str>) -> Result<Self> {
        match setting {
            None => {}
            Some("etag") => self.client.conditional_delete = true,
            Some("disabled") => self.client.conditional_delete = false,
            Some(other) => {
                return Err(Error::Generic {
                    store: STORE,
                    source: format!("aws_conditional_delete is etag or disabled, not {other:?}")
                        .into(),
                });
            }
        }
        Ok(self)
    }

    pub(super) async fn delete_matching(
        &self,
        path: &Path,
        condition: &DeleteCondition,
    ) -> Result<()> {
        if !self.client.conditional_delete {
            return Err(lacks(&self.address(), NOT_SENT));
        }
        let (Some(e_tag), None, None) = (&condition.e_tag, condition.size, condition.modified)
        else {
            return Err(lacks(&self.address(), ONLY_E_TAGS));
        };
        let wanted = match e_tag.as_str() {
            "*" => HeaderValue::from_str(e_tag),
            e_tag => HeaderValue::from_str(&format!("\"{e_tag}\"")),
        };
        let wanted = wanted.map_err(|error| self.client.http.generic(error.to_string()))?;
        let headers = HeaderMap::from_iter([(IF_MATCH, wanted)]);
        let response = self
            .send_request(Method::DELETE, path, &[], headers, |request| request)
            .await?;
        match response.status {
            status if status.is_success() => Ok(()),
            status if is_unknown(status) => Err(lacks(&self.address(), NOT_HEEDED)),
            _ => {
                let operation = (STORE, "delete");
                Err(outcome_of(&response).into_error(operation, path, &response, false))
            }
        }
    }
}

/// Returns whether the endpoint of a builder is Amazon's.
pub(super) fn is_amazon(builder: &AmazonS3Builder) -> bool {
    let endpoint = [AmazonS3ConfigKey::S3Endpoint, AmazonS3ConfigKey::Endpoint];
    let endpoint = endpoint
        .iter()
        .find_map(|key| builder.get_config_value(key));
    endpoint.is_none_or(|url| is_amazons(&url))
}

fn is_amazons(url: &str) -> bool {
    let url = Url::parse(url).ok();
    let host = url.as_ref().and_then(Url::host_str).unwrap_or_default();
    [".amazonaws.com", ".amazonaws.com.cn"]
        .iter()
        .any(|domain| host.ends_with(domain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amazon_is_known_by_its_hosts() {
        for (url, expected) in [
            ("https://s3.eu-central-1.amazonaws.com", true),
            ("https://s3.cn-north-1.amazonaws.com.cn/", true),
            (
                "https://bucket--use1-az5--x-s3.s3express-use1-az5.us-east-1.amazonaws.com",
                true,
            ),
            ("http://127.0.0.1:9000", false),
            ("https://amazonaws.com.example", false),
            ("https://examplamazonaws.com", false),
            ("s3.amazonaws.com", false),
        ] {
            assert_eq!(is_amazons(url), expected, "{url}");
        }
        let builder = AmazonS3Builder::new();
        assert!(is_amazon(&builder));
        assert!(!is_amazon(
            &builder
                .clone()
                .with_config(AmazonS3ConfigKey::S3Endpoint, "http://other")
        ));
        assert!(!is_amazon(&builder.with_endpoint("http://other")));
    }
}
