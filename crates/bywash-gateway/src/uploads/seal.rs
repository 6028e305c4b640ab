//! Upload ids that carry the state of their upload, with a MAC by a key that all nodes have.

use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use bywash::cluster_uploads::UploadSeal;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Beginning of an id: the version of its format.
const VERSION: &str = "c1.";
/// Bytes of the MAC in an id. Half of HMAC-SHA256, as RFC 2104 allows: an id is guessed once in 2^128.
const MAC_BYTES: usize = 16;

/// Seals ids with HMAC-SHA256. The state in an id is readable, and of use only with the key.
pub struct HmacSeal {
    /// The first seals, each opens.
    keys: Vec<[u8; 32]>,
}

impl fmt::Debug for HmacSeal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HmacSeal")
    }
}

impl HmacSeal {
    /// Seals with `key`, and opens also ids sealed with `older` keys, while keys change. All nodes
    /// of a cluster derive them from its keys, and use them for nothing else.
    #[must_use]
    pub fn new(key: [u8; 32], older: impl IntoIterator<Item = [u8; 32]>) -> Self {
        Self {
            keys: std::iter::once(key).chain(older).collect(),
        }
    }
}

fn mac(secret: &[u8; 32], bucket: &str, key: &str, state: &[u8]) -> Option<Hmac<Sha256>> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).ok()?;
    for text in [VERSION, bucket, key] {
        mac.update(&(text.len() as u64).to_le_bytes());
        mac.update(text.as_bytes());
    }
    mac.update(state);
    Some(mac)
}

impl UploadSeal for HmacSeal {
    fn seal(&self, bucket: &str, key: &str, state: &[u8]) -> String {
        // HMAC takes keys of any length.
        let mac = self
            .keys
            .first()
            .and_then(|secret| mac(secret, bucket, key, state));
        let mac = mac
            .map(|mac| mac.finalize().into_bytes())
            .unwrap_or_default();
        let sealed = [&mac[..MAC_BYTES], state].concat();
        format!("{VERSION}{}", BASE64_URL_SAFE_NO_PAD.encode(sealed))
    }

    fn open(&self, bucket: &str, key: &str, id: &str) -> Option<Vec<u8>> {
        let sealed = BASE64_URL_SAFE_NO_PAD.decode(id.strip_prefix(VERSION)?);
        let sealed = sealed.ok()?;
        let (stated, state) = sealed.split_at_checked(MAC_BYTES)?;
        // Compares in constant time.
        let matches = |expected: Hmac<Sha256>| expected.verify_truncated_left(stated).is_ok();
        let mut keys = self.keys.iter();
        keys.any(|secret| mac(secret, bucket, key, state).is_some_and(matches))
            .then(|| state.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_opens_for_its_object_and_key_only() {
        let seal = HmacSeal::new([7; 32], []);
        let id = seal.seal("bucket", "key", b"state");
        assert!(
            id.bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        );
        assert_eq!(seal.open("bucket", "key", &id).unwrap(), b"state");
        for (bucket, key) in [("bucke", "tkey"), ("bucket", "other"), ("other", "key")] {
            assert_eq!(seal.open(bucket, key, &id), None);
        }
        assert_eq!(HmacSeal::new([8; 32], []).open("bucket", "key", &id), None);
        let newer = HmacSeal::new([8; 32], [[7; 32]]);
        assert_eq!(newer.open("bucket", "key", &id).unwrap(), b"state");
        let id = newer.seal("bucket", "key", b"state");
        assert_eq!(seal.open("bucket", "key", &id), None);
    }

    #[test]
    fn changed_or_foreign_id_does_not_open() {
        let seal = HmacSeal::new([7; 32], []);
        let id = seal.seal("bucket", "key", b"state");
        let sealed = BASE64_URL_SAFE_NO_PAD.decode(&id[VERSION.len()..]).unwrap();
        for at in 0..sealed.len() {
            let mut forged = sealed.clone();
            forged[at] ^= 1;
            let forged = format!("{VERSION}{}", BASE64_URL_SAFE_NO_PAD.encode(forged));
            assert_eq!(seal.open("bucket", "key", &forged), None, "byte {at}");
        }
        let cut = format!("{VERSION}{}", BASE64_URL_SAFE_NO_PAD.encode(&sealed[..15]));
        let other = id.replacen(VERSION, "c2.", 1);
        for foreign in ["", "c1.", "2~abc", &cut, &other, &id[..id.len() - 1]] {
            assert_eq!(seal.open("bucket", "key", foreign), None, "{foreign}");
        }
    }
}
