//! Places where a server listens: a socket that this user alone can reach, held by one server.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use bywash_client::place::{SocketPath, check_folder};
use rustix::fs::{FlockOperation, flock};
use tokio::net::UnixListener;

/// A place cannot be used.
#[derive(Debug)]
pub enum ListenError {
    /// Another server listens there.
    Taken(PathBuf),
    /// Something else than a socket is there.
    NotASocket(PathBuf),
    /// The folder or the socket cannot be made.
    Io(PathBuf, io::Error),
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Taken(path) => write!(
                f,
                "another server listens at {}; it keeps the place: stop it, or give this one a place of its own by --local PATH",
                path.display()
            ),
            Self::NotASocket(path) => write!(
                f,
                "{} is not a socket: remove it, or give another place by --local PATH",
                path.display()
            ),
            Self::Io(path, error) => write!(f, "cannot listen at {}: {error}", path.display()),
        }
    }
}

impl std::error::Error for ListenError {}

/// A socket that listens. Removed when this is dropped, unless another server has replaced it.
#[derive(Debug)]
pub struct Listener {
    pub(crate) socket: UnixListener,
    path: PathBuf,
    /// Device and inode of the socket.
    identity: (u64, u64),
    /// Locked while this server has the place.
    _lock: fs::File,
}

impl Listener {
    /// Listens at `path`: replaces a socket that a dead server left, and refuses the place of a living one. Makes the folder for this
    /// user alone if it is missing. Must be called within a runtime.
    ///
    /// # Errors
    /// [`ListenError`]; nothing has changed.
    pub fn bind(path: &Path) -> Result<Self, ListenError> {
        let failed = |error| ListenError::Io(path.to_owned(), error);
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        make_folder(folder).map_err(failed)?;
        let lock = lock(path)?;
        match fs::symlink_metadata(path) {
            Ok(there) if !there.file_type().is_socket() => {
                return Err(ListenError::NotASocket(path.to_owned()));
            }
            // A server without the lock: of a release that has none.
            Ok(_) if answers(path) => return Err(ListenError::Taken(path.to_owned())),
            _ => {}
        }
        // Bound under another name: at the place itself it would be there before it is this user's alone.
        let new = folder.join(format!(".bywash-{}.sock", std::process::id()));
        let socket = listen(&new, path).map_err(failed)?;
        let metadata = fs::symlink_metadata(path).map_err(failed)?;
        Ok(Self {
            socket,
            path: path.to_owned(),
            identity: (metadata.dev(), metadata.ino()),
            _lock: lock,
        })
    }

    /// The path of the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let own = fs::symlink_metadata(&self.path)
            .is_ok_and(|there| (there.dev(), there.ino()) == self.identity);
        if own {
            // One that stays is replaced by the next server.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn make_folder(folder: &Path) -> io::Result<()> {
    if !folder.exists() {
        let made = fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder);
        made?;
    }
    // A folder that others can write to lets them put a socket of their own there.
    let metadata = fs::metadata(folder)?;
    if metadata.mode() & 0o022 != 0 {
        check_folder(folder)?;
    }
    Ok(())
}

/// Takes the place of `path` for this process.
fn lock(path: &Path) -> Result<fs::File, ListenError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let failed = |error| ListenError::Io(path.to_owned(), error);
    let options = &mut fs::OpenOptions::new();
    options.write(true).create(true).truncate(false);
    let file = std::os::unix::fs::OpenOptionsExt::mode(options, 0o600).open(name);
    let file = file.map_err(failed)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(ListenError::Taken(path.to_owned())),
        Err(error) => Err(failed(error.into())),
    }
}

/// Whether a server accepts connections at `path`.
fn answers(path: &Path) -> bool {
    let address = SocketPath::new(path);
    address.is_ok_and(|address| std::os::unix::net::UnixStream::connect(address.as_path()).is_ok())
}

/// Listens at `new`, for this user alone, and moves the socket to `path`.
fn listen(new: &Path, path: &Path) -> io::Result<UnixListener> {
    let _ = fs::remove_file(new);
    let address = SocketPath::new(new)?;
    let socket = std::os::unix::net::UnixListener::bind(address.as_path())?;
    fs::set_permissions(new, fs::Permissions::from_mode(0o600))?;
    fs::rename(new, path)?;
    socket.set_nonblocking(true)?;
    UnixListener::from_std(socket)
}
