//! JSON web tokens signed by service accounts: parsing, signatures, claims.
//!
//! Sources: RFC 7515, RFC 7519, and "Using OAuth 2.0 for server to server applications" of Google. One algorithm is accepted,
//! RS256: the header of a token chooses nothing.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::signature::{RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};
use serde::Deserialize;

use crate::limits::{MAX_JWT_BYTES, MAX_JWT_LIFE_S, MAX_JWT_SKEW_S};

/// The one algorithm.
const ALGORITHM: &str = "RS256";

/// Reason for which a token is refused. No text contains any part of the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum JwtError {
    #[error("it is longer than a token of a service account")]
    TooLong,
    #[error("it is no JSON web token")]
    Malformed,
    #[error("its algorithm is not RS256")]
    Algorithm,
    #[error("its header has no kid")]
    NoKey,
    #[error("its signature is not by the key of its account")]
    Signature,
    #[error("it has expired; set the clock of the client, or sign a new one")]
    Expired,
    #[error("it is not valid yet; set the clock of the client")]
    Early,
    #[error("it is valid for more than an hour")]
    TooLasting,
    #[error("it is for another audience")]
    Audience,
    #[error("its subject is not its issuer")]
    Subject,
    #[error(
        "it has no scope of storage; request https://www.googleapis.com/auth/devstorage.read_write, or devstorage.read_only to read"
    )]
    NoScope,
}

/// Rights to storage that a token gives its bearer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rights {
    ReadWrite,
    ReadOnly,
}

#[derive(Debug, Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    /// Extensions that a reader must know; none is known.
    crit: Option<serde_json::Value>,
}

/// One audience, or several.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Several(Vec<String>),
}

#[derive(Debug, Deserialize)]
struct Claims {
    iss: String,
    sub: Option<String>,
    aud: Option<Audience>,
    scope: Option<String>,
    iat: i64,
    /// Clients of Google's storage state none.
    nbf: Option<i64>,
    exp: i64,
}

/// A parsed token, which nothing is known of until [`Self::verify`].
#[derive(Debug)]
pub(crate) struct Jwt<'a> {
    /// Text that the signature covers.
    signed: &'a str,
    signature: Vec<u8>,
    key_id: String,
    claims: Claims,
}

/// Use of a token.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Purpose<'a> {
    /// To be exchanged for an access token. Its audience is one of these.
    Exchange(&'a [&'a str]),
    /// To be sent with requests. Its audience, if it has one, is one of these.
    Bearer(&'a [&'a str]),
}

impl<'a> Jwt<'a> {
    pub(crate) fn parse(token: &'a str) -> Result<Self, JwtError> {
        if token.len() > MAX_JWT_BYTES {
            return Err(JwtError::TooLong);
        }
        let (signed, signature) = token.rsplit_once('.').ok_or(JwtError::Malformed)?;
        let (header, claims) = signed.split_once('.').ok_or(JwtError::Malformed)?;
        let header: Header = json(header)?;
        if header.alg != ALGORITHM || header.crit.is_some() {
            return Err(JwtError::Algorithm);
        }
        Ok(Self {
            signed,
            signature: decoded(signature)?,
            key_id: header.kid.ok_or(JwtError::NoKey)?,
            claims: json(claims)?,
        })
    }

    /// The id of the key that the token states to be signed by.
    pub(crate) fn key_id(&self) -> &str {
        &self.key_id
    }

    /// The account that the token states to be of.
    pub(crate) fn issuer(&self) -> &str {
        &self.claims.iss
    }

