//! Upload sessions: an object is staged in one file, in place, and becomes visible by one rename.
//!
//! `.bywash/uploads/<id>/` holds the manifest, `data` and `ranges` (see [`super::ranges`]). A chunk is written at its
//! offset and synced, then recorded in `ranges`, then acknowledged. So chunks may be in flight in parallel, a killed
//! process loses only those, and no byte is written twice. If the manifest exists and `data` does not, the object was
//! placed. A transient session, which no other process continues, is in `.bywash/staging/<id>/`. So [`super::sweep`]
//! removes it when its process is dead and its `data` therefore unlocked.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock, Weak};

use async_trait::async_trait;
use chrono::DateTime;
use object_store::path::Path;
use object_store::{Attributes, Error, PutMode, Result};
use parking_lot::{Mutex, RwLock};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::attributes::with_late;
use super::error::{FolderError, blocking, io_error};
use super::names::{STAGING, UPLOADS};
use super::ranges::Ranges;
use super::root::Root;
use super::stage::{Staged, remove_flat_folder};
use super::uploads::receive;
use crate::digest::ContentDigest;
use crate::error::OriginError;
use crate::limits::MAX_PARTS;
use crate::session::{
    Chunk, ChunkRule, CompleteRequest, Finished, OpenSession, PartReceipt, SessionOptions,
    SessionPart, SessionStatus, SessionToken, StoredRange, UploadSession,
};

/// The object's bytes.
pub(super) const DATA: &str = "data";
/// Record of the bytes on disk.
const RANGES: &str = "ranges";
/// The files of a session.
pub(super) const FILES: [&str; 2] = [DATA, RANGES];
/// More than any file system accepts; small enough to add without overflow.
const CHUNK_BYTES_MAX: u64 = 1 << 40;
/// The rule for chunks.
pub(super) const RULE: ChunkRule = ChunkRule {
    granule: 1,
    min: 1,
    max: CHUNK_BYTES_MAX,
    max_chunks: None,
    parallel: true,
};

/// Uploads open in this process, by folder and id: sessions of one upload share its files.
static STAGINGS: Mutex<BTreeMap<Name, Weak<Staging>>> = Mutex::new(BTreeMap::new());

/// Device and inode of the folder, and the upload's id.
type Name = ((u64, u64), String);

/// The open files of one upload.
#[derive(Debug)]
struct Staging {
    name: Name,
    /// Locked shared by each process that may write, and exclusively by the one that places it: a late write would
    /// change the version of the object it became.
    data: File,
    ranges: Mutex<Ranges>,
    /// Locked shared by writers, so that no write is in progress when the object is placed; `true` from then on.
    ended: RwLock<bool>,
}

impl Drop for Staging {
    fn drop(&mut self) {
        let mut stagings = STAGINGS.lock();
        // Another session may have replaced the entry since the last handle was dropped.
        if stagings
            .get(&self.name)
            .is_some_and(|staging| staging.strong_count() == 0)
        {
            stagings.remove(&self.name);
        }
    }
}

/// State of an upload id on disk.
enum UploadOnDisk {
    Open(Arc<Staging>),
    /// Its bytes became the object.
    Placed,
    Nothing,
}

