//! `cargo xtask image`: an OCI image of the program, made without a container runtime.

use std::path::{Path, PathBuf};

use crate::run::{Failure, Step, root, target};

/// Maximum size of the image in MiB, of a stripped release.
const MAX_MIB: u64 = 45;

/// Builds the stripped program, or takes `binary`, and writes `bywash-image.tar` into cargo's folder of builds.
pub(crate) fn run(binary: Option<&Path>) -> Result<(), Failure> {
    let program = match binary {
        Some(given) => given.to_owned(),
        None => built()?,
    };
    let revision = Step::new("git").args(["rev-parse", "HEAD"]).output();
    let date = Step::new("git")
        .args(["log", "-1", "--format=%ct"])
        .output();
    let image = target().join("bywash-image.tar");
    let mut script = Step::new("python3")
        .args([root().join("packaging/image.py"), program, image.clone()])
        .args(["--version", env!("CARGO_PKG_VERSION")])
        .args(["--revision", revision.unwrap_or_default().trim()]);
    if std::env::var_os("SOURCE_DATE_EPOCH").is_none() {
        script = script.env("SOURCE_DATE_EPOCH", date.unwrap_or_default().trim());
    }
    script.run()?;
    let bytes = std::fs::metadata(&image).map_or(0, |found| found.len());
    if binary.is_none() && bytes > MAX_MIB << 20 {
        return Err(Failure::Missing(format!(
            "{} has {} MiB, more than {MAX_MIB}: look at what the program is linked with",
            image.display(),
            bytes >> 20
        )));
    }
    Ok(())
}

fn built() -> Result<PathBuf, Failure> {
    Step::cargo(["build", "--locked", "--profile", "dist", "-p", "bywash-cli"]).run()?;
    Ok(target().join("dist").join("bywash"))
}
