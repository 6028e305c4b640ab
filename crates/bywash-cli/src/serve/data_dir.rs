//! The data folder of a server.
//!
//! | name | content |
//! |---|---|
//! | `format` | the version of this layout, a decimal number |
//! | `serve.lock` | locked (flock) by the one server that uses the folder; holds its process id |
//! | `credentials.json` | the key made at first start, mode 0600 |
//! | `session.json` | endpoint and credentials of the server that runs or ran last, mode 0600 |
//! | `buckets/` | a folder a bucket, when the server was given no URL |
//! | `gcs-sessions/` | a file a resumable session of the GCS endpoint, mode 0600 |
//! | `gcs-accounts/` | a file a service account of the GCS endpoint with its public key, and the key of access tokens, mode 0600 |
//! | `multipart/` | a file an open multipart upload, mode 0600 |
//! | `bucket-rules/` | a file a bucket with an ACL or rules for other sites, mode 0600 |
//! | `series/` | values sent to the server, see `databases` |
//! | `history/` | the server's own history, likewise |

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rand::distr::{Alphanumeric, SampleString};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Kind};

/// Default data folder.
pub(crate) const DEFAULT_DATA_DIR: &str = "./bywash-data";
/// Folder of open multipart uploads in the data folder.
pub(crate) const MULTIPART: &str = "multipart";
/// Folder of resumable sessions of the GCS endpoint in the data folder.
pub(crate) const GCS_SESSIONS: &str = "gcs-sessions";
/// Folder of service accounts of the GCS endpoint in the data folder.
const GCS_ACCOUNTS: &str = "gcs-accounts";
const BUCKET_RULES: &str = "bucket-rules";
/// Both dummy credentials of an anonymous server.
const ANONYMOUS: &str = "anonymous";
/// Version of the layout.
const FORMAT: u32 = 1;
/// Length of generated keys, of 62 different characters: as long as AWS's.
const ACCESS_KEY_LENGTH: usize = 20;
const SECRET_KEY_LENGTH: usize = 40;

/// A key and its secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Credentials {
    pub(crate) access_key: String,
    pub(crate) secret_key: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials")
            .field("access_key", &self.access_key)
            .finish_non_exhaustive()
    }
}

impl Credentials {
    pub(super) fn for_gateway(&self) -> bywash_gateway::Credential {
        bywash_gateway::Credential::new(&*self.access_key, &*self.secret_key)
    }

    pub(super) fn for_console(&self) -> bywash_console::Access {
        bywash_console::Access::Key {
            access_key: self.access_key.clone(),
            secret_key: self.secret_key.clone(),
        }
    }

    fn random() -> Self {
        // The thread's generator is cryptographic and seeded by the system.
        let text = |length| Alphanumeric.sample_string(&mut rand::rng(), length);
        Self {
            access_key: text(ACCESS_KEY_LENGTH).to_ascii_uppercase(),
            secret_key: text(SECRET_KEY_LENGTH),
        }
    }
}

/// Folder of the buckets of a server that was given no URL.
const BUCKETS: &str = "buckets";

/// How clients reach a server, as `bywash env` prints it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Session {
    pub(crate) endpoint: String,
    pub(crate) region: String,
    pub(crate) credentials: Credentials,
    /// Address of the admin endpoints; absent in files of older servers.
    #[serde(default)]
    pub(crate) admin: Option<SocketAddr>,
    /// URL of the GCS endpoint; absent if it is off, and in files of older servers.
    #[serde(default)]
    pub(crate) gcs: Option<String>,
    /// Folders of the buckets that are folders, by name. None: a bucket is the folder of its name in `buckets/`.
    #[serde(default)]
    pub(crate) folders: Option<BTreeMap<String, PathBuf>>,
}

impl Session {
    /// An anonymous server gets dummy credentials, because clients refuse to send requests without any.
    pub(crate) fn new(endpoint: &str, region: &str, credentials: Option<Credentials>) -> Self {
        let anonymous = || Credentials {
            access_key: ANONYMOUS.to_owned(),
            secret_key: ANONYMOUS.to_owned(),
        };
        Self {
            endpoint: endpoint.to_owned(),
            region: region.to_owned(),
            credentials: credentials.unwrap_or_else(anonymous),
            admin: None,
            gcs: None,
            folders: None,
        }
    }

    /// Whether the server is anonymous.
    pub(crate) fn is_anonymous(&self) -> bool {
        let Credentials {
            access_key,
            secret_key,
        } = &self.credentials;
        [access_key, secret_key].iter().all(|key| *key == ANONYMOUS)
    }

    /// Adds the address of the admin endpoints.
    pub(crate) fn with_admin(self, address: SocketAddr) -> Self {
        let admin = Some(address);
        Self { admin, ..self }
    }

