//! Settings of a server: options, then the TOML file, then defaults.

use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use bywash::origin::OriginOptions;
use bywash::time::parse_duration;
use bywash::{BucketOptions, DiskOptions, MemoryShares, OriginUrl, Verify, WriteCache};
use bywash_gateway::{
    AccessLogFormat, AccessLogTarget, Credential, ETagStyle, GcsAccount, Limits, Network,
    NetworkError, PublicAccess, Scope, is_domain,
};

use super::Args;
use super::args::{data_dir, made_buckets};
use super::at_rest::AtRestEncryption;
use super::bucket_reads::bucket_reads;
use super::cluster_settings::{ClusterOptions, ClusterSettings};
use super::data_dir::Credentials;
use super::databases::DatabaseRetention;
use super::file::{FileBucket, FileKey, FileSettings, resolve};
use super::gcs_accounts::accounts;
use super::series_bucket::SeriesBucket;
use crate::failure::Failure;
use crate::limits::MAX_CONNECTIONS_SET;
use crate::size::{self, Memory};

const DEFAULT_MEMORY: &str = "25%";
const MIN_IDLE_AGE: Duration = Duration::from_secs(1);
const DEFAULT_S3_ADDR: &str = "127.0.0.1:8420";
const DEFAULT_GCS_ADDR: &str = "127.0.0.1:8421";
/// Value of `--gcs-addr` without the endpoint.
const OFF: &str = "off";
const DEFAULT_ADMIN_ADDR: &str = "127.0.0.1:8422";

/// Validated settings.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) data_dir: PathBuf,
    pub(super) memory: Memory,
    /// Its parts that reads and writes are guaranteed.
    pub(super) memory_shares: MemoryShares,
    /// The tier below memory.
    pub(super) disk: Option<DiskOptions>,
    pub(super) hedge: bool,
    /// Age at which unused blocks are evicted; `None`: never.
    pub(super) idle_age: Option<Duration>,
    /// Time without clients after which the server ends; `None`: never.
    pub(super) idle_exit: Option<Duration>,
    /// Time above which a pass of eviction is slow; `None`: the engine's default.
    pub(super) slow_eviction: Option<Duration>,
    /// Rounds over all blocks at which it is slow; `None`: the engine's default.
    pub(super) slow_eviction_rounds: Option<u32>,
    pub(super) verify: Verify,
    /// Folder below which `cache fetch` may write.
    pub(super) fetch_folder: Option<PathBuf>,
    pub(super) write_cache: WriteCache,
    /// ETags of objects written to folders and memory.
    pub(super) etag: ETagStyle,
    /// Encryption of the objects of folders and memory.
    pub(super) at_rest: AtRestEncryption,
    pub(super) s3_addr: SocketAddr,
    /// Address of the endpoint of Google's storage API; `None`: it is off.
    pub(super) gcs_addr: Option<SocketAddr>,
    /// Whether and where processes of this user are served.
    pub(super) local: LocalPlace,
    /// Domains for virtual-hosted-style requests.
    pub(super) domains: Vec<String>,
    pub(super) admin_addr: SocketAddr,
    /// Address of the metrics for others.
    pub(super) metrics_addr: Option<SocketAddr>,
    pub(super) access: Access,
    /// Additional keys, with their scopes.
    pub(super) keys: Vec<Credential>,
    /// Service accounts of the file.
    pub(super) gcs_accounts: Vec<GcsAccount>,
    pub(super) transport: Transport,
    /// Max open connections of clients.
    pub(super) connections: usize,
    /// Max connections of one client address; `None`: the endpoint's default.
    pub(super) connections_per_address: Option<usize>,
    /// Addresses exempt from this limit.
    pub(super) trusted_proxies: Vec<Network>,
    /// Destination and format of the access log.
    pub(super) access_log: Option<(AccessLogTarget, AccessLogFormat)>,
    /// Retention of the series databases.
    pub(super) retention: DatabaseRetention,
    /// Bucket of their files; `None`: the data folder.
    pub(super) series_bucket: Option<SeriesBucket>,
    /// The cluster that the server is a node of.
    pub(super) cluster: Option<ClusterSettings>,
    /// Empty: buckets are folders in the data folder.
    pub(super) buckets: Vec<BucketSettings>,
    /// Folders that are made at start.
    pub(super) made_buckets: Vec<String>,
}

