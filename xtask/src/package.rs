//! Bywash's Python package, installed as its users install it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::run::{Failure, Step, doing, root, target};

/// Installs the package by `pip install .` into a fresh environment that sees the packages of `environments`, of the first first, with the program
/// and the extension that are built in the folder `prebuilt`. Returns its Python.
pub(crate) fn installed(environments: &[&Path], prebuilt: &Path) -> Result<PathBuf, Failure> {
    let python = environments[0];
    let folder = target().join("python");
    Step::new(python)
        .args(["-m", "venv", "--clear", "--without-pip"])
        .args([&folder])
        .run()?;
    let fresh = folder.join("bin/python");
    let script = "import site; print(site.getsitepackages()[0])";
    let packages = environments
        .iter()
        .map(|python| Step::new(python).args(["-c", script]).output())
        .collect::<Result<String, _>>()?;
    let own = Step::new(&fresh).args(["-c", script]).output()?;
    let link = Path::new(own.trim()).join("others.pth");
    fs::write(&link, packages).map_err(doing(format!("write {}", link.display())))?;
    Step::new(&fresh)
        .args(["-m", "pip", "install", "--quiet", "--no-index"])
        .args(["--disable-pip-version-check", "--no-deps"])
        .args(["--no-build-isolation"])
        .args([root()])
        .env("BYWASH_PREBUILT", prebuilt)
        .run()?;
    Ok(fresh)
}