    /// Adds the URL of the GCS endpoint.
    pub(crate) fn with_gcs(self, gcs: Option<String>) -> Self {
        Self { gcs, ..self }
    }

    /// Adds the folders of buckets.
    pub(crate) fn with_folders(self, folders: Option<BTreeMap<String, PathBuf>>) -> Self {
        Self { folders, ..self }
    }

    /// The folder of a bucket; `None` if it is no folder. `dir`: the data folder.
    pub(crate) fn folder_of(&self, dir: &Path, bucket: &str) -> Option<PathBuf> {
        match &self.folders {
            Some(folders) => folders.get(bucket).cloned(),
            None => Some(dir.join(BUCKETS).join(bucket)),
        }
    }

    /// Reads the session of the server that uses the data folder `dir`, or used it last. Takes no lock.
    pub(crate) fn read(dir: &Path) -> Result<Self, Failure> {
        check_format(dir)?;
        let path = dir.join("session.json");
        read_json(&path)?.ok_or_else(|| {
            Failure::new(
                Kind::NotFound,
                format!(
                    "no server has used {} yet; name the folder of yours (--data-dir), or start one: bywash serve --data-dir {0}",
                    dir.display()
                ),
            )
        })
    }
}

/// The data folder, locked for this process until dropped.
#[derive(Debug)]
pub(crate) struct DataDir {
    dir: PathBuf,
    _lock: File,
}

impl DataDir {
    /// Creates the folder if missing, locks it and checks its format. Also returns whether it is new.
    pub(crate) fn open(dir: &Path) -> Result<(Self, bool), Failure> {
        let failed = |error: io::Error| {
            Failure::io(
                format!("cannot use the data folder {}", dir.display()),
                &error,
            )
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .map_err(failed)?;
        let lock = lock(dir)?;
        let first = check_format(dir)?.is_none();
        if first {
            replace(&dir.join("format"), format!("{FORMAT}\n").as_bytes()).map_err(failed)?;
        }
        Ok((
            Self {
                dir: dir.to_owned(),
                _lock: lock,
            },
            first,
        ))
    }

    /// The folder itself.
    pub(crate) fn path(&self) -> &Path {
        &self.dir
    }

    /// The folder of buckets.
    pub(crate) fn buckets(&self) -> PathBuf {
        self.dir.join(BUCKETS)
    }

    /// The folder of open multipart uploads.
    pub(crate) fn multipart(&self) -> PathBuf {
        self.dir.join(MULTIPART)
    }

    /// The folder of resumable sessions.
    pub(crate) fn gcs_sessions(&self) -> PathBuf {
        self.dir.join(GCS_SESSIONS)
    }

    /// The folder of service accounts.
    pub(crate) fn gcs_accounts(&self) -> PathBuf {
        gcs_accounts(&self.dir)
    }

    /// The folder of a series database.
    pub(crate) fn database(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The folder of ACLs of buckets, and of their rules for pages of other sites.
    pub(crate) fn bucket_rules(&self) -> PathBuf {
        self.dir.join(BUCKET_RULES)
    }

    /// Returns the stored credentials, generated if there are none. Also returns whether they are new.
    pub(crate) fn credentials(&self) -> Result<(Credentials, bool), Failure> {
        let path = credentials_path(&self.dir);
        if let Some(credentials) = read_json(&path)? {
            refuse_public(&path)?;
            return Ok((credentials, false));
        }
        let credentials = Credentials::random();
        write_json(&path, &credentials)?;
        Ok((credentials, true))
    }

    /// Stores `session` for `bywash env`.
    pub(crate) fn record(&self, session: &Session) -> Result<(), Failure> {
        write_json(&self.dir.join("session.json"), session)
    }
}

/// The folder of service accounts in a data folder.
pub(crate) fn gcs_accounts(dir: &Path) -> PathBuf {
    dir.join(GCS_ACCOUNTS)
}

/// Path of the generated credentials.
pub(crate) fn credentials_path(dir: &Path) -> PathBuf {
    dir.join("credentials.json")
}

/// Locks the folder for one server, until the process ends.
fn lock(dir: &Path) -> Result<File, Failure> {
    let path = dir.join("serve.lock");
    let failed = |error: io::Error| Failure::io(format!("cannot lock {}", path.display()), &error);
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(failed)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut owner = String::new();
            let _ = file.read_to_string(&mut owner);
            return Err(Failure::failed(format!(
                "the data folder {} is in use by another bywash serve (process {}); stop it, or give another --data-dir",
                dir.display(),
                owner.trim()
            )));
        }
        Err(TryLockError::Error(error)) => return Err(failed(error)),
    }
    file.set_len(0)
        .and_then(|()| writeln!(file, "{}", std::process::id()))
        .map_err(failed)?;
    Ok(file)
}

