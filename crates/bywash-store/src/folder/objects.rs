//! Operations on one object: lookup, read, write, copy. All block on files.

use std::borrow::Cow;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::ops::Range;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt, try_unfold};
use object_store::path::Path;
use object_store::{
    Attributes, Error, GetOptions, GetResult, GetResultPayload, PutMode, PutResult, Result,
};
use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;

use super::error::{FolderError, STORE, blocking, io_error, is_misfit};
use super::held::{HeldFile, Located, OpenObject};
use super::identity::Identity;
use super::names::{self, Area};
use super::ranges;
use super::restamped;
use super::root::Root;
use super::stage::Staged;
use crate::client_etag::{CLIENT_ETAG, given, join, kept_client_etag};
use crate::error::generic_error;
use crate::session::Finished;

/// Bytes of one read: large enough to amortise the switch to a blocking thread, small enough that a body in flight is
/// a small part of any memory limit.
const PIECE: u64 = 1024 * 1024;

/// Attempts at an operation while concurrent ones change its folders. Each further attempt means that another
/// operation made progress, so only links that lead nowhere reach the limit.
const RACES: usize = 100;

/// Locks for key changes. Two keys may share one, which only makes one change wait.
const LOCKS: usize = 256;

static KEY_LOCKS: [Mutex<()>; LOCKS] = [const { Mutex::new(()) }; LOCKS];
static KEY_HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

impl Root {
    fn lock_index(&self, name: &str) -> usize {
        let hash = KEY_HASHER.hash_one((self.node(), name));
        usize::try_from(hash % LOCKS as u64).unwrap_or_default()
    }

