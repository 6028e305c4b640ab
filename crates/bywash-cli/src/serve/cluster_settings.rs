//! Settings of a node of a cluster, and settings that a cluster refuses.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use bywash::OriginUrl;
use bywash::time::parse_duration;
use bywash_cluster::etcd::ClusterName;
use url::Url;

use super::Args;
use super::bucket_reads::refuse_stale;
use super::file::FileSettings;
use super::settings::{Access, BucketSettings, address};
use crate::failure::Failure;

/// Time for which a stopped node still serves the blocks in its memory to other nodes.
pub(super) const DEFAULT_DRAIN: Duration = Duration::from_secs(30);
/// Port of etcd for clients.
const ETCD_PORT: u16 = 2379;

/// Settings of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClusterSettings {
    pub(super) name: String,
    /// Addresses of etcd.
    pub(super) endpoints: Vec<Url>,
    /// File of the cluster keys: the first is the node's own, the others are accepted too.
    pub(super) key_file: PathBuf,
    /// Address by which other nodes reach this one.
    pub(super) advertise: String,
    /// Address of the listener for other nodes.
    pub(super) listen: SocketAddr,
    pub(super) drain: Duration,
}

/// The options, as they were written.
#[derive(Debug, Default)]
pub(super) struct ClusterOptions {
    pub(super) cluster: Option<String>,
    pub(super) key_file: Option<PathBuf>,
    pub(super) advertise: Option<String>,
    pub(super) peer_addr: Option<String>,
    pub(super) drain: Option<String>,
}

impl ClusterOptions {
    /// Takes the options of the command line, otherwise of the file.
    pub(super) fn take(args: &mut Args, file: &mut FileSettings) -> Self {
        fn either<T>(arg: &mut Option<T>, file: &mut Option<T>) -> Option<T> {
            arg.take().or(file.take())
        }
        Self {
            cluster: either(&mut args.cluster, &mut file.cluster),
            key_file: either(&mut args.cluster_key_file, &mut file.cluster_key_file),
            advertise: either(&mut args.advertise, &mut file.advertise),
            peer_addr: either(&mut args.peer_addr, &mut file.peer_addr),
            drain: either(&mut args.drain, &mut file.drain),
        }
    }
}

impl ClusterSettings {
    /// Parses the options; `None` without `--cluster`.
    pub(super) fn parse(
        options: ClusterOptions,
        access: &Access,
        buckets: &[BucketSettings],
    ) -> Result<Option<Self>, Failure> {
        let Some(text) = options.cluster else {
            let given = [
                ("--cluster-key-file", options.key_file.is_some()),
                ("--advertise", options.advertise.is_some()),
                ("--peer-addr", options.peer_addr.is_some()),
                ("--drain", options.drain.is_some()),
            ];
            return match given.into_iter().find(|(_, given)| *given) {
                None => Ok(None),
                Some((option, _)) => Err(Failure::usage(format!(
                    "{option} is of no use without --cluster etcd://HOST:PORT/NAME"
                ))),
            };
        };
        let (endpoints, name) = etcd(&text)?;
        let key_file = options.key_file.ok_or_else(|| {
            Failure::usage(
                "--cluster needs --cluster-key-file FILE, the same on all nodes; `bywash cluster key > FILE` makes one",
            )
        })?;
        let advertise = options.advertise.ok_or_else(|| {
            Failure::usage(
                "--cluster needs --advertise HOST:PORT, the address by which other nodes reach this one",
            )
        })?;
        let advertised = address("--advertise", &advertise)?;
        let listen = match options.peer_addr {
            Some(text) => address("--peer-addr", &text)?,
            None => advertised,
        };
        if advertised.port() == 0 || advertised.ip().is_unspecified() {
            return Err(Failure::usage(format!(
                "--advertise {advertise} is no address that other nodes can reach; name the host and the port"
            )));
        }
        refuse_local(access, buckets)?;
        refuse_stale(buckets)?;
        Ok(Some(Self {
            name,
            endpoints,
            key_file,
            advertise,
            listen,
            drain: match options.drain {
                None => DEFAULT_DRAIN,
                Some(text) => parse_duration(&text)
                    .map_err(|error| Failure::usage(format!("--drain: {error}")))?,
            },
        }))
    }
}

/// Parses `etcd://HOST:PORT[,HOST:PORT]/NAME`.
fn etcd(text: &str) -> Result<(Vec<Url>, String), Failure> {
    let bad = |reason: &str| {
        Failure::usage(format!(
            "--cluster {text}: {reason}; write etcd://HOST:PORT[,HOST:PORT]/NAME, as etcd://127.0.0.1:2379/demo"
        ))
    };
    let (scheme, rest) = match text.split_once("://") {
        Some(("etcd", rest)) => ("http", rest),
        Some(("etcds", rest)) => ("https", rest),
        _ => return Err(bad("it does not begin with etcd:// or etcds://")),
    };
    let (hosts, name) = rest
        .split_once('/')
        .ok_or_else(|| bad("the name of the cluster is missing"))?;
    if ClusterName::new(name).is_none() {
        return Err(bad(
            "the name of a cluster has 1 to 64 letters, digits, `-` and `_`",
        ));
    }
    if hosts.contains('@') {
        return Err(bad(
            "users of etcd are not served; let a network or TLS guard it",
        ));
    }
    let endpoint = |host: &str| {
        let mut url = Url::parse(&format!("{scheme}://{host}"))
            .ok()
            .filter(|_| !host.is_empty())
            .ok_or_else(|| bad("an address is not understood"))?;
        if url.port().is_none() {
            // It has a host, so it can have a port.
            let _ = url.set_port(Some(ETCD_PORT));
        }
        Ok(url)
    };
    let endpoints: Result<Vec<_>, _> = hosts.split(',').map(endpoint).collect();
    Ok((endpoints?, name.to_owned()))
}

