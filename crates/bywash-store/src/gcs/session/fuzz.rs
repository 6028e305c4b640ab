//! Fuzzing entry points for the store's responses.

use super::*;

/// Interprets any response to each kind of request: the outcome must never exceed the bytes sent.
pub(crate) fn response(response: &Response) {
    const LENGTH: u64 = 1000;
    let finish = |tail| SessionRequest::Finish {
        tail,
        length: LENGTH,
        crc32c: 1,
    };
    let steps = [
        SessionRequest::Append(100..200),
        finish(None),
        finish(Some(500..LENGTH)),
        SessionRequest::Query,
        SessionRequest::Cancel,
    ];
    for request in steps {
        match (&request, outcome(&request, response)) {
            (SessionRequest::Append(range), SessionOutcome::Stored(kept)) => {
                assert!(kept <= range.end)
            }
            (SessionRequest::Finish { length, .. }, SessionOutcome::Stored(kept)) => {
                assert!(kept <= *length)
            }
            (SessionRequest::Finish { length, .. }, SessionOutcome::Finished(finished)) => {
                assert!(response.status == 200 || response.status == 201);
                assert!(finished.length.is_none_or(|stored| stored == *length));
            }
            (SessionRequest::Append(_) | SessionRequest::Cancel, SessionOutcome::Finished(_)) => {
                panic!("{request:?} cannot finish an object")
            }
            _ => {}
        }
    }
    reason(response);
    let endpoint = Url::parse("http://127.0.0.1:1/").expect("a plain address");
    started(response, 201, &endpoint);
}
