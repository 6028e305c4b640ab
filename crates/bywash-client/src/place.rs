//! Where a server listens: a socket in its data folder, and one in a folder of its user.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::limits::MAX_SOCKET_PATH_BYTES;

/// Name of the socket in a data folder.
pub const DATA_DIR_SOCKET: &str = "local.sock";
/// Variable with the path of the socket that clients use.
pub const SOCKET_VARIABLE: &str = "BYWASH_LOCAL";

/// Folder of this user's sockets: `$XDG_RUNTIME_DIR/bywash`, or `/tmp/bywash-UID` without one.
#[must_use]
pub fn user_folder() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(runtime) if Path::new(&runtime).is_absolute() => PathBuf::from(runtime).join("bywash"),
        _ => PathBuf::from(format!(
            "/tmp/bywash-{}",
            rustix::process::geteuid().as_raw()
        )),
    }
}

/// Socket of this user's server.
#[must_use]
pub fn user_socket() -> PathBuf {
    user_folder().join("default.sock")
}

/// The socket that a client uses: `$BYWASH_LOCAL`, or [`user_socket`].
#[must_use]
pub fn default_socket() -> PathBuf {
    std::env::var_os(SOCKET_VARIABLE).map_or_else(user_socket, PathBuf::from)
}

/// Checks that only this user can write to `folder`, so that nobody else puts a socket there.
///
/// # Errors
/// The system's, or [`io::ErrorKind::PermissionDenied`] with the reason.
pub fn check_folder(folder: &Path) -> io::Result<()> {
    let metadata = fs::symlink_metadata(folder)?;
    let own = metadata.uid() == rustix::process::geteuid().as_raw();
    if metadata.is_dir() && own && metadata.mode() & 0o077 == 0 {
        return Ok(());
    }
    let reason = format!(
        "{} is not a folder that this user alone can open: remove it, or set XDG_RUNTIME_DIR",
        folder.display()
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
}

/// A path under which a socket can be bound or reached, however long the path of its folder is.
#[derive(Debug)]
pub struct SocketPath {
    path: PathBuf,
    /// The folder, while its descriptor stands for its path.
    _folder: Option<fs::File>,
}

impl SocketPath {
    /// Opens the folder of `path` if that is longer than a socket's path may be.
    ///
    /// # Errors
    /// The system's, if there is no such folder.
    pub fn new(path: &Path) -> io::Result<Self> {
        if path.as_os_str().len() <= MAX_SOCKET_PATH_BYTES {
            return Ok(Self {
                path: path.to_owned(),
                _folder: None,
            });
        }
        let (folder, name) = path
            .parent()
            .zip(path.file_name())
            .ok_or(io::ErrorKind::InvalidInput)?;
        let folder = fs::File::open(folder)?;
        let descriptor = std::os::fd::AsRawFd::as_raw_fd(&folder);
        Ok(Self {
            path: PathBuf::from(format!("/proc/self/fd/{descriptor}")).join(name),
            _folder: Some(folder),
        })
    }

    /// The path to give to the system.
    #[must_use]
    pub fn as_path(&self) -> &Path {
        &self.path
    }
}
