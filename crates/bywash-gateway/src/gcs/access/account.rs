//! Service accounts: the fields of a client's key file, and the part that the server keeps, the
//! public key.
//!
//! An account is one file of a folder, named for the account. The server reads it when a request
//! names the account, so that new accounts are served at once, and removed ones no longer after
//! [`MAX_ACCOUNT_AGE`]. Other accounts are listed in the server's settings, as in a cluster, whose
//! nodes share no folder.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bywash::staged_file::{StagedFile, open_folder};
use parking_lot::Mutex;
use ring::rsa::KeyPair;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::config::Scope;
use crate::digest::hex;
use crate::limits::{MAX_ACCOUNT_AGE, MAX_ACCOUNT_NAME_BYTES, MAX_KEPT_ACCOUNTS};

/// Part of an account's email address after its name. Tokens name an account by its address.
pub(crate) const DOMAIN: &str = "@bywash.iam.gserviceaccount.com";
/// Clients refuse a key file without a project; all buckets are of one.
const PROJECT: &str = "bywash";
/// Extension of an account's file.
const SUFFIX: &str = "json";
/// Hexadecimal digits of the id of a key, as in Google's key files.
const KEY_ID_DIGITS: usize = 40;
/// Bytes of a public key of 2048 to 4096 bits, without the four of its head.
const PUBLIC_KEY_BYTES: std::ops::RangeInclusive<usize> = 262..=540;
/// Path of the token endpoint.
pub(crate) const TOKEN_PATH: &str = "/token";

/// A service account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GcsAccount {
    /// Its name: the first part of its email address.
    pub name: String,
    /// Id of its key.
    pub key_id: String,
    /// Rights of its requests.
    pub scope: Scope,
    /// URL of the server in the key file; tokens name a part of it.
    pub endpoint: String,
    /// As PKCS#1.
    pub(crate) public_key: Vec<u8>,
}

/// The file of an account.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AccountFile {
    key_id: String,
    endpoint: String,
    /// PKCS#1 in base64.
    public_key: String,
    buckets: Option<Vec<String>>,
    read_only: bool,
}

/// Error of making, listing or removing a service account.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GcsAccountError {
    /// The name does not fit an email address.
    #[error(
        "a service account cannot be named {0:?}: a name has 1 to {MAX_ACCOUNT_NAME_BYTES} lower-case letters, digits and hyphens, \
         and begins with a letter"
    )]
    Name(String),
    /// The key cannot make signatures that the server verifies.
    #[error(
        "the key of a service account is RSA of 2048 to 4096 bits, as PKCS#8: {0}; make one by openssl genpkey -algorithm RSA"
    )]
    Key(String),
    /// The public key has a form that the server does not verify.
    #[error(
        "the public key of a service account is RSA of 2048 to 4096 bits, as PKCS#1 in base64; bywash keys ls --toml prints the key of an account"
    )]
    PublicKey,
    /// Another account has this name.
    #[error("there is a service account {0} already; remove it first, or give another name")]
    Exists(String),
    /// The file of the account cannot be written.
    #[error("the service account cannot be kept in {}: {source}", folder.display())]
    File {
        /// The folder.
        folder: PathBuf,
        /// The error of the file system.
        source: io::Error,
    },
}

impl GcsAccount {
    /// Describes the account of a private key, which is PKCS#8. The private key is not kept. `endpoint`: the URL of the server.
    ///
    /// # Errors
    /// If the name does not fit, or the key is of another kind.
    pub fn new(
        name: &str,
        private_key: &[u8],
        endpoint: &str,
        scope: Scope,
    ) -> Result<Self, GcsAccountError> {
        if !is_name(name) {
            return Err(GcsAccountError::Name(name.to_owned()));
        }
        let pair = KeyPair::from_pkcs8(private_key)
            .map_err(|error| GcsAccountError::Key(error.to_string()))?;
        Ok(Self::of(
            name,
            pair.public().as_ref().to_vec(),
            endpoint,
            scope,
        ))
    }

