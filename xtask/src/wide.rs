//! The wide matrix of clients. Each client is installed once and on its own; one that cannot be installed is left out by name.

mod go;
mod java;

use std::fs;
use std::path::{Path, PathBuf};

use self::go::{
    DISTRIBUTION_TESTS, GOOGLE_GO_TESTS, LITESTREAM, MC, OLD, RESTIC, THANOS_TESTS, TODAY,
    go_program, go_programs, go_tests,
};
use self::java::{AWS, GOOGLE, OLD_SPARK, SPARK, java, spark};
use crate::counts::Counts;
use crate::install;
use crate::run::{Failure, Step, doing, root};
use crate::siege;
use crate::tools;

/// Google's mount of a bucket.
const GCSFUSE: &str = "github.com/googlecloudplatform/gcsfuse/v3@v3.13.0";
/// git-annex of Debian, in a folder of its own: its programs come before those of the system.
const ANNEX: [&str; 6] = [
    "git-annex",
    "libmagic1",
    "libmagic-mgc",
    "libpopt0",
    "libyaml-0-2",
    "rsync",
];
/// Debian's programs, with what they need besides a system's usual libraries. `fuse3` has the program that mounts for gcsfuse.
const DEBIAN: [&str; 9] = [
    "restic",
    "s3cmd",
    "python3-dateutil",
    "python3-magic",
    "python3-six",
    "s3fs",
    "fuse3",
    "libfuse2",
    "libcurl3-gnutls",
];
/// Google's storage library for Python, with its tests: the release that the suite of clients has.
const GOOGLE_PYTHON: &str = "google-cloud-storage==3.17.1";
/// What the tests of its media library decode bodies with.
const BROTLI: &str = "brotli==1.2.1";
/// The client over Google's storage library for Go, and that over the one for Java.
pub(crate) const GO_CLIENT: &str = "google-cloud-storage for Go";
pub(crate) const JAVA_CLIENT: &str = "google-cloud-storage for Java";
/// Clients of the gate, by their names in `testing/clients/wide`: the fastest that one Python environment has, and Google's libraries
/// for Go and Java.
const IN_GATE: [&str; 10] = [
    "s3cmd",
    "rclone",
    "minio-py",
    "deltalake",
    "pyiceberg",
    "pylance",
    "rclone, Google",
    "deltalake, Google",
    GO_CLIENT,
    JAVA_CLIENT,
];
/// Where the wide matrix stores its objects, without `BYWASH_WIDE_ORIGIN`. What differs by the origin are conditions and generations, which
/// clients of Google's storage have.
const ORIGINS: [&str; 2] = ["folder", "moto"];
/// One installation: its name, as it is left out, and what it does in the folder of the wide matrix.
struct Install {
    name: &'static str,
    run: fn(&Path) -> Result<(), Failure>,
}

const GOOGLE_GO: Install = Install {
    name: "Google's storage library for Go",
    run: |wide| go_programs(wide, "gcs", &[TODAY]),
};
const GOOGLE_JAVA_PROGRAM: Install = Install {
    name: "Google's storage library for Java",
    run: |wide| java(wide, &GOOGLE),
};

impl Install {
    /// Whether clients of Google's storage need it: its libraries, and rclone.
    fn is_of_gcs(&self) -> bool {
        self.name.contains("Google") || self.name.contains("rclone")
    }
}

