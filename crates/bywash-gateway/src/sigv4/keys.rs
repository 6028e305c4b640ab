//! Secret keys, and the signing keys of version 4, each derived once a day, location and access key.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::Algorithm;
use super::parse::CredentialScope;
use crate::config::{Credential, Scope};
use crate::limits::MAX_KEPT_SIGNING_KEYS;
use crate::resident::Slots;

/// Secret keys and their scopes, by access key. A cheap handle.
#[derive(Clone, Default)]
pub(crate) struct Secrets(Arc<HashMap<String, (String, Arc<Scope>)>>);

impl Secrets {
    pub(crate) fn new(credentials: &[Credential]) -> Self {
        let entry = |found: &Credential| {
            let scope = Arc::new(found.scope.clone());
            (found.access_key.clone(), (found.secret_key.clone(), scope))
        };
        Self(Arc::new(credentials.iter().map(entry).collect()))
    }

    /// The secret key and the scope of an access key.
    pub(crate) fn find(&self, access_key: &str) -> Option<(&str, &Arc<Scope>)> {
        let (secret, scope) = self.0.get(access_key)?;
        Some((secret, scope))
    }
}

/// The key that signed a request.
#[derive(Debug, Clone)]
pub(crate) struct Signatory {
    pub(crate) access_key: Arc<str>,
    pub(crate) scope: Arc<Scope>,
}

/// A signing key of one day and location, ready to sign.
pub(crate) struct SigningKey {
    signatory: Signatory,
    algorithm: Algorithm,
    day: String,
    location: String,
    mac: Hmac<Sha256>,
}

impl SigningKey {
    fn derive(named: CredentialScope<'_>, secrets: &Secrets) -> Option<Self> {
        let CredentialScope {
            algorithm,
            identity,
            day,
            location,
        } = named;
        let prefix = algorithm.secret_prefix()?;
        let (secret, scope) = secrets.find(identity)?;
        let [service, version] = algorithm.service();
        let mut mac = mac(format!("{prefix}{secret}").as_bytes())?;
        for part in [day, location, service, version] {
            mac.update(part.as_bytes());
            mac = self::mac(&mac.finalize().into_bytes())?;
        }
        Some(Self {
            signatory: Signatory {
                access_key: identity.into(),
                scope: Arc::clone(scope),
            },
            algorithm,
            day: day.to_owned(),
            location: location.to_owned(),
            mac,
        })
    }

    fn is_of(&self, named: CredentialScope<'_>) -> bool {
        *self.signatory.access_key == *named.identity
            && self.algorithm == named.algorithm
            && self.day == named.day
            && self.location == named.location
    }

    /// A signature of no text yet.
    pub(crate) fn mac(&self) -> Hmac<Sha256> {
        self.mac.clone()
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
    pub(crate) secrets: Secrets,
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
    pub(crate) fn new(secrets: Secrets) -> Self {
        Self {
            secrets,
            slots: Slots::new(MAX_KEPT_SIGNING_KEYS),
            hasher: RandomState::new(),
        }
    }

    /// The key of a scope; `None` if its access key is unknown, or signs otherwise.
    pub(crate) fn find(&self, named: CredentialScope<'_>) -> Option<FoundKey> {
        let number = self.hasher.hash_one(named);
        let kept = self.slots.get(number).filter(|key| key.is_of(named));
        let is_new = kept.is_none();
        let key = match kept {
            Some(key) => key,
            None => Arc::new(SigningKey::derive(named, &self.secrets)?),
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