impl Root {
    fn session(&self, home: &str, key: &Path, id: &str) -> Result<UploadOnDisk> {
        let failed = |errno: Errno| io_error("open the upload of", key.as_ref(), errno);
        match self.manifest(home, key, id) {
            Ok(manifest) if manifest.session => {}
            Ok(_) | Err(Error::NotFound { .. }) => return Ok(UploadOnDisk::Nothing),
            Err(error) => return Err(error),
        }
        let name = (self.node(), id.to_owned());
        let mut stagings = STAGINGS.lock();
        if let Some(staging) = stagings.get(&name).and_then(Weak::upgrade) {
            return Ok(UploadOnDisk::Open(staging));
        }
        let folder = match self.open_folder(&format!("{home}/{id}")) {
            Err(Errno::NOENT) => return Ok(UploadOnDisk::Nothing),
            folder => folder.map_err(failed)?,
        };
        let open = |file: &str| {
            let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            rustix::fs::openat(&folder, file, flags, Mode::empty()).map(File::from)
        };
        let data = match open(DATA) {
            Err(Errno::NOENT) => return Ok(UploadOnDisk::Placed),
            data => data.map_err(failed)?,
        };
        if matches!(data.try_lock_shared(), Err(TryLockError::WouldBlock)) {
            return Err(FolderError::UploadBusy.generic());
        }
        let ranges = Ranges::open(open(RANGES).map_err(failed)?)
            .map_err(|source| io_error("read the upload of", key.as_ref(), source))?;
        let staging = Arc::new(Staging {
            name: name.clone(),
            data,
            ranges: Mutex::new(ranges),
            ended: RwLock::new(false),
        });
        stagings.insert(name, Arc::downgrade(&staging));
        Ok(UploadOnDisk::Open(staging))
    }
}

impl FolderSession {
    /// The upload's files, kept open from the first lookup on.
    fn found(&self) -> Result<UploadOnDisk> {
        if let Some(staging) = self.staging.get() {
            return Ok(match *staging.ended.read() {
                false => UploadOnDisk::Open(Arc::clone(staging)),
                true => UploadOnDisk::Nothing,
            });
        }
        let found = self.root.session(self.home, &self.key, &self.id)?;
        if let UploadOnDisk::Open(staging) = &found {
            let _ = self.staging.set(Arc::clone(staging));
        }
        Ok(found)
    }

    pub(super) fn send_now(&self, chunk: &Chunk) -> Result<u64> {
        let UploadOnDisk::Open(staging) = self.found()? else {
            return Err(lost(&self.key));
        };
        let failed = |source| io_error("write a chunk of", self.key.as_ref(), source);
        let ended = staging.ended.read();
        if *ended {
            return Err(lost(&self.key));
        }
        let mut at = chunk.offset;
        for piece in &chunk.pieces {
            staging.data.write_all_at(piece, at).map_err(failed)?;
            at += piece.len() as u64;
        }
        staging.data.sync_data().map_err(failed)?;
        if at > chunk.offset {
            let mut ranges = staging.ranges.lock();
            ranges.add(chunk.offset..at, chunk.crc32c).map_err(failed)?;
        }
        Ok(at)
    }

    fn status_now(&self) -> Result<SessionStatus> {
        let staging = match self.found()? {
            UploadOnDisk::Open(staging) => staging,
            UploadOnDisk::Placed => return Ok(SessionStatus::Finished(Finished::default())),
            UploadOnDisk::Nothing => return Ok(SessionStatus::Gone),
        };
        let mut ranges = staging.ranges.lock();
        ranges
            .verify(&staging.data)
            .map_err(|source| io_error("read the upload of", self.key.as_ref(), source))?;
        let stored = ranges.all().map(|(range, crc32c)| StoredRange {
            range,
            digest: Some(ContentDigest::Crc32c(crc32c)),
        });
        Ok(SessionStatus::Open(stored.collect()))
    }

    fn finish_now(&self, ending: &CompleteRequest) -> Result<Finished> {
        if let Some(parts) = &ending.parts {
            let (key, options) = (&self.key, ending.options(&self.mode));
            let put = self.root.complete_upload(key, &self.id, parts, &options)?;
            return Ok(put.into());
        }
        if let Some(tail) = &ending.tail {
            self.send_now(tail)?;
        }
        self.complete_now(ending.length, &ending.attributes)
    }

