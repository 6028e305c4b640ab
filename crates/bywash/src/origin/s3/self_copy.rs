//! Other attributes for an object, by a copy onto itself that the store makes.
//!
//! The copy is an upload whose parts the store copies: its completion has the condition of any write, which stores heed that ignore a
//! condition of a plain copy.

use futures::{StreamExt, TryStreamExt};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use object_store::path::Path;
use object_store::{PutMode, PutMultipartOptions, PutResult, Result};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::S3Store;
use super::client::STORE;
use crate::origin::interface::{AttributeRewrite, CompleteOptions, Origin, UploadedPart};
use crate::origin::multipart_xml::MultipartOutcome;

/// Bytes of a part, unless an object would have too many of them. A store copies some hundred MiB a second, and sends nothing until
/// a part is done.
const PART_BYTES: u64 = 512 << 20;
/// Parts that an upload may have in S3.
const PARTS_OF_UPLOAD: u64 = 10_000;
/// Parts that the store copies at the same time.
const COPIES_IN_FLIGHT: usize = 4;
/// What the name of a source has encoded.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/');

impl S3Store {
    /// Copies the version of an object onto it with other attributes and tags.
    ///
    /// # Errors
    /// `Precondition` if the object has another version.
    pub(super) async fn copy_onto_itself(
        &self,
        path: &Path,
        rewrite: AttributeRewrite,
    ) -> Result<PutResult> {
        let AttributeRewrite {
            version,
            size,
            attributes,
            tags,
        } = rewrite;
        let e_tag = version.e_tag.clone().unwrap_or_default();
        let options = PutMultipartOptions {
            attributes,
            tags,
            ..PutMultipartOptions::default()
        };
        let upload = self.create_upload(path, options).await?;
        let copied = async {
            let parts = self.copy_parts(path, &upload, &e_tag, size).await?;
            let ending = CompleteOptions::from(PutMode::Update(version));
            self.complete_upload(path, &upload, &parts, ending).await
        };
        let copied = copied.await;
        if copied.is_err()
            && let Err(error) = self.abort_upload(path, &upload).await
        {
            tracing::debug!(%path, %error, "abort of a copy that failed");
        }
        copied
    }

    async fn copy_parts(
        &self,
        path: &Path,
        upload: &str,
        e_tag: &str,
        size: u64,
    ) -> Result<Vec<UploadedPart>> {
        let part_bytes = PART_BYTES.max(size.div_ceil(PARTS_OF_UPLOAD));
        let begins = (0..size).step_by(usize::try_from(part_bytes).unwrap_or(usize::MAX));
        let parts = begins.zip(1..).map(|(begin, number)| {
            let last = size.min(begin.saturating_add(part_bytes)) - 1;
            self.copy_part(path, (upload, number), e_tag, (begin, last))
        });
        let parts: Vec<_> = parts.collect();
        let copied = futures::stream::iter(parts).buffered(COPIES_IN_FLIGHT);
        copied.try_collect().await
    }

    async fn copy_part(
        &self,
        path: &Path,
        (upload, number): (&str, u16),
        e_tag: &str,
        (first, last): (u64, u64),
    ) -> Result<UploadedPart> {
        let key = self.full_path(path);
        let source = format!("{}/{key}", self.client.bucket);
        let mut headers = HeaderMap::new();
        for (name, value) in [
            (
                "x-amz-copy-source",
                utf8_percent_encode(&source, ENCODED).to_string(),
            ),
            ("x-amz-copy-source-if-match", e_tag.to_owned()),
            ("x-amz-copy-source-range", format!("bytes={first}-{last}")),
        ] {
            let value = HeaderValue::from_str(&value)
                .map_err(|error| self.client.http.generic(error.to_string()))?;
            headers.insert(HeaderName::from_static(name), value);
        }
        let query = [("partNumber", &*number.to_string()), ("uploadId", upload)];
        let response = self
            .send_request(Method::PUT, path, &query, headers, |request| {
                request.stall(self.client.joining)
            })
            .await?;
        // Its document is that of a completion, with an error in a success as there.
        match MultipartOutcome::of_completion(&response) {
            MultipartOutcome::Finished(finished, _) => Ok(UploadedPart {
                number,
                e_tag: finished.e_tag.unwrap_or_default(),
            }),
            outcome => {
                let operation = (STORE, "copy a part of");
                Err(outcome.into_error(operation, path, &response, false))
            }
        }
    }
}
