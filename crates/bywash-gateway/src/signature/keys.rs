//! Signing keys of version 4, each derived once a day, region and access key.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::{SERVICE, TERMINATOR};
use crate::auth::Keys;
use crate::config::Scope;
use crate::limits::MAX_KEPT_SIGNING_KEYS;
use crate::resident::Slots;

/// The scope of a signature: `KEY/DAY/REGION/s3/aws4_request`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct CredentialScope<'a> {
    pub(crate) access_key: &'a str,
    pub(crate) day: &'a str,
    pub(crate) region: &'a str,
}

/// The key that signed a request.
#[derive(Debug, Clone)]
pub(crate) struct Signatory {
    pub(crate) access_key: Arc<str>,
    pub(crate) scope: Arc<Scope>,
}

/// A signing key of one day and region, ready to sign.
pub(crate) struct SigningKey {
    signatory: Signatory,
    day: String,
    region: String,
    mac: Hmac<Sha256>,
}

impl SigningKey {
    fn derive(named: CredentialScope<'_>, keys: &Keys) -> Option<Self> {
        let (secret, scope) = keys.find(named.access_key)?;
        let mut mac = mac(format!("AWS4{}", secret.expose()).as_bytes())?;
        for part in [named.day, named.region, SERVICE, TERMINATOR] {
            mac.update(part.as_bytes());
            mac = self::mac(&mac.finalize().into_bytes())?;
        }
        Some(Self {
            signatory: Signatory {
                access_key: named.access_key.into(),
                scope: Arc::clone(scope),
            },
            day: named.day.to_owned(),
            region: named.region.to_owned(),
            mac,
        })
    }

    fn is_of(&self, named: CredentialScope<'_>) -> bool {
        *self.signatory.access_key == *named.access_key
            && self.day == named.day
            && self.region == named.region
    }

    /// A signature of no text yet.
    pub(crate) fn mac(&self) -> Hmac<Sha256> {
        self.mac.clone()
    }

    /// Compares the signature of a text in constant time.
    pub(crate) fn is_signature(&self, text: &str, signature: &[u8]) -> bool {
        let mut mac = self.mac();
        mac.update(text.as_bytes());
        mac.verify_slice(signature).is_ok()
    }

    pub(crate) fn signatory(&self) -> &Signatory {
        &self.signatory
    }
}

fn mac(key: &[u8]) -> Option<Hmac<Sha256>> {
    Hmac::new_from_slice(key).ok()
}

/// The signing keys with which requests were verified. Others are not kept, so that clients without a secret key replace
/// none.
pub(crate) struct SigningKeys {
    pub(super) keys: Keys,
    slots: Slots<SigningKey>,
    hasher: RandomState,
}

/// A key to verify with.
pub(crate) struct FoundKey {
    pub(crate) key: Arc<SigningKey>,
    number: u64,
    is_new: bool,
}

impl SigningKeys {
    pub(crate) fn new(keys: Keys) -> Self {
        Self {
            keys,
            slots: Slots::new(MAX_KEPT_SIGNING_KEYS),
            hasher: RandomState::new(),
        }
    }

    /// The key of a scope; `None` if its access key is unknown.
    pub(crate) fn find(&self, named: CredentialScope<'_>) -> Option<FoundKey> {
        let number = self.hasher.hash_one(named);
        let kept = self.slots.get(number).filter(|key| key.is_of(named));
        let is_new = kept.is_none();
        let key = match kept {
            Some(key) => key,
            None => Arc::new(SigningKey::derive(named, &self.keys)?),
        };
        Some(FoundKey {
            key,
            number,
            is_new,
        })
    }

    /// Keeps a key that has signed a request.
    pub(crate) fn keep(&self, found: &FoundKey) {
        if found.is_new {
            self.slots.put(found.number, Arc::clone(&found.key));
        }
    }

    #[cfg(test)]
    pub(crate) fn is_kept(&self, named: CredentialScope<'_>) -> bool {
        let key = self.slots.get(self.hasher.hash_one(named));
        key.is_some_and(|key| key.is_of(named))
    }
}
