#![allow(clippy::unwrap_used, reason = "tests")]

use bywash_support::sign::{KEY, SECRET, Signer};
use http::Request;

use super::*;

const NOW: i64 = 1_800_000_000;

fn parts(method: &str, target: &str, headers: &[(String, String)]) -> Parts {
    let mut request = Request::builder().method(method).uri(target);
    for (name, value) in headers {
        request = request.header(name, value);
    }
    request
        .header("host", "127.0.0.1")
        .body(())
        .unwrap()
        .into_parts()
        .0
}

/// A signer at [`NOW`].
fn signer() -> Signer {
    Signer {
        date: "20270115T080000Z".to_owned(),
        ..Signer::default()
    }
}

fn find(target: &str) -> GcsResult<Option<ClaimedSignature>> {
    ClaimedSignature::find(&parts("GET", target, &[]))
}

#[test]
fn signature_is_good_for_its_time_and_its_key() {
    let target = signer().presign("GET", "/a/b%20c", 600);
    let found = find(&target).unwrap().unwrap();
    assert!(found.is_by_secret(SECRET) && !found.is_by_secret("other"));
    assert!(!found.is_by_account() && !found.is_by_key(b"key"));
    assert_eq!((found.identity(), found.payload_digest()), (KEY, None));
    for (now, good) in [
        (NOW, true),
        (NOW + 600, true),
        (NOW + 601, false),
        (NOW - MAX_CLOCK_SKEW_S, true),
        (NOW - MAX_CLOCK_SKEW_S - 1, false),
    ] {
        assert_eq!(found.is_valid_at(now), good, "{now}");
    }
}

#[test]
fn google_signs_with_names_of_its_own() {
    // Computed with the standard library of Python.
    let target = "/data/key?X-Goog-Algorithm=GOOG4-HMAC-SHA256\
        &X-Goog-Credential=the-access-key%2F20270115%2Fauto%2Fstorage%2Fgoog4_request&X-Goog-Date=20270115T080000Z\
        &X-Goog-Expires=600&X-Goog-SignedHeaders=host&X-Goog-Signature=bbb4901c32d3e3bc3a261b1f8e9bcfff3c6ec02bef3525752ba6f02555b218b8";
    let found = find(target).unwrap().unwrap();
    assert!(found.is_by_secret(SECRET) && !found.is_by_account());
    let resumable = format!("{target}&uploadType=resumable");
    assert!(find(&resumable).unwrap().unwrap().is_by_secret(SECRET));
    let other = format!("{target}&alt=media");
    assert!(!find(&other).unwrap().unwrap().is_by_secret(SECRET));
}

#[test]
fn requests_without_a_signature_have_none() {
    assert!(find("/a/b?x=1").unwrap().is_none());
    let bearer = [("authorization".to_owned(), "Bearer a.b.c".to_owned())];
    let found = ClaimedSignature::find(&parts("GET", "/a", &bearer)).unwrap();
    assert!(found.is_none());
}

#[test]
fn malformed_signatures_are_refused() {
    let target = signer().presign("GET", "/a", 600);
    for (from, to) in [
        ("X-Amz-Algorithm=AWS4-HMAC-SHA256", "X-Amz-Algorithm=none"),
        (
            "X-Amz-Algorithm=AWS4-HMAC-SHA256",
            "X-Amz-Algorithm=GOOG4-RSA-SHA256",
        ),
        ("X-Amz-Expires=600", "X-Amz-Expires=604801"),
        ("X-Amz-Expires=600", "X-Amz-Expires=0"),
        ("X-Amz-Expires=600", "X-Amz-Expires=x"),
        ("X-Amz-Date", "X-Amz-Other"),
        ("%2Fs3%2F", "%2Fec2%2F"),
        ("Signature=", "Signature=g"),
        ("SignedHeaders=host", "SignedHeaders=range"),
        ("X-Amz-Credential=", "X-Amz-Credential=%FF"),
        ("/a?", "/a?X-Goog-Signature=00&"),
    ] {
        let changed = target.replace(from, to);
        assert_ne!(changed, target);
        assert!(find(&changed).is_err(), "{changed}");
    }
    for header in [
        "AWS4-HMAC-SHA256 Credential=a",
        "AWS4-HMAC-SHA256 Credential=a/20270115/r/s3/aws4_request, SignedHeaders=host",
        "GOOG4-HMAC-SHA256 x",
    ] {
        let headers = [
            ("authorization".to_owned(), header.to_owned()),
            ("x-amz-date".to_owned(), signer().date),
        ];
        let found = ClaimedSignature::find(&parts("GET", "/a", &headers));
        assert!(found.is_err(), "{header}");
    }
}
