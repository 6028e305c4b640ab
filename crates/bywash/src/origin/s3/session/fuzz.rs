//! What the fuzzers demand of a store's answers.

use object_store::path::Path;

use super::*;

/// Any bytes as a list of parts: what is kept has no gap, and an object's parts are as long as it is.
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
    for kept in kept(&parts) {
        assert_eq!(kept.range.start, end);
        end = kept.range.end;
        if let Some(found) = covering(&parts, end) {
            assert_eq!(found.iter().map(|part| part.size).sum::<u64>(), end);
            complete_body(&found, Checksums::Parts);
            object_e_tag(&found);
        }
    }
}

/// Any bytes as a list of uploads: all that is ours lies below the prefix, and its token is read again.
pub(crate) fn uploads(body: &[u8]) {
    let Ok(page) = UploadsPage::parse(body) else {
        return;
    };
    for session in page.sessions(&Path::from("below")) {
        assert!(!session.object.is_root());
        if let Some((upload, parts)) = Upload::parse(&session.token.0) {
            assert_eq!(upload.token(&parts), session.token.0);
        }
    }
}

/// Any answer to a completion: only a success of the status and of the body is one.
pub(crate) fn completion(answer: &Answer) {
    if let Meaning::Finished(_) = completed(answer, Checksums::Object) {
        assert!(answer.status.is_success());
    }
    failure(answer);
}
