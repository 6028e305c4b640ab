//! The settings of a server: options, then the TOML file, then defaults.

use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use bywash::{Consistency, OriginUrl};
use serde::Deserialize;

use super::Args;
use super::data_dir::{Credentials, DEFAULT_DATA_DIR};
use crate::failure::Failure;
use crate::size::Memory;

const DEFAULT_MEMORY: &str = "25%";
const DEFAULT_S3_ADDR: &str = "127.0.0.1:8420";
const DEFAULT_ADMIN_ADDR: &str = "127.0.0.1:8422";

/// The TOML file. Its keys are the options' names.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct FileSettings {
    data_dir: Option<PathBuf>,
    memory: Option<String>,
    hedge: bool,
    s3_addr: Option<String>,
    admin_addr: Option<String>,
    access_key: Option<String>,
    secret_key: Option<String>,
    anonymous: bool,
    no_history: bool,
    tls_cert: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    insecure_http: bool,
    bucket: Vec<FileBucket>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileBucket {
    name: Option<String>,
    url: String,
    consistency: Option<String>,
}

/// Checked settings.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) data_dir: PathBuf,
    pub(super) memory: Memory,
    pub(super) hedge: bool,
    pub(super) s3_addr: SocketAddr,
    pub(super) admin_addr: SocketAddr,
    pub(super) access: Access,
    pub(super) transport: Transport,
    /// Whether the server keeps a history of its counters.
    pub(super) history: bool,
    /// Empty: buckets are folders of the data folder.
    pub(super) buckets: Vec<BucketSettings>,
}

/// Who gets in.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Holders of the key in the data folder.
    Kept,
    /// Holders of this key.
    Given(Credentials),
    Anonymous,
}

/// What carries requests.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Transport {
    Http {
        /// Plain HTTP was asked for, so others than this machine may be served with it.
        insisted: bool,
    },
    Tls {
        cert: PathBuf,
        key: PathBuf,
    },
}

/// One bucket and its origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BucketSettings {
    pub(super) name: String,
    pub(super) url: OriginUrl,
    pub(super) consistency: Consistency,
}

impl Settings {
    /// Reads the TOML file, if there is one, and puts `args` over it.
    pub(super) fn load(args: Args) -> Result<Self, Failure> {
        let file = match &args.config {
            None => FileSettings::default(),
            Some(path) => {
                let text = std::fs::read_to_string(path).map_err(|error| {
                    Failure::io(format!("cannot read --config {}", path.display()), &error)
                })?;
                parse_file(path, &text)?
            }
        };
        Self::merge(args, file)
    }

    pub(super) fn merge(args: Args, file: FileSettings) -> Result<Self, Failure> {
        // Options that exclude each other win or lose together: `--anonymous` is not undone by a
        // key in the file.
        let access = if args.access_key.is_some() || args.secret_key.is_some() || args.anonymous {
            access(args.access_key, args.secret_key, args.anonymous)?
        } else {
            access(file.access_key, file.secret_key, file.anonymous)?
        };
        let transport = if args.tls_cert.is_some() || args.tls_key.is_some() || args.insecure_http {
            transport(args.tls_cert, args.tls_key, args.insecure_http)?
        } else {
            transport(file.tls_cert, file.tls_key, file.insecure_http)?
        };
        let or_default = |arg: Option<String>, file: Option<String>, default: &str| {
            arg.or(file).unwrap_or_else(|| default.to_owned())
        };
        let memory = or_default(args.memory, file.memory, DEFAULT_MEMORY);
        let settings = Self {
            data_dir: args
                .data_dir
                .or(file.data_dir)
                .unwrap_or_else(|| PathBuf::from(DEFAULT_DATA_DIR)),
            memory: memory
                .parse()
                .map_err(|error| Failure::usage(format!("--memory: {error}")))?,
            hedge: args.hedge || file.hedge,
            s3_addr: address(
                "--s3-addr",
                &or_default(args.s3_addr, file.s3_addr, DEFAULT_S3_ADDR),
            )?,
            admin_addr: address(
                "--admin-addr",
                &or_default(args.admin_addr, file.admin_addr, DEFAULT_ADMIN_ADDR),
            )?,
            access,
            transport,
            history: !(args.no_history || file.no_history),
            buckets: buckets(&args.origins, file.bucket)?,
        };
        settings.refuse_exposure()?;
        Ok(settings)
    }