    /// Describes the account of a public key, as [`Self::public_key_text`] returns it.
    ///
    /// # Errors
    /// If the name does not fit, or the text is no such key.
    pub fn from_public_key(
        name: &str,
        public_key: &str,
        endpoint: &str,
        scope: Scope,
    ) -> Result<Self, GcsAccountError> {
        if !is_name(name) {
            return Err(GcsAccountError::Name(name.to_owned()));
        }
        let key = BASE64_STANDARD.decode(public_key);
        let key = key.ok().filter(|key| is_public_key(key));
        let key = key.ok_or(GcsAccountError::PublicKey)?;
        Ok(Self::of(name, key, endpoint, scope))
    }

    fn of(name: &str, public_key: Vec<u8>, endpoint: &str, scope: Scope) -> Self {
        let mut key_id = hex(&Sha256::digest(&public_key));
        key_id.truncate(KEY_ID_DIGITS);
        Self {
            name: name.to_owned(),
            key_id,
            scope,
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            public_key,
        }
    }

    /// The public key as PKCS#1 in base64, for the settings of a server.
    #[must_use]
    pub fn public_key_text(&self) -> String {
        BASE64_STANDARD.encode(&self.public_key)
    }

    /// The email address that tokens state.
    #[must_use]
    pub fn email(&self) -> String {
        format!("{}{DOMAIN}", self.name)
    }

    /// URL of the token endpoint.
    pub(crate) fn token_uri(&self) -> String {
        format!("{}{TOKEN_PATH}", self.endpoint)
    }

    /// The key file for clients: the one text with the private key, `pem`.
    #[must_use]
    pub fn key_file(&self, pem: &str) -> String {
        let endpoint = &self.endpoint;
        let certificates = format!("{endpoint}/certificates");
        let file = json!({
            "type": "service_account",
            "project_id": PROJECT,
            "private_key_id": self.key_id,
            "private_key": pem,
            "client_email": self.email(),
            "client_id": self.client_id(),
            "auth_uri": format!("{endpoint}/authorize"),
            "token_uri": self.token_uri(),
            "auth_provider_x509_cert_url": certificates,
            "client_x509_cert_url": certificates,
            "universe_domain": "googleapis.com",
            // Read by the object_store crate, and so by obstore, Polars and delta-rs.
            "gcs_base_url": endpoint,
        });
        format!("{file:#}\n")
    }

    /// A number of the account, as key files have one.
    fn client_id(&self) -> String {
        let digits = self.key_id.get(..15).unwrap_or_default();
        let number = u64::from_str_radix(digits, 16).unwrap_or_default();
        format!("1{number:020}")
    }

    /// Keeps the account in `folder`, created if missing. Blocks.
    ///
    /// # Errors
    /// If it exists, or its file cannot be written.
    pub fn keep(&self, folder: &Path) -> Result<(), GcsAccountError> {
        let failed = |source| GcsAccountError::File {
            folder: folder.to_owned(),
            source,
        };
        let file = AccountFile {
            key_id: self.key_id.clone(),
            endpoint: self.endpoint.clone(),
            public_key: self.public_key_text(),
            buckets: self.scope.buckets.clone(),
            read_only: self.scope.read_only,
        };
        let text = serde_json::to_vec(&file).map_err(|error| failed(error.into()))?;
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(failed)?;
        let placed = open_folder(folder).and_then(|opened| {
            let staged = StagedFile::create(opened, &Permissions::from_mode(0o600))?;
            staged.file().write_all(&text)?;
            staged.place(file_name(&self.name).as_ref(), false)
        });
        placed.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => GcsAccountError::Exists(self.name.clone()),
            _ => failed(error),
        })
    }

    /// Reads all accounts of a folder, by name. Blocks.
    ///
    /// # Errors
    /// If the folder or a file of it cannot be read.
    pub fn list(folder: &Path) -> io::Result<Vec<Self>> {
        let mut found = Vec::new();
        let entries = match fs::read_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
            entries => entries?,
        };
        for entry in entries {
            let path = entry?.path();
            let name = path.file_stem().and_then(|name| name.to_str());
            let name = name.filter(|name| is_name(name) && path.ends_with(file_name(name)));
            if let Some(account) = name.map(|name| read(folder, name)).transpose()? {
                found.extend(account);
            }
        }
        found.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(found)
    }

    /// Removes an account: its key opens nothing any more, after some seconds also on a server that runs. Returns whether there
    /// was one. Blocks.
    ///
    /// # Errors
    /// If the file cannot be removed.
    pub fn remove(folder: &Path, name: &str) -> io::Result<bool> {
        if !is_name(name) {
            return Ok(false);
        }
        match fs::remove_file(folder.join(file_name(name))) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            removed => removed.map(|()| true),
        }
    }
}

