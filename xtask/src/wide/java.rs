//! What Maven fetches and Java runs: jars, and programs over them.

use std::fs;
use std::path::Path;

use super::{python, sources};
use crate::install;
use crate::run::{Failure, Step, doing};

/// Versions of the AWS SDK for Java: 2, 2 of a year ago, and 1.
pub(super) const AWS: [(&str, &str, &str); 3] = [
    ("v2", "v2", "2.57.8"),
    ("v2-old", "v2", "2.36.2"),
    ("v1", "v1", "1.12.262"),
];
/// Google's storage library for Java, which `Objects.java` of `gcs` is over.
pub(super) const GOOGLE: [(&str, &str, &str); 1] = [("gcs", "gcs", "2.78.0")];
/// File beside a `pom.xml` with the digests of its jars, as sha256sum prints them.
const JARS: &str = "jars.sha256";

/// Versions that a pyspark needs, as properties of `java/spark/pom.xml`.
pub(super) type SparkVersions = [(&'static str, &'static str); 6];
pub(super) const SPARK: SparkVersions = [
    ("spark", "4.0.1"),
    ("scala", "2.13"),
    ("hadoop", "3.4.1"),
    ("sdk.group", "software.amazon.awssdk"),
    ("sdk.name", "bundle"),
    ("sdk", "2.24.6"),
];
pub(super) const OLD_SPARK: SparkVersions = [
    ("spark", "3.5.4"),
    ("scala", "2.12"),
    ("hadoop", "3.3.4"),
    ("sdk.group", "com.amazonaws"),
    ("sdk.name", "aws-java-sdk-bundle"),
    ("sdk", "1.12.262"),
];

/// Installs jars and programs over them, each once.
pub(super) fn java(wide: &Path, programs: &[(&str, &str, &str)]) -> Result<(), Failure> {
    for &(name, source, version) in programs {
        let folder = wide.join("java").join(name);
        let source = sources().join("java").join(source);
        let program = source.join("Objects.java");
        let wanted = format!("SDK {version} and {}", install::sha256(&program)?);
        install::make_once(&folder, &wanted, || {
            jars(&source, &folder, &[("sdk", version)])?;
            check_jars(&source.join(JARS), &folder.join("jars"))?;
            Step::new("javac")
                .args(["-d", "classes", "-cp", "jars/*"])
                .args([&program])
                .folder(&folder)
                .run()
        })?;
    }
    Ok(())
}

/// Copies what a `pom.xml` asks for into the folder `jars`.
fn jars(source: &Path, folder: &Path, properties: &[(&str, &str)]) -> Result<(), Failure> {
    let works = || {
        ["javac", "mvn"]
            .iter()
            .all(|program| Step::new(program).args(["-version"]).succeeds())
    };
    install::need(
        "a JDK with Maven",
        works,
        &["default-jdk-headless", "maven"],
    )?;
    let properties = properties
        .iter()
        .map(|(name, value)| format!("-D{name}={value}"));
    Step::new("mvn")
        .args(["-q", "-B", "-Dstyle.color=never", "-f"])
        .args([&source.join("pom.xml")])
        .args(properties)
        .args(["dependency:copy-dependencies"])
        .args([format!(
            "-DoutputDirectory={}",
            folder.join("jars").display()
        )])
        .run()
}

/// Compares the jars of a folder with the digests in `list`, if it exists.
fn check_jars(list: &Path, folder: &Path) -> Result<(), Failure> {
    if !list.exists() {
        return Ok(());
    }
    let expected = fs::read_to_string(list).map_err(doing(format!("read {}", list.display())))?;
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(doing(format!("list {}", folder.display())))? {
        let path = entry.map_err(doing("list the jars".to_owned()))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        found.push(format!("{}  {name}", install::sha256(&path)?));
    }
    let unexpected = found
        .iter()
        .find(|line| !expected.lines().any(|known| known == **line));
    match unexpected {
        None if found.len() == expected.lines().count() => Ok(()),
        None => Err(Failure::Missing(format!(
            "{} lacks jars of {}",
            folder.display(),
            list.display()
        ))),
        Some(line) => Err(Failure::Missing(format!(
            "the jar {line} is not in {}: do not use it; compare with its publisher's digest",
            list.display()
        ))),
    }
}

/// Installs a pyspark and its jars.
pub(super) fn spark(wide: &Path, name: &str, versions: SparkVersions) -> Result<(), Failure> {
    let folder = wide.join("java").join(name);
    let wanted = versions.map(|(_, version)| version).join(" ");
    install::make_once(&folder, &wanted, || {
        jars(&sources().join("java/spark"), &folder, &versions)
    })?;
    python(wide, name, &format!("requirements-{name}.txt"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jars_with_other_digests_are_refused() {
        let folder = std::env::temp_dir().join(format!("xtask-jars-{}", std::process::id()));
        let (list, jars) = (folder.join(JARS), folder.join("jars"));
        fs::create_dir_all(&jars).unwrap();
        check_jars(&list, &jars).unwrap();
        let jar = jars.join("a.jar");
        fs::write(&jar, b"abc").unwrap();
        let line = format!("{}  a.jar\n", install::sha256(&jar).unwrap());
        fs::write(&list, &line).unwrap();
        check_jars(&list, &jars).unwrap();
        fs::write(&list, format!("{line}{line}")).unwrap();
        check_jars(&list, &jars).unwrap_err();
        fs::write(&list, &line).unwrap();
        fs::write(&jar, b"abd").unwrap();
        check_jars(&list, &jars).unwrap_err();
        fs::remove_dir_all(&folder).unwrap();
    }
}
