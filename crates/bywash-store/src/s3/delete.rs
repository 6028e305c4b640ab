//! Conditional deletes: If-Match of a DELETE.
//!
//! A server that does not know the condition deletes any version. So the request is sent to Amazon, and to another server only
//! if the setting of its bucket states that it heeds the condition.

use http::Method;
use http::header::IF_MATCH;
use object_store::Result;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path;
use url::Url;

use super::S3Store;
use super::client::STORE;
use super::tags::{is_unknown, outcome_of};
use crate::delete_condition::version_deletes;
use crate::error::generic_error;
use crate::http_client::Request;
use crate::interface::{DeleteCondition, VersionDeletes, lacks};

/// Names of the setting, among the settings of `object_store`.
pub(super) const SETTING: [&str; 2] = ["conditional_delete", "aws_conditional_delete"];
/// The setting in the environment.
const VARIABLE: &str = "AWS_CONDITIONAL_DELETE";
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
        let known = self.client.version_deletes == VersionDeletes::ByStore;
        let stated = version_deletes(setting, ("aws_conditional_delete", "etag"), known);
        self.client.version_deletes = stated.map_err(|text| generic_error(STORE, text))?;
        Ok(self)
    }

    /// Returns the store with the setting of `AWS_CONDITIONAL_DELETE`; see [`Self::with_conditional_delete`].
    ///
    /// # Errors
    /// If the setting has another value.
    pub fn with_conditional_delete_of_env(self) -> Result<Self> {
        self.with_conditional_delete(std::env::var(VARIABLE).ok().as_deref())
    }

    pub(super) async fn delete_matching(
        &self,
        path: &Path,
        condition: &DeleteCondition,
    ) -> Result<()> {
        if self.client.version_deletes != VersionDeletes::ByStore {
            return Err(lacks(&self.address(), NOT_SENT));
        }
        let (Some(e_tag), None, None) = (&condition.e_tag, condition.size, condition.modified)
        else {
            return Err(lacks(&self.address(), ONLY_E_TAGS));
        };
        let wanted = match e_tag.as_str() {
            "*" => "*".to_owned(),
            e_tag => format!("\"{e_tag}\""),
        };
        let request = Request::new(Method::DELETE).text(IF_MATCH, &wanted);
        let response = self.send(path, request).await?;
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

/// Labels of hosts that are S3's own, followed by the labels of [`is_place`].
const SERVICES: [&str; 5] = [
    "s3",
    "s3-fips",
    "s3-accelerate",
    "s3-accesspoint",
    "s3-accesspoint-fips",
];

/// Returns whether the host of a URL is one of S3. Machines, load balancers and services of Amazon's customers have names below the
/// same domain, some chosen by the customer.
fn is_amazons(url: &str) -> bool {
    let url = Url::parse(url).ok();
    let host = url.as_ref().and_then(Url::host_str).unwrap_or_default();
    let below = [".amazonaws.com", ".amazonaws.com.cn"]
        .iter()
        .find_map(|domain| host.strip_suffix(domain));
    let labels: Vec<&str> = below.unwrap_or_default().split('.').collect();
    let is_service = |label: &str| SERVICES.contains(&label) || label.starts_with("s3express-");
    let mut ends = (0..labels.len()).map(|at| (labels[at], &labels[at + 1..]));
    ends.any(|(label, after)| match after {
        // The old form `s3-REGION`.
        [] => is_service(label) || label.strip_prefix("s3-").is_some_and(is_region),
        after => is_service(label) && is_place(after),
    })
}

/// Whether labels between the label of S3 and the domain name a region: `[dualstack.][REGION][.vpce]`.
fn is_place(labels: &[&str]) -> bool {
    let labels = labels.strip_prefix(&["dualstack"]).unwrap_or(labels);
    match labels {
        [] => true,
        [region] | [region, "vpce"] => is_region(region),
        _ => false,
    }
}

/// Returns whether a label has the form of a region's name, as `us-gov-west-1`.
fn is_region(label: &str) -> bool {
    let parts: Vec<&str> = label.split('-').collect();
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    match parts.as_slice() {
        [words @ .., number] => {
            words.len() >= 2 && !number.is_empty() && is_number(number) && !words.contains(&"")
        }
        [] => false,
    }
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
            ("https://s3.amazonaws.com", true),
            ("https://bucket.s3.amazonaws.com", true),
            ("https://s3-us-west-2.amazonaws.com", true),
            ("https://s3.dualstack.us-gov-west-1.amazonaws.com", true),
            ("https://s3-fips.us-east-1.amazonaws.com", true),
            ("https://bucket.s3-accelerate.dualstack.amazonaws.com", true),
            (
                "https://point-123456789012.s3-accesspoint.eu-west-1.amazonaws.com",
                true,
            ),
            (
                "https://bucket.vpce-1a2b-xyz.s3.us-east-1.vpce.amazonaws.com",
                true,
            ),
            ("https://s3express-control.us-east-1.amazonaws.com", true),
            (
                "https://internal-minio-1.elb.eu-central-1.amazonaws.com",
                false,
            ),
            ("https://ec2-3-1-2-3.compute-1.amazonaws.com", false),
            ("https://vpce-svc-x.vpce.amazonaws.com", false),
            (
                "https://vpce-1a-x.vpce-svc-0a.us-east-1.vpce.amazonaws.com",
                false,
            ),
            ("https://s3-minio-1.elb.eu-central-1.amazonaws.com", false),
            ("https://s3-minio-1.eu-central-1.elb.amazonaws.com", false),
            (
                "https://s3express-minio-1.eu-central-1.elb.amazonaws.com",
                false,
            ),
            (
                "https://s3express-minio-1.elb.eu-central-1.amazonaws.com",
                false,
            ),
            ("https://s3.compute-1.amazonaws.com", false),
            ("https://a1b2c3.execute-api.us-east-1.amazonaws.com", false),
            ("https://amazonaws.com", false),
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
