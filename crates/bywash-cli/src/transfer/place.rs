//! Places of trees. Copies between places inside each other would read their own output, or delete
//! their own input, so they are refused.

use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path as FsPath, PathBuf};

use object_store::path::Path;

use crate::address::Scheme;
use crate::failure::Failure;
use crate::serve::data_dir::Session;
use crate::transfer::confinement::resolved;
use crate::url::Url;

/// How the place of a source is related to the place of a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Relation {
    Apart,
    Same,
    /// The source is below the destination.
    Inside,
    /// The destination is below the source.
    Around,
}

/// Places of the server of the data folder: it may have a bucket by two protocols, in a folder that
/// is reached as such too.
#[derive(Debug)]
pub(crate) struct Places {
    served: Option<Served>,
}

#[derive(Debug)]
struct Served {
    session: Session,
    data_dir: PathBuf,
    /// The protocols by which addresses lead to this server.
    schemes: Vec<Scheme>,
}

/// Where an address leads to.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    File(PathBuf),
    /// A key of a bucket. Without a scheme it is one of the server.
    Key(Option<Scheme>, String, Path),
    Stream,
}

impl Places {
    /// Reads the record of the data folder's server. `s3` and `gcs`: the endpoints that addresses
    /// lead to.
    pub(crate) fn new(data_dir: &FsPath, s3: Option<&str>, gcs: Option<&str>) -> Self {
        let served = Session::read(data_dir).ok().map(|session| {
            let same = |here: Option<&str>, there: Option<&str>| {
                here.zip(there).is_some_and(|(a, b)| same_endpoint(a, b))
            };
            let schemes = [
                (Scheme::S3, same(s3, Some(&session.endpoint))),
                (Scheme::Gcs, same(gcs, session.gcs.as_deref())),
            ];
            let schemes = schemes.into_iter().filter(|(_, same)| *same);
            Served {
                schemes: schemes.map(|(scheme, _)| scheme).collect(),
                data_dir: data_dir.to_owned(),
                session,
            }
        });
        Self { served }
    }

    fn of(&self, url: &Url) -> Place {
        let address = match url {
            Url::Stdio => return Place::Stream,
            Url::File(path) | Url::Folder(path) => return Place::File(real(path)),
            Url::Object(address) => address,
        };
        let (bucket, Ok(key)) = (address.bucket.clone(), address.path()) else {
            return Place::Stream;
        };
        let served = self.served.as_ref();
        match served.filter(|served| served.schemes.contains(&address.scheme)) {
            Some(served) => match served.session.folder_of(&served.data_dir, &bucket) {
                Some(folder) => Place::File(real(&folder.join(key.as_ref()))),
                None => Place::Key(None, bucket, key),
            },
            None => Place::Key(Some(address.scheme), bucket, key),
        }
    }

    fn relation(&self, source: &Url, destination: &Url) -> Relation {
        match (self.of(source), self.of(destination)) {
            (Place::File(a), Place::File(b)) => Relation::of(is_within(&a, &b), is_within(&b, &a)),
            (Place::Key(scheme, bucket, a), Place::Key(other, b_bucket, b))
                if (scheme, &bucket) == (other, &b_bucket) =>
            {
                Relation::of(a.prefix_matches(&b), b.prefix_matches(&a))
            }
            _ => Relation::Apart,
        }
    }

    /// Refuses a copy of a tree into itself, or from below its destination.
    pub(crate) fn refuse_overlap(&self, source: &Url, destination: &Url) -> Result<(), Failure> {
        let why = match self.relation(source, destination) {
            Relation::Apart => return Ok(()),
            Relation::Same => format!("{source} would be copied onto itself"),
            Relation::Inside => format!(
                "{source} is inside of {destination}, so the copy could replace or delete its own source; copy to a place outside of it"
            ),
            Relation::Around => format!(
                "{destination} is inside of {source}, so the copy would be a source of itself; copy to a place outside of it"
            ),
        };
        Err(Failure::usage(why))
    }

    /// Whether two names are one file or object, also by links and other spellings.
    pub(crate) fn are_one(&self, source: &Url, destination: &Url) -> bool {
        self.relation(source, destination) == Relation::Same
    }
}

impl Relation {
    fn of(inside: bool, around: bool) -> Self {
        match (inside, around) {
            (true, true) => Self::Same,
            (true, false) => Self::Inside,
            (false, true) => Self::Around,
            (false, false) => Self::Apart,
        }
    }
}

/// Whether two URLs are of one server, whose machine may be named or have an address.
fn same_endpoint(a: &str, b: &str) -> bool {
    let parsed = |text: &str| {
        let text = if text.contains("://") {
            text.to_owned()
        } else {
            format!("http://{text}")
        };
        let url = url::Url::parse(&text).ok()?;
        let host = match url.host_str()? {
            "localhost" | "[::1]" => "127.0.0.1",
            host => host,
        };
        Some((host.to_owned(), url.port_or_known_default()))
    };
    parsed(a).is_some_and(|a| Some(a) == parsed(b))
}

/// Whether a path is another one or below it: by its names, or because a folder above it is the
/// same, as with a bind mount or in a file system that ignores case.
fn is_within(path: &FsPath, above: &FsPath) -> bool {
    let node = |path: &FsPath| {
        path.metadata()
            .ok()
            .map(|meta| (meta.dev(), meta.ino(), meta.is_dir()))
    };
    let same_node = || match node(above) {
        // Several names of one file are several files for copies.
        Some(found @ (_, _, true)) => path.ancestors().any(|folder| node(folder) == Some(found)),
        _ => false,
    };
    path.starts_with(above) || same_node()
}