    /// Others than this machine need credentials and an encrypted line, unless told otherwise; the
    /// admin endpoints are never for them.
    fn refuse_exposure(&self) -> Result<(), Failure> {
        let (s3, admin) = (self.s3_addr, self.admin_addr);
        if !admin.ip().is_loopback() {
            return Err(Failure::usage(format!(
                "--admin-addr {admin} is not loopback; the admin endpoints need no credentials, so give them 127.0.0.1 or [::1]"
            )));
        }
        if s3.ip().is_loopback() {
            return Ok(());
        }
        if self.access == Access::Anonymous {
            return Err(Failure::usage(format!(
                "--s3-addr {s3} is not loopback, and --anonymous would let everyone in; drop --anonymous, or listen on 127.0.0.1"
            )));
        }
        if self.transport == (Transport::Http { insisted: false }) {
            return Err(Failure::usage(format!(
                "--s3-addr {s3} is not loopback, and data would travel unencrypted; give --tls-cert and --tls-key, or --insecure-http to do it nevertheless"
            )));
        }
        Ok(())
    }
}

pub(super) fn parse_file(path: &Path, text: &str) -> Result<FileSettings, Failure> {
    toml::from_str(text)
        .map_err(|error| Failure::usage(format!("--config {}: {error}", path.display())))
}

fn access(key: Option<String>, secret: Option<String>, anonymous: bool) -> Result<Access, Failure> {
    match (key, secret, anonymous) {
        (None, None, true) => Ok(Access::Anonymous),
        (None, None, false) => Ok(Access::Kept),
        (Some(access_key), Some(secret_key), false)
            if !access_key.is_empty() && !secret_key.is_empty() =>
        {
            Ok(Access::Given(Credentials {
                access_key,
                secret_key,
            }))
        }
        (Some(_), Some(_), false) => Err(Failure::usage(
            "access-key and secret-key must not be empty",
        )),
        (_, _, true) => Err(Failure::usage(
            "anonymous and access-key exclude each other; drop one",
        )),
        _ => Err(Failure::usage(
            "access-key and secret-key go together; give both, or none to have them made",
        )),
    }
}

fn transport(
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    insecure: bool,
) -> Result<Transport, Failure> {
    match (cert, key, insecure) {
        (None, None, insisted) => Ok(Transport::Http { insisted }),
        (Some(cert), Some(key), false) => Ok(Transport::Tls { cert, key }),
        (_, _, true) => Err(Failure::usage(
            "insecure-http and tls-cert exclude each other; drop one",
        )),
        _ => Err(Failure::usage(
            "tls-cert and tls-key go together; give both",
        )),
    }
}

fn address(option: &str, text: &str) -> Result<SocketAddr, Failure> {
    let resolved = text
        .to_socket_addrs()
        .ok()
        .and_then(|mut addresses| addresses.next());
    resolved.ok_or_else(|| {
        Failure::usage(format!(
            "{option} {text:?} is not an address; write HOST:PORT, as 127.0.0.1:8420"
        ))
    })
}

/// The buckets of the file, then those of the command line over them.
fn buckets(origins: &[String], file: Vec<FileBucket>) -> Result<Vec<BucketSettings>, Failure> {
    let mut from_file = BTreeMap::new();
    for bucket in file {
        let consistency = bucket.consistency.as_deref().map(str::parse).transpose();
        let consistency = consistency
            .map_err(|error| Failure::usage(format!("[[bucket]] {}: {error}", bucket.url)))?;
        add(
            &mut from_file,
            bucket_settings(bucket.name, &bucket.url, consistency.unwrap_or_default())?,
        )?;
    }
    let mut named = BTreeMap::new();
    for origin in origins {
        let (name, url) = match origin.split_once('=') {
            // A `=` after a slash or colon belongs to the URL.
            Some((name, url)) if !name.contains(['/', ':']) => (Some(name.to_owned()), url),
            _ => (None, origin.as_str()),
        };
        add(
            &mut named,
            bucket_settings(name, url, Consistency::default())?,
        )?;
    }
    from_file.append(&mut named);
    Ok(from_file.into_values().collect())
}

fn add(
    buckets: &mut BTreeMap<String, BucketSettings>,
    bucket: BucketSettings,
) -> Result<(), Failure> {
    let name = bucket.name.clone();
    match buckets.insert(name.clone(), bucket) {
        None => Ok(()),
        Some(other) => Err(Failure::usage(format!(
            "two buckets are named {name}, one of them at {}; name one of them by NAME=URL",
            other.url
        ))),
    }
}

fn bucket_settings(
    name: Option<String>,
    url: &str,
    consistency: Consistency,
) -> Result<BucketSettings, Failure> {
    let url: OriginUrl = url
        .parse()
        .map_err(|error: bywash::origin::OriginUrlError| Failure::usage(error.to_string()))?;
    let name = name.or_else(|| url.default_name());
    let name = name.ok_or_else(|| {
        Failure::usage(format!("{url} has no name for a bucket; write NAME={url}"))
    })?;
    Ok(BucketSettings {
        name,
        url,
        consistency,
    })
}