/// Place where processes of this user are served, in addition to the socket in the data folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LocalPlace {
    /// They are not served.
    Off,
    /// At the user's well-known place, unless another server has it.
    User,
    /// At this path.
    At(PathBuf),
}

/// Authentication of the S3 endpoint.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// By the key in the data folder.
    Kept,
    /// By this key.
    Given(Credentials),
    Anonymous,
}

/// Transport of the S3 endpoint.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Transport {
    Http {
        /// Whether plain HTTP was requested explicitly, which allows it beyond loopback.
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
    /// How its objects are read and cached.
    pub(super) reads: BucketOptions,
    /// Whether all writes are rejected.
    pub(super) read_only: bool,
    /// Access of unsigned requests.
    pub(super) public: Option<PublicAccess>,
    pub(super) at_rest: AtRestEncryption,
    /// `None`: from the environment.
    pub(super) options: OriginOptions,
}

impl BucketSettings {
    /// A bucket with default settings.
    pub(super) fn new(name: &str, url: OriginUrl) -> Self {
        Self {
            name: name.to_owned(),
            url,
            reads: BucketOptions::default(),
            read_only: false,
            public: None,
            at_rest: AtRestEncryption::Unknown,
            options: OriginOptions::default(),
        }
    }

    /// Whether both are the same origin, reached in the same way.
    pub(super) fn same_origin(&self, other: &Self) -> bool {
        self.url == other.url && self.options == other.options && self.read_only == other.read_only
    }
}

impl Settings {
    /// Reads the TOML file, if there is one, and overrides it with `args`.
    pub(super) fn load(args: Args) -> Result<Self, Failure> {
        let file = match &args.config {
            None => FileSettings::default(),
            Some(path) => FileSettings::read(path)?,
        };
        Self::merge(args, file)
    }

    pub(super) fn merge(mut args: Args, mut file: FileSettings) -> Result<Self, Failure> {
        let cluster = ClusterOptions::take(&mut args, &mut file);
        let of_args = (args.access_key, args.secret_key, args.anonymous);
        let of_file = (file.access_key, file.secret_key, file.anonymous);
        let access = access_of(of_args, of_file)?;
        let of_args = (args.tls_cert, args.tls_key, args.insecure_http);
        let of_file = (file.tls_cert, file.tls_key, file.insecure_http);
        let transport = transport_of(of_args, of_file)?;
        let or_default = |arg: Option<String>, file: Option<String>, default: &str| {
            arg.or(file).unwrap_or_else(|| default.to_owned())
        };
        let buckets = buckets(&args.origins, file.bucket)?;
        let most = args.max_connections_per_address;
        let most = most.or(file.max_connections_per_address);
        let per_address = positive("--max-connections-per-address", most)?;
        let log_format = args.access_log_format.or(file.access_log_format);
        let access_log = access_log(args.access_log.or(file.access_log), log_format)?;
        let of_series = args.series_bucket.or(file.series_bucket);
        let series_bucket = of_series.map(|text| SeriesBucket::parse(&text, &buckets));
        let at_rest = args.at_rest_encryption.or(file.at_rest_encryption);
        let rounds = args.slow_eviction_rounds.or(file.slow_eviction_rounds);
        let daily_writes = args.disk_daily_writes.or(file.disk_daily_writes);
        let settings = Self {
            connections: connections(args.max_connections.or(file.max_connections))?,
            connections_per_address: per_address,
            trusted_proxies: networks(args.trusted_proxy, file.trusted_proxy)?,
            access_log,
            cluster: ClusterSettings::parse(cluster, &access, &buckets)?,
            data_dir: data_dir(args.data_dir.or(file.data_dir)),
            memory: memory(&or_default(args.memory, file.memory, DEFAULT_MEMORY))?,
            memory_shares: word("--memory-shares", args.memory_shares.or(file.memory_shares))?,
            disk: disk(args.disk.or(file.disk), daily_writes, &buckets)?,
            hedge: args.hedge || file.hedge,
            idle_age: idle_age(args.idle_age.or(file.idle_age))?,
            idle_exit: super::unused::idle_exit(args.idle_exit.or(file.idle_exit))?,
            slow_eviction: duration("--slow-eviction", args.slow_eviction.or(file.slow_eviction))?,
            slow_eviction_rounds: positive("--slow-eviction-rounds", rounds)?,
            fetch_folder: fetch_folder(args.fetch_folder.or(file.fetch_folder))?,
            verify: word("--verify", args.verify.or(file.verify))?,
            write_cache: word("--write-cache", args.write_cache.or(file.write_cache))?,
            etag: word("--etag", args.etag.or(file.etag))?,
            at_rest: word("--at-rest-encryption", at_rest)?,
            s3_addr: address(
                "--s3-addr",
                &or_default(args.s3_addr, file.s3_addr, DEFAULT_S3_ADDR),
            )?,
            gcs_addr: gcs_address(args.gcs_addr.or(file.gcs_addr))?,
            local: local_place(args.local.or(file.local)),
            domains: domains(args.domain, file.domain)?,
            admin_addr: address(
                "--admin-addr",
                &or_default(args.admin_addr, file.admin_addr, DEFAULT_ADMIN_ADDR),
            )?,
            metrics_addr: metrics_address(args.metrics_addr.or(file.metrics_addr))?,
            keys: keys(file.key, &access, &buckets)?,
            gcs_accounts: accounts(file.gcs_account, &access, &buckets)?,
            access,
            transport,
            retention: DatabaseRetention::parse(
                args.no_history || file.no_history,
                args.history_size.or(file.history_size),
                args.series_age.or(file.series_age),
                args.series_size.or(file.series_size),
            )?,
            series_bucket: series_bucket.transpose()?,
            made_buckets: made_buckets(args.bucket, &buckets)?,
            buckets,
        };
        settings.refuse_exposure()?;
        Ok(settings)
    }

