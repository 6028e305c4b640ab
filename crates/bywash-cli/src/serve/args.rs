//! Arguments of `bywash serve`, which are environment variables too.

use std::path::PathBuf;

use super::data_dir::DEFAULT_DATA_DIR;
use super::settings::BucketSettings;
use crate::failure::Failure;

// Headings of `--help`, the common ones first.
const BUCKETS_AND_MEMORY: &str = "Buckets and memory";
const DISK: &str = "Disk";
const ADDRESSES_AND_TLS: &str = "Addresses and TLS";
const KEYS: &str = "Keys";
const ACCESS_LOG: &str = "Access log";
const SERIES: &str = "Series";
const CLUSTER: &str = "Cluster";
const TUNING: &str = "Tuning";

/// Serve buckets over the protocols of S3 and of Google's storage, cached in memory
///
/// Without URL, buckets are folders under DATA-DIR/buckets, made and deleted by S3 clients. With
/// URLs, each is one bucket: `s3://data` serves bucket `data`, `NAME=URL` names it. s3:// origins
/// take credentials, region and endpoint from the AWS_* variables or a profile of ~/.aws (AWS_PROFILE), gs:// origins from GOOGLE_*
/// and STORAGE_EMULATOR_HOST, az:// origins from AZURE_STORAGE_*. Files of a web server, http:// or https://, are read-only and
/// cannot be listed.
///
/// Options may be given as environment variables too, which the options override.
///
/// When ready, a line `ready s3=URL admin=URL` is written to standard output, with `metrics=URL` if there is --metrics-addr, and
/// `gcs=URL` unless --gcs-addr is off.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// Origins: file:///folder, a folder's path, s3://bucket[/prefix], gs://bucket[/prefix], az://container[/prefix], https://host[/folder] or memory://
    #[arg(value_name = "URL|NAME=URL")]
    pub(super) origins: Vec<String>,
    /// Settings in TOML, by the names of these options, and tables of buckets, keys and accounts. Options override them
    ///
    /// `[[bucket]]` has name, url, consistency, block-size, read-only, headers (of web servers) and options: credentials, endpoint, region and
    /// others by the names of object_store, in place of the environment's. `[[key]]` has access-key, secret-key, buckets and
    /// read-only; `[[gcs-account]]` is the output of `bywash keys ls --toml`. A value "env:NAME" stands for the variable NAME; a file that other users can read must not contain secrets.
    #[arg(long, env = "BYWASH_CONFIG", value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Folder of credentials, lock and buckets; created if missing [default: ./bywash-data]
    #[arg(long, env = "BYWASH_DATA_DIR", value_name = "DIR")]
    pub(super) data_dir: Option<PathBuf>,
    /// Make this bucket at start unless it is there, a folder of DATA-DIR/buckets; may be repeated
    #[arg(
        help_heading = BUCKETS_AND_MEMORY,
        long,
        env = "BYWASH_BUCKET",
        value_delimiter = ',',
        value_name = "NAME",
        conflicts_with = "origins"
    )]
    pub(super) bucket: Vec<String>,
    /// Memory ceiling, as 4GiB or 25% of the limit of the machine or its control group [default: 25%]
    ///
    /// It covers objects in memory, uploads, listings and request XML. The process takes at most this, 64 MiB, 512 KiB a thread
    /// and 128 KiB a connection; a control group also counts up to 512 KiB of socket buffers a connection. The sums for this
    /// machine are logged at start.
    #[arg(help_heading = BUCKETS_AND_MEMORY, long, env = "BYWASH_MEMORY", value_name = "SIZE|PERCENT")]
    pub(super) memory: Option<String>,
    /// Parts of --memory that reads and writes are guaranteed, at most 40% each, as 10%:0% for a server that only reads [default: 25%:25%]
    #[arg(help_heading = BUCKETS_AND_MEMORY, long, env = "BYWASH_MEMORY_SHARES", value_name = "READS%:WRITES%")]
    pub(super) memory_shares: Option<String>,
    /// Which reads are compared with the digest that the store states of the whole object: off, whole, or always [default: whole]
    ///
    /// With always, a ranged read first reads and compares the whole object, unless its blocks in memory were compared: for
    /// objects that fit in memory.
    #[arg(help_heading = BUCKETS_AND_MEMORY, long, env = "BYWASH_VERIFY", value_name = "READS")]
    pub(super) verify: Option<String>,
    /// When the bytes of a write are loaded into memory: on-read; or on-write, for objects of at most one chunk, with a HEAD request each [default: on-read]
    #[arg(help_heading = BUCKETS_AND_MEMORY, long, env = "BYWASH_WRITE_CACHE", value_name = "WHEN")]
    pub(super) write_cache: Option<String>,
    /// Let `bywash cache fetch` write files below DIR, which must exist and not overlap the data folder or that of --disk [default: none]
    #[arg(help_heading = BUCKETS_AND_MEMORY, long, env = "BYWASH_FETCH_FOLDER", value_name = "DIR")]
    pub(super) fetch_folder: Option<PathBuf>,
    /// ETags of objects written to folders and memory: md5, as S3's; or fast, without a digest [default: md5]
    #[arg(help_heading = BUCKETS_AND_MEMORY, long, env = "BYWASH_ETAG", value_name = "STYLE")]
    pub(super) etag: Option<String>,
    /// What encrypts the objects of buckets in folders and in memory at rest: disk. Their clients may then ask for it by x-amz-server-side-encryption [default: nothing]
    #[arg(help_heading = BUCKETS_AND_MEMORY, long, env = "BYWASH_AT_REST_ENCRYPTION", value_name = "WHAT")]
    pub(super) at_rest_encryption: Option<String>,
    /// Keep blocks of s3://, gs://, az:// and http:// origins on a disk below memory, as /var/cache/bywash:100GiB [default: none]
    ///
    /// DIR is created if missing and used by this server alone; SIZE is its max size on the disk. Its blocks survive a restart, also
    /// after a crash. Its index takes about 1 MiB of --memory for 10 GiB.
    #[arg(help_heading = DISK, long, env = "BYWASH_DISK", value_name = "DIR:SIZE")]
    pub(super) disk: Option<String>,
    /// Max bytes that the disk tier writes a day, as 200GiB, for the endurance of an SSD [default: no limit]
    ///
    /// The writes are spread over the day; a 24th may be written at once. Blocks above the limit are not written, and are counted
    /// as declined_rate.
    #[arg(help_heading = DISK, long, env = "BYWASH_DISK_DAILY_WRITES", value_name = "SIZE")]
    pub(super) disk_daily_writes: Option<String>,
    /// Address of the S3 endpoint; port 0 takes a free one [default: 127.0.0.1:8420]
    #[arg(help_heading = ADDRESSES_AND_TLS, long, env = "BYWASH_S3_ADDR", value_name = "HOST:PORT")]
    pub(super) s3_addr: Option<String>,
    /// Address of the endpoint of Google's storage API; port 0 takes a free one, off serves none. Without --anonymous its clients need keys: bywash keys create --gcs [default: 127.0.0.1:8421]
    #[arg(help_heading = ADDRESSES_AND_TLS, long, env = "BYWASH_GCS_ADDR", value_name = "HOST:PORT|off")]
    pub(super) gcs_addr: Option<String>,
    /// Address of the page, /metrics, /stats and series; loopback only [default: 127.0.0.1:8422]
    #[arg(help_heading = ADDRESSES_AND_TLS, long, env = "BYWASH_ADMIN_ADDR", value_name = "HOST:PORT")]
    pub(super) admin_addr: Option<String>,
    /// Address of a second /metrics, which may be beyond loopback: it requires a key by HTTP Basic, and TLS or --insecure-http [default: none]
    #[arg(
        help_heading = ADDRESSES_AND_TLS,
        long,
        env = "BYWASH_METRICS_ADDR",
        value_name = "HOST:PORT",
        conflicts_with = "anonymous"
    )]
    pub(super) metrics_addr: Option<String>,
    /// Unix socket for programs of this user on this machine, which read blocks in memory without a copy; off serves none [default: one in
    /// DATA-DIR and one at $XDG_RUNTIME_DIR/bywash/default.sock, or /tmp/bywash-UID without the variable]
    #[arg(help_heading = ADDRESSES_AND_TLS, long, value_name = "PATH|off")]
    pub(super) local: Option<PathBuf>,
    /// Host name of this server, as s3.example.com: BUCKET.NAME addresses a bucket, NAME itself is path-style; may be repeated. `localhost` is always included
    #[arg(
        help_heading = ADDRESSES_AND_TLS,
        long,
        env = "BYWASH_DOMAIN",
        value_delimiter = ',',
        value_name = "NAME"
    )]
    pub(super) domain: Vec<String>,
    /// Certificate chain of the S3 endpoint, PEM
    #[arg(
        help_heading = ADDRESSES_AND_TLS,
        long,
        env = "BYWASH_TLS_CERT",
        value_name = "FILE",
        requires = "tls_key",
        conflicts_with = "insecure_http"
    )]
    pub(super) tls_cert: Option<PathBuf>,
    /// Private key of the certificate, PEM
    #[arg(
        help_heading = ADDRESSES_AND_TLS,
        long,
        env = "BYWASH_TLS_KEY",
        value_name = "FILE",
        requires = "tls_cert"
    )]
    pub(super) tls_key: Option<PathBuf>,
    /// Serve addresses beyond loopback without TLS
    #[arg(help_heading = ADDRESSES_AND_TLS, long, env = "BYWASH_INSECURE_HTTP")]
    pub(super) insecure_http: bool,
    /// Accept only requests signed with this key [default: one generated at first start]
    #[arg(
        help_heading = KEYS,
        long,
        env = "BYWASH_ACCESS_KEY",
        value_name = "KEY",
        requires = "secret_key",
        conflicts_with = "anonymous"
    )]
    pub(super) access_key: Option<String>,
    /// Secret of --access-key. Other users see options in the process list; a --config file can be private
    #[arg(
        help_heading = KEYS,
        long,
        env = "BYWASH_SECRET_KEY",
        hide_env_values = true,
        value_name = "SECRET",
        requires = "access_key"
    )]
    pub(super) secret_key: Option<String>,
    /// Accept unsigned requests and any signature; loopback only
    #[arg(help_heading = KEYS, long, env = "BYWASH_ANONYMOUS")]
    pub(super) anonymous: bool,
    /// Write a line for each request to FILE, or to standard output by `-`; SIGHUP reopens FILE [default: none]
    #[arg(help_heading = ACCESS_LOG, long, env = "BYWASH_ACCESS_LOG", value_name = "FILE|-")]
    pub(super) access_log: Option<String>,
    /// Format of --access-log: json, or the combined format of Apache [default: json]
    #[arg(help_heading = ACCESS_LOG, long, env = "BYWASH_ACCESS_LOG_FORMAT", value_name = "json|combined")]
    pub(super) access_log_format: Option<String>,
    /// Keep no history of the server's own counters
    #[arg(help_heading = SERIES, long, env = "BYWASH_NO_HISTORY")]
    pub(super) no_history: bool,
    /// Max size of the history on disk; the oldest values are dropped first [default: 1GiB]
    #[arg(help_heading = SERIES, long, env = "BYWASH_HISTORY_SIZE", value_name = "SIZE")]
    pub(super) history_size: Option<String>,
    /// Drop received values older than this, as 30d [default: never]
    #[arg(help_heading = SERIES, long, env = "BYWASH_SERIES_AGE", value_name = "SPAN")]
    pub(super) series_age: Option<String>,
    /// Max size of received values on disk; the oldest are dropped first [default: no limit]
    #[arg(help_heading = SERIES, long, env = "BYWASH_SERIES_SIZE", value_name = "SIZE")]
    pub(super) series_size: Option<String>,
    /// Keep the files of received values and of the history in a bucket of this server, below NAME[/PREFIX], where a server on another
    /// machine finds them; their logs stay in the data folder [default: the data folder]
    ///
    /// One server writes there at a time, the one that started last. With the store down, values are kept in memory and logs up to
    /// their limits; then writes are refused.
    #[arg(help_heading = SERIES, long, env = "BYWASH_SERIES_BUCKET", value_name = "NAME[/PREFIX]")]
    pub(super) series_bucket: Option<String>,
    /// Be a node of a cluster, whose nodes serve the same buckets as one: etcd://HOST:PORT/NAME, or several HOST:PORT with commas between [default: none]
    ///
    /// Each node has a data folder of its own. An object is requested from its origin once for all nodes, and a write through one
    /// is seen through each at once. Buckets are s3://, gs://, az:// or http://, with the same settings on all nodes.
    #[arg(help_heading = CLUSTER, long, env = "BYWASH_CLUSTER", value_name = "URL")]
    pub(super) cluster: Option<String>,
    /// File of the key that all nodes of the cluster have; further lines are keys that are accepted too. `bywash cluster key` makes one
    #[arg(help_heading = CLUSTER, long, env = "BYWASH_CLUSTER_KEY_FILE", value_name = "FILE")]
    pub(super) cluster_key_file: Option<PathBuf>,
    /// Address by which other nodes reach this one
    #[arg(help_heading = CLUSTER, long, env = "BYWASH_ADVERTISE", value_name = "HOST:PORT")]
    pub(super) advertise: Option<String>,
    /// Address of the listener for other nodes [default: that of --advertise]
    #[arg(help_heading = CLUSTER, long, env = "BYWASH_PEER_ADDR", value_name = "HOST:PORT")]
    pub(super) peer_addr: Option<String>,
    /// Time after a stop for which other nodes still get the blocks in memory [default: 30s]
    #[arg(help_heading = CLUSTER, long, env = "BYWASH_DRAIN", value_name = "SPAN")]
    pub(super) drain: Option<String>,
    /// Send a request to an origin a second time when it takes longer than 95 of 100 others: at most one in 20, each of which the origin bills
    #[arg(help_heading = TUNING, long, env = "BYWASH_HEDGE")]
    pub(super) hedge: bool,
    /// Release the memory of objects that were not read for this long, as 30m or 12h; at least 1s [default: never]
    #[arg(help_heading = TUNING, long, env = "BYWASH_IDLE_AGE", value_name = "SPAN")]
    pub(super) idle_age: Option<String>,
    /// End when no client was connected and no request arrived for this long, as 10m; at least 100ms [default: never]
    #[arg(help_heading = TUNING, long, env = "BYWASH_IDLE_EXIT", value_name = "SPAN")]
    pub(super) idle_exit: Option<String>,
    /// Log and count a pass of eviction that takes longer than this [default: 1s]
    #[arg(help_heading = TUNING, long, env = "BYWASH_SLOW_EVICTION", value_name = "SPAN")]
    pub(super) slow_eviction: Option<String>,
    /// Log and count a pass of eviction that scans all blocks in memory this often without a victim [default: 2]
    #[arg(help_heading = TUNING, long, env = "BYWASH_SLOW_EVICTION_ROUNDS", value_name = "N")]
    pub(super) slow_eviction_rounds: Option<u32>,
    /// Max open connections of clients, up to 100000; each needs three file descriptors and counts in the max memory [default: 1024]
    #[arg(help_heading = TUNING, long, env = "BYWASH_MAX_CONNECTIONS", value_name = "N")]
    pub(super) max_connections: Option<usize>,
    /// Max open connections of one client address; 127.0.0.1 and ::1 are exempt [default: half of all, 512]
    #[arg(help_heading = TUNING, long, env = "BYWASH_MAX_CONNECTIONS_PER_ADDRESS", value_name = "N")]
    pub(super) max_connections_per_address: Option<usize>,
    /// Address, or a network as 10.0.0.0/8, of proxies, which are exempt from --max-connections-per-address; may be repeated
    #[arg(
        help_heading = TUNING,
        long,
        env = "BYWASH_TRUSTED_PROXY",
        value_delimiter = ',',
        value_name = "ADDR[/PREFIX]"
    )]
    pub(super) trusted_proxy: Vec<String>,
}

/// Validates `--bucket`, which needs a server whose buckets are folders in its data folder.
pub(super) fn made_buckets(
    names: Vec<String>,
    buckets: &[BucketSettings],
) -> Result<Vec<String>, Failure> {
    if names.is_empty() || buckets.is_empty() {
        return Ok(names);
    }
    Err(Failure::usage(
        "--bucket makes folders of the data folder, and the settings file has buckets of its own; add it there as a [[bucket]], or leave it out",
    ))
}

pub(super) fn data_dir(given: Option<PathBuf>) -> PathBuf {
    given.unwrap_or_else(|| PathBuf::from(DEFAULT_DATA_DIR))
}