    /// Verifies the signature, then the claims, and returns the rights of the token: the rights of
    /// its scopes, or all if it states no scope. `public_key`: the issuer's, as PKCS#1. `now`:
    /// seconds since 1970.
    pub(crate) fn verify(
        &self,
        public_key: &[u8],
        purpose: Purpose<'_>,
        now: i64,
    ) -> Result<Rights, JwtError> {
        UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, public_key)
            .verify(self.signed.as_bytes(), &self.signature)
            .map_err(|_| JwtError::Signature)?;
        self.check_time(now)?;
        let claims = &self.claims;
        match (purpose, &claims.aud) {
            (Purpose::Exchange(known) | Purpose::Bearer(known), Some(audience))
                if audience.is_any_of(known) => {}
            (Purpose::Bearer(_), None) if claims.scope.is_some() => {}
            (Purpose::Bearer(_), None) => return Err(JwtError::NoScope),
            _ => return Err(JwtError::Audience),
        }
        let rights = match claims.scope.as_deref() {
            None => Rights::ReadWrite,
            Some(scopes) => rights_of(scopes).ok_or(JwtError::NoScope)?,
        };
        // An exchange for another subject would be the delegation of a domain, which there is not.
        let subject = claims.sub.as_deref();
        let is_own = subject.is_none_or(|subject| subject == claims.iss);
        match purpose {
            Purpose::Bearer(_) if subject.is_none() => Err(JwtError::Subject),
            _ if is_own => Ok(rights),
            _ => Err(JwtError::Subject),
        }
    }

    fn check_time(&self, now: i64) -> Result<(), JwtError> {
        let Claims { iat, nbf, exp, .. } = self.claims;
        if exp.saturating_add(MAX_JWT_SKEW_S) <= now {
            return Err(JwtError::Expired);
        }
        let begin = nbf.map_or(iat, |nbf| nbf.max(iat));
        if begin.saturating_sub(MAX_JWT_SKEW_S) > now {
            return Err(JwtError::Early);
        }
        match exp.saturating_sub(iat) {
            0..=MAX_JWT_LIFE_S => Ok(()),
            ..0 => Err(JwtError::Expired),
            _ => Err(JwtError::TooLasting),
        }
    }
}

impl Audience {
    fn is_any_of(&self, known: &[&str]) -> bool {
        let is_known = |name: &String| {
            let bare = |name: &str| name.trim_end_matches('/').to_owned();
            known.iter().any(|known| bare(known) == bare(name))
        };
        match self {
            Self::One(name) => is_known(name),
            Self::Several(names) => names.iter().any(is_known),
        }
    }
}

/// Rights of a list of scopes, divided by spaces: the rights of the widest scope; `None` if no
/// scope is of storage.
fn rights_of(scopes: &str) -> Option<Rights> {
    let mut rights = None;
    for scope in scopes.split(' ') {
        match scope.strip_prefix("https://www.googleapis.com/auth/") {
            Some("devstorage.read_write" | "devstorage.full_control" | "cloud-platform") => {
                return Some(Rights::ReadWrite);
            }
            Some("devstorage.read_only" | "cloud-platform.read-only") => {
                rights = Some(Rights::ReadOnly);
            }
            _ => {}
        }
    }
    rights
}

fn decoded(text: &str) -> Result<Vec<u8>, JwtError> {
    let decoded = BASE64_URL_SAFE_NO_PAD.decode(text);
    decoded.map_err(|_| JwtError::Malformed)
}

fn json<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, JwtError> {
    serde_json::from_slice(&decoded(text)?).map_err(|_| JwtError::Malformed)
}

/// Parses any bytes as a token, and verifies it. Nothing but the right signature may pass.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(bytes: &[u8]) {
    let Ok(token) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(found) = Jwt::parse(token) {
        let purpose = Purpose::Bearer(&["https://storage.googleapis.com/"]);
        // A public key of no account: 2048 bits of ones, and the usual exponent.
        let key = [
            &[0x30, 0x82, 0x01, 0x0a, 0x02, 0x82, 0x01, 0x01, 0x00][..],
            &[0xff; 256],
            &[0x02, 0x03, 0x01, 0x00, 0x01],
        ]
        .concat();
        assert_eq!(found.verify(&key, purpose, 0), Err(JwtError::Signature));
        assert!(token.len() <= MAX_JWT_BYTES && token.matches('.').count() >= 2);
    }
}

#[cfg(test)]
mod tests;