    /// Buckets that unsigned requests may read.
    pub(super) fn public(&self) -> BTreeMap<String, PublicAccess> {
        let public = |bucket: &BucketSettings| Some((bucket.name.clone(), bucket.public?));
        self.buckets.iter().filter_map(public).collect()
    }

    /// The folders of the buckets that are folders; `None` if all are folders in the data folder.
    pub(super) fn folders(&self) -> Option<BTreeMap<String, PathBuf>> {
        let folder = |bucket: &BucketSettings| match &bucket.url {
            OriginUrl::File(folder) => {
                let whole = std::path::absolute(folder).ok()?;
                Some((bucket.name.clone(), whole))
            }
            _ => None,
        };
        (!self.buckets.is_empty()).then(|| self.buckets.iter().filter_map(folder).collect())
    }

    /// All accepted keys: `own`, which is unrestricted, and those with scopes.
    pub(super) fn all_keys(&self, own: Option<&Credentials>) -> Vec<Credential> {
        let own = own.map(Credentials::for_gateway);
        own.into_iter().chain(self.keys.iter().cloned()).collect()
    }

    /// Beyond loopback, credentials and encryption are required unless disabled explicitly. The admin endpoints are
    /// always loopback.
    fn refuse_exposure(&self) -> Result<(), Failure> {
        let (s3, admin) = (self.s3_addr, self.admin_addr);
        if !admin.ip().is_loopback() {
            return Err(Failure::usage(format!(
                "--admin-addr {admin} is not loopback; the admin endpoints need no credentials, so give them 127.0.0.1 or [::1]"
            )));
        }
        if let Some(metrics) = self.metrics_addr {
            self.refuse_exposed_metrics(metrics)?;
        }
        for (option, address) in [("--s3-addr", Some(s3)), ("--gcs-addr", self.gcs_addr)] {
            if let Some(address) = address.filter(|address| !address.ip().is_loopback()) {
                self.refuse_exposed_objects(option, address)?;
            }
        }
        Ok(())
    }

