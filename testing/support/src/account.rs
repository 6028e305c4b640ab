//! A service account of tests, and tokens by its key, signed independently of the code under test.

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use ring::hmac;
use ring::rand::SystemRandom;
use ring::rsa::KeyPair;
use ring::signature::RSA_PKCS1_SHA256;
use serde_json::{Value, json};

/// Name of the account.
pub const NAME: &str = "tester";
/// What the account is called in tokens.
pub const EMAIL: &str = "tester@bywash.iam.gserviceaccount.com";
/// Id of its key.
pub const KEY_ID: &str = "a704ce0f7fffc3fa837934349c847642b01993a4";
/// Its private key, which guards nothing.
pub const PEM: &str = include_str!("account/key.pem");
/// The private key of no account.
pub const OTHER_PEM: &str = include_str!("account/other_key.pem");

/// Decodes the PKCS#8 of a PEM file.
pub fn der(pem: &str) -> Vec<u8> {
    let lines = pem.lines().filter(|line| !line.starts_with('-'));
    BASE64_STANDARD.decode(lines.collect::<String>()).unwrap()
}

fn pair(pem: &str) -> KeyPair {
    KeyPair::from_pkcs8(&der(pem)).unwrap()
}

/// Its public key, as PKCS#1.
pub fn public_key() -> Vec<u8> {
    pair(PEM).public().as_ref().to_vec()
}

/// Signs bytes with a private key.
pub fn rs256(pem: &str, text: &[u8]) -> Vec<u8> {
    let pair = pair(pem);
    let mut signature = vec![0; pair.public().modulus_len()];
    pair.sign(
        &RSA_PKCS1_SHA256,
        &SystemRandom::new(),
        text,
        &mut signature,
    )
    .unwrap();
    signature
}

fn encoded(value: &Value) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(value.to_string())
}

/// Signs a token of any header and claims with a private key.
pub fn sign_with(pem: &str, header: &Value, claims: &Value) -> String {
    let text = format!("{}.{}", encoded(header), encoded(claims));
    let signature = rs256(pem, text.as_bytes());
    format!("{text}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
}

/// As [`sign_with`], with the account's key.
pub fn sign(header: &Value, claims: &Value) -> String {
    sign_with(PEM, header, claims)
}

/// A token as clients sign it.
pub fn token(claims: &Value) -> String {
    sign(&header(), claims)
}

/// The header of tokens.
pub fn header() -> Value {
    json!({"alg": "RS256", "typ": "JWT", "kid": KEY_ID})
}

/// A token whose signature is an HMAC with the public key, which a careless reader takes for a secret.
pub fn confused_token(claims: &Value) -> String {
    let header = json!({"alg": "HS256", "typ": "JWT", "kid": KEY_ID});
    let text = format!("{}.{}", encoded(&header), encoded(claims));
    let key = hmac::Key::new(hmac::HMAC_SHA256, &public_key());
    let tag = hmac::sign(&key, text.as_bytes());
    format!("{text}.{}", BASE64_URL_SAFE_NO_PAD.encode(tag.as_ref()))
}

/// A token without a signature.
pub fn unsigned_token(claims: &Value) -> String {
    let header = json!({"alg": "none", "kid": KEY_ID});
    format!("{}.{}.", encoded(&header), encoded(claims))
}
