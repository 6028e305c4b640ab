//! Whole objects whose headers have text that is not ASCII: by one request of the JSON API, with metadata as a document. The XML API takes
//! such headers for ASCII alone.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method};
use object_store::path::Path;
use object_store::{Attributes, PutMode, PutOptions, PutResult, Result};

use super::GcsClient;
use super::client::{authorised, generic, no_base, refused};
use super::session::{self, Start, UploadKind};
use crate::digest::{ContentDigest, pieces_crc32c};
use crate::error::OriginError;
use crate::http_client::Request;

/// Whether a value among `attributes` is not ASCII.
pub(super) fn has_text(attributes: &Attributes) -> bool {
    attributes.iter().any(|(_, value)| !value.is_ascii())
}

impl GcsClient {
    /// Stores an object with its CRC32C, which Google verifies. `condition`: the generation that is replaced, 0 if there must be none.
    pub(super) async fn put_text(
        &self,
        key: &Path,
        pieces: Vec<Bytes>,
        options: &PutOptions,
        condition: Option<&str>,
    ) -> Result<PutResult> {
        let endpoint = self.endpoint.parse();
        let endpoint = endpoint.map_err(|error| generic(format!("{}: {error}", self.endpoint)))?;
        let start = Start {
            bucket: &self.bucket,
            key: key.as_ref(),
            if_generation: condition,
            attributes: &options.attributes,
            length: None,
        };
        let url = start.url(&endpoint, UploadKind::Multipart);
        let sent = ContentDigest::Crc32c(0).same_of(&pieces);
        let metadata = start.metadata(Some(&pieces_crc32c(&pieces)));
        // Random, so that no client's bytes end the part.
        let boundary = format!("{:032x}", rand::random::<u128>());
        let head = format!(
            "--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{metadata}\r\n--{boundary}\r\nContent-Type: application/octet-stream\r\n\r\n"
        );
        let body = [Bytes::from(head)].into_iter().chain(pieces);
        let body = body.chain([Bytes::from(format!("\r\n--{boundary}--\r\n"))]);
        let kind = format!("multipart/related; boundary={boundary}");
        let kind = HeaderValue::from_str(&kind).map_err(|error| generic(error.to_string()))?;
        let request = Request::new(Method::POST)
            .header(CONTENT_TYPE, kind)
            .body(body.collect());
        let request = authorised(request, self.bearer().await?.as_deref())?;
        let response = self.http.send(url.ok_or_else(no_base)?, request).await?;
        if !response.status.is_success() {
            let reason = session::reason(&response);
            let create = matches!(options.mode, PutMode::Create);
            return Err(refused(&response, "write", key.as_ref(), &reason, create));
        }
        let stored = session::object(&response)
            .map_err(|what| OriginError::bad_response(key, format!("write: {what}")))?;
        match stored.crc32c.map(ContentDigest::Crc32c) {
            Some(other) if other != sent => Err(OriginError::upload_damaged(
                key,
                format!("the store has an object with {other}, and {sent} was sent"),
            )),
            _ => Ok(stored.into()),
        }
    }
}
