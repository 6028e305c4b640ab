//! Access tokens: a name, a key and an expiry, with a MAC over them. The server keeps no table of
//! tokens, so they cost no memory and survive its restart; a removed account has no more tokens, as
//! it is looked up with each request. The nodes of a cluster have the same keys, so each takes the
//! tokens of the others.

use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use bywash::staged_file::{StagedFile, open_folder};
use bywash::{DamagedFile, Engine};
use ring::hmac;

use super::account::GcsAccount;
use super::jwt::Rights;
use crate::limits::{MAX_ACCESS_TOKEN_AGE_S, MAX_JWT_BYTES};

/// The file of the key, which is no name of an account.
const FILE: &str = "token.key";
/// A key that was damaged.
const DAMAGED_FILE: &str = "token.key.damaged";
const KEY_BYTES: usize = 32;
/// Bytes of an expiry, in seconds since 1970.
const EXPIRY_BYTES: usize = 8;
/// Keeps the MACs of tokens apart from all others.
const PURPOSE: &[u8] = b"bywash access token 1\n";
/// Text after the account in a token that may only read. No name of an account has a slash.
const READ_ONLY: &str = "/read-only";

/// Keys that sign and verify access tokens.
#[derive(Clone)]
pub struct GcsTokenKeys {
    signs: hmac::Key,
    /// Others that verify, while keys change.
    older: Vec<hmac::Key>,
}

impl std::fmt::Debug for GcsTokenKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("GcsTokenKeys")
    }
}

/// Claims of a verified token.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct AccessToken {
    pub(crate) account: String,
    pub(crate) rights: Rights,
    key_id: String,
}

impl AccessToken {
    /// Whether the token was given for the key that an account has now.
    pub(crate) fn is_of(&self, account: &GcsAccount) -> bool {
        self.account == account.name && self.key_id == account.key_id
    }
}

impl GcsTokenKeys {
    /// Signs with `key`, and takes also tokens that `older` keys signed, while keys change. All nodes of a cluster derive them from its
    /// keys, and use them for nothing else.
    #[must_use]
    pub fn new(key: [u8; KEY_BYTES], older: impl IntoIterator<Item = [u8; KEY_BYTES]>) -> Self {
        let key_of = |bytes: [u8; KEY_BYTES]| hmac::Key::new(hmac::HMAC_SHA256, &bytes);
        Self {
            signs: key_of(key),
            older: older.into_iter().map(key_of).collect(),
        }
    }

    /// A key of this process.
    pub(crate) fn random() -> Self {
        Self::new(rand::random(), [])
    }

