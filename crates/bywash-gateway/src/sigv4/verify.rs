//! Verification of a signature, by a secret key or by the public key of an account.

use std::borrow::Cow;

use hmac::Mac;
use ring::signature::{RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};

use super::Algorithm;
use super::canonical::{CanonicalRequest, Forms};
use super::keys::SigningKey;
use super::parse::{CredentialScope, bytes_of, decode_hex};

/// A signature as a request states it. No part of it is known to be true until it is verified.
#[derive(Debug)]
pub(crate) struct ClaimedSignature<'a> {
    pub(crate) scope: CredentialScope<'a>,
    /// Day and time.
    pub(crate) date: Cow<'a, str>,
    /// Names of the headers that it covers, as they are signed.
    pub(crate) signed: Cow<'a, str>,
    /// In hexadecimal digits.
    pub(crate) signature: &'a str,
}

impl ClaimedSignature<'_> {
    /// Calls `put` with the text to sign, in parts.
    fn write(&self, request: &CanonicalRequest<'_>, mut put: impl FnMut(&[u8])) {
        let CredentialScope {
            algorithm,
            day,
            location,
            ..
        } = self.scope;
        let [service, version] = algorithm.service();
        for part in [algorithm.name(), "\n", &self.date, "\n"] {
            put(part.as_bytes());
        }
        for part in [day, "/", location, "/", service, "/", version, "\n"] {
            put(part.as_bytes());
        }
        put(&request.digest());
    }

    /// The text to sign.
    pub(crate) fn text(&self, request: &CanonicalRequest<'_>) -> Vec<u8> {
        let mut text = Vec::new();
        self.write(request, |part| text.extend_from_slice(part));
        text
    }

    /// Whether the signature of a form of the request is by a secret key. Compared in constant time.
    pub(crate) fn is_by_key(&self, key: &SigningKey, forms: &Forms<'_>) -> bool {
        let mut signature = [0; 32];
        decode_hex(self.signature, &mut signature)
            && forms.requests().any(|request| {
                let mut mac = key.mac();
                self.write(&request, |part| mac.update(part));
                mac.verify_slice(&signature).is_ok()
            })
    }

    /// Whether the signature of a form of the request is by the key of an account, as PKCS#1.
    pub(crate) fn is_by_account(&self, public_key: &[u8], forms: &Forms<'_>) -> bool {
        let key = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, public_key);
        let signature = bytes_of(self.signature);
        let signature = signature.filter(|_| self.scope.algorithm == Algorithm::GoogleRsa);
        signature.is_some_and(|signature| {
            let mut requests = forms.requests();
            requests.any(|request| key.verify(&self.text(&request), &signature).is_ok())
        })
    }
}
