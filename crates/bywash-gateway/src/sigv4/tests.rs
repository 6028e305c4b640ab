//! The examples of the documentation, keys that are kept, and the forms of dates and digits.

use http::header::HeaderValue;
use http::{HeaderName, Request};

use super::canonical::{Forms, RequestHead, path, query};
use super::keys::{Secrets, SigningKeys};
use super::parse::{
    CredentialScope, ScopeError, bytes_of, decode_hex, field, in_order, plain_time, time_of,
};
use super::*;
use crate::config::Credential;
use crate::limits::MAX_KEPT_SIGNING_KEYS;

/// Keys of the examples of "Signature calculations" in the Amazon S3 API reference.
const ACCESS_KEY: &str = "AKIAIOSFODNN7EXAMPLE";
const SECRET_KEY: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
const HOST: &str = "examplebucket.s3.amazonaws.com";
const DATE: &str = "20130524T000000Z";

fn signing_keys() -> SigningKeys {
    SigningKeys::new(Secrets::new(&[Credential::new(ACCESS_KEY, SECRET_KEY)]))
}

/// A scope of the documentation's key.
fn named(location: &str) -> CredentialScope<'_> {
    CredentialScope {
        algorithm: Algorithm::Amazon,
        identity: ACCESS_KEY,
        day: "20130524",
        location,
    }
}

/// A request of the documentation. The order of headers is the one of their names.
struct Example {
    method: &'static str,
    target: &'static str,
    headers: &'static [(&'static str, &'static str)],
    payload: &'static str,
    signature: &'static str,
}

const PUT_SHA256: &str = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072";

const EXAMPLES: [Example; 5] = [
    Example {
        method: "GET",
        target: "/test.txt",
        headers: &[
            ("host", HOST),
            ("range", "bytes=0-9"),
            ("x-amz-content-sha256", EMPTY_SHA256),
            ("x-amz-date", DATE),
        ],
        payload: EMPTY_SHA256,
        signature: "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
    },
    Example {
        method: "PUT",
        target: "/test$file.text",
        headers: &[
            ("date", "Fri, 24 May 2013 00:00:00 GMT"),
            ("host", HOST),
            ("x-amz-content-sha256", PUT_SHA256),
            ("x-amz-date", DATE),
            ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
        ],
        payload: PUT_SHA256,
        signature: "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
    },
    Example {
        method: "GET",
        target: "/?lifecycle",
        headers: &[
            ("host", HOST),
            ("x-amz-content-sha256", EMPTY_SHA256),
            ("x-amz-date", DATE),
        ],
        payload: EMPTY_SHA256,
        signature: "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
    },
    Example {
        method: "GET",
        target: "/?max-keys=2&prefix=J",
        headers: &[
            ("host", HOST),
            ("x-amz-content-sha256", EMPTY_SHA256),
            ("x-amz-date", DATE),
        ],
        payload: EMPTY_SHA256,
        signature: "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
    },
    Example {
        method: "GET",
        target: "/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256\
            &X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request\
            &X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host\
            &X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404",
        headers: &[("host", HOST)],
        payload: UNSIGNED,
        signature: "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404",
    },
];

impl Example {
    /// Whether the signature of `self` is right for a request to `target`, in any region.
    fn is_right(&self, method: &str, target: &str, region: &str) -> bool {
        let mut request = Request::builder().method(method).uri(target);
        for (name, value) in self.headers {
            let name = HeaderName::from_static(name);
            request = request.header(name, HeaderValue::from_static(value));
        }
        let request = request.body(()).unwrap();
        let names: Vec<_> = self.headers.iter().map(|(name, _)| *name).collect();
        let credential = format!("{ACCESS_KEY}/20130524/{region}/s3/aws4_request");
        let claimed = ClaimedSignature {
            scope: CredentialScope::parse(Algorithm::Amazon, &credential).unwrap(),
            date: DATE.into(),
            signed: names.join(";").into(),
            signature: self.signature,
        };
        let keys = signing_keys();
        let found = keys.find(claimed.scope).unwrap();
        claimed.is_by_key(
            &found.key,
            &Forms {
                head: RequestHead::of(&request),
                signed: &claimed.signed,
                hosts: &[None],
                paths: &[path(request.uri().path())],
                queries: &[query(request.uri(), false).unwrap()],
                payloads: &[self.payload],
            },
        )
    }
}

#[test]
fn examples_of_the_documentation_are_verified() {
    for example in &EXAMPLES {
        let target = example.target;
        assert!(
            example.is_right(example.method, target, "us-east-1"),
            "{target}"
        );
        assert!(!example.is_right("DELETE", target, "us-east-1"), "{target}");
        assert!(!example.is_right(example.method, "/other.txt", "us-east-1"));
        assert!(
            !example.is_right(example.method, target, "eu-west-1"),
            "{target}"
        );
    }
}