/// Refuses settings that are local to one process: other nodes would not see them.
fn refuse_local(access: &Access, buckets: &[BucketSettings]) -> Result<(), Failure> {
    if buckets.is_empty() {
        return Err(Failure::usage(
            "--cluster needs buckets of a store that all nodes reach, as s3://data; buckets of the data folder are of one node alone",
        ));
    }
    let local =
        |bucket: &&BucketSettings| matches!(bucket.url, OriginUrl::File(_) | OriginUrl::Memory);
    if let Some(bucket) = buckets.iter().find(local) {
        return Err(Failure::usage(format!(
            "bucket {} is {}, and --cluster takes no folder and no memory: conditional writes hold in one process only; serve it \
             without --cluster",
            bucket.name, bucket.url
        )));
    }
    if *access == Access::Kept {
        return Err(Failure::usage(
            "--cluster needs keys that all nodes have: give access-key and secret-key in --config, the same on all nodes, or \
             --anonymous on loopback; a key of the data folder is of one node alone",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(cluster: &str, access: &Access, buckets: &[&str]) -> Result<ClusterSettings, String> {
        let options = ClusterOptions {
            cluster: Some(cluster.to_owned()),
            key_file: Some("key".into()),
            advertise: Some("127.0.0.1:9001".to_owned()),
            ..ClusterOptions::default()
        };
        let bucket = |url: &&str| BucketSettings::new("data", url.parse().unwrap());
        let buckets: Vec<_> = buckets.iter().map(bucket).collect();
        match ClusterSettings::parse(options, access, &buckets) {
            Ok(settings) => Ok(settings.unwrap()),
            Err(failure) => Err(failure.message),
        }
    }

    #[test]
    fn addresses_and_name_are_parsed() {
        let url = "etcd://10.0.0.1:2379,etcd-2/demo";
        let settings = parse(url, &Access::Anonymous, &["s3://data"]).unwrap();
        let endpoints: Vec<_> = settings.endpoints.iter().map(Url::as_str).collect();
        assert_eq!(endpoints, ["http://10.0.0.1:2379/", "http://etcd-2:2379/"]);
        assert_eq!(settings.name, "demo");
        assert_eq!(settings.listen, "127.0.0.1:9001".parse().unwrap());
        let secure = parse("etcds://e/demo", &Access::Anonymous, &["s3://data"]).unwrap();
        assert_eq!(secure.endpoints[0].as_str(), "https://e:2379/");
    }

    #[test]
    fn wrong_addresses_of_etcd_are_refused_with_an_example() {
        for wrong in [
            "127.0.0.1:2379/demo",
            "etcd://127.0.0.1:2379",
            "etcd:///demo",
            "etcd://a,,b/demo",
            "etcd://127.0.0.1/",
            "etcd://127.0.0.1/a/b",
            "etcd://user:secret@127.0.0.1/demo",
        ] {
            let message = parse(wrong, &Access::Anonymous, &["s3://data"]).unwrap_err();
            assert!(
                message.contains("as etcd://127.0.0.1:2379/demo"),
                "{wrong}: {message}"
            );
        }
    }

    #[test]
    fn what_one_node_has_alone_is_refused() {
        let etcd = "etcd://127.0.0.1:2379/demo";
        let refused = |access: &Access, buckets: &[&str]| parse(etcd, access, buckets).unwrap_err();
        assert!(refused(&Access::Anonymous, &[]).contains("data folder"));
        assert!(refused(&Access::Anonymous, &["file:///srv/data"]).contains("one process only"));
        assert!(refused(&Access::Anonymous, &["memory://"]).contains("one process only"));
        assert!(refused(&Access::Kept, &["s3://data"]).contains("the same on all nodes"));
    }

    #[test]
    fn options_of_a_cluster_need_one_and_a_cluster_needs_its_options() {
        let buckets = [BucketSettings::new("data", "s3://data".parse().unwrap())];
        let parse = |options| {
            let parsed = ClusterSettings::parse(options, &Access::Anonymous, &buckets);
            parsed.map_err(|failure| failure.message)
        };
        assert_eq!(parse(ClusterOptions::default()), Ok(None));
        let alone = ClusterOptions {
            drain: Some("5s".to_owned()),
            ..ClusterOptions::default()
        };
        assert!(parse(alone).unwrap_err().contains("--drain is of no use"));
        let cluster = || Some("etcd://127.0.0.1:2379/demo".to_owned());
        let keyless = ClusterOptions {
            cluster: cluster(),
            ..ClusterOptions::default()
        };
        assert!(parse(keyless).unwrap_err().contains("bywash cluster key"));
        let nowhere = ClusterOptions {
            cluster: cluster(),
            key_file: Some("key".into()),
            advertise: Some("0.0.0.0:9001".to_owned()),
            ..ClusterOptions::default()
        };
        assert!(parse(nowhere).unwrap_err().contains("can reach"));
    }
}