    /// Objects beyond loopback require keys, and encryption unless disabled explicitly.
    fn refuse_exposed_objects(&self, option: &str, address: SocketAddr) -> Result<(), Failure> {
        if self.access == Access::Anonymous {
            return Err(Failure::usage(format!(
                "{option} {address} is not loopback, and --anonymous would let everyone in; drop --anonymous, or listen on 127.0.0.1"
            )));
        }
        if self.transport == (Transport::Http { insisted: false }) {
            return Err(Failure::usage(format!(
                "{option} {address} is not loopback, and data would travel unencrypted; give --tls-cert and --tls-key, or --insecure-http to do it nevertheless"
            )));
        }
        Ok(())
    }

    /// Metrics of their own address require a key on every address, and encryption beyond loopback unless disabled explicitly.
    fn refuse_exposed_metrics(&self, address: SocketAddr) -> Result<(), Failure> {
        if self.access == Access::Anonymous {
            return Err(Failure::usage(format!(
                "--metrics-addr {address} requires a key, and --anonymous has none; drop --anonymous, or read /metrics of --admin-addr"
            )));
        }
        let plain = self.transport == (Transport::Http { insisted: false });
        if plain && !address.ip().is_loopback() {
            return Err(Failure::usage(format!(
                "--metrics-addr {address} is not loopback, and keys would travel unencrypted; give --tls-cert and --tls-key, or --insecure-http to do it nevertheless"
            )));
        }
        Ok(())
    }
}

/// Refuses 0 as the value of an option.
fn positive<N: Default + PartialEq>(option: &str, value: Option<N>) -> Result<Option<N>, Failure> {
    if value == Some(N::default()) {
        return Err(Failure::usage(format!(
            "{option} must be more than 0; leave it out for the default"
        )));
    }
    Ok(value)
}

fn connections(count: Option<usize>) -> Result<usize, Failure> {
    match positive("--max-connections", count)? {
        Some(count) if count > MAX_CONNECTIONS_SET => Err(Failure::usage(format!(
            "--max-connections {count} is more than {MAX_CONNECTIONS_SET}; use several servers behind a proxy"
        ))),
        count => Ok(count.unwrap_or(Limits::default().connections)),
    }
}

pub(super) fn duration(option: &str, text: Option<String>) -> Result<Option<Duration>, Failure> {
    let parsed = text.as_deref().map(parse_duration).transpose();
    parsed.map_err(|error| Failure::usage(format!("{option}: {error}")))
}

fn memory(text: &str) -> Result<Memory, Failure> {
    let parsed = text.parse();
    parsed.map_err(|error| Failure::usage(format!("--memory: {error}")))
}

/// Parses a setting that is one of a few words.
fn word<T: Default + FromStr<Err = String>>(
    option: &str,
    text: Option<String>,
) -> Result<T, Failure> {
    let parsed = text.map_or_else(|| Ok(T::default()), |text| text.parse());
    parsed.map_err(|error| Failure::usage(format!("{option}: {error}")))
}

/// Resolves the folder of fetched files, which must exist.
fn fetch_folder(folder: Option<PathBuf>) -> Result<Option<PathBuf>, Failure> {
    let Some(folder) = folder else {
        return Ok(None);
    };
    match folder.canonicalize() {
        Ok(resolved) if resolved.is_dir() => Ok(Some(resolved)),
        _ => Err(Failure::usage(format!(
            "--fetch-folder {} is no folder; make it first",
            folder.display()
        ))),
    }
}

/// Parses the age of idle blocks. Below a second the walks over all blocks would be the server's main work.
fn idle_age(text: Option<String>) -> Result<Option<Duration>, Failure> {
    match duration("--idle-age", text)? {
        Some(age) if age < MIN_IDLE_AGE => Err(Failure::usage(format!(
            "--idle-age {age:?} is less than a second; leave it out to keep unused objects in memory"
        ))),
        age => Ok(age),
    }
}

fn access_log(
    target: Option<String>,
    format: Option<String>,
) -> Result<Option<(AccessLogTarget, AccessLogFormat)>, Failure> {
    let parsed = format.as_deref().unwrap_or("json").parse();
    let parsed =
        parsed.map_err(|error: String| Failure::usage(format!("--access-log-format: {error}")))?;
    match (target.as_deref(), format) {
        (Some(""), _) => Err(Failure::usage(
            "--access-log is empty; write a file, or - for standard output",
        )),
        (None, Some(_)) => Err(Failure::usage(
            "--access-log-format is of no use without --access-log; give a file, or -",
        )),
        (None, None) => Ok(None),
        (Some(target), _) => {
            let Ok(target) = target.parse();
            Ok(Some((target, parsed)))
        }
    }
}

