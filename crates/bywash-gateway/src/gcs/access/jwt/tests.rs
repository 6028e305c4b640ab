#![allow(clippy::unwrap_used, reason = "tests")]

use bywash_support::account::{EMAIL, KEY_ID, public_key, sign, token};
use serde_json::{Value, json};

use super::*;

const NOW: i64 = 1_800_000_000;
const OURS: &[&str] = &[
    "https://storage.googleapis.com/",
    "http://127.0.0.1:8421/token",
];

fn claims() -> Value {
    json!({
        "iss": EMAIL, "sub": EMAIL, "aud": OURS[0], "iat": NOW, "exp": NOW + 3600,
    })
}

fn verified(token: &str, purpose: Purpose<'_>) -> Result<(), JwtError> {
    rights(token, purpose).map(drop)
}

fn rights(token: &str, purpose: Purpose<'_>) -> Result<Rights, JwtError> {
    Jwt::parse(token)?.verify(&public_key(), purpose, NOW)
}

fn bearer(claims: &Value) -> Result<(), JwtError> {
    verified(&token(claims), Purpose::Bearer(OURS))
}

#[test]
fn signed_token_is_verified() {
    let signed = token(&claims());
    let found = Jwt::parse(&signed).unwrap();
    assert_eq!((found.issuer(), found.key_id()), (EMAIL, KEY_ID));
    assert_eq!(verified(&signed, Purpose::Bearer(OURS)), Ok(()));
    let mut for_exchange = claims();
    for_exchange["aud"] = json!(["other", OURS[1]]);
    for_exchange["sub"] = Value::Null;
    let signed = token(&for_exchange);
    assert_eq!(verified(&signed, Purpose::Exchange(OURS)), Ok(()));
}

#[test]
fn claims_decide_when_and_for_what_a_token_is_good() {
    let with = |name: &str, value: Value| {
        let mut claims = claims();
        claims[name] = value;
        bearer(&claims)
    };
    for (name, value, result) in [
        ("exp", json!(NOW), Ok(())),
        ("exp", json!(NOW - 60), Err(JwtError::Expired)),
        ("iat", json!(NOW + 60), Ok(())),
        ("iat", json!(NOW + 61), Err(JwtError::Early)),
        ("iat", json!(NOW - 1), Err(JwtError::TooLasting)),
        ("nbf", json!(NOW + 60), Ok(())),
        ("nbf", json!(NOW + 61), Err(JwtError::Early)),
        ("nbf", json!("soon"), Err(JwtError::Malformed)),
        ("aud", json!("https://storage.googleapis.com"), Ok(())),
        (
            "aud",
            json!("https://example.com/"),
            Err(JwtError::Audience),
        ),
        ("aud", json!([]), Err(JwtError::Audience)),
        ("aud", Value::Null, Err(JwtError::NoScope)),
        ("sub", json!("other"), Err(JwtError::Subject)),
        ("sub", Value::Null, Err(JwtError::Subject)),
    ] {
        let text = value.to_string();
        assert_eq!(with(name, value), result, "{name} {text}");
    }
    let mut scoped = claims();
    scoped["aud"] = Value::Null;
    scoped["scope"] = json!("https://www.googleapis.com/auth/devstorage.read_only");
    assert_eq!(bearer(&scoped), Ok(()));
    scoped["scope"] = json!("https://www.googleapis.com/auth/bigquery");
    assert_eq!(bearer(&scoped), Err(JwtError::NoScope));
    let no_audience = token(&scoped);
    let exchanged = verified(&no_audience, Purpose::Exchange(OURS));
    assert_eq!(exchanged, Err(JwtError::Audience));
}

#[test]
fn widest_scope_of_storage_decides_the_rights() {
    let of = |scopes: Value| {
        let mut claims = claims();
        claims["scope"] = scopes;
        rights(&token(&claims), Purpose::Bearer(OURS))
    };
    let auth = "https://www.googleapis.com/auth/";
    for (scopes, result) in [
        (Value::Null, Ok(Rights::ReadWrite)),
        (
            json!(format!("{auth}devstorage.read_only")),
            Ok(Rights::ReadOnly),
        ),
        (
            json!(format!(
                "{auth}bigquery {auth}devstorage.read_only {auth}cloud-platform"
            )),
            Ok(Rights::ReadWrite),
        ),
        (json!(format!("{auth}bigquery")), Err(JwtError::NoScope)),
        (
            json!(format!("{auth}devstorage.read_only.x")),
            Err(JwtError::NoScope),
        ),
        (json!("devstorage.read_write"), Err(JwtError::NoScope)),
        (json!(""), Err(JwtError::NoScope)),
    ] {
        let text = scopes.to_string();
        assert_eq!(of(scopes), result, "{text}");
    }
}

#[test]
fn header_chooses_no_algorithm() {
    let header = |header: Value| verified(&sign(&header, &claims()), Purpose::Bearer(OURS));
    let fit = json!({"alg": "RS256", "kid": KEY_ID});
    assert_eq!(header(fit.clone()), Ok(()));
    for alg in ["none", "None", "HS256", "RS512", "ES256", "PS256", ""] {
        let found = header(json!({"alg": alg, "kid": KEY_ID}));
        assert_eq!(found, Err(JwtError::Algorithm), "{alg}");
    }
    let critical = json!({"alg": "RS256", "kid": KEY_ID, "crit": ["exp"]});
    assert_eq!(header(critical), Err(JwtError::Algorithm));
    assert_eq!(header(json!({"alg": "RS256"})), Err(JwtError::NoKey));
}

#[test]
fn changed_token_is_refused() {
    let signed = token(&claims());
    let (text, signature) = signed.rsplit_once('.').unwrap();
    for changed in [
        format!("{text}."),
        format!("{text}.{}", &signature[4..]),
        format!("{}A.{signature}", &text[..text.len() - 1]),
    ] {
        assert!(verified(&changed, Purpose::Bearer(OURS)).is_err());
    }
    for malformed in ["", "a", "a.b", "a.b.c", text, &signed.replace('.', "")] {
        assert!(Jwt::parse(malformed).is_err(), "{malformed}");
    }
}

#[test]
fn long_token_is_refused_before_it_is_decoded() {
    let long = format!("{}{}", token(&claims()), "A".repeat(MAX_JWT_BYTES));
    assert_eq!(Jwt::parse(&long).unwrap_err(), JwtError::TooLong);
}
