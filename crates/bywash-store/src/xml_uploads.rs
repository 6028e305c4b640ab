//! Requests of multipart uploads by S3's protocol, which Google's XML API also uses: one function a step, for the chunks of sessions and
//! for the parts that clients number.

use http::{HeaderMap, Method};
use object_store::path::Path;
use object_store::{Error, Result};

use super::http_client::{Request, Response};
use super::interface::{ListedParts, UploadedPart, invalid_part};
use super::multipart_xml::{
    MultipartOutcome, PARTS_PER_PAGE, PartElement, PartsPage, complete_body, part_e_tag,
};
use crate::limits::MAX_PARTS_PAGE_BYTES;
use crate::session::Finished;

/// A client of the protocol.
pub(crate) trait XmlUploads: Sync {
    /// The kind of store in errors.
    const STORE: &'static str;

    /// Sends a request about an object, authorized with all its headers.
    fn send_request(
        &self,
        path: &Path,
        request: Request,
    ) -> impl Future<Output = Result<Response>> + Send;

    /// The error for a response that is not the expected one.
    fn refused(
        &self,
        operation: &str,
        path: &Path,
        response: &Response,
        outcome: MultipartOutcome,
    ) -> Error {
        outcome.into_error((Self::STORE, operation), path, response, false)
    }

    /// Sends the part `number`: the headers and body of `part`. Returns its ETag.
    async fn send_part(
        &self,
        path: &Path,
        upload: &str,
        number: u64,
        part: Request,
    ) -> Result<String> {
        let part = part.query("partNumber", number.to_string());
        let response = self
            .send_request(path, part.query("uploadId", upload))
            .await?;
        part_e_tag(&response)
            .map_err(|outcome| self.refused("send part of", path, &response, outcome))
    }

    /// Requests a page of at most `max` parts after `marker`; `None` if the store does not know the upload.
    async fn parts_page(
        &self,
        path: &Path,
        upload: &str,
        marker: &str,
        max: usize,
    ) -> Result<Option<PartsPage>> {
        let request = Request::new(Method::GET)
            .query("max-parts", max.clamp(1, PARTS_PER_PAGE).to_string())
            .query("part-number-marker", marker)
            .query("uploadId", upload)
            .max_response_bytes(MAX_PARTS_PAGE_BYTES);
        let response = self.send_request(path, request).await?;
        if response.status.is_success() {
            let page = PartsPage::parse(&response.body);
            return page
                .map(Some)
                .map_err(|reason| unlisted(Self::STORE, path, &reason));
        }
        match MultipartOutcome::of_failure(&response) {
            MultipartOutcome::Gone => Ok(None),
            outcome => Err(self.refused("list parts of", path, &response, outcome)),
        }
    }

    /// Lists the parts that a client numbered; see [`crate::Origin::uploaded_parts`].
    async fn list_parts(
        &self,
        path: &Path,
        upload: &str,
        after: u16,
        max: usize,
    ) -> Result<ListedParts> {
        let page = self
            .parts_page(path, upload, &after.to_string(), max)
            .await?;
        let page =
            page.ok_or_else(|| MultipartOutcome::gone(Self::STORE, "list parts of", path))?;
        let listed = page
            .listed(after, max)
            .map_err(|reason| unlisted(Self::STORE, path, &reason))?;
        if listed.more && listed.parts.is_empty() && max > 0 {
            // A store that ignores the marker would be asked forever.
            let reason = "the store lists the same parts again";
            return Err(unlisted(Self::STORE, path, reason));
        }
        Ok(listed)
    }

    /// Completes an upload: the headers of `request`, and its body, which names the parts.
    async fn complete(
        &self,
        path: &Path,
        upload: &str,
        request: Request,
    ) -> Result<(Response, MultipartOutcome)> {
        let response = self
            .send_request(path, request.query("uploadId", upload))
            .await?;
        let outcome = MultipartOutcome::of_completion(&response);
        Ok((response, outcome))
    }

    /// Completes an upload of parts that a client numbered; see [`crate::Origin::complete_upload`]. `is_create`: the object must not
    /// exist.
    async fn complete_parts(
        &self,
        path: &Path,
        upload: &str,
        headers: HeaderMap,
        parts: &[UploadedPart],
        is_create: bool,
    ) -> Result<Finished> {
        let body = complete_body(parts.iter().map(PartElement::from));
        let request = Request::new(Method::POST).headers(headers);
        let request = request.body(vec![body.into()]);
        let (response, outcome) = self.complete(path, upload, request).await?;
        match (outcome, parts.first()) {
            (MultipartOutcome::Finished(finished, _), _) => Ok(finished),
            (MultipartOutcome::PartMismatch, Some(part)) => Err(invalid_part(path, part)),
            (outcome, _) => {
                let operation = (Self::STORE, "complete upload of");
                Err(outcome.into_error(operation, path, &response, is_create))
            }
        }
    }
}

fn unlisted(store: &'static str, path: &Path, reason: &str) -> Error {
    let source = format!("list parts of {path}: {reason}").into();
    Error::Generic { store, source }
}
