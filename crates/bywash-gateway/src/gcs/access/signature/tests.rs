#![allow(clippy::unwrap_used, reason = "tests")]

use bywash_support::sign::{KEY, SECRET, Signer};
use http::Request;

use super::*;
use crate::config::Credential;
use crate::sigv4::keys::Secrets;

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

/// A secret key by which no request is signed.
const OTHER: &str = "other";

/// A signature as it was found, and whether it is by a secret key.
struct Found {
    identity: String,
    digest: Option<[u8; 32]>,
    is_by_account: bool,
    valid: Vec<bool>,
    by_secret: [bool; 2],
}

/// Finds a signature. `times`: when it may be valid.
fn find_in(parts: &Parts, times: &[i64]) -> GcsResult<Option<Found>> {
    let parameters = Parameters::of(&parts.uri)?;
    let found = SignedRequest::find(parts, &parameters)?;
    let is_by = |found: &SignedRequest<'_>, secret: &str| {
        let secrets = Secrets::new(&[Credential::new(found.identity(), secret)]);
        found.signatory(&SigningKeys::new(secrets)).is_some()
    };
    Ok(found.map(|found| Found {
        identity: found.identity().to_owned(),
        digest: found.payload_digest(),
        is_by_account: found.is_by_account() || found.is_by_key(b"key"),
        valid: times.iter().map(|now| found.is_valid_at(*now)).collect(),
        by_secret: [SECRET, OTHER].map(|secret| is_by(&found, secret)),
    }))
}

fn find(target: &str) -> GcsResult<Option<Found>> {
    find_in(&parts("GET", target, &[]), &[])
}

#[test]
fn signature_is_good_for_its_time_and_its_key() {
    let target = signer().presign("GET", "/a/b%20c", 600);
    let times = [
        (NOW, true),
        (NOW + 600, true),
        (NOW + 601, false),
        (NOW - MAX_CLOCK_SKEW_S, true),
        (NOW - MAX_CLOCK_SKEW_S - 1, false),
    ];
    let found = find_in(&parts("GET", &target, &[]), &times.map(|(now, _)| now));
    let found = found.unwrap().unwrap();
    assert_eq!(found.by_secret, [true, false]);
    assert!(!found.is_by_account);
    assert_eq!((&*found.identity, found.digest), (KEY, None));
    assert_eq!(found.valid, times.map(|(_, good)| good));
}

#[test]
fn google_signs_with_names_of_its_own() {
    // Computed with the standard library of Python.
    let target = "/data/key?X-Goog-Algorithm=GOOG4-HMAC-SHA256\
        &X-Goog-Credential=the-access-key%2F20270115%2Fauto%2Fstorage%2Fgoog4_request&X-Goog-Date=20270115T080000Z\
        &X-Goog-Expires=600&X-Goog-SignedHeaders=host&X-Goog-Signature=bbb4901c32d3e3bc3a261b1f8e9bcfff3c6ec02bef3525752ba6f02555b218b8";
    let found = find(target).unwrap().unwrap();
    assert!(found.by_secret[0] && !found.is_by_account);
    let resumable = format!("{target}&uploadType=resumable");
    assert!(find(&resumable).unwrap().unwrap().by_secret[0]);
    let other = format!("{target}&alt=media");
    assert!(!find(&other).unwrap().unwrap().by_secret[0]);
}

#[test]
fn requests_without_a_signature_have_none() {
    assert!(find("/a/b?x=1").unwrap().is_none());
    let bearer = [("authorization".to_owned(), "Bearer a.b.c".to_owned())];
    let found = find_in(&parts("GET", "/a", &bearer), &[]).unwrap();
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
        let found = find_in(&parts("GET", "/a", &headers), &[]);
        assert!(found.is_err(), "{header}");
    }
}
