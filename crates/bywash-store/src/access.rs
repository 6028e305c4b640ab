//! Identity of the requests that an origin sends: blocks that they brought are kept for no other.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};

use crate::digest::hex;
use crate::interface::StoreIdentity;

/// Digest of everything in the settings of an origin that may change the result of a read, such as headers and the name of its
/// credentials. A secret that only proves a name which is in the digest is left out: it may be replaced.
#[derive(Clone, Default)]
pub(super) struct Access(Sha256);

impl Access {
    /// Adds a setting. Name and value stand behind their lengths, so no two lists of settings share an input.
    pub(super) fn add(&mut self, name: &str, value: &[u8]) {
        for text in [name.as_bytes(), value] {
            self.0.update((text.len() as u64).to_le_bytes());
            self.0.update(text);
        }
    }

    /// Adds the settings of these names that have a value.
    pub(super) fn add_named<K: FromStr>(
        &mut self,
        names: &[&str],
        value: impl Fn(&K) -> Option<String>,
    ) {
        for name in names {
            let value = name.parse().ok().and_then(|key| value(&key));
            if let Some(value) = value {
                self.add(name, value.as_bytes());
            }
        }
    }

    /// Adds all settings but `proofs`, which only prove the name of the credentials.
    pub(super) fn add_all_but<K: AsRef<str>>(&mut self, proofs: &[&str], settings: &[(K, String)]) {
        for (key, value) in settings {
            if !proofs.contains(&key.as_ref()) {
                self.add(key.as_ref(), value.as_bytes());
            }
        }
    }

    /// Returns the identity of an origin at `address`, see [`super::Origin::identity`].
    pub(super) fn identity(&self, address: String) -> StoreIdentity {
        let digest = self.0.clone().finalize();
        let reads = format!("{address} as {}", hex(&digest[..16]));
        StoreIdentity { address, reads }
    }
}

/// Shows nothing of the settings.
impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Access")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_lists_of_settings_have_one_identity() {
        let identity = |settings: &[(&str, &str)]| {
            let mut access = Access::default();
            for (name, value) in settings {
                access.add(name, value.as_bytes());
            }
            access.identity("https://host/pub".to_owned()).reads
        };
        let all = [
            identity(&[]),
            identity(&[("a", "")]),
            identity(&[("", "a")]),
            identity(&[("a", "b")]),
            identity(&[("ab", "")]),
            identity(&[("a", "b"), ("c", "d")]),
            identity(&[("a", "bcd")]),
        ];
        for (index, one) in all.iter().enumerate() {
            assert!(one.starts_with("https://host/pub as "), "{one}");
            assert!(!all[index + 1..].contains(one), "{one}");
        }
        assert_eq!(identity(&[("a", "b")]), identity(&[("a", "b")]));
    }
}
