//! What peers in other languages need before they run.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Failure;

/// Where the sources of the peers are.
pub(super) fn peers() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers")
}

/// What is made once and used by later runs.
pub(super) fn target() -> PathBuf {
    peers().join("../../target/peers")
}

/// Python with the packages that a folder lists, in an environment of its own.
pub(super) fn python_in(folder: &str) -> Result<PathBuf, Failure> {
    let target = target().join(folder);
    let python = target.join("bin/python");
    if !python.exists() {
        done(Command::new("python3").args(["-m", "venv"]).arg(&target))?;
    }
    done(
        Command::new(&python)
            .args(["-m", "pip", "install", "--quiet", "-r"])
            .arg(peers().join(folder).join("requirements.txt")),
    )?;
    Ok(python)
}

/// The path of a program of Go, which is installed once. `package` is its address with a version.
pub(super) fn go_program(name: &str, package: &str) -> Result<PathBuf, Failure> {
    let folder = target().join("bin");
    let program = folder.join(name);
    if !program.exists() {
        std::fs::create_dir_all(&folder)?;
        let status = Command::new("go")
            .args(["install", package])
            .env("GOBIN", folder.canonicalize()?)
            .status()
            .map_err(|error| format!("start go: {error}; install Go 1.26 or later"))?;
        if !status.success() {
            return Err(format!("go install {package} failed; look at the output above").into());
        }
    }
    Ok(program)
}

/// Runs a command to its end.
pub(super) fn done(command: &mut Command) -> Result<(), Failure> {
    let status = command.status();
    let status = status.map_err(|error| format!("start {:?}: {error}", command.get_program()))?;
    status
        .success()
        .then_some(())
        .ok_or_else(|| format!("{command:?} failed; look at the output above").into())
}