/// Parses `DIR:SIZE`.
fn disk(
    text: Option<String>,
    daily_writes: Option<String>,
    buckets: &[BucketSettings],
) -> Result<Option<DiskOptions>, Failure> {
    let Some(text) = text else {
        return match daily_writes {
            None => Ok(None),
            Some(_) => Err(Failure::usage("--disk-daily-writes needs --disk DIR:SIZE")),
        };
    };
    let daily_writes = daily_writes.map(|text| {
        let parsed = size::parse(&text);
        parsed.map_err(|error| Failure::usage(format!("--disk-daily-writes {text}: {error}")))
    });
    let bad = |reason: String| {
        Failure::usage(format!(
            "--disk {text}: {reason}; write DIR:SIZE, as /var/cache/bywash:100GiB"
        ))
    };
    let (path, size) = text
        .rsplit_once(':')
        .filter(|(path, _)| !path.is_empty())
        .ok_or_else(|| bad("the size is missing".to_owned()))?;
    let smallest = buckets
        .iter()
        .filter_map(|bucket| bucket.reads.block_size)
        .min();
    Ok(Some(DiskOptions {
        path: PathBuf::from(path),
        size: size::parse(size).map_err(bad)?,
        daily_writes: daily_writes.transpose()?,
        min_block_size: smallest.map(|bytes| bytes as u64),
    }))
}

/// The networks of the options, otherwise of the file.
fn networks(args: Vec<String>, file: Vec<String>) -> Result<Vec<Network>, Failure> {
    let texts = if args.is_empty() { file } else { args };
    let parsed = texts.iter().map(|text| text.parse());
    let parsed: Result<_, _> = parsed.collect();
    parsed.map_err(|error: NetworkError| Failure::usage(format!("--trusted-proxy: {error}")))
}

/// The domains of the options, otherwise of the file.
fn domains(args: Vec<String>, file: Vec<String>) -> Result<Vec<String>, Failure> {
    let domains = if args.is_empty() { file } else { args };
    match domains.iter().find(|domain| !is_domain(domain)) {
        None => Ok(domains),
        Some(wrong) => Err(Failure::usage(format!(
            "--domain {wrong:?} is not a host name; give one without scheme, port and path, as s3.example.com"
        ))),
    }
}

type AccessOptions = (Option<String>, Option<String>, bool);