    /// Places the object if exactly its `length` bytes are on disk. `late`: attributes in addition to the manifest's.
    pub(super) fn complete_now(&self, length: u64, late: &Attributes) -> Result<Finished> {
        let UploadOnDisk::Open(staging) = self.found()? else {
            return Err(lost(&self.key));
        };
        let mut ended = staging.ended.write();
        if *ended {
            return Err(lost(&self.key));
        }
        self.check_whole(&staging, length)?;
        // No other process writes to a transient session. Exchanging its lock would leave it unlocked for an instant.
        let shared = self.home == UPLOADS;
        if shared && matches!(staging.data.try_lock(), Err(TryLockError::WouldBlock)) {
            let _ = staging.data.try_lock_shared();
            return Err(FolderError::UploadBusy.generic());
        }
        let placed = self.place(&staging, length, late);
        *ended = placed.is_ok();
        if placed.is_err() {
            let _ = staging.data.try_lock_shared();
        } else if let Err(error) = self.remove() {
            // The object exists; the leftover files show that it was finished.
            tracing::warn!(key = %self.key, upload = self.id, %error, "finished upload not removed");
        }
        placed
    }

    /// Checks that exactly the object's bytes are on disk.
    fn check_whole(&self, staging: &Staging, length: u64) -> Result<()> {
        staging.ranges.lock().covers(length).map_err(|byte| {
            OriginError::upload_damaged(&self.key, format!(
                    "the folder does not have just the {length} bytes that were sent: see byte {byte}"
                ))
        })
    }

    fn place(&self, staging: &Staging, length: u64, late: &Attributes) -> Result<Finished> {
        let key = &self.key;
        let failed = |source| io_error("finish the upload of", key.as_ref(), source);
        let manifest = self.root.manifest(self.home, key, &self.id)?;
        // Bytes written beyond the end and never recorded.
        staging.data.set_len(length).map_err(failed)?;
        let folder = self
            .root
            .open_folder(&format!("{}/{}", self.home, self.id))
            .map_err(|errno| failed(errno.into()))?;
        let file = staging.data.try_clone().map_err(failed)?;
        let mut staged = Staged::keeping(folder, DATA, file);
        let attributes = with_late(manifest.attributes, late);
        let put = self
            .root
            .commit(key, &mut staged, &attributes, &self.mode)?;
        Ok(Finished {
            e_tag: put.e_tag,
            length: Some(length),
            ..Finished::default()
        })
    }

    pub(super) fn abort_now(&self) -> Result<()> {
        if self.numbered {
            self.root.manifest(UPLOADS, &self.key, &self.id)?;
            return self.root.drop_upload(&self.key, &self.id);
        }
        match self.found()? {
            UploadOnDisk::Nothing => return Ok(()),
            UploadOnDisk::Open(staging) => *staging.ended.write() = true,
            UploadOnDisk::Placed => {}
        }
        match self.remove() {
            Err(Error::NotFound { .. }) => Ok(()),
            result => result,
        }
    }

    /// Removes its files.
    fn remove(&self) -> Result<()> {
        if self.home == UPLOADS {
            return self.root.drop_upload(&self.key, &self.id);
        }
        remove_flat_folder(&self.root, STAGING, &self.id)
            .map_err(|errno| io_error("remove an upload of", self.key.as_ref(), errno))
    }
}

impl Root {
    pub(super) fn open_sessions(&self) -> Result<Vec<OpenSession>> {
        let failed = |errno: Errno| io_error("list the uploads below", UPLOADS, errno);
        let mut ids = Vec::new();
        let listed = self.read_folder(UPLOADS, |name, _| {
            ids.push(name.to_owned());
            true
        });
        listed.map_err(failed)?;
        let mut sessions = Vec::new();
        for id in ids {
            // Skips folders that are no upload or ended since.
            let Ok(Some(manifest)) = self.any_manifest(UPLOADS, &Path::ROOT, &id) else {
                continue;
            };
            let Ok(object) = Path::parse(&manifest.key) else {
                continue;
            };
            if manifest.session
                && let Ok(folder) = self.open_folder(&format!("{UPLOADS}/{id}"))
            {
                let stat =
                    |name: &str| rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW);
                let whole = rustix::fs::fstat(&folder).map_err(failed)?;
                let data = stat(DATA).ok();
                let modified = data.as_ref().map_or(whole.st_mtime, |data| data.st_mtime);
                sessions.push(OpenSession {
                    token: SessionToken(id),
                    object,
                    bytes: data.and_then(|data| u64::try_from(data.st_size).ok()),
                    modified: DateTime::from_timestamp(modified, 0).unwrap_or_default(),
                });
            }
        }
        Ok(sessions)
    }
}

