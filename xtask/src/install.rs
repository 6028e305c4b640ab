//! How tools are installed: Python environments, packages of npm and Debian, programs of Go, each once.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use sha2::{Digest, Sha256};

use crate::run::{Failure, Step, doing, root};

/// Held by the installation that changes Debian's packages or their lists: a second one at the same time would fail.
static APT: Mutex<()> = Mutex::new(());

/// A virtual environment with exactly the versions of `requirements`, made anew when that file changes.
pub(crate) fn venv(folder: &Path, requirements: &str) -> Result<PathBuf, Failure> {
    let list = root().join("testing/clients").join(requirements);
    let wanted = sha256(&list)?;
    let stamp = folder.join("installed.sha256");
    if fs::read_to_string(&stamp).is_ok_and(|have| have == wanted) {
        return Ok(folder.to_path_buf());
    }
    let python_works = || {
        Step::new("python3")
            .args(["-c", "import venv, ensurepip"])
            .succeeds()
    };
    need(
        "python3 with venv",
        python_works,
        &["python3", "python3-venv"],
    )?;
    println!("installing {requirements} into {}", folder.display());
    Step::new("python3")
        .args(["-m", "venv", "--clear"])
        .args([folder])
        .run()?;
    Step::new(folder.join("bin/python"))
        .args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--requirement",
        ])
        .args([&list])
        .run()?;
    fs::write(&stamp, wanted).map_err(doing(format!("write {}", stamp.display())))?;
    Ok(folder.to_path_buf())
}

/// Makes `folder` and its contents anew, unless the same was made before: `wanted` names the contents with their version.
pub(crate) fn make_once(
    folder: &Path,
    wanted: &str,
    make: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let stamp = folder.join("installed");
    if fs::read_to_string(&stamp).is_ok_and(|have| have == wanted) {
        return Ok(());
    }
    println!("installing {}", folder.display());
    let _ = fs::remove_dir_all(folder);
    fs::create_dir_all(folder).map_err(doing(format!("create {}", folder.display())))?;
    make()?;
    fs::write(&stamp, wanted).map_err(doing(format!("write {}", stamp.display())))
}

/// Installs packages of npm, without their scripts, into `folder`: the named one, or those of its `package.json`.
pub(crate) fn npm(folder: &Path, package: Option<&str>) -> Result<(), Failure> {
    need_npm()?;
    Step::new("npm")
        .args(["install", "--silent", "--no-audit", "--no-fund"])
        .args(["--ignore-scripts", "--no-package-lock", "--prefix", "."])
        .args(package)
        .folder(folder)
        .run()
}

/// This machine's Go, or one installed for it.
pub(crate) fn go(cache: &Path) -> Result<PathBuf, Failure> {
    let works = |go: &PathBuf| Step::new(go).args(["version"]).succeeds();
    let go = ["go", "/usr/local/go/bin/go"].map(PathBuf::from);
    match go.into_iter().find(works) {
        Some(go) => Ok(go),
        None => Ok(venv(&cache.join("go"), "requirements-go.txt")?.join("bin/go")),
    }
}

/// Builds a program of Go into `folder`.
pub(crate) fn go_install(go: &Path, folder: &Path, program: &str) -> Result<(), Failure> {
    Step::new(go)
        .args(["install", "-ldflags=-s -w", program])
        .env("GOBIN", folder)
        // A program may need a newer Go than this machine's; Go then fetches that as a module.
        .env("GOTOOLCHAIN", "auto")
        .env("CGO_ENABLED", "0")
        .run()
}

/// Builds the Go program in the folder `sources` into `folder`, as `name`.
pub(crate) fn go_build(
    go: &Path,
    folder: &Path,
    sources: &Path,
    name: &str,
) -> Result<(), Failure> {
    Step::new(go)
        .args(["build", "-ldflags=-s -w", "-o"])
        .args([folder.join(name)])
        .args(["."])
        .folder(sources)
        .env("CGO_ENABLED", "0")
        .run()
}