    /// Reads the key in `folder`; both are created if missing. Blocks.
    pub(crate) fn open(folder: &Path) -> io::Result<Self> {
        let path = folder.join(FILE);
        match fs::read(&path).map(<[u8; KEY_BYTES]>::try_from) {
            Ok(Ok(key)) => return Ok(Self::new(key, [])),
            Ok(Err(_)) => {
                let text = format!(
                    "{} does not have {KEY_BYTES} bytes; remove it, and clients get new tokens",
                    path.display()
                );
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let key = rand::random::<[u8; KEY_BYTES]>();
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)?;
        let staged = StagedFile::create(open_folder(folder)?, &Permissions::from_mode(0o600))?;
        staged.file().write_all(&key)?;
        staged.place(FILE.as_ref(), true)?;
        Ok(Self::new(key, []))
    }

    /// As [`Self::open`]. A damaged key is set aside, and a new one made: clients exchange their keys for tokens again. Blocks.
    pub(crate) fn open_or_replace(folder: &Path, engine: &Engine) -> io::Result<Self> {
        use io::ErrorKind::{InvalidData, IsADirectory};
        let error = match Self::open(folder) {
            Err(error) if matches!(error.kind(), InvalidData | IsADirectory) => error,
            opened => return opened,
        };
        let (path, aside) = (folder.join(FILE), folder.join(DAMAGED_FILE));
        fs::rename(&path, &aside)?;
        let keys = Self::open(folder)?;
        engine.note_damage(DamagedFile {
            file: path.display().to_string(),
            reason: error.to_string(),
            effect: format!(
                "tokens given before are refused, and clients get new ones; the damaged key is {}",
                aside.display()
            ),
        });
        Ok(keys)
    }

    /// A token of an account, given at `now`, in seconds since 1970.
    pub(crate) fn token(&self, account: &GcsAccount, rights: Rights, now: i64) -> String {
        let marked = match rights {
            Rights::ReadWrite => "",
            Rights::ReadOnly => READ_ONLY,
        };
        let expiry = now.saturating_add(MAX_ACCESS_TOKEN_AGE_S).to_be_bytes();
        let stated = [
            &expiry,
            account.key_id.as_bytes(),
            b"/",
            account.name.as_bytes(),
            marked.as_bytes(),
        ]
        .concat();
        let stated = BASE64_URL_SAFE_NO_PAD.encode(stated);
        let mac = BASE64_URL_SAFE_NO_PAD.encode(hmac::sign(&self.signs, &message(&stated)));
        format!("{stated}.{mac}")
    }

    /// Verifies a token at `now`: `None` if none of these keys signed it, or it has expired. The MACs are compared in constant time.
    pub(crate) fn verify(&self, token: &str, now: i64) -> Option<AccessToken> {
        if token.len() > MAX_JWT_BYTES {
            return None;
        }
        let (stated, mac) = token.split_once('.')?;
        let mac = BASE64_URL_SAFE_NO_PAD.decode(mac).ok()?;
        let message = message(stated);
        let mut keys = std::iter::once(&self.signs).chain(&self.older);
        if !keys.any(|key| hmac::verify(key, &message, &mac).is_ok()) {
            return None;
        }
        let stated = BASE64_URL_SAFE_NO_PAD.decode(stated).ok()?;
        let (expiry, names) = stated.split_first_chunk::<EXPIRY_BYTES>()?;
        let (key_id, account) = std::str::from_utf8(names).ok()?.split_once('/')?;
        let (account, rights) = match account.strip_suffix(READ_ONLY) {
            Some(account) => (account, Rights::ReadOnly),
            None => (account, Rights::ReadWrite),
        };
        (now < i64::from_be_bytes(*expiry)).then(|| AccessToken {
            account: account.to_owned(),
            rights,
            key_id: key_id.to_owned(),
        })
    }
}

/// Message that a MAC covers.
fn message(stated: &str) -> Vec<u8> {
    [PURPOSE, stated.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use bywash_support::account::{NAME, OTHER_PEM, PEM, der};

    use super::*;
    use crate::config::Scope;

    const NOW: i64 = 1_800_000_000;

    fn account(pem: &str) -> GcsAccount {
        GcsAccount::new(NAME, &der(pem), "", Scope::default()).unwrap()
    }

    #[test]
    fn token_is_good_until_it_expires_and_for_its_key_only() {
        let key = GcsTokenKeys::new([7; KEY_BYTES], []);
        let account = account(PEM);
        let token = key.token(&account, Rights::ReadWrite, NOW);
        let last = NOW + MAX_ACCESS_TOKEN_AGE_S - 1;
        let found = key.verify(&token, last).unwrap();
        assert_eq!((&*found.account, found.rights), (NAME, Rights::ReadWrite));
        assert!(found.is_of(&account) && !found.is_of(&self::account(OTHER_PEM)));
        assert_eq!(key.verify(&token, last + 1), None);
        let other = GcsTokenKeys::new([8; KEY_BYTES], []);
        assert_eq!(other.verify(&token, NOW), None);
        // While keys change, the tokens of both are taken.
        let both = GcsTokenKeys::new([8; KEY_BYTES], [[7; KEY_BYTES]]);
        assert!(both.verify(&token, NOW).is_some());
        let newer = both.token(&account, Rights::ReadWrite, NOW);
        assert!(other.verify(&newer, NOW).is_some() && key.verify(&newer, NOW).is_none());
        let token = key.token(&account, Rights::ReadOnly, NOW);
        let found = key.verify(&token, NOW).unwrap();
        assert_eq!((&*found.account, found.rights), (NAME, Rights::ReadOnly));
        assert!(found.is_of(&account));
    }

    #[test]
    fn changed_token_is_refused() {
        let key = GcsTokenKeys::new([7; KEY_BYTES], []);
        let token = key.token(&account(PEM), Rights::ReadOnly, NOW);
        for at in 0..token.len() {
            let mut changed = token.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            assert_eq!(key.verify(&changed, NOW), None, "{at}");
        }
        for other in ["", ".", "a.b", &token[1..], &"A".repeat(MAX_JWT_BYTES + 1)] {
            assert_eq!(key.verify(other, NOW), None);
        }
    }

    #[test]
    fn key_survives_a_restart_and_is_its_owners() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("accounts");
        let token =
            GcsTokenKeys::open(&folder)
                .unwrap()
                .token(&account(PEM), Rights::ReadWrite, NOW);
        let again = GcsTokenKeys::open(&folder).unwrap();
        assert!(again.verify(&token, NOW).is_some());
        let path = folder.join(FILE);
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(GcsAccount::list(&folder).unwrap(), []);
        fs::write(&path, b"short").unwrap();
        let error = GcsTokenKeys::open(&folder).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert_eq!(format!("{again:?}"), "GcsTokenKeys");
    }

    #[test]
    fn damaged_key_is_set_aside_and_tokens_before_it_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let engine = Engine::builder().memory(16 << 20).build().unwrap();
        let open = || GcsTokenKeys::open_or_replace(folder, &engine).unwrap();
        let token = open().token(&account(PEM), Rights::ReadWrite, NOW);
        assert!(engine.damaged_files().is_empty());
        fs::write(folder.join(FILE), b"short").unwrap();
        let keys = open();
        assert_eq!(keys.verify(&token, NOW), None);
        let again = keys.token(&account(PEM), Rights::ReadWrite, NOW);
        assert!(open().verify(&again, NOW).is_some());
        assert_eq!(fs::read(folder.join(DAMAGED_FILE)).unwrap(), b"short");
        assert_eq!(engine.damaged_files().len(), 1);
        // Accounts are other files.
        assert_eq!(GcsAccount::list(folder).unwrap(), []);
    }
}