/// The access of the options, if any is given, otherwise of the file: exclusive options override as
/// a group, so a key in the file does not undo `--anonymous`.
fn access_of(args: AccessOptions, file: AccessOptions) -> Result<Access, Failure> {
    let (key, secret, anonymous) = args;
    if key.is_some() || secret.is_some() || anonymous {
        return access(key, secret, anonymous);
    }
    let (key, secret, anonymous) = file;
    let secret = secret.as_deref();
    let secret = secret.map(|text| resolve("secret-key", text)).transpose()?;
    access(key, secret, anonymous)
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

/// Validates the keys of the file: known buckets, no duplicates.
fn keys(
    file: Vec<FileKey>,
    access: &Access,
    buckets: &[BucketSettings],
) -> Result<Vec<Credential>, Failure> {
    if *access == Access::Anonymous && !file.is_empty() {
        return Err(Failure::usage(
            "[[key]] and anonymous exclude each other: an anonymous server needs no keys; drop one",
        ));
    }
    let mut keys: Vec<Credential> = Vec::with_capacity(file.len());
    for key in file {
        let name = key.access_key;
        let what = format!("the secret-key of [[key]] {name}");
        let secret_key = resolve(&what, &key.secret_key)?;
        if name.is_empty() || secret_key.is_empty() {
            return Err(Failure::usage(
                "access-key and secret-key of a [[key]] must not be empty",
            ));
        }
        let is_own = matches!(access, Access::Given(own) if own.access_key == name);
        if is_own || keys.iter().any(|other| other.access_key == name) {
            return Err(Failure::usage(format!(
                "two keys are named {name}; give one of them another access-key"
            )));
        }
        let known = |bucket: &&String| buckets.iter().any(|known| known.name == **bucket);
        // Without URLs, buckets are created and deleted at run time.
        let mut named = key.buckets.iter().flatten();
        if let Some(unknown) = named.find(|bucket| !buckets.is_empty() && !known(bucket)) {
            return Err(Failure::usage(format!(
                "[[key]] {name} names bucket {unknown}, which is not served; correct the name, or serve it"
            )));
        }
        keys.push(Credential {
            access_key: name,
            secret_key,
            scope: Scope {
                buckets: key.buckets,
                read_only: key.read_only,
            },
        });
    }
    Ok(keys)
}

type TransportOptions = (Option<PathBuf>, Option<PathBuf>, bool);

/// The transport of the options, if any is given, otherwise of the file.
fn transport_of(args: TransportOptions, file: TransportOptions) -> Result<Transport, Failure> {
    let given = args.0.is_some() || args.1.is_some() || args.2;
    let (cert, key, insecure_http) = if given { args } else { file };
    transport(cert, key, insecure_http)
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

fn metrics_address(text: Option<String>) -> Result<Option<SocketAddr>, Failure> {
    text.map(|text| address("--metrics-addr", &text))
        .transpose()
}

fn local_place(path: Option<PathBuf>) -> LocalPlace {
    match path {
        None => LocalPlace::User,
        Some(path) if path.as_os_str() == OFF => LocalPlace::Off,
        Some(path) => LocalPlace::At(path),
    }
}

fn gcs_address(text: Option<String>) -> Result<Option<SocketAddr>, Failure> {
    match text.as_deref().unwrap_or(DEFAULT_GCS_ADDR) {
        OFF => Ok(None),
        text => address("--gcs-addr", text).map(Some),
    }
}

pub(super) fn address(option: &str, text: &str) -> Result<SocketAddr, Failure> {
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

/// Checks a bucket of the file.
pub(super) fn file_bucket(bucket: FileBucket) -> Result<BucketSettings, Failure> {
    let options = bucket.origin_options()?;
    let mut settings = bucket_settings(bucket.name.clone(), &bucket.url)?;
    settings.reads = bucket_reads(&settings.name, &bucket)?;
    let name = settings.name.clone();
    let wrong =
        |what: &str, error: String| Failure::usage(format!("{what} of [[bucket]] {name}: {error}"));
    settings.read_only = bucket.read_only;
    let public = bucket.public.as_deref().map(str::parse).transpose();
    settings.public = public.map_err(|error| wrong("public", error))?;
    let at_rest = bucket.at_rest_encryption.as_deref();
    settings.at_rest = AtRestEncryption::of_bucket(at_rest, &settings)?;
    settings.options = options;
    Ok(settings)
}

/// The buckets of the file, overridden by the command line's.
fn buckets(origins: &[String], file: Vec<FileBucket>) -> Result<Vec<BucketSettings>, Failure> {
    let mut from_file = BTreeMap::new();
    for bucket in file {
        add(&mut from_file, file_bucket(bucket)?)?;
    }
    let mut named = BTreeMap::new();
    for origin in origins {
        let (name, url) = match origin.split_once('=') {
            // A `=` after a slash or colon belongs to the URL.
            Some((name, url)) if !name.contains(['/', ':']) => (Some(name.to_owned()), url),
            _ => (None, origin.as_str()),
        };
        add(&mut named, bucket_settings(name, url)?)?;
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

/// A bucket with default settings, named as given or by its URL.
fn bucket_settings(name: Option<String>, url: &str) -> Result<BucketSettings, Failure> {
    let url: OriginUrl = url
        .parse()
        .map_err(|error: bywash::OriginUrlError| Failure::usage(error.to_string()))?;
    let name = name.or_else(|| url.default_name());
    let name = name.ok_or_else(|| {
        Failure::usage(format!("{url} has no name for a bucket; write NAME={url}"))
    })?;
    Ok(BucketSettings::new(&name, url))
}
