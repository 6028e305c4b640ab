//! Fuzzing entry points for a store's responses.

use object_store::path::Path;

use super::*;
use crate::multipart_xml::{MultipartOutcome, PartsPage, complete_body};

/// Parses any bytes as a list of parts: stored ranges must have no gap, and an object's parts must add up to its
/// length.
pub(crate) fn parts(body: &[u8]) {
    let Ok(page) = PartsPage::parse(body) else {
        return;
    };
    let parts: Parts = page
        .parts
        .into_iter()
        .map(|part| (part.number, part))
        .collect();
    let mut end = 0;
    for kept in stored_ranges(&parts) {
        assert_eq!(kept.range.start, end);
        end = kept.range.end;
        if let Some(found) = covering(&parts, end) {
            assert_eq!(found.iter().map(|part| part.size).sum::<u64>(), end);
            complete_body(elements(&found, Checksums::Parts));
            object_e_tag(&found);
        }
    }
}

/// Parses any bytes as a list of uploads: each must be below the prefix, and its token must parse again.
pub(crate) fn uploads(body: &[u8]) {
    let Ok(page) = UploadsPage::parse(body) else {
        return;
    };
    for session in page.sessions(&Path::from("below")) {
        assert!(!session.object.is_root());
        if let Some((upload, parts)) = S3Upload::parse(&session.token.0) {
            assert_eq!(upload.token(&parts), session.token.0);
        }
    }
}

/// Interprets any response to a completion: it may only succeed if status and body do.
pub(crate) fn completion(response: &Response) {
    if let MultipartOutcome::Finished(..) = MultipartOutcome::of_completion(response) {
        assert!(response.status.is_success());
    }
    MultipartOutcome::of_failure(response);
}