/// Returns the folder's format, `None` if none is written. Rejects unknown ones.
fn check_format(dir: &Path) -> Result<Option<u32>, Failure> {
    let path = dir.join("format");
    let Some(text) = read(&path)? else {
        return Ok(None);
    };
    match String::from_utf8_lossy(&text).trim().parse() {
        Ok(FORMAT) => Ok(Some(FORMAT)),
        Ok(other) if other > FORMAT => Err(Failure::failed(format!(
            "the data folder {} has format {other}; this bywash knows {FORMAT}: use a newer bywash, or another --data-dir",
            dir.display()
        ))),
        _ => Err(Failure::failed(format!(
            "{} does not hold a format number; restore it, or give another --data-dir",
            path.display()
        ))),
    }
}

/// Rejects secrets that other users can read.
fn refuse_public(path: &Path) -> Result<(), Failure> {
    let meta = fs::metadata(path)
        .map_err(|error| Failure::io(format!("cannot read {}", path.display()), &error))?;
    let mode = meta.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(Failure::failed(format!(
            "others can read {0} (mode {mode:o}); run chmod 600 {0}, or delete it, and the next start creates new credentials",
            path.display()
        )));
    }
    Ok(())
}

/// Returns the content of a file, if it exists.
fn read(path: &Path) -> Result<Option<Vec<u8>>, Failure> {
    match fs::read(path) {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::io(
            format!("cannot read {}", path.display()),
            &error,
        )),
    }
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, Failure> {
    let Some(text) = read(path)? else {
        return Ok(None);
    };
    let value = serde_json::from_slice(&text);
    value.map(Some).map_err(|error| {
        Failure::failed(format!(
            "{} is damaged ({error}); delete it, and the next start creates a new one",
            path.display()
        ))
    })
}

fn write_json(path: &Path, value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_vec_pretty(value).map_err(io::Error::from);
    let written = text.and_then(|mut text| {
        text.push(b'\n');
        replace(path, &text)
    });
    written.map_err(|error| Failure::io(format!("cannot write {}", path.display()), &error))
}

/// Replaces a file atomically, with mode 0600, synced: a crash leaves the old or the new content.
fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    // Temporary files are created with mode 0600.
    let mut staged = tempfile::NamedTempFile::new_in(folder)?;
    staged.write_all(content)?;
    staged.as_file().sync_all()?;
    staged.persist(path)?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_made_once_and_kept_private() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("data");
        let (data, first) = DataDir::open(&dir).unwrap();
        assert!(first);
        let (made, new) = data.credentials().unwrap();
        assert!(new);
        assert_eq!(
            (made.access_key.len(), made.secret_key.len()),
            (ACCESS_KEY_LENGTH, SECRET_KEY_LENGTH)
        );
        assert_eq!(data.credentials().unwrap(), (made.clone(), false));
        assert_eq!(
            fs::metadata(credentials_path(&dir))
                .unwrap()
                .permissions()
                .mode()
                & 0o777,
            0o600
        );
        assert!(!format!("{made:?}").contains(&made.secret_key));

        fs::set_permissions(credentials_path(&dir), fs::Permissions::from_mode(0o644)).unwrap();
        let failure = data.credentials().unwrap_err();
        assert!(failure.message.contains("chmod 600"), "{}", failure.message);
    }

    #[test]
    fn folder_in_use_or_of_unknown_format_is_rejected() {
        let home = tempfile::tempdir().unwrap();
        let (data, _) = DataDir::open(home.path()).unwrap();
        let failure = DataDir::open(home.path()).unwrap_err();
        assert!(
            failure
                .message
                .contains(&format!("process {}", std::process::id())),
            "{}",
            failure.message
        );
        drop(data);
        let (data, first) = DataDir::open(home.path()).unwrap();
        assert!(!first);
        drop(data);

        for (format, reason) in [
            ("2", "has format 2"),
            ("", "does not hold a format"),
            ("0", "does not hold a format"),
        ] {
            fs::write(home.path().join("format"), format).unwrap();
            let failure = DataDir::open(home.path()).unwrap_err();
            assert!(
                failure.message.contains(reason),
                "{format}: {}",
                failure.message
            );
        }
    }

    #[test]
    fn stored_session_is_read_back() {
        let home = tempfile::tempdir().unwrap();
        assert_eq!(Session::read(home.path()).unwrap_err().kind, Kind::NotFound);
        let (data, _) = DataDir::open(home.path()).unwrap();
        data.record(&Session::new("http://127.0.0.1:1", "r", None))
            .unwrap();
        let session = Session::read(home.path()).unwrap();
        assert_eq!(
            (
                session.endpoint.as_str(),
                session.credentials.access_key.as_str()
            ),
            ("http://127.0.0.1:1", "anonymous")
        );
        assert_eq!(
            fs::metadata(home.path().join("session.json"))
                .unwrap()
                .permissions()
                .mode()
                & 0o777,
            0o600
        );
    }
}