/// The example of "Transferring payload in multiple chunks": 64 KiB, 1 KiB, and the end.
#[test]
fn chunks_of_the_documentation_are_verified() {
    let seed = "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9";
    let scope = "20130524/us-east-1/s3/aws4_request";
    let credential = format!("{ACCESS_KEY}/{scope}");
    let named = CredentialScope::parse(Algorithm::Amazon, &credential).unwrap();
    let key = signing_keys().find(named).unwrap().key;
    let mut chunks = chunks::ChunkVerifier::new(key, DATE, scope, seed);
    for (length, signature) in [
        (
            65_536,
            "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
        ),
        (
            1024,
            "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
        ),
        (
            0,
            "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9",
        ),
    ] {
        let line = format!(";chunk-signature={signature}\r\n");
        assert!(chunks.begin(line.as_bytes()));
        chunks.update(&vec![b'a'; length]);
        assert!(chunks.end(), "{length}");
    }
    assert!(chunks.begin(format!(";chunk-signature={seed}\r\n").as_bytes()));
    assert!(!chunks.end());
}

#[test]
fn unverified_signatures_replace_no_kept_key() {
    let keys = signing_keys();
    keys.keep(&keys.find(named("us-east-1")).unwrap());
    // More regions than there are slots.
    for region in 0..10 * MAX_KEPT_SIGNING_KEYS {
        let region = format!("region-{region}");
        assert!(keys.find(named(&region)).is_some());
        assert!(!keys.is_kept(named(&region)));
    }
    assert!(keys.is_kept(named("us-east-1")));
    let of_google = CredentialScope {
        algorithm: Algorithm::GoogleHmac,
        ..named("us-east-1")
    };
    assert!(!keys.is_kept(of_google) && keys.find(of_google).is_some());
    for unknown in [
        CredentialScope {
            identity: "nobody",
            ..of_google
        },
        CredentialScope {
            algorithm: Algorithm::GoogleRsa,
            ..of_google
        },
    ] {
        assert!(keys.find(unknown).is_none(), "{unknown:?}");
    }
}

#[test]
fn credentials_are_those_of_their_algorithm() {
    let parse = CredentialScope::parse;
    let good = parse(Algorithm::Amazon, "a/b/20130524//s3/aws4_request").unwrap();
    assert_eq!((good.identity, good.location), ("a/b", ""));
    assert_eq!(good.to_string(), "20130524//s3/aws4_request");
    for (credential, error) in [
        ("20130524/r/s3/aws4_request", ScopeError::Malformed),
        ("a/2013/r/s3/aws4_request", ScopeError::Malformed),
        ("a/20130524/r/s3/goog4_request", ScopeError::Malformed),
        ("a/20130524/r/sts/aws4_request", ScopeError::OtherService),
    ] {
        let found = parse(Algorithm::Amazon, credential).unwrap_err();
        assert_eq!(found, error, "{credential}");
    }
    let google = "a/20130524/auto/storage/goog4_request";
    assert!(parse(Algorithm::GoogleRsa, google).is_ok());
    assert!(parse(Algorithm::Amazon, google).is_err());
}

#[test]
fn parts_are_read_in_the_form_that_is_signed() {
    let fields = " Credential=a/b,  SignedHeaders=host;x ,Signature=1=2";
    assert_eq!(field(fields, "SignedHeaders"), Some("host;x"));
    assert_eq!(field(fields, "Signature"), Some("1=2"));
    assert_eq!(field(fields, "Sign"), None);
    assert_eq!(in_order("b;A"), "a;b");
    assert_eq!(path("/a%2fb c%C3%bc+%7E"), "/a/b%20c%C3%BC%2B~");
    let uri = http::Uri::from_static("/?b=1&a=x+y&X-Amz-Signature=0&a=%2b&A&a%2F=/");
    let pairs = |plus_is_space| {
        let pairs = query(&uri, plus_is_space).unwrap();
        let pairs: Vec<_> = pairs
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        pairs.join("&")
    };
    assert_eq!(pairs(true), "A=&a=%2B&a=x%20y&a%2F=%2F&b=1");
    assert_eq!(pairs(false), "A=&a=%2B&a=x%2By&a%2F=%2F&b=1");
    assert!(query(&http::Uri::from_static("/?a=%FF"), true).is_err());
}

#[test]
fn dates_are_in_one_form_or_lack_zeros() {
    let seconds = |date: &str| plain_time(date).map(|time| time.timestamp());
    assert_eq!(seconds(DATE), Some(1_369_353_600));
    assert_eq!(seconds("20240229T235959Z"), Some(1_709_251_199));
    for date in [
        "20130524T000000",
        "20130524 000000Z",
        "20130230T000000Z",
        "20130524T240000Z",
        "20130524T0000+1Z",
        "2013-05-24T00:0Z",
    ] {
        assert_eq!(time_of(date), None, "{date}");
    }
    assert_eq!(time_of("20130524T00000Z"), time_of(DATE));
}

#[test]
fn digits_of_any_case_are_decoded_and_nothing_else() {
    assert_eq!(bytes_of("00fFA9"), Some(vec![0, 255, 0xa9]));
    assert_eq!(bytes_of(""), Some(Vec::new()));
    for wrong in ["0", "0g", "+1", "\u{fc}", "0 "] {
        assert_eq!(bytes_of(wrong), None, "{wrong}");
    }
    assert!(!decode_hex("00ff", &mut [0; 3]) && !decode_hex("00ff", &mut [0; 1]));
}