    /// Serialises changes of `name` in this process, across stores opened over the same folder.
    pub(super) fn lock(&self, name: &str) -> MutexGuard<'static, ()> {
        KEY_LOCKS[self.lock_index(name)].lock()
    }

    /// As [`Self::lock`], of two keys. They are locked in the order of their locks, so that two renames do not wait for each other.
    pub(super) fn lock_both(&self, one: &str, other: &str) -> Vec<MutexGuard<'static, ()>> {
        let mut locks = [self.lock_index(one), self.lock_index(other)].to_vec();
        locks.sort_unstable();
        locks.dedup();
        let guards = locks.into_iter().map(|index| KEY_LOCKS[index].lock());
        guards.collect()
    }

    pub(super) fn locate(&self, key: &Path) -> Result<Option<Located>> {
        for (area, path) in names::places(key)? {
            let opened = self.open_file(&path);
            let opened = opened.map_err(|errno| io_error("open", key.as_ref(), errno))?;
            if let Some((file, identity)) = opened {
                return Ok(Some(Located {
                    area,
                    path,
                    file,
                    identity,
                }));
            }
        }
        Ok(None)
    }

    /// Opens an object with the attributes of the version that was opened.
    fn open_object(&self, key: &Path) -> Result<OpenObject> {
        if key.is_root() {
            return Err(FolderError::NoSuchObject.not_found(key));
        }
        for _ in 0..RACES {
            let Some(located) = self.locate(key)? else {
                return Err(FolderError::NoSuchObject.not_found(key));
            };
            let attributes = self.read_attributes(key, &located.identity)?;
            // No side file: none was written, or the version was replaced since it was opened.
            if attributes.is_some() || self.is_current(key, &located)? {
                let mut attributes = attributes.unwrap_or_default();
                let e_tag = self.e_tag(&located, &mut attributes);
                return Ok(OpenObject {
                    key: key.clone(),
                    located,
                    attributes,
                    e_tag,
                });
            }
        }
        Err(FolderError::Restless.precondition(key))
    }

    /// Returns whether the open file is unchanged and still the file of the key.
    fn is_current(&self, key: &Path, located: &Located) -> Result<bool> {
        let failed = |errno: Errno| io_error("check", key.as_ref(), errno);
        let named = self.identity(&located.path).map_err(failed)?;
        Ok(named == Some(located.identity) && is_unchanged(key, located)?)
    }

    /// Opens an object for reading: the version that the reader holds, else the current one.
    fn open_to_read(&self, key: &Path, options: &GetOptions) -> Result<Arc<OpenObject>> {
        let held = options.extensions.get::<HeldFile>();
        if let Some(object) = held.and_then(|held| held.object(key)) {
            return Ok(object);
        }
        Ok(Arc::new(self.open_object(key)?))
    }

    /// Reads a range of an open object, then checks that the file is still the version that was opened.
    ///
    /// A file renamed over it does not matter: the open file is still the whole old version.
    fn read(&self, key: &Path, located: &Located, range: &Range<u64>) -> Result<Bytes> {
        let failed = |errno: Errno| io_error("read", key.as_ref(), errno);
        let length = usize::try_from(range.end - range.start)
            .map_err(|_| io_error("read", key.as_ref(), Errno::NOMEM))?;
        let mut bytes = vec![0; length];
        let mut filled = 0;
        while filled < length {
            let at = range.start + filled as u64;
            match rustix::io::pread(&located.file, &mut bytes[filled..], at) {
                Ok(0) => return Err(FolderError::Changed.precondition(key)),
                Ok(count) => filled += count,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
        if !is_unchanged(key, located)? && !planted!("folder-change-during-a-read") {
            return Err(FolderError::Changed.precondition(key));
        }
        Ok(bytes.into())
    }

    /// Opens an object and reads its first piece in one blocking call, which is all that most reads need. A change before
    /// the first piece restarts the read.
    pub(super) fn get(self: &Arc<Self>, key: &Path, options: &GetOptions) -> Result<GetResult> {
        for _ in 0..RACES {
            let object = self.open_to_read(key, options)?;
            let mut meta = object.located.identity.meta(key.clone());
            meta.e_tag = Some(object.e_tag.clone());
            options.check_preconditions(&meta)?;
            let range = match &options.range {
                Some(range) => range.as_range(meta.size).map_err(range_error)?,
                None => 0..meta.size,
            };
            let wanted = if options.head { 0..0 } else { range.clone() };
            let piece = first_piece(&wanted);
            let first = match self.read(key, &object.located, &piece) {
                Err(Error::Precondition { .. }) => continue,
                read => read?,
            };
            let mut extensions = object_store::Extensions::default();
            // A read that returned the whole object needs no further request.
            if wanted != (0..meta.size)
                && let Some(held) = HeldFile::try_new(&object)
            {
                extensions.insert(held);
            }
            let attributes = object.attributes.clone();
            let rest = piece.end..wanted.end;
            let stream = Arc::clone(self).stream(object, first, rest);
            return Ok(GetResult {
                payload: GetResultPayload::Stream(stream),
                meta,
                range,
                attributes,
                extensions,
            });
        }
        Err(FolderError::Restless.precondition(key))
    }

    /// Returns `first`, then the bytes of `rest`, each piece checked before it is yielded.
    fn stream(
        self: Arc<Self>,
        object: Arc<OpenObject>,
        first: Bytes,
        rest: Range<u64>,
    ) -> BoxStream<'static, Result<Bytes>> {
        let state = (self, object, rest);
        let rest = try_unfold(state, |(root, object, rest)| async move {
            if rest.is_empty() {
                return Ok(None);
            }
            let piece = first_piece(&rest);
            let rest = piece.end..rest.end;
            let (reader, source) = (Arc::clone(&root), Arc::clone(&object));
            let bytes = blocking(move || reader.read(&source.key, &source.located, &piece)).await?;
            Ok(Some((bytes, (root, object, rest))))
        });
        let first = (!first.is_empty()).then_some(Ok(first));
        stream::iter(first).chain(rest).boxed()
    }

    /// Returns length and checksum of the object, computed from its bytes.
    pub(super) fn stat(&self, key: &Path) -> Result<Option<Finished>> {
        let OpenObject { located, e_tag, .. } = match self.open_object(key) {
            Err(Error::NotFound { .. }) => return Ok(None),
            opened => opened?,
        };
        let size = located.identity.size();
        let crc32c = ranges::hash(&located.file, 0..size)
            .map_err(|source| io_error("read", key.as_ref(), source))?;
        if crc32c.is_none() || !is_unchanged(key, &located)? {
            return Err(FolderError::Changed.precondition(key));
        }
        Ok(Some(Finished {
            e_tag: Some(e_tag),
            version: None,
            length: Some(size),
            crc32c,
        }))
    }

    /// Reads several ranges of one version.
    pub(super) fn read_ranges(&self, key: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let located = self.open_object(key)?.located;
        let size = located.identity.size();
        ranges
            .iter()
            .map(|range| {
                let range = object_store::GetRange::Bounded(range.clone())
                    .as_range(size)
                    .map_err(range_error)?;
                self.read(key, &located, &range)
            })
            .collect()
    }

    pub(super) fn stage(&self, key: &Path) -> Result<Staged> {
        Staged::create(self).map_err(|errno| io_error("stage", key.as_ref(), errno))
    }

    /// Makes a staged file the object `key`, with its attributes and the client's ETag among them, in one step; changes nothing on
    /// failure.
    pub(super) fn commit(
        &self,
        key: &Path,
        staged: &mut Staged,
        attributes: &Attributes,
        mode: &PutMode,
    ) -> Result<PutResult> {
        let client = given(attributes);
        let (identity, has_client) = staged
            .finish_with(client)
            .map_err(|source| io_error("write", key.as_ref(), source))?;
        let mut attributes = Cow::Borrowed(attributes);
        if has_client {
            attributes.to_mut().remove(&CLIENT_ETAG);
        }
        let _guard = self.lock(key.as_ref());
        if !attributes.is_empty() && !planted!("folder-attributes-after-the-file") {
            self.write_attributes(key, &identity, &attributes)?;
        }
        match self.place(key, staged, mode) {
            Ok(replaced) => {
                if planted!("folder-attributes-after-the-file") {
                    self.write_attributes(key, &identity, &attributes)?;
                }
                if let Some(replaced) = replaced {
                    self.remove_attributes(key, &replaced);
                }
                // The rename changed the ctime, and so the ETag.
                let placed = staged
                    .identity()
                    .map_err(|source| io_error("check", key.as_ref(), source))?;
                let client = client.filter(|_| placed.is_as_placed());
                Ok(PutResult {
                    e_tag: Some(join(placed.e_tag(), client)),
                    version: None,
                    extensions: object_store::Extensions::default(),
                })
            }
            Err(error) => {
                if !attributes.is_empty() {
                    self.remove_attributes(key, &identity);
                }
                Err(error)
            }
        }
    }

    /// Renames a finished file to the place of `key`, and returns the version it replaced.
    pub(super) fn place(
        &self,
        key: &Path,
        staged: &mut Staged,
        mode: &PutMode,
    ) -> Result<Option<Identity>> {
        let exclusive = matches!(mode, PutMode::Create);
        'again: for _ in 0..RACES {
            let current = self.locate(key)?;
            self.check(key, current.as_ref(), mode)?;
            // An object keeps its place, so that it is never in two.
            let places = match &current {
                Some(located) => vec![(located.area, located.path.clone())],
                None => names::places(key)?,
            };
            for (area, path) in places {
                match self.put_at(&path, staged, current.is_some(), exclusive) {
                    Ok(()) => return Ok(current.map(|located| located.identity)),
                    Err(Errno::EXIST) if exclusive => continue 'again,
                    Err(Errno::XDEV) if current.is_some() => {
                        return Err(FolderError::OtherMount.not_supported());
                    }
                    Err(errno) if area == Area::Tree && does_not_fit(errno) => {}
                    Err(errno) => return Err(io_error("write", key.as_ref(), errno)),
                }
            }
        }
        Err(FolderError::Restless.precondition(key))
    }

    /// Renames a finished file to `path`, creating its folders. With `replaces`, the existing entry may be a link to
    /// a file; otherwise only a file or nothing.
    pub(super) fn put_at(
        &self,
        path: &str,
        staged: &mut Staged,
        replaces: bool,
        exclusive: bool,
    ) -> Result<(), Errno> {
        for _ in 0..RACES {
            match self.try_put_at(path, staged, replaces, exclusive) {
                // A delete removed the empty folder between its creation and the rename.
                Err(Errno::NOENT) => {}
                result => return result,
            }
        }
        Err(Errno::NOENT)
    }

    fn try_put_at(
        &self,
        path: &str,
        staged: &mut Staged,
        replaces: bool,
        exclusive: bool,
    ) -> Result<(), Errno> {
        let (folder, name) = self.make_parent(path)?;
        match rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => {}
                FileType::Symlink if replaces => {}
                // A folder, or another entry that is no object: leave it alone.
                _ => return Err(Errno::ISDIR),
            },
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
        staged.place(&folder, name, exclusive)
    }

    /// Copies bytes and attributes; the copy is a version of its own.
    pub(super) fn copy(&self, from: &Path, to: &Path, mode: &PutMode) -> Result<()> {
        let OpenObject {
            located: source,
            mut attributes,
            e_tag,
            ..
        } = self.open_object(from)?;
        if let Some(client) = kept_client_etag(&e_tag) {
            attributes.insert(CLIENT_ETAG, client.to_owned().into());
        }
        let mut staged = self.stage(to)?;
        let copied = staged
            .append(&source.file)
            .map_err(|error| io_error("copy to", to.as_ref(), error))?;
        // A source replaced since is still the version that was opened, without a name.
        if copied != source.identity.size() || !is_unchanged(from, &source)? {
            return Err(FolderError::Changed.precondition(from));
        }
        self.commit(to, &mut staged, &attributes, mode)?;
        Ok(())
    }
}

/// Returns whether the open file still has the bytes it had when it was opened.
fn is_unchanged(key: &Path, located: &Located) -> Result<bool> {
    let now =
        rustix::fs::fstat(&located.file).map_err(|errno| io_error("check", key.as_ref(), errno))?;
    let now = Identity::of(&now);
    Ok(now.has_bytes_of(&located.identity) || restamped::has_bytes_of(&now, &located.identity))
}

fn first_piece(range: &Range<u64>) -> Range<u64> {
    range.start..range.end.min(range.start.saturating_add(PIECE))
}

/// Returns whether to try the overflow area. `NOENT` after this many attempts is a link without a target.
fn does_not_fit(errno: Errno) -> bool {
    errno == Errno::NOENT || is_misfit(errno)
}

/// Returns the error of a range outside the object.
fn range_error(source: impl std::error::Error + Send + Sync + 'static) -> object_store::Error {
    generic_error(STORE, source)
}
