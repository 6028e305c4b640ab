#![allow(clippy::unwrap_used, reason = "tests")]

use bytes::Bytes;
use http::StatusCode;

use super::*;

const UNIT: u64 = 262_144;

fn response(status: u16, headers: &[(&'static str, &str)], body: &str) -> Response {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(*name, value.parse().unwrap());
    }
    Response {
        status: StatusCode::from_u16(status).unwrap(),
        headers: map,
        body: Bytes::copy_from_slice(body.as_bytes()),
    }
}

/// A 308 with `bytes=0-LAST`.
fn keeps(last: u64) -> Response {
    response(308, &[("range", &format!("bytes=0-{last}"))], "")
}

fn object(size: u64) -> Response {
    let body = format!(
        r#"{{"size":"{size}","generation":"7","crc32c":"yZRlqg==","md5Hash":"XrY7u+Ae7tCTyyK7j1rNww==","etag":"CAE="}}"#
    );
    response(
        200,
        &[("content-type", "application/json; charset=UTF-8")],
        &body,
    )
}

fn finish(tail: Option<Range<u64>>, length: u64) -> SessionRequest {
    SessionRequest::Finish {
        tail,
        length,
        crc32c: 0xc994_65aa,
    }
}

fn contradiction(request: &SessionRequest, response: &Response, mark: &str) {
    match outcome(request, response) {
        SessionOutcome::Contradiction(text) => {
            assert!(text.ends_with(&format!("({mark})")), "{text}")
        }
        other => panic!("{mark}: {other:?}"),
    }
}

#[test]
fn append_stored_completely() {
    let request = SessionRequest::Append(0..UNIT);
    assert_eq!(
        outcome(&request, &keeps(UNIT - 1)),
        SessionOutcome::Stored(UNIT)
    );
}

#[test]
fn append_stored_partially() {
    let request = SessionRequest::Append(0..UNIT);
    for kept in [1, 1000, UNIT - 1] {
        assert_eq!(
            outcome(&request, &keeps(kept - 1)),
            SessionOutcome::Stored(kept)
        );
    }
}

#[test]
fn append_without_range_stored_nothing() {
    for request in [
        SessionRequest::Append(0..UNIT),
        SessionRequest::Append(UNIT..2 * UNIT),
        SessionRequest::Query,
    ] {
        assert_eq!(
            outcome(&request, &response(308, &[], "")),
            SessionOutcome::Stored(0)
        );
    }
}

#[test]
fn s_0_unknown_status_is_never_a_success() {
    let json = [("content-type", "application/json")];
    for body in ["{", "[]", "{\"kind\":\"x\"}", "{\"size\":\"many\"}"] {
        for request in [finish(None, 5), SessionRequest::Query] {
            let result = outcome(&request, &response(200, &json, body));
            assert!(
                matches!(result, SessionOutcome::Invalid(_)),
                "{body}: {result:?}"
            );
        }
    }
    for range in [
        "bytes=1-5",
        "bytes=0-",
        "bytes=0-+5",
        "bytes=0- 5",
        "0-5",
        "bytes=0-x",
    ] {
        let result = outcome(
            &SessionRequest::Query,
            &response(308, &[("range", range)], ""),
        );
        assert!(
            matches!(result, SessionOutcome::Invalid(_)),
            "{range}: {result:?}"
        );
    }
}

#[test]
fn s_0_1_success_without_json() {
    let page = response(
        200,
        &[("content-type", "text/html")],
        "<html>Welcome</html>",
    );
    let empty = response(200, &[], "");
    for result in [page, empty] {
        let result = outcome(&finish(None, 5), &result);
        assert!(
            matches!(&result, SessionOutcome::Invalid(text) if text.ends_with("(S.0.1)")),
            "{result:?}"
        );
    }
}

#[test]
fn s_1_append_to_an_ended_session() {
    contradiction(&SessionRequest::Append(0..UNIT), &object(2 * UNIT), "S.1");
}

#[test]
fn s_2_finish_with_fewer_bytes_than_stored() {
    contradiction(&finish(None, UNIT), &keeps(2 * UNIT - 1), "S.2");
    contradiction(&finish(Some(10..20), 20), &keeps(20), "S.2");
}

#[test]
fn s_3_finish_with_more_bytes_than_stored() {
    contradiction(&finish(None, 2 * UNIT), &keeps(UNIT - 1), "S.3");
    contradiction(&finish(None, 1), &response(308, &[], ""), "S.3");
}

#[test]
fn s_4_finish_of_an_ended_session_of_that_length() {
    let expected = Finished {
        e_tag: Some("\"5eb63bbbe01eeed093cb22bb8f5acdc3\"".to_owned()),
        version: Some("7".to_owned()),
        length: Some(262_114),
        crc32c: Some(0xc994_65aa),
    };
    let result = outcome(&finish(None, 262_114), &object(262_114));
    assert_eq!(result, SessionOutcome::Finished(expected));
}

#[test]
fn s_4_1_the_object_is_shorter() {
    contradiction(&finish(None, 2 * UNIT), &object(262_114), "S.4.1");
}

#[test]
fn s_4_2_the_object_is_longer() {
    contradiction(&finish(None, UNIT / 2), &object(262_114), "S.4.2");
}

#[test]
fn s_5_gap_is_not_a_transient_503() {
    let text = "Invalid request.  According to the Content-Range header, the upload offset is 524288 byte(s), which \
                exceeds already uploaded size of 262144 byte(s).";
    let plain = [("content-type", "text/plain; charset=utf-8")];
    for status in [400, 503] {
        for request in [
            SessionRequest::Append(2 * UNIT..3 * UNIT),
            finish(Some(5..9), 9),
            SessionRequest::Query,
        ] {
            contradiction(&request, &response(status, &plain, text), "S.5");
        }
    }
    // The same words in JSON, another plain text, and a chunk that begins earlier are no gap.
    let json = response(503, &[("content-type", "application/json")], text);
    let busy = response(503, &plain, "Try again");
    let earlier = response(503, &plain, "Content-Range is earlier than what is stored");
    for result in [json, busy, earlier] {
        assert_eq!(
            outcome(&SessionRequest::Append(0..UNIT), &result),
            SessionOutcome::Refused
        );
    }
}

#[test]
fn s_7_more_acknowledged_than_sent() {
    contradiction(&SessionRequest::Append(0..UNIT), &keeps(UNIT), "S.7");
}

#[test]
fn s_9_less_acknowledged_than_sent_is_sent_again() {
    // The tail went with the completion: the store may have a part of it, or all, without having ended.
    let request = finish(Some(UNIT..UNIT + 10), UNIT + 10);
    for kept in [UNIT, UNIT + 3, UNIT + 10] {
        assert_eq!(
            outcome(&request, &keeps(kept - 1)),
            SessionOutcome::Stored(kept)
        );
    }
}

#[test]
fn only_200_and_201_end_an_upload() {
    let all = SessionOutcome::Stored(20);
    assert_eq!(outcome(&finish(None, 20), &keeps(19)), all);
    assert_eq!(outcome(&finish(Some(0..20), 20), &keeps(19)), all);
    assert_eq!(
        outcome(&finish(None, 0), &response(308, &[], "")),
        SessionOutcome::Stored(0)
    );
    for status in [202, 204, 206, 302, 500] {
        assert_eq!(
            outcome(&finish(None, 0), &response(status, &[], "")),
            SessionOutcome::Refused
        );
    }
    let created = Response {
        status: StatusCode::CREATED,
        ..object(20)
    };
    assert!(matches!(
        outcome(&finish(None, 20), &created),
        SessionOutcome::Finished(_)
    ));
}

#[test]
fn query_returns_a_completion_whose_response_was_lost() {
    let result = outcome(&SessionRequest::Query, &object(5));
    assert!(
        matches!(
            &result,
            SessionOutcome::Finished(Finished {
                length: Some(5),
                ..
            })
        ),
        "{result:?}"
    );
}

#[test]
fn session_of_a_signed_url_completes_without_a_body() {
    let headers = [
        ("x-goog-stored-content-length", "5"),
        ("x-goog-generation", "9"),
        ("x-goog-hash", "md5=XrY7u+Ae7tCTyyK7j1rNww=="),
        ("x-goog-hash", "crc32c=yZRlqg=="),
        ("etag", "\"a\""),
    ];
    let expected = Finished {
        e_tag: Some("\"a\"".to_owned()),
        version: Some("9".to_owned()),
        length: Some(5),
        crc32c: Some(0xc994_65aa),
    };
    let result = response(200, &headers, "");
    assert_eq!(
        outcome(&finish(None, 5), &result),
        SessionOutcome::Finished(expected)
    );
    contradiction(&finish(None, 6), &result, "S.4.1");
}

#[test]
fn unknown_cancelled_and_expired_sessions_are_gone() {
    for status in [404, 410, 499] {
        for request in [
            SessionRequest::Append(0..UNIT),
            finish(None, 5),
            SessionRequest::Query,
            SessionRequest::Cancel,
        ] {
            assert_eq!(
                outcome(&request, &response(status, &[], "")),
                SessionOutcome::Gone
            );
        }
    }
    assert_eq!(
        outcome(&SessionRequest::Cancel, &response(204, &[], "")),
        SessionOutcome::Gone
    );
    assert_eq!(
        outcome(&SessionRequest::Cancel, &object(5)),
        SessionOutcome::Gone
    );
}

#[test]
fn refusals_keep_their_status() {
    for status in [400, 401, 403, 408, 412, 429, 500, 502, 503, 504] {
        assert_eq!(
            outcome(&SessionRequest::Append(0..UNIT), &response(status, &[], "")),
            SessionOutcome::Refused
        );
    }
    let json = r#"{"error":{"code":412,"message":"At least one did not hold.","errors":[{"reason":"conditionNotMet"}]}}"#;
    let text = reason(&response(412, &[], json));
    assert_eq!(text, "At least one did not hold. (conditionNotMet)");
    assert_eq!(reason(&response(503, &[], " busy ")), "busy");
}

#[test]
fn status_200_with_override_counts_as_308() {
    let result = response(
        200,
        &[
            ("x-http-status-code-override", "308"),
            ("range", "bytes=0-262143"),
        ],
        "",
    );
    assert_eq!(
        outcome(&SessionRequest::Append(0..UNIT), &result),
        SessionOutcome::Stored(UNIT)
    );
}

#[test]
fn content_range_formats() {
    let form = |request: SessionRequest| request.content_range();
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(
        form(SessionRequest::Append(0..UNIT)),
        some("bytes 0-262143/*")
    );
    let far = 5_u64 << 40;
    assert_eq!(
        form(SessionRequest::Append(far - UNIT..far)),
        some("bytes 5497557876736-5497558138879/*")
    );
    assert_eq!(
        form(finish(Some(UNIT..UNIT + 1), UNIT + 1)),
        some("bytes 262144-262144/262145")
    );
    assert_eq!(form(finish(None, UNIT)), some("bytes */262144"));
    assert_eq!(form(finish(Some(0..0), 0)), some("bytes */0"));
    assert_eq!(form(SessionRequest::Query), some("bytes */*"));
    assert_eq!(form(SessionRequest::Cancel), None);
    assert_eq!(finish(None, 5).hash(), some("crc32c=yZRlqg=="));
    assert_eq!(SessionRequest::Append(0..UNIT).hash(), None);
    assert_eq!(SessionRequest::Cancel.method(), Method::DELETE);
    assert_eq!(SessionRequest::Query.method(), Method::PUT);
}

#[test]
fn start_request_contains_object_condition_and_metadata() {
    let endpoint: Url = "http://127.0.0.1:9".parse().unwrap();
    let mut attributes = Attributes::new();
    attributes.insert(Attribute::CacheControl, "no-store".into());
    attributes.insert(Attribute::Metadata("owner".into()), "me \"&\" you".into());
    let start = Start {
        bucket: "data",
        key: "a b/c&d=ü",
        if_generation: Some("0"),
        attributes: &attributes,
        length: None,
    };
    assert_eq!(
        start
            .url(&endpoint, UploadKind::Resumable)
            .unwrap()
            .as_str(),
        "http://127.0.0.1:9/upload/storage/v1/b/data/o?uploadType=resumable&name=a+b%2Fc%26d%3D%C3%BC&ifGenerationMatch=0"
    );
    let metadata: Value = serde_json::from_str(&start.metadata(None)).unwrap();
    let expected = json!({
        "contentType": "application/octet-stream",
        "cacheControl": "no-store",
        "metadata": {"owner": "me \"&\" you"},
    });
    assert_eq!(metadata, expected);
}

#[test]
fn slashes_of_a_key_are_escaped_in_the_json_api() {
    let endpoint: Url = "http://127.0.0.1:9".parse().unwrap();
    assert_eq!(
        object_url(&endpoint, "data", "a b/c").unwrap().as_str(),
        "http://127.0.0.1:9/storage/v1/b/data/o/a%20b%2Fc?fields=size%2Cgeneration%2Ccrc32c%2Cmd5Hash"
    );
}

#[test]
fn start_succeeds_only_with_its_status_and_a_location() {
    let endpoint: Url = "http://127.0.0.1:9".parse().unwrap();
    let location = [("location", "http://127.0.0.1:9/upload?upload_id=x")];
    let url = started(&response(200, &location, ""), 200, &endpoint).unwrap();
    assert_eq!(url.query(), Some("upload_id=x"));
    assert_eq!(started(&response(201, &location, ""), 200, &endpoint), None);
    assert_eq!(started(&response(200, &location, ""), 201, &endpoint), None);
    assert_eq!(started(&response(200, &[], ""), 200, &endpoint), None);
}

#[test]
fn signed_start_requires_the_signed_headers() {
    let signed = |names: &str| -> Url {
        format!("https://storage.googleapis.com/data/a?X-Goog-SignedHeaders={names}&X-Goog-Signature=SECRET")
            .parse()
            .unwrap()
    };
    let url = signed("host%3Bx-goog-if-generation-match%3Bx-goog-resumable%3Bcontent-type");
    let error = SignedStart::new(&url, HeaderMap::new()).unwrap_err();
    assert_eq!(
        error,
        "the address is signed for headers that are not given: x-goog-if-generation-match, content-type"
    );
    let mut headers = HeaderMap::new();
    headers.insert("x-goog-if-generation-match", HeaderValue::from_static("0"));
    headers.insert("content-type", HeaderValue::from_static("text/plain"));
    let start = SignedStart::new(&url, headers.clone()).unwrap();
    assert_eq!(start.headers["x-goog-resumable"], "start");
    assert_eq!(start.headers["x-goog-if-generation-match"], "0");
    let error = SignedStart::new(&signed("host%3Bx-goog-resumable"), headers).unwrap_err();
    assert_eq!(
        error,
        "the address is not signed for these headers: x-goog-if-generation-match"
    );
    let plain: Url = "https://storage.googleapis.com/data/a".parse().unwrap();
    assert!(SignedStart::new(&plain, HeaderMap::new()).is_err());
}