fn lost(key: &Path) -> Error {
    OriginError::upload_lost(key)
}

/// A handle to a session; its state is on disk. Clones share the files.
#[derive(Debug, Clone)]
pub(super) struct FolderSession {
    root: Arc<Root>,
    key: Path,
    id: String,
    /// Parent of its folder: [`UPLOADS`], or [`STAGING`] if it is transient.
    home: &'static str,
    mode: PutMode,
    /// A client numbers the parts; each has a file.
    numbered: bool,
    staging: Arc<OnceLock<Arc<Staging>>>,
}

impl FolderSession {
    pub(super) fn new(root: Arc<Root>, key: Path, id: String, options: &SessionOptions) -> Self {
        Self {
            root,
            key,
            id,
            home: UPLOADS,
            mode: options.mode.clone(),
            numbered: options.numbered,
            staging: Arc::default(),
        }
    }

    /// Creates a session; a transient one is removed after this process has died.
    pub(super) fn open(root: Arc<Root>, key: Path, options: &SessionOptions) -> Result<Self> {
        let files: &[&str] = if options.numbered { &[] } else { &FILES };
        if !options.transient || options.numbered {
            let id = root.create_upload(&key, &options.attributes, files)?;
            return Ok(Self::new(root, key, id, options));
        }
        // Locked until its data file is.
        let (id, _locked) = root.stage_upload(&key, &options.attributes, files)?;
        let session = Self {
            home: STAGING,
            ..Self::new(root, key, id, options)
        };
        session.found()?;
        Ok(session)
    }

    /// Stores a part that a client has numbered, in a file of its own. Returns its ETag.
    async fn put_numbered(&self, part: SessionPart) -> Result<String> {
        let numbers = 1..=u64::from(MAX_PARTS);
        let number = u16::try_from(part.number).ok();
        let number = number
            .filter(|_| numbers.contains(&part.number))
            .ok_or_else(|| FolderError::PartNumber(part.number).generic())?;
        let body = part.source.into_body()?;
        let staged = self.run(|session| {
            session.root.manifest(UPLOADS, &session.key, &session.id)?;
            session.root.stage(&session.key)
        });
        let staged = receive(staged.await?, &self.key, number, part.length, body).await?;
        let commit = move |session: &Self| {
            let (key, id) = (&session.key, &session.id);
            session.root.commit_part(key, id, number, staged)
        };
        self.run(commit).await
    }

    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let session = self.clone();
        blocking(move || work(&session)).await
    }
}

#[async_trait]
impl UploadSession for FolderSession {
    fn token(&self) -> SessionToken {
        SessionToken(self.id.clone())
    }

    async fn put(&self, part: SessionPart) -> Result<PartReceipt> {
        if part.place.is_none() {
            let e_tag = self.put_numbered(part).await?;
            return Ok(PartReceipt { end: 0, e_tag });
        }
        let chunk = part.into_chunk()?;
        let end = self.run(move |session| session.send_now(&chunk)).await?;
        Ok(PartReceipt::to(end))
    }

    async fn status(&self) -> Result<SessionStatus> {
        self.run(Self::status_now).await
    }

    async fn finish(&self, ending: &CompleteRequest) -> Result<Finished> {
        let ending = ending.clone();
        self.run(move |session| session.finish_now(&ending)).await
    }

    async fn abort(&self) -> Result<()> {
        self.run(Self::abort_now).await
    }
}
