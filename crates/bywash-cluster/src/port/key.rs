//! Cluster keys: 32 random bytes that all nodes of a cluster have, and the values derived from
//! them.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hkdf;
use ring::rand::{SecureRandom as _, SystemRandom};

use crate::limits::{MAX_CLUSTER_KEYS, MAX_KEY_FILE_BYTES};

/// Bytes of a key, and of each value derived from it.
const KEY_BYTES: usize = 32;
/// Separates the values derived here from values that other programs derive from the same bytes.
const SALT: &[u8] = b"bywash cluster key 1";
/// Label of a key's check value, and bytes of it: two of a billion keys have the same with a chance of one in 40.
const CHECK_LABEL: &str = "check value";
const CHECK_BYTES: usize = 8;

/// A cluster key. It is not shown, and must be random: a guessable text can be found from the
/// values derived from it.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterKey([u8; KEY_BYTES]);

/// The keys that a node accepts. The first is the one it presents; a second is there while keys are replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterKeys(Vec<ClusterKey>);

/// Error of reading or writing a file of cluster keys.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read.
    #[error("cannot read the cluster key {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Other users may read the file.
    #[error("the cluster key {} may be read by other users of this machine; run chmod 600", .0.display())]
    ReadableByOthers(PathBuf),
    /// A line is not a key.
    #[error("line {line} is no cluster key: {reason}; make one with `bywash cluster key`")]
    BadKey {
        /// The line, from 1.
        line: usize,
        /// Reason for the refusal of the line.
        reason: &'static str,
    },
    /// There is no key, or there are more than two.
    #[error("{0} cluster keys; there must be one, or two while keys are replaced")]
    WrongNumber(usize),
    /// The system has no random numbers, or the TLS library refused the key.
    #[error("the cluster key cannot be used: {0}")]
    Unusable(String),
}

/// Number of bytes that HKDF returns.
struct DerivedLength;

impl hkdf::KeyType for DerivedLength {
    fn len(&self) -> usize {
        KEY_BYTES
    }
}

impl ClusterKey {
    /// Makes a random key.
    ///
    /// # Errors
    /// [`KeyError::Unusable`] if the system has no random numbers.
    pub fn generate() -> Result<Self, KeyError> {
        let mut bytes = [0; KEY_BYTES];
        let filled = SystemRandom::new().fill(&mut bytes);
        filled.map_err(|_| KeyError::Unusable("no random numbers".to_owned()))?;
        Ok(Self(bytes))
    }

    /// Key as a file has it: 64 hexadecimal digits.
    #[must_use]
    pub fn to_text(&self) -> String {
        to_hex(&self.0)
    }

    /// Parses 64 hexadecimal digits, or the base64 of 32 bytes.
    ///
    /// # Errors
    /// [`KeyError::BadKey`] with line 1.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        Self::parse_line(1, text)
    }

    fn parse_line(line: usize, text: &str) -> Result<Self, KeyError> {
        let bad = |reason| KeyError::BadKey { line, reason };
        let bytes = match hex(text) {
            Some(bytes) => bytes,
            None => STANDARD
                .decode(text)
                .map_err(|_| bad("it is neither 64 hexadecimal digits nor base64"))?,
        };
        let bytes: [u8; KEY_BYTES] = bytes.try_into().map_err(|_| bad("it is not 32 bytes"))?;
        if bytes.iter().all(|byte| *byte == bytes[0]) {
            return Err(bad("all its bytes are the same"));
        }
        Ok(Self(bytes))
    }

    /// Returns 32 bytes for one purpose, by HKDF-SHA256. They reveal neither the key nor the bytes
    /// of another `label`.
    #[must_use]
    pub fn derive(&self, label: &str) -> [u8; KEY_BYTES] {
        let key = hkdf::Salt::new(hkdf::HKDF_SHA256, SALT).extract(&self.0);
        let info = [label.as_bytes()];
        let mut bytes = [0; KEY_BYTES];
        let filled = key
            .expand(&info, DerivedLength)
            .and_then(|derived| derived.fill(&mut bytes));
        assert!(filled.is_ok(), "HKDF fails only beyond 255 blocks");
        bytes
    }
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Decodes text of hexadecimal digits only.
fn hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.len() == 2 * KEY_BYTES && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let pairs = text.as_bytes().chunks(2);
    let parsed = pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
    if digits { parsed.collect() } else { None }
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterKey(..)")
    }
}

impl ClusterKeys {
    /// The keys, the one to present first.
    ///
    /// # Errors
    /// [`KeyError::WrongNumber`]
    pub fn new(keys: Vec<ClusterKey>) -> Result<Self, KeyError> {
        if keys.is_empty() || keys.len() > MAX_CLUSTER_KEYS {
            return Err(KeyError::WrongNumber(keys.len()));
        }
        Ok(Self(keys))
    }

