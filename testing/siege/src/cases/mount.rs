//! Small file systems, which only root can mount.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;

use crate::CaseError;

/// A mounted file system. Dropping it unmounts it.
pub(super) struct Mount(PathBuf);

impl Mount {
    /// Mounts a file system in memory.
    pub(super) async fn memory(path: PathBuf, options: &str) -> Result<Self, CaseError> {
        Self::new(path, &["-t", "tmpfs", "-o", options, "tmpfs"]).await
    }

    /// Mounts a file system of `bytes` in a sparse file beside `path`.
    pub(super) async fn image(path: PathBuf, bytes: u64) -> Result<Self, CaseError> {
        let image = path.with_extension("image");
        File::create(&image)?.set_len(bytes)?;
        run("mkfs.ext4", &["-q", "-m", "0", "-F"], &image).await?;
        let image = image.display().to_string();
        Self::new(path, &["-t", "ext4", "-o", "loop", &image]).await
    }

    async fn new(path: PathBuf, arguments: &[&str]) -> Result<Self, CaseError> {
        std::fs::create_dir_all(&path)?;
        run("mount", arguments, &path).await?;
        Ok(Self(path))
    }
}

async fn run(program: &str, arguments: &[&str], path: &Path) -> Result<(), CaseError> {
    let mut command = Command::new(program);
    let status = command
        .args(arguments)
        .arg(path)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .await?;
    if status.success() {
        return Ok(());
    }
    Err("a file system can only be mounted by root".into())
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Lazily, because the server that uses it is killed later.
        let _ = std::process::Command::new("umount")
            .arg("-l")
            .arg(&self.0)
            .stderr(Stdio::null())
            .status();
    }
}