const INSTALLS: [Install; 26] = [
    Install {
        name: "Python libraries, s3cmd and rclone of today",
        run: python_of_today,
    },
    Install {
        name: "chdb of today",
        run: |wide| python(wide, "python-chdb", "requirements-chdb.txt"),
    },
    Install {
        name: "Python libraries of 2024",
        run: |wide| python(wide, "python-old", "requirements-old.txt"),
    },
    Install {
        name: "s3fs-fuse, and restic and s3cmd of Debian",
        run: |wide| debian(wide, "debian", &DEBIAN),
    },
    Install {
        name: "git-annex",
        run: |wide| debian(wide, "debian-annex", &ANNEX),
    },
    Install {
        name: "GDAL, Icechunk, TensorStore, s5cmd and Amazon's common runtime",
        run: |wide| python(wide, "python-data", "requirements-data.txt"),
    },
    Install {
        name: "AWS SDKs for Go",
        run: |wide| go_programs(wide, "aws", &[TODAY, OLD]),
    },
    Install {
        name: "minio-go",
        run: |wide| go_programs(wide, "minio", &[TODAY, OLD]),
    },
    Install {
        name: "mc",
        run: |wide| go_program(wide, "mc", MC),
    },
    Install {
        name: "restic of today",
        run: |wide| go_program(wide, "restic", RESTIC),
    },
    Install {
        name: "gcsfuse, over Google's storage",
        run: |wide| go_program(wide, "gcsfuse", GCSFUSE),
    },
    Install {
        name: "Litestream",
        run: |wide| go_program(wide, "litestream", LITESTREAM),
    },
    Install {
        name: "tests of distribution's storage driver",
        run: |wide| go_tests(wide, &DISTRIBUTION_TESTS),
    },
    Install {
        name: "acceptance test of Thanos' store",
        run: |wide| go_tests(wide, &THANOS_TESTS),
    },
    Install {
        name: "AWS SDK for JavaScript and minio-js",
        run: |wide| javascript(wide, "new"),
    },
    Install {
        name: "old AWS SDKs for JavaScript",
        run: |wide| javascript(wide, "old"),
    },
    Install {
        name: "AWS SDKs for Java",
        run: |wide| java(wide, &AWS),
    },
    GOOGLE_GO,
    GOOGLE_JAVA_PROGRAM,
    Install {
        name: "tests of Google's storage library for Go",
        run: |wide| go_tests(wide, &GOOGLE_GO_TESTS),
    },
    Install {
        name: "tests of Google's storage library for Python",
        run: google_python_tests,
    },
    Install {
        name: "Google's storage library for JavaScript",
        run: |wide| javascript(wide, "gcs"),
    },
    Install {
        name: "gcsfs, over Google's storage",
        run: |wide| tools::s3fs(wide.parent().unwrap_or(wide)).map(drop),
    },
    Install {
        name: "Google's gcloud",
        run: |_| gcloud(),
    },
    Install {
        name: "Spark",
        run: |wide| spark(wide, "spark", SPARK),
    },
    Install {
        name: "old Spark",
        run: |wide| spark(wide, "spark-old", OLD_SPARK),
    },
];

/// Installs what is missing, runs the whole matrix against the released binary, and ends with what was left out. With `only_gcs` it runs the
/// clients of Google's storage alone.
pub(crate) fn run(only_gcs: bool, pytest: &[String]) -> Result<(), Failure> {
    let cache = tools::cache()?;
    let python = tools::clients_python(&cache)?;
    let wide = folder(&cache)?;
    let installs = INSTALLS
        .iter()
        .filter(|install| !only_gcs || install.is_of_gcs());
    let left_out = install_all(installs, &wide);
    let tests: &[&str] = match only_gcs {
        true => &[
            "wide/test_wide_gcs.py",
            "wide/test_wide_gcs_retries.py",
            "wide/test_wide_mounts.py",
        ],
        false => &["wide"],
    };
    let origins = match std::env::var_os("BYWASH_WIDE_ORIGIN") {
        Some(origin) => vec![origin],
        None if only_gcs => ORIGINS.map(Into::into).into(),
        None => vec![ORIGINS[0].into()],
    };
    let clients = root().join("testing/clients");
    let binary = siege::released_binary()?;
    let mut counts = Counts::default();
    let mut outcome = Ok(());
    for origin in origins {
        println!("== over {}", origin.display());
        let ended = Step::new(&python)
            .args(["-m", "pytest", "-p", "no:cacheprovider", "-q"])
            // The other clients' fixtures need what this matrix does not install.
            .args(["--confcutdir", "wide"])
            .args(tests)
            .args(pytest)
            .folder(&clients)
            .env("PYTHONPATH", &clients)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("BYWASH_BIN", &binary)
            .env("BYWASH_WIDE", &wide)
            .env("BYWASH_WIDE_LARGE", "1")
            .env("BYWASH_WIDE_ORIGIN", origin)
            .run_counted(&mut counts);
        outcome = outcome.and(ended);
    }
    for line in left_out {
        println!("left out: {line}");
    }
    outcome.and_then(|()| some_ran(&counts))
}

/// Fails if all tests were skipped: no client is installed.
fn some_ran(counts: &Counts) -> Result<(), Failure> {
    match counts.passed {
        0 => Err(Failure::Missing(
            "no test of the wide matrix ran; the lines above name what is missing".to_owned(),
        )),
        _ => Ok(()),
    }
}

/// Installs each on its own, and returns a line for each that cannot be installed.
fn install_all<'a>(installs: impl Iterator<Item = &'a Install>, wide: &Path) -> Vec<String> {
    let installed = installs
        .map(|Install { name, run }| run(wide).map_err(|failure| format!("{name}: {failure}")));
    installed.filter_map(Result::err).collect()
}

/// Installs what the clients of the gate need, and returns the folder.
pub(crate) fn of_gate(cache: &Path) -> Result<PathBuf, Failure> {
    let wide = folder(cache)?;
    python_of_today(&wide)?;
    Ok(wide)
}

