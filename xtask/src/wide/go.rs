//! Programs of Go in the wide matrix: those of others, those of this repository over a library, and tests of others.

use std::path::Path;

use super::sources;
use crate::install;
use crate::run::{Failure, Step};

/// MinIO's command line.
pub(super) const MC: &str = "github.com/minio/mc@v0.0.0-20250313080218-cf909e1063a9";
/// restic of today; the old one is Debian's.
pub(super) const RESTIC: &str = "github.com/restic/restic/cmd/restic@v0.18.1";
/// Copies SQLite databases to stores.
pub(super) const LITESTREAM: &str = "github.com/benbjohnson/litestream/cmd/litestream@v0.5.18";
/// Tests of a package of a Go module, compiled unmodified, in a folder of the wide matrix.
pub(super) struct GoTests {
    folder: &'static str,
    /// The module with its release; without one it is that of the list of modules in the folder `modules`.
    library: &'static str,
    package: &'static str,
    modules: Option<&'static str>,
}

pub(super) const GOOGLE_GO_TESTS: GoTests = GoTests {
    folder: "gcs-tests",
    library: "cloud.google.com/go/storage",
    package: ".",
    modules: Some("gcs"),
};
/// The storage driver of the registry of images.
pub(super) const DISTRIBUTION_TESTS: GoTests = GoTests {
    folder: "distribution-tests",
    library: "github.com/distribution/distribution/v3@v3.1.2",
    package: "./registry/storage/driver/s3-aws",
    modules: None,
};
/// The store of Thanos, Mimir and Loki.
pub(super) const THANOS_TESTS: GoTests = GoTests {
    folder: "thanos-tests",
    library: "github.com/thanos-io/objstore@v0.0.0-20250804093838-71d60dfee488",
    package: "./objtesting",
    modules: None,
};
/// Modules of a Go program: with the library of today, and with an old one.
pub(super) const TODAY: (&str, &str) = ("", "go.mod");
pub(super) const OLD: (&str, &str) = ("-old", "go.old.mod");
/// A program that Go fetches and builds.
pub(super) fn go_program(wide: &Path, name: &str, program: &str) -> Result<(), Failure> {
    let go = install::go(wide.parent().unwrap_or(wide))?;
    let folder = wide.join("go").join(name);
    install::make_once(&folder, program, || {
        install::go_install(&go, &folder, program)
    })
}

/// A program of this repository over a library, built with each of the lists of modules.
pub(super) fn go_programs(wide: &Path, name: &str, lists: &[(&str, &str)]) -> Result<(), Failure> {
    let go = install::go(wide.parent().unwrap_or(wide))?;
    let source = sources().join("go").join(name);
    for &(suffix, modules) in lists {
        let folder = wide.join("go").join(format!("{name}{suffix}"));
        let wanted = [modules, "main.go"].map(|file| install::sha256(&source.join(file)));
        let [modules_digest, program_digest] = wanted;
        let wanted = format!("{name} of {} and {}", modules_digest?, program_digest?);
        install::make_once(&folder, &wanted, || {
            Step::new(&go)
                // Without the parts of Google's library that only gRPC uses, of which the program has none.
                .args(["build", "-tags", "disable_grpc_modules"])
                .args(["-ldflags=-s -w", "-modfile", modules, "-o"])
                .args([&folder.join("program")])
                .args(["."])
                .env("CGO_ENABLED", "0")
                .folder(&source)
                .run()
        })?;
    }
    Ok(())
}

/// Compiles tests of a Go module, and copies the data that they read.
pub(super) fn go_tests(wide: &Path, tests: &GoTests) -> Result<(), Failure> {
    let go = install::go(wide.parent().unwrap_or(wide))?;
    let folder = wide.join("go").join(tests.folder);
    let modules = tests.modules.map(|name| sources().join("go").join(name));
    let wanted = match &modules {
        Some(modules) => format!("tests of {}", install::sha256(&modules.join("go.mod"))?),
        None => tests.library.to_owned(),
    };
    // The folder of a module cannot be written to, and its tests are built by its own list of modules.
    let script = "set -e; \"$GO\" mod download \"$LIBRARY\"; library=$(\"$GO\" list -m -f '{{.Dir}}' \"$LIBRARY\"); \
         cp -r \"$library\" \"$FOLDER/source\"; chmod -R u+w \"$FOLDER/source\"; cd \"$FOLDER/source\"; \
         \"$GO\" test -c -ldflags='-s -w' -o \"$FOLDER/program\" \"$PACKAGE\"";
    install::make_once(&folder, &wanted, || {
        Step::new("sh")
            .args(["-c", script])
            .env("GO", &go)
            .env("FOLDER", &folder)
            .env("LIBRARY", tests.library)
            .env("PACKAGE", tests.package)
            .env("CGO_ENABLED", "0")
            .folder(modules.as_deref().unwrap_or(&folder))
            .run()
    })
}