/// Whether a name fits an email address and, without an escape, a file name.
fn is_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=MAX_ACCOUNT_NAME_BYTES).contains(&name.len())
        && name.bytes().all(fits)
        && name.as_bytes()[0].is_ascii_lowercase()
}

/// Whether bytes are a DER sequence of the length of a public key.
fn is_public_key(bytes: &[u8]) -> bool {
    let Some(([0x30, 0x82, high, low], content)) = bytes.split_first_chunk() else {
        return false;
    };
    content.len() == usize::from(u16::from_be_bytes([*high, *low]))
        && PUBLIC_KEY_BYTES.contains(&content.len())
}

fn file_name(name: &str) -> String {
    format!("{name}.{SUFFIX}")
}

/// Reads the account of a name that fits. Blocks.
fn read(folder: &Path, name: &str) -> io::Result<Option<GcsAccount>> {
    let path = folder.join(file_name(name));
    let text = match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text?,
    };
    let damaged = |reason: String| {
        let text = format!("{}: {reason}; restore or remove it", path.display());
        io::Error::new(io::ErrorKind::InvalidData, text)
    };
    let file: AccountFile =
        serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
    let public_key = BASE64_STANDARD.decode(&file.public_key);
    Ok(Some(GcsAccount {
        name: name.to_owned(),
        key_id: file.key_id,
        endpoint: file.endpoint,
        scope: Scope {
            buckets: file.buckets,
            read_only: file.read_only,
        },
        public_key: public_key.map_err(|error| damaged(error.to_string()))?,
    }))
}

/// The accounts of a server.
#[derive(Debug)]
pub(crate) struct Accounts {
    folder: Option<PathBuf>,
    /// Accounts of the settings, by name.
    listed: HashMap<String, Arc<GcsAccount>>,
    /// Accounts that were read recently, with the time of the read.
    kept: Mutex<HashMap<String, (Arc<GcsAccount>, Instant)>>,
}

impl Accounts {
    pub(crate) fn new(folder: Option<PathBuf>, listed: &[GcsAccount]) -> Self {
        let entry = |account: &GcsAccount| (account.name.clone(), Arc::new(account.clone()));
        Self {
            folder,
            listed: listed.iter().map(entry).collect(),
            kept: Mutex::default(),
        }
    }

    /// Finds the account with an email address.
    ///
    /// # Errors
    /// If its file cannot be read.
    pub(crate) async fn find(&self, email: &str) -> io::Result<Option<Arc<GcsAccount>>> {
        match email.strip_suffix(DOMAIN) {
            Some(name) => self.named(name).await,
            None => Ok(None),
        }
    }

    /// The account with a name, if it is one of the settings or was read recently.
    pub(crate) fn kept(&self, name: &str) -> Option<Arc<GcsAccount>> {
        if let Some(account) = self.listed.get(name) {
            return Some(Arc::clone(account));
        }
        let kept = self.kept.lock();
        let (account, read_at) = kept.get(name)?;
        (read_at.elapsed() < MAX_ACCOUNT_AGE).then(|| Arc::clone(account))
    }

    /// Finds the account with a name.
    ///
    /// # Errors
    /// If its file cannot be read.
    pub(crate) async fn named(&self, name: &str) -> io::Result<Option<Arc<GcsAccount>>> {
        if let Some(account) = self.kept(name) {
            return Ok(Some(account));
        }
        let Some(folder) = self.folder.clone().filter(|_| is_name(name)) else {
            return Ok(None);
        };
        let now = Instant::now();
        let wanted = name.to_owned();
        let work = tokio::task::spawn_blocking(move || read(&folder, &wanted));
        let found = work.await.unwrap_or_else(|error| Err(error.into()))?;
        let mut kept = self.kept.lock();
        let Some(account) = found.map(Arc::new) else {
            kept.remove(name);
            return Ok(None);
        };
        if kept.len() >= MAX_KEPT_ACCOUNTS {
            // Only accounts that exist are kept; others are read again.
            kept.clear();
        }
        kept.insert(name.to_owned(), (Arc::clone(&account), now));
        Ok(Some(account))
    }
}

#[cfg(test)]
mod tests;