/// Returns the clients of the gate but for those that are not installed.
pub(crate) fn in_gate(missing: &[&str]) -> String {
    let there = IN_GATE.into_iter().filter(|name| !missing.contains(name));
    there.collect::<Vec<_>>().join(";")
}

/// Builds the program of the gate over Google's storage library for Go.
pub(crate) fn google_go(cache: &Path) -> Result<(), Failure> {
    (GOOGLE_GO.run)(&folder(cache)?)
}

/// Installs the program of the gate over Google's storage library for Java.
pub(crate) fn google_java(cache: &Path) -> Result<(), Failure> {
    (GOOGLE_JAVA_PROGRAM.run)(&folder(cache)?)
}

/// Google's command line is in no registry: it is used where it is installed.
fn gcloud() -> Result<(), Failure> {
    match Step::new("gcloud").args(["--version"]).succeeds() {
        true => Ok(()),
        false => Err(Failure::Missing(
            "install Google's command line, gcloud".to_owned(),
        )),
    }
}

fn python_of_today(wide: &Path) -> Result<(), Failure> {
    python(wide, "python", "requirements.txt")
}

fn folder(cache: &Path) -> Result<PathBuf, Failure> {
    let wide = cache.join("wide");
    fs::create_dir_all(&wide).map_err(doing(format!("create {}", wide.display())))?;
    Ok(wide)
}

fn sources() -> PathBuf {
    root().join("testing/clients/wide")
}

fn python(wide: &Path, folder: &str, requirements: &str) -> Result<(), Failure> {
    install::venv(&wide.join(folder), &format!("wide/{requirements}")).map(drop)
}

fn debian(wide: &Path, folder: &str, packages: &[&str]) -> Result<(), Failure> {
    let folder = wide.join(folder);
    install::make_once(&folder, &packages.join(" "), || {
        install::unpack_debian(&folder, packages)
    })
}

/// Unpacks the source distribution of Google's library for Python, which has its tests, and installs a module that they need.
fn google_python_tests(wide: &Path) -> Result<(), Failure> {
    let folder = wide.join("python-gcs-tests");
    let script = "set -e; \"$PYTHON\" -m pip download -q --no-deps --no-binary \"${PACKAGE%%==*}\" \"$PACKAGE\"; \
         tar xzf *.tar.gz --strip-components=1; rm *.tar.gz; \
         \"$PYTHON\" -m pip install -q --no-deps --target modules \"$BROTLI\"";
    let python = tools::clients_python(wide.parent().unwrap_or(wide))?;
    let wanted = format!("{GOOGLE_PYTHON} {BROTLI}");
    install::make_once(&folder, &wanted, || {
        Step::new("sh")
            .args(["-c", script])
            .env("PYTHON", &python)
            .env("PACKAGE", GOOGLE_PYTHON)
            .env("BROTLI", BROTLI)
            .folder(&folder)
            .run()
    })
}

fn javascript(wide: &Path, name: &str) -> Result<(), Failure> {
    let folder = wide.join("js").join(name);
    let list = sources().join("js").join(name).join("package.json");
    let wanted = format!("packages of {}", install::sha256(&list)?);
    install::make_once(&folder, &wanted, || {
        let copied = folder.join("package.json");
        fs::copy(&list, &copied).map_err(doing(format!("write {}", copied.display())))?;
        install::npm(&folder, None)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_installed_is_named_and_ends_nothing() {
        let refused = Install {
            name: "one",
            run: |_| Err(Failure::Missing("not served".to_owned())),
        };
        let installed = Install {
            name: "two",
            run: |_| Ok(()),
        };
        let left_out = install_all([refused, installed].iter(), Path::new("wide"));
        assert_eq!(left_out, ["one: not served"]);
    }

    #[test]
    fn clients_of_googles_storage_are_nine_installations() {
        let names = INSTALLS.iter().filter(|install| install.is_of_gcs());
        assert_eq!(names.count(), 9);
    }

    #[test]
    fn clients_that_are_not_installed_are_not_chosen() {
        assert!(in_gate(&[]).contains(GO_CLIENT));
        assert!(!in_gate(&[GO_CLIENT]).contains(GO_CLIENT));
    }

    #[test]
    fn matrix_of_which_all_is_skipped_fails() {
        let mut counts = Counts::default();
        counts.add_line("26 skipped in 0.40s");
        some_ran(&counts).unwrap_err();
        counts.add_line("1 passed, 25 skipped in 0.40s");
        some_ran(&counts).unwrap();
    }

    #[test]
    fn clients_of_the_gate_are_clients() {
        let adapters = [
            include_str!("../../testing/clients/wide/adapters.py"),
            include_str!("../../testing/clients/wide/gcs_adapters.py"),
        ]
        .concat();
        for name in IN_GATE {
            assert!(adapters.contains(&format!("\"{name}\": ")), "{name}");
        }
    }
}
