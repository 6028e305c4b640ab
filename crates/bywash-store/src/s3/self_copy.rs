//! Parts of an upload that the store copies from the object itself, at a condition of its version.

use std::ops::Range;

use http::Method;
use object_store::Result;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::S3Store;
use super::client::STORE;
use super::multipart::NO_COPIES;
use super::put::is_on;
use super::tags::is_unknown;
use crate::http_client::Request;
use crate::interface::lacks;
use crate::multipart_xml::MultipartOutcome;

/// Characters that the name of a source has encoded.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/');

/// Returns whether a copy of a part needs no header but its own. Keys of the client, a payer and another checksum are settings that
/// only object_store's requests have; the name of an access point is no name of a source.
pub(super) fn is_plain(builder: &AmazonS3Builder, bucket: &str) -> bool {
    let given = |name: &str| {
        let key = name.parse::<AmazonS3ConfigKey>().ok();
        key.and_then(|key| builder.get_config_value(&key)).is_some()
    };
    let special = ["aws_sse_customer_key_base64", "aws_checksum_algorithm"];
    !special.into_iter().any(given)
        && !is_on(builder, AmazonS3ConfigKey::RequestPayer)
        && !bucket.starts_with("arn:")
}

impl S3Store {
    /// Has the store copy bytes of the version `e_tag` of the object as a part of an upload for it. Returns the ETag of the part.
    ///
    /// # Errors
    /// `Precondition` if the object has another version, `NotImplemented` if the server makes no such copies.
    pub(super) async fn copy_own_part(
        &self,
        path: &Path,
        upload: &str,
        number: u64,
        e_tag: &str,
        range: Range<u64>,
    ) -> Result<String> {
        let source = format!("{}/{}", self.client.bucket, self.full_path(path));
        let source = utf8_percent_encode(&source, ENCODED).to_string();
        let range = format!("bytes={}-{}", range.start, range.end - 1);
        let request = Request::new(Method::PUT)
            .query("partNumber", number.to_string())
            .query("uploadId", upload)
            .text("x-amz-copy-source", &source)
            .text("x-amz-copy-source-if-match", e_tag)
            .text("x-amz-copy-source-range", &range);
        let response = self.send(path, request).await?;
        // A server that does not know the source takes the request for a part without bytes, and sends no document.
        let ignored = response.status.is_success() && response.body.is_empty();
        if ignored || is_unknown(response.status) {
            return Err(lacks(&self.address(), NO_COPIES));
        }
        // Its document is as in a completion, with an error in a success as there.
        match MultipartOutcome::of_completion(&response) {
            MultipartOutcome::Finished(finished, _) => Ok(finished.e_tag.unwrap_or_default()),
            outcome => {
                let operation = (STORE, "copy a part of");
                Err(outcome.into_error(operation, path, &response, false))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_for_settings_that_they_need_no_headers_of() {
        let plain = AmazonS3Builder::new();
        assert!(is_plain(&plain, "data"));
        assert!(!is_plain(
            &plain,
            "arn:aws:s3:eu-central-1:123456789012:accesspoint/a"
        ));
        for (name, value) in [
            ("aws_sse_customer_key_base64", "a2V5"),
            ("aws_checksum_algorithm", "sha256"),
            ("aws_request_payer", "true"),
        ] {
            let key = name.parse::<AmazonS3ConfigKey>();
            let special = plain.clone().with_config(key.expect("a known name"), value);
            assert!(!is_plain(&special, "data"), "{name}");
        }
    }
}