/// The path behind all links, without `..` in the part that does not exist yet.
fn real(path: &FsPath) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in resolved(path).components() {
        match part {
            Component::ParentDir => _ = normal.pop(),
            part => normal.push(part),
        }
    }
    normal
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::os::unix::fs::symlink;

    use super::*;

    fn related(a: &str, b: &str) -> Relation {
        let places = Places { served: None };
        places.relation(&a.parse().unwrap(), &Url::destination(b).unwrap())
    }

    #[test]
    fn prefixes_are_compared_by_whole_names() {
        for (a, b, expected) in [
            ("s3://b/p", "s3://b/p", Relation::Same),
            ("s3://b/p/", "s3://b/p", Relation::Same),
            ("s3://b", "s3://b/", Relation::Same),
            ("s3://b/new", "s3://b/", Relation::Inside),
            ("s3://b/new/", "s3://b", Relation::Inside),
            ("s3://b", "s3://b/new", Relation::Around),
            ("gs://b/a/", "gs://b/a/b/c", Relation::Around),
            ("az://b/a/b", "az://b/a", Relation::Inside),
            ("s3://b/new", "s3://b/newer", Relation::Apart),
            ("s3://b/new", "s3://c/new", Relation::Apart),
            ("s3://b/new", "gs://b/new", Relation::Apart),
            ("s3://b/new", "/b/new", Relation::Apart),
        ] {
            assert_eq!(related(a, b), expected, "{a} {b}");
        }
    }

    #[test]
    fn folders_are_compared_behind_links_and_spellings() {
        let home = tempfile::tempdir().unwrap();
        let real = home.path().canonicalize().unwrap();
        std::fs::create_dir_all(real.join("dir/sub")).unwrap();
        std::fs::create_dir(real.join("other")).unwrap();
        std::fs::write(real.join("dir/file"), "x").unwrap();
        std::fs::hard_link(real.join("dir/file"), real.join("other/file")).unwrap();
        symlink("dir", real.join("link")).unwrap();
        symlink("../other", real.join("dir/out")).unwrap();
        let at = |name: &str| format!("{}/{name}", real.display());
        for (a, b, expected) in [
            ("dir", "dir/", Relation::Same),
            ("dir", "link", Relation::Same),
            ("dir/./", "other/../dir", Relation::Same),
            ("dir", "dir/sub", Relation::Around),
            ("dir", "link/sub/new/deep", Relation::Around),
            ("dir", "dir/none/../new", Relation::Around),
            ("dir", "none/../dir/new", Relation::Around),
            ("dir/sub", "link", Relation::Inside),
            ("link/sub", "dir", Relation::Inside),
            ("dir", "dir/out", Relation::Apart),
            ("dir", "dir/out/new", Relation::Apart),
            ("dir", "directory", Relation::Apart),
            ("dir/sub", "other", Relation::Apart),
            ("dir/file", "link/file", Relation::Same),
            ("dir/file", "other/file", Relation::Apart),
        ] {
            assert_eq!(related(&at(a), &at(b)), expected, "{a} {b}");
            let url = format!("file://{}", at(b));
            assert_eq!(related(&at(a), &url), expected, "{a} {url}");
        }
    }

    #[test]
    fn buckets_of_the_server_are_compared_by_protocol_and_folder() {
        let home = tempfile::tempdir().unwrap();
        let real = home.path().canonicalize().unwrap();
        std::fs::create_dir_all(real.join("lake/new")).unwrap();
        let session = |folders| {
            Session::new("http://127.0.0.1:8420", "r", None)
                .with_gcs(Some("http://127.0.0.1:8421".to_owned()))
                .with_folders(folders)
        };
        let lake = [("lake".to_owned(), real.join("lake"))];
        for (folders, root) in [(None, "buckets/lake"), (Some(lake.into()), "lake")] {
            let served = Served {
                session: session(folders),
                data_dir: real.clone(),
                schemes: vec![Scheme::S3, Scheme::Gcs],
            };
            let places = Places {
                served: Some(served),
            };
            let folder = format!("{}/{root}", real.display());
            std::fs::create_dir_all(&folder).unwrap();
            for (a, b, expected) in [
                ("s3://lake/new", "gs://lake/", Relation::Inside),
                ("gs://lake", "s3://lake/new", Relation::Around),
                ("s3://lake/new", &*folder, Relation::Inside),
                (&*folder, "gs://lake/new", Relation::Around),
                (
                    "s3://lake/new",
                    &*format!("file://{folder}/new"),
                    Relation::Same,
                ),
                ("s3://lake/new", "s3://other/new", Relation::Apart),
                ("s3://other/new", "gs://other", Relation::Inside),
            ] {
                let (a, b) = (a.parse().unwrap(), Url::destination(b).unwrap());
                assert_eq!(places.relation(&a, &b), expected, "{root}: {a} {b}");
            }
        }
    }

    #[test]
    fn endpoints_are_one_by_machine_and_port() {
        for (a, b, same) in [
            ("http://127.0.0.1:8420", "http://localhost:8420/", true),
            ("127.0.0.1:8420", "http://127.0.0.1:8420", true),
            ("http://127.0.0.1:8420", "http://127.0.0.1:8421", false),
            ("https://s3.example", "https://s3.example:443", true),
            ("https://s3.example", "https://gs.example", false),
        ] {
            assert_eq!(same_endpoint(a, b), same, "{a} {b}");
        }
    }
}