    /// Parses one key a line. Empty lines and lines that begin with `#` are skipped.
    ///
    /// # Errors
    /// [`KeyError::BadKey`], [`KeyError::WrongNumber`]
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let lines = (1..).zip(text.lines().map(str::trim));
        let keys = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let keys: Result<Vec<_>, _> = keys
            .map(|(number, line)| ClusterKey::parse_line(number, line))
            .collect();
        Self::new(keys?)
    }

    /// Reads a file of keys. On Unix it is refused if other users may read it; its group may, as secrets that an orchestrator
    /// mounts belong to a group.
    ///
    /// # Errors
    /// [`KeyError`]
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let unreadable = |source| KeyError::Unreadable {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(unreadable)?;
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let metadata = file.metadata().map_err(unreadable)?;
            if metadata.permissions().mode() & 0o007 != 0 {
                return Err(KeyError::ReadableByOthers(path.to_owned()));
            }
        }
        let mut text = String::new();
        let mut limited = file.take(MAX_KEY_FILE_BYTES);
        limited.read_to_string(&mut text).map_err(unreadable)?;
        Self::parse(&text)
    }

    /// All keys, the one to present first.
    pub(super) fn all(&self) -> &[ClusterKey] {
        &self.0
    }

    /// Check values of all keys, beginning with the first key's. Nodes compare their keys by them;
    /// they reveal nothing of a key.
    #[must_use]
    pub fn check_values(&self) -> Vec<String> {
        let (first, others) = self.derive(CHECK_LABEL);
        let values = std::iter::once(first).chain(others);
        values.map(|bytes| to_hex(&bytes[..CHECK_BYTES])).collect()
    }

    /// Derives the bytes of each key for `label`, as [`ClusterKey::derive`] does; the first key's
    /// are the first value.
    #[must_use]
    pub fn derive(&self, label: &str) -> ([u8; KEY_BYTES], Vec<[u8; KEY_BYTES]>) {
        let others = self.0[1..].iter().map(|key| key.derive(label));
        (self.0[0].derive(label), others.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(first: u8) -> ClusterKey {
        let mut bytes = [7; KEY_BYTES];
        bytes[0] = first;
        ClusterKey(bytes)
    }

    #[test]
    fn keys_are_parsed_back_from_both_encodings() {
        let made = ClusterKey::generate().unwrap();
        assert_eq!(ClusterKey::parse(&made.to_text()).unwrap(), made);
        assert_eq!(ClusterKey::parse(&STANDARD.encode(made.0)).unwrap(), made);
        assert_ne!(ClusterKey::generate().unwrap(), made);
        assert_eq!(format!("{made:?}"), "ClusterKey(..)");
    }

    #[test]
    fn short_long_and_constant_keys_are_refused() {
        let good = key(1).to_text();
        for bad in [
            "",
            "secret",
            "00112233445566778899aabbccddeeff",
            &"0".repeat(64),
            &"ab".repeat(32),
            &good[..62],
            &format!("{good}00"),
            &STANDARD.encode([0; 32]),
            &format!("é{}", &good[2..]),
        ] {
            assert!(ClusterKey::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn files_have_one_key_or_two() {
        let (first, second) = (key(1).to_text(), key(2).to_text());
        let two = ClusterKeys::parse(&format!("# new\n{first}\n\n{second}\n")).unwrap();
        assert_eq!(two.all(), [key(1), key(2)]);
        let three = format!("{first}\n{second}\n{first}\n");
        assert!(matches!(
            ClusterKeys::parse(&three),
            Err(KeyError::WrongNumber(3))
        ));
        assert!(matches!(
            ClusterKeys::parse("\n"),
            Err(KeyError::WrongNumber(0))
        ));
        assert!(matches!(
            ClusterKeys::parse(&format!("{first}\nshort")),
            Err(KeyError::BadKey { line: 2, .. })
        ));
    }

    #[cfg(unix)]
    #[test]
    fn file_that_others_may_read_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        std::fs::write(&path, key(1).to_text()).unwrap();
        for (mode, good) in [(0o600, true), (0o440, true), (0o604, false), (0o602, false)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            match ClusterKeys::read(&path) {
                Ok(keys) => assert!(good && keys.all() == [key(1)], "{mode:o}"),
                Err(KeyError::ReadableByOthers(_)) => assert!(!good, "{mode:o}"),
                Err(other) => panic!("{other}"),
            }
        }
        let absent = ClusterKeys::read(&folder.path().join("absent"));
        assert!(matches!(absent, Err(KeyError::Unreadable { .. })));
    }

    #[test]
    fn file_beyond_the_limit_is_not_read_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let filler = "#".repeat(MAX_KEY_FILE_BYTES as usize);
        std::fs::write(&path, format!("{filler}\n{}\n", key(1).to_text())).unwrap();
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        }
        assert!(matches!(
            ClusterKeys::read(&path),
            Err(KeyError::WrongNumber(0))
        ));
    }

    #[test]
    fn labels_and_keys_give_unrelated_bytes() {
        let one = key(1).derive("a");
        assert_eq!(one, key(1).derive("a"));
        assert_ne!(one, key(1).derive("b"));
        assert_ne!(one, key(2).derive("a"));
        assert_ne!(one, key(1).0);
    }

    /// Computed by an independent implementation: HMAC-SHA256 twice, as RFC 5869 has it.
    #[test]
    fn derivation_is_that_of_the_rfc() {
        use ring::hmac::{self, Key, sign};
        let prk = sign(&Key::new(hmac::HMAC_SHA256, SALT), &key(1).0);
        let okm = sign(&Key::new(hmac::HMAC_SHA256, prk.as_ref()), b"label\x01");
        assert_eq!(okm.as_ref(), key(1).derive("label"));
    }

    #[test]
    fn check_values_are_of_each_key_in_order() {
        let both = ClusterKeys::new(vec![key(2), key(1)])
            .unwrap()
            .check_values();
        let one = ClusterKeys::new(vec![key(1)]).unwrap().check_values();
        assert_eq!(both[1..], one);
        assert_ne!(both[0], both[1]);
        assert_eq!(one[0].len(), 2 * CHECK_BYTES);
        assert!(!key(1).to_text().contains(&one[0]));
    }

    #[test]
    fn each_key_and_label_gives_another_secret() {
        let both = ClusterKeys::new(vec![key(2), key(1)]).unwrap();
        let (first, others) = both.derive("uploads");
        assert_eq!(first, key(2).derive("uploads"));
        assert_eq!(others, [key(1).derive("uploads")]);
        assert_ne!(first, others[0]);
        assert_ne!(first, both.derive("other").0);
    }
}