/// Unpacks packages of Debian into `folder`, without installing them.
pub(crate) fn unpack_debian(folder: &Path, packages: &[&str]) -> Result<(), Failure> {
    let _turn = APT.lock().unwrap_or_else(PoisonError::into_inner);
    unpacking(folder, packages).run()
}

/// The script fails if one of the packages was not downloaded; `set -e` would ignore a failure before `&&`.
fn unpacking(folder: &Path, packages: &[&str]) -> Step {
    let packages = packages.join(" ");
    let script = format!(
        "set -e; \
         apt-get download -qq {packages} || {{ apt-get update -qq; apt-get download -qq {packages}; }}; \
         for package in *.deb; do dpkg-deb -x \"$package\" .; rm \"$package\"; done"
    );
    Step::new("sh").args(["-c", &script]).folder(folder)
}

pub(crate) fn need_npm() -> Result<(), Failure> {
    let works = || Step::new("npm").args(["--version"]).succeeds();
    need("npm", works, &["npm"])
}

/// Installs Debian packages if `works` returns false: as root by apt-get, otherwise fails with what to install.
pub(crate) fn need(what: &str, works: impl Fn() -> bool, packages: &[&str]) -> Result<(), Failure> {
    if works() {
        return Ok(());
    }
    let line = format!("apt-get install {}", packages.join(" "));
    if !is_root() {
        return Err(Failure::Missing(format!(
            "{what} is missing; install it: {line}"
        )));
    }
    let _turn = APT.lock().unwrap_or_else(PoisonError::into_inner);
    println!("{what} is missing; running {line}");
    Step::new("apt-get").args(["update", "-qq"]).run()?;
    Step::new("apt-get")
        .args(["install", "-y", "-qq", "--no-install-recommends"])
        .args(packages)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .run()?;
    if works() {
        return Ok(());
    }
    Err(Failure::Missing(format!(
        "{what} does not work even after {line}; look at the output above"
    )))
}

/// Whether this process may install packages: the owner of our own `/proc` entry is root.
pub(crate) fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    fs::metadata("/proc/self").is_ok_and(|me| me.uid() == 0)
}

/// Hex SHA-256 of a whole file.
pub(crate) fn sha256(file: &Path) -> Result<String, Failure> {
    let bytes = fs::read(file).map_err(doing(format!("read {}", file.display())))?;
    Ok(Sha256::digest(&bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_is_the_published_one_of_abc() {
        let folder = std::env::temp_dir().join(format!("xtask-sha-{}", std::process::id()));
        fs::write(&folder, b"abc").unwrap();
        let digest = sha256(&folder).unwrap();
        fs::remove_file(&folder).unwrap();
        // FIPS 180-2, appendix B.1.
        assert_eq!(
            digest,
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }

    #[test]
    fn what_works_is_not_installed() {
        need("a thing", || true, &["no-such-package"]).unwrap();
    }

    #[test]
    fn partial_download_of_packages_fails() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = std::env::temp_dir().join(format!("xtask-deb-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let program = |name: &str, script: &str| {
            let path = folder.join(name);
            fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        };
        let path = format!("{}:/usr/bin:/bin", folder.display());
        let unpack = || unpacking(&folder, &["a", "b"]).env("PATH", &path).run();
        program("dpkg-deb", "exit 0");
        // One of two packages, with and without new lists.
        for update in [0, 1] {
            let script = format!("touch a.deb; [ $1 != update ] || exit {update}; exit 100");
            program("apt-get", &script);
            unpack().unwrap_err();
        }
        program("apt-get", "touch a.deb b.deb");
        unpack().unwrap();
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn failed_installation_leaves_no_stamp_and_is_tried_again() {
        let folder = std::env::temp_dir().join(format!("xtask-once-{}", std::process::id()));
        let refused = || Err(Failure::Missing("not served".to_owned()));
        make_once(&folder, "a 1", refused).unwrap_err();
        let mut made = 0;
        for wanted in ["a 1", "a 1", "a 2"] {
            make_once(&folder, wanted, || {
                made += 1;
                Ok(())
            })
            .unwrap();
        }
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(made, 2);
    }
}
