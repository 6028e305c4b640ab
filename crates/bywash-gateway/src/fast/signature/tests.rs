use std::collections::BTreeMap;
use std::sync::Arc;

use bywash::Engine;
use http::HeaderMap;
use http::header::HeaderValue;

use super::*;
use crate::auth::Keys;
use crate::bucket_rules::AllRules;
use crate::config::Credential;
use crate::limits::MAX_KEPT_SIGNING_KEYS;

/// The examples of "Signature calculations" in the Amazon S3 API reference.
const ACCESS_KEY: &str = "AKIAIOSFODNN7EXAMPLE";
const SECRET_KEY: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
const HOST: &str = "examplebucket.s3.amazonaws.com";
const SIGNED: &str = "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41";
const PRESIGNED: &str = "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404";

fn signing_keys() -> SigningKeys {
    let engine = Engine::builder().memory(16 << 20).build().unwrap();
    let credential = Credential::new(ACCESS_KEY, SECRET_KEY);
    let rules = AllRules::open(engine.clone(), None, BTreeMap::new()).unwrap();
    SigningKeys::new(Keys::new(&[credential], engine, Arc::new(rules)))
}

fn map(headers: &[(&'static str, &str)]) -> HeaderMap {
    let header = |(name, value): &(&'static str, &str)| {
        let name = http::HeaderName::from_static(name);
        (name, HeaderValue::from_str(value).unwrap())
    };
    headers.iter().map(header).collect()
}

fn authorization(region: &str, signature: &str) -> String {
    format!(
        "AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/20130524/{region}/s3/aws4_request,SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,Signature={signature}"
    )
}

fn signed(authorization: &str) -> HeaderMap {
    map(&[
        ("host", HOST),
        ("range", "bytes=0-9"),
        ("x-amz-content-sha256", EMPTY_SHA256),
        ("x-amz-date", "20130524T000000Z"),
        ("authorization", authorization),
    ])
}

fn request<'a>(headers: &'a HeaderMap, query: KnownQuery<'a>) -> Option<FastRequest<'a>> {
    let known = KnownHeaders::read(headers)?;
    Some(FastRequest {
        is_head: false,
        bucket: "",
        key: "".into(),
        range: None,
        if_match: None,
        with_checksum: false,
        signature: ClaimedSignature::parse(&known, query)?,
    })
}

fn presigned(signature: &str) -> KnownQuery<'_> {
    KnownQuery {
        algorithm: Some(ALGORITHM),
        credential: Some("AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request"),
        date: Some("20130524T000000Z"),
        expires: Some("86400"),
        signed_headers: Some("host"),
        signature: Some(signature),
        ..KnownQuery::default()
    }
}

#[test]
fn examples_of_the_documentation_are_verified() {
    let keys = signing_keys();
    let headers = signed(&authorization("us-east-1", SIGNED));
    let found = request(&headers, KnownQuery::default()).unwrap();
    let signatory = verify(&keys, &found, "GET", "/test.txt").unwrap();
    assert_eq!(&*signatory.access_key, ACCESS_KEY);
    // By the kept key.
    assert!(verify(&keys, &found, "GET", "/test.txt").is_some());
    assert!(verify(&keys, &found, "HEAD", "/test.txt").is_none());
    assert!(verify(&keys, &found, "GET", "/test.tx").is_none());
    let headers = map(&[("host", HOST)]);
    let found = request(&headers, presigned(PRESIGNED)).unwrap();
    assert!(verify(&keys, &found, "GET", "/test.txt").is_some());
    assert!(verify(&keys, &found, "GET", "/other.txt").is_none());
    let headers = map(&[("host", "other.s3.amazonaws.com")]);
    let found = request(&headers, presigned(PRESIGNED)).unwrap();
    assert!(verify(&keys, &found, "GET", "/test.txt").is_none());
}

#[test]
fn unverified_signatures_replace_no_kept_key() {
    let keys = signing_keys();
    let kept = |region: &str| {
        keys.is_kept(CredentialScope {
            access_key: ACCESS_KEY,
            day: "20130524",
            region,
        })
    };
    let headers = signed(&authorization("us-east-1", SIGNED));
    let found = request(&headers, KnownQuery::default()).unwrap();
    verify(&keys, &found, "GET", "/test.txt").unwrap();
    // More regions than there are slots.
    for region in 0..10 * MAX_KEPT_SIGNING_KEYS {
        let region = format!("region-{region}");
        let headers = signed(&authorization(&region, SIGNED));
        let found = request(&headers, KnownQuery::default()).unwrap();
        assert!(verify(&keys, &found, "GET", "/test.txt").is_none());
        assert!(!kept(&region));
    }
    assert!(kept("us-east-1"));
}

#[test]
fn signatures_of_another_form_are_refused() {
    let good = authorization("us-east-1", SIGNED);
    let parses = |authorization: &str| {
        let headers = signed(authorization);
        request(&headers, KnownQuery::default()).is_some()
    };
    assert!(parses(&good) && parses(&good.replace(',', ",  ")));
    for (old, new) in [
        ("AWS4-HMAC-SHA256 ", "AWS4-HMAC-SHA256"),
        ("AWS4-HMAC-SHA256", "AWS4-ECDSA-P256-SHA256"),
        ("/s3/", "/sts/"),
        ("us-east-1", "us east"),
        ("us-east-1", ""),
        ("/20130524", "/2013"),
        ("AKIA", "A/KIA"),
        ("host;range", "range;host"),
        ("host;range", "Host;range"),
        ("host;", ""),
        (";x-amz-date", ""),
        ("host;range", "host;host;range"),
        ("range;", "range;via;"),
        ("f0e8", "F0E8"),
        ("f0e8", "f0e"),
        (",Signature", ",x=y,Signature"),
    ] {
        let wrong = good.replace(old, new);
        assert!(!parses(&wrong), "{wrong}");
    }
    assert!(!parses(&format!("{good},x=y")));
    let headers = map(&[("host", HOST)]);
    for expires in ["604800", "0"] {
        let query = KnownQuery {
            expires: Some(expires),
            ..presigned(PRESIGNED)
        };
        assert!(request(&headers, query).is_some(), "{expires}");
    }
    for expires in ["604801", "-1", "x", "", "60.5"] {
        let query = KnownQuery {
            expires: Some(expires),
            ..presigned(PRESIGNED)
        };
        assert!(request(&headers, query).is_none(), "{expires}");
    }
    // Two signatures.
    let headers = signed(&good);
    assert!(request(&headers, presigned(PRESIGNED)).is_none());
    // A value that is signed in another form than it has.
    let mut headers = signed(&good);
    for value in ["a  b", "a\tb", "\u{fc}"] {
        headers.insert("range", HeaderValue::from_bytes(value.as_bytes()).unwrap());
        assert!(
            request(&headers, KnownQuery::default()).is_none(),
            "{value}"
        );
    }
    let mut headers = signed(&good);
    headers.insert("x-amz-content-sha256", HeaderValue::from_static("0"));
    assert!(request(&headers, KnownQuery::default()).is_none());
}

#[test]
fn more_signed_headers_than_the_limit_are_refused() {
    let names: Vec<String> = (0..MAX_FAST_SIGNED_HEADERS)
        .map(|number| format!("a{number:02}"))
        .collect();
    let mut headers = HeaderMap::new();
    headers.insert("host", HeaderValue::from_static(HOST));
    for name in &names {
        let name = http::HeaderName::try_from(name).unwrap();
        headers.insert(name, HeaderValue::from_static("x"));
    }
    let known = KnownHeaders::with_all(&headers);
    let read = |count: usize| {
        let names = names[..count].iter().map(String::as_str);
        SignedHeaders::read(&known, names.chain(["host"])).is_some()
    };
    assert!(read(MAX_FAST_SIGNED_HEADERS - 1) && !read(MAX_FAST_SIGNED_HEADERS));
}

#[test]
fn signatures_are_valid_from_before_their_date_until_they_expire() {
    let headers = map(&[("host", HOST)]);
    let presigned = request(&headers, presigned(PRESIGNED)).unwrap().signature;
    let authorization = authorization("us-east-1", SIGNED);
    let headers = signed(&authorization);
    let signed = request(&headers, KnownQuery::default()).unwrap().signature;
    // 2013-05-24.
    let date = 1_369_353_600;
    for (claimed, age, valid) in [
        (&presigned, 0, true),
        (&presigned, 86_399, true),
        (&presigned, 86_400, false),
        (&presigned, -899, true),
        (&presigned, -900, false),
        (&signed, 899, true),
        (&signed, 900, false),
        (&signed, -899, true),
        (&signed, -900, false),
    ] {
        assert_eq!(claimed.is_valid_at(date + age), valid, "{age}");
    }
    let mut other_day = signed;
    other_day.named.day = "20130525";
    assert!(!other_day.is_valid_at(date));
}

#[test]
fn dates_are_seconds_since_1970() {
    assert_eq!(seconds("20130524T000000Z"), Some(1_369_353_600));
    assert_eq!(seconds("20240229T235959Z"), Some(1_709_251_199));
    for date in [
        "20130524T000000",
        "20130524 000000Z",
        "20130230T000000Z",
        "20130524T240000Z",
        "20130524T0000+1Z",
        "2013-05-24T00:0Z",
    ] {
        assert_eq!(seconds(date), None, "{date}");
    }
}
