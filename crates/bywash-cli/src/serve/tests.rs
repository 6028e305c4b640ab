#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;
use std::time::Duration;

use bywash::{Caching, Consistency, OriginUrl, Unlistable, Verify, WriteCache};
use bywash_gateway::{AccessLogFormat, AccessLogTarget, ETagStyle};
use url::Url;

mod addresses;

use super::Args;
use super::data_dir::Credentials;
use super::file::FileSettings;
use super::refuse::{refuse_fetches_to_own_files, refuse_loop, refuse_served_secrets};
use super::settings::{Access, Settings, Transport};
use crate::endpoint::PROFILE_ENDPOINT;
use crate::failure::{Failure, Kind};
use crate::size::Memory;

pub(super) fn merge(args: Args, toml: &str) -> Result<Settings, Failure> {
    Settings::merge(args, FileSettings::parse(Path::new("test.toml"), toml)?)
}

fn text(text: &str) -> Option<String> {
    Some(text.to_owned())
}

#[test]
fn defaults_are_loopback_and_require_credentials() {
    let settings = merge(Args::default(), "").unwrap();
    assert_eq!(settings.memory, Memory::Percent(25.0));
    assert_eq!(settings.s3_addr.to_string(), "127.0.0.1:8420");
    assert_eq!(settings.admin_addr.to_string(), "127.0.0.1:8422");
    assert_eq!(settings.access, Access::Kept);
    assert_eq!(settings.transport, Transport::Http { insisted: false });
    assert_eq!(settings.data_dir, Path::new("./bywash-data"));
    assert!(settings.buckets.is_empty());
    assert_eq!(settings.connections_per_address, None);
    assert_eq!(settings.connections, 1024);
    assert!(settings.trusted_proxies.is_empty());
    assert_eq!(settings.access_log, None);
    assert_eq!(settings.idle_age, None);
}

#[test]
fn idle_exit_comes_from_the_option_or_the_file() {
    let file = "idle-exit = '10m'";
    let settings = merge(Args::default(), file).unwrap();
    assert_eq!(settings.idle_exit, Some(Duration::from_secs(600)));
    let args = Args {
        idle_exit: text("90s"),
        ..Args::default()
    };
    let settings = merge(args, file).unwrap();
    assert_eq!(settings.idle_exit, Some(Duration::from_secs(90)));
    assert_eq!(merge(Args::default(), "").unwrap().idle_exit, None);
    let failure = merge(Args::default(), "idle-exit = '1ms'").unwrap_err();
    assert!(failure.message.contains("100ms"), "{}", failure.message);
}

#[test]
fn idle_age_comes_from_the_option_or_the_file() {
    let file = "idle-age = '12h'";
    let settings = merge(Args::default(), file).unwrap();
    assert_eq!(settings.idle_age, Some(Duration::from_secs(12 * 3600)));
    let args = |age| Args {
        idle_age: text(age),
        ..Args::default()
    };
    let settings = merge(args("90s"), file).unwrap();
    assert_eq!(settings.idle_age, Some(Duration::from_secs(90)));
    for (wrong, reason) in [("999ms", "less than a second"), ("30", "not a duration")] {
        let failure = merge(args(wrong), "").unwrap_err();
        assert!(failure.message.contains(reason), "{}", failure.message);
    }
}

#[test]
fn each_option_is_under_a_heading_but_the_common_ones() {
    let command = <Args as clap::Args>::augment_args(clap::Command::new("serve"));
    let plain = command
        .get_arguments()
        .filter(|arg| arg.get_help_heading().is_none())
        .map(|arg| arg.get_id().as_str());
    assert_eq!(plain.collect::<Vec<_>>(), ["origins", "config", "data_dir"]);
}

#[test]
fn memory_shares_are_defined_by_an_option_or_the_file() {
    let settings = merge(Args::default(), "").unwrap();
    assert_eq!(settings.memory_shares.to_string(), "25%:25%");
    let file = "memory-shares = '10%:0%'";
    let settings = merge(Args::default(), file).unwrap();
    assert_eq!(settings.memory_shares.to_string(), "10%:0%");
    let args = Args {
        memory_shares: text("40%:20%"),
        ..Args::default()
    };
    let settings = merge(args, file).unwrap();
    assert_eq!(settings.memory_shares.to_string(), "40%:20%");
    for wrong in ["memory-shares = '50%:0%'", "memory-shares = '25'"] {
        let failure = merge(Args::default(), wrong).unwrap_err();
        let message = &failure.message;
        assert!(message.contains("--memory-shares:"), "{message}");
    }
}

#[test]
fn slow_evictions_are_defined_by_options_or_the_file() {
    let file = "slow-eviction = '250ms'\nslow-eviction-rounds = 3";
    let settings = merge(Args::default(), file).unwrap();
    assert_eq!(settings.slow_eviction, Some(Duration::from_millis(250)));
    assert_eq!(settings.slow_eviction_rounds, Some(3));
    let args = Args {
        slow_eviction: text("2s"),
        slow_eviction_rounds: Some(5),
        ..Args::default()
    };
    let settings = merge(args, file).unwrap();
    assert_eq!(settings.slow_eviction, Some(Duration::from_secs(2)));
    assert_eq!(settings.slow_eviction_rounds, Some(5));
    for (wrong, option) in [
        ("slow-eviction = '1'", "--slow-eviction:"),
        ("slow-eviction-rounds = 0", "--slow-eviction-rounds"),
    ] {
        let failure = merge(Args::default(), wrong).unwrap_err();
        assert!(failure.message.contains(option), "{}", failure.message);
    }
}

#[test]
fn verification_is_whole_unless_options_or_the_file_turn_it_off() {
    let verify = |option: Option<&str>, file| {
        let args = Args {
            verify: option.map(str::to_owned),
            ..Args::default()
        };
        merge(args, file).map(|settings| settings.verify)
    };
    assert_eq!(verify(None, "").unwrap(), Verify::Whole);
    assert_eq!(verify(None, "verify = 'off'").unwrap(), Verify::Off);
    assert_eq!(
        verify(Some("whole"), "verify = 'off'").unwrap(),
        Verify::Whole
    );
    let failure = verify(Some("never"), "").unwrap_err();
    assert_eq!(failure.kind, Kind::Usage);
    assert!(
        failure.message.contains("off, whole or always"),
        "{}",
        failure.message
    );
}

#[test]
fn etags_are_md5_unless_options_or_the_file_want_fast_ones() {
    let etag = |option: Option<&str>, file| {
        let args = Args {
            etag: option.map(str::to_owned),
            ..Args::default()
        };
        merge(args, file).map(|settings| settings.etag)
    };
    assert_eq!(etag(None, "").unwrap(), ETagStyle::Md5);
    assert_eq!(etag(None, "etag = 'fast'").unwrap(), ETagStyle::Fast);
    assert_eq!(etag(Some("md5"), "etag = 'fast'").unwrap(), ETagStyle::Md5);
    let failure = etag(Some("sha1"), "").unwrap_err();
    assert_eq!(failure.kind, Kind::Usage);
    assert!(
        failure.message.contains("md5 or fast"),
        "{}",
        failure.message
    );
}

#[test]
fn written_bytes_come_into_memory_at_the_read_unless_options_or_the_file_ask_for_the_write() {
    let write_cache = |option: Option<&str>, file| {
        let args = Args {
            write_cache: option.map(str::to_owned),
            ..Args::default()
        };
        merge(args, file).map(|settings| settings.write_cache)
    };
    let in_file = "write-cache = 'on-write'";
    assert_eq!(write_cache(None, "").unwrap(), WriteCache::OnRead);
    assert_eq!(write_cache(None, in_file).unwrap(), WriteCache::OnWrite);
    let option = write_cache(Some("on-read"), in_file).unwrap();
    assert_eq!(option, WriteCache::OnRead);
    let failure = write_cache(Some("always"), "").unwrap_err();
    assert_eq!(failure.kind, Kind::Usage);
    assert!(
        failure.message.contains("on-read or on-write"),
        "{}",
        failure.message
    );
}

#[test]
fn endpoint_settings_come_from_options_or_the_file() {
    let file =
        "max-connections = 20\nmax-connections-per-address = 9\ntrusted-proxy = ['10.0.0.0/8']";
    let settings = merge(Args::default(), file).unwrap();
    assert_eq!(settings.connections, 20);
    assert_eq!(settings.connections_per_address, Some(9));
    assert_eq!(settings.trusted_proxies, ["10.0.0.0/8".parse().unwrap()]);
    let args = || Args {
        max_connections: Some(100_000),
        max_connections_per_address: Some(4),
        trusted_proxy: vec!["192.0.2.1".to_owned(), "2001:db8::/32".to_owned()],
        ..Args::default()
    };
    let settings = merge(args(), file).unwrap();
    assert_eq!(settings.connections, 100_000);
    assert_eq!(settings.connections_per_address, Some(4));
    assert_eq!(settings.trusted_proxies.len(), 2);
    let file = "access-log = '-'\naccess-log-format = 'combined'";
    let settings = merge(Args::default(), file).unwrap();
    let combined = (AccessLogTarget::Stdout, AccessLogFormat::Combined);
    assert_eq!(settings.access_log, Some(combined));
    for (toml, reason) in [
        ("access-log-format = 'combined'", "--access-log"),
        (
            "access-log = 'a'\naccess-log-format = 'xml'",
            "json or combined",
        ),
        ("access-log = ''", "standard output"),
        ("max-connections = 0", "more than 0"),
        ("max-connections = 100001", "more than 100000"),
        ("max-connections-per-address = 0", "more than 0"),
        ("trusted-proxy = ['10.0.0.0/40']", "10.0.0.0/8"),
    ] {
        let failure = merge(Args::default(), toml).unwrap_err();
        assert_eq!(failure.kind, Kind::Usage);
        assert!(failure.message.contains(reason), "{}", failure.message);
    }
}

#[test]
fn options_win_over_the_file() {
    let file = r#"
        data-dir = "/from/file"
        memory = "1GiB"
        s3-addr = "127.0.0.1:1"
        admin-addr = "127.0.0.1:2"
        access-key = "file"
        secret-key = "file-secret"
        [[bucket]]
        name = "both"
        url = "memory://"
        consistency = "immutable"
        [[bucket]]
        url = "s3://only-file/prefix"
        consistency = "ttl=5m"
    "#;
    let settings = merge(Args::default(), file).unwrap();
    let given = Credentials {
        access_key: "file".to_owned(),
        secret_key: "file-secret".to_owned(),
    };
    assert_eq!(settings.access, Access::Given(given));
    assert_eq!(settings.memory, Memory::Bytes(1 << 30));
    assert_eq!(
        settings.buckets[0].reads.consistency,
        Consistency::Immutable
    );

    let args = Args {
        origins: vec!["both=s3://other".to_owned()],
        memory: text("2GiB"),
        s3_addr: text("127.0.0.1:3"),
        anonymous: true,
        ..Args::default()
    };
    let settings = merge(args, file).unwrap();
    assert_eq!(settings.memory, Memory::Bytes(2 << 30));
    assert_eq!(settings.s3_addr.port(), 3);
    assert_eq!(settings.admin_addr.port(), 2);
    assert_eq!(settings.data_dir, Path::new("/from/file"));
    assert_eq!(
        settings.access,
        Access::Anonymous,
        "the file's key must not undo --anonymous"
    );
    let names: Vec<_> = settings
        .buckets
        .iter()
        .map(|bucket| bucket.name.as_str())
        .collect();
    assert_eq!(names, ["both", "only-file"]);
    assert!(matches!(&settings.buckets[0].url, OriginUrl::S3 { bucket, .. } if bucket == "other"));
    assert_eq!(
        settings.buckets[0].reads.consistency,
        Consistency::default()
    );
    assert_eq!(
        settings.buckets[1].reads.consistency,
        "ttl=5m".parse().unwrap()
    );
}

#[test]
fn origins_are_named_by_the_user_or_by_themselves() {
    let origins = [
        "s3://data",
        "logs=s3://other/a=b",
        "file:///srv/files",
        "memory://",
    ];
    let args = Args {
        origins: origins.map(str::to_owned).to_vec(),
        ..Args::default()
    };
    let settings = merge(args, "").unwrap();
    let names: Vec<_> = settings
        .buckets
        .iter()
        .map(|bucket| (bucket.name.as_str(), bucket.url.to_string()))
        .collect();
    let expected = [
        ("data", "s3://data"),
        ("files", "file:///srv/files"),
        ("logs", "s3://other/a=b"),
        ("memory", "memory://"),
    ];
    assert_eq!(names, expected.map(|(name, url)| (name, url.to_owned())));
}

#[test]
fn error_names_the_invalid_setting() {
    let origins = |texts: &[&str]| Args {
        origins: texts.iter().map(|text| (*text).to_owned()).collect(),
        ..Args::default()
    };
    for (args, toml, reason) in [
        (Args::default(), "colour = 'red'", "colour"),
        (
            Args::default(),
            "[[bucket]]\nurl = 'memory://'\ncolour = 'red'",
            "colour",
        ),
        (Args::default(), "memory = 5", "memory = 5"),
        (Args::default(), "access-key = 'k'", "secret-key"),
        (
            Args::default(),
            "access-key = ''\nsecret-key = 's'",
            "empty",
        ),
        (
            Args::default(),
            "access-key = 'k'\nsecret-key = 's'\nanonymous = true",
            "exclude",
        ),
        (Args::default(), "tls-cert = 'c'", "tls-key"),
        (
            Args::default(),
            "tls-cert = 'c'\ntls-key = 'k'\ninsecure-http = true",
            "exclude",
        ),
        (
            Args::default(),
            "[[bucket]]\nurl = 'memory://'\nconsistency = 'sometimes'",
            "sometimes",
        ),
        (
            Args {
                memory: text("lots"),
                ..Args::default()
            },
            "",
            "--memory",
        ),
        (
            Args {
                s3_addr: text("8420"),
                ..Args::default()
            },
            "",
            "--s3-addr",
        ),
        (origins(&["ftp://x"]), "", "ftp"),
        (origins(&["file:///"]), "", "NAME="),
        (
            origins(&["s3://data", "data=memory://"]),
            "",
            "two buckets are named data",
        ),
    ] {
        let failure = merge(args, toml).unwrap_err();
        assert_eq!(failure.kind, Kind::Usage, "{toml}: {}", failure.message);
        assert!(
            failure.message.contains(reason),
            "{toml}: {}",
            failure.message
        );
    }
}

#[test]
fn block_size_is_set_per_bucket() {
    let sized = |size: &str| {
        let file = format!("[[bucket]]\nurl = 'memory://'\nblock-size = '{size}'");
        merge(Args::default(), &file)
    };
    for (text, bytes) in [("64KiB", 64 << 10), ("4096", 4096), ("4M", 4 << 20)] {
        let settings = sized(text).unwrap();
        assert_eq!(settings.buckets[0].reads.block_size, Some(bytes), "{text}");
    }
    for text in ["", "64 apples", "25%"] {
        let message = sized(text).unwrap_err().message;
        assert!(
            message.contains("block-size of [[bucket]] memory"),
            "{message}"
        );
        assert!(message.contains("64KiB"), "{message}");
    }
}

#[test]
fn blocks_of_a_bucket_are_kept_or_leave_with_their_readers() {
    let set = |text: &str| {
        let file = format!("[[bucket]]\nurl = 'memory://'\n{text}");
        merge(Args::default(), &file).map(|settings| settings.buckets[0].reads.caching)
    };
    assert_eq!(set("").unwrap(), Caching::Kept);
    assert_eq!(set("cache = 'kept'").unwrap(), Caching::Kept);
    assert_eq!(set("cache = 'while-read'").unwrap(), Caching::WhileRead);
    let message = set("cache = 'no'").unwrap_err().message;
    let named = message.contains("cache of [[bucket]] memory") && message.contains("while-read");
    assert!(named, "{message}");
}

#[test]
fn entries_that_cannot_be_listed_are_left_out_or_an_error_per_bucket() {
    let set = |text: &str| {
        let file = format!("[[bucket]]\nurl = 'memory://'\n{text}");
        merge(Args::default(), &file).map(|settings| settings.buckets[0].reads.unlistable)
    };
    for (text, expected) in [
        ("", Unlistable::LeaveOut),
        ("unlistable = 'leave-out'", Unlistable::LeaveOut),
        ("unlistable = 'error'", Unlistable::Error),
    ] {
        assert_eq!(set(text).unwrap(), expected, "{text}");
    }
    let message = set("unlistable = 'skip'").unwrap_err().message;
    assert!(
        message.contains("unlistable of [[bucket]] memory"),
        "{message}"
    );
}

#[test]
fn data_folder_inside_a_served_folder_is_rejected() {
    let home = tempfile::tempdir().unwrap();
    let served = home.path().join("served");
    std::fs::create_dir(&served).unwrap();
    let check = |data: &Path| {
        let args = Args {
            origins: vec![served.to_str().unwrap().to_owned()],
            data_dir: Some(data.to_owned()),
            ..Args::default()
        };
        refuse_served_secrets(&merge(args, "").unwrap())
    };
    for inside in [
        served.clone(),
        served.join("data"),
        served.join("not/yet/there"),
    ] {
        let failure = check(&inside).unwrap_err();
        assert!(
            failure.message.contains("--data-dir"),
            "{}",
            failure.message
        );
    }
    for outside in [
        home.path().to_owned(),
        home.path().join("data"),
        home.path().join("served-not"),
    ] {
        assert!(check(&outside).is_ok(), "{}", outside.display());
    }
}

#[test]
fn fetch_folder_overlapping_server_folders_is_rejected() {
    let home = tempfile::tempdir().unwrap();
    let fetched = home.path().join("fetched");
    std::fs::create_dir(&fetched).unwrap();
    let check = |data: &Path, disk: Option<&Path>| {
        let args = Args {
            data_dir: Some(data.to_owned()),
            disk: disk.map(|disk| format!("{}:1GiB", disk.display())),
            fetch_folder: Some(fetched.clone()),
            ..Args::default()
        };
        refuse_fetches_to_own_files(&merge(args, "").unwrap())
    };
    let apart = home.path().join("apart");
    assert!(check(&apart, Some(&home.path().join("tier"))).is_ok());
    for (data, disk, option) in [
        (&fetched, None, "--data-dir"),
        (&fetched.join("not/yet"), None, "--data-dir"),
        (&home.path().to_owned(), None, "--data-dir"),
        (&apart, Some(fetched.as_path()), "--disk"),
        (&apart, Some(home.path()), "--disk"),
    ] {
        let failure = check(data, disk).unwrap_err();
        assert!(failure.message.contains(option), "{}", failure.message);
    }
    let args = Args {
        fetch_folder: Some(home.path().join("absent")),
        ..Args::default()
    };
    let failure = merge(args, "").unwrap_err();
    assert!(
        failure.message.contains("make it first"),
        "{}",
        failure.message
    );
}

#[test]
fn domain_that_is_no_host_name_is_rejected() {
    let args = Args {
        domain: vec!["http://s3.example.com".to_owned()],
        ..Args::default()
    };
    for (args, toml) in [(args, ""), (Args::default(), "domain = ['127.0.0.1']")] {
        let failure = merge(args, toml).unwrap_err();
        assert_eq!(failure.kind, Kind::Usage);
        assert!(failure.message.contains("--domain"), "{}", failure.message);
    }
}

#[test]
fn series_bucket_is_one_that_stays_and_can_be_written() {
    let merged = |bucket: &str, origins: &[&str], toml: &str| {
        let args = Args {
            series_bucket: text(bucket),
            origins: origins.iter().map(|&origin| origin.to_owned()).collect(),
            ..Args::default()
        };
        merge(args, toml)
    };
    let file = "series-bucket = 'data/of/file'";
    let settings = merge(Args::default(), file).unwrap();
    assert_eq!(settings.series_bucket.unwrap().to_string(), "data/of/file");
    for (bucket, origins, shown) in [
        ("data", &["s3://data"][..], "data"),
        (
            "data/a.b/c-1/",
            &["s3://data", "https://h/x"],
            "data/a.b/c-1",
        ),
        ("new", &[], "new"),
    ] {
        let settings = merged(bucket, origins, file).unwrap();
        assert_eq!(settings.series_bucket.unwrap().to_string(), shown);
    }
    let bucket = |rest: &str| format!("[[bucket]]\nname = 'data'\nurl = 's3://data'\n{rest}");
    for (wrong, origins, toml, reason) in [
        ("", &[][..], String::new(), "missing"),
        ("/p", &[], String::new(), "missing"),
        ("data//p", &[], String::new(), "letters"),
        ("data/..", &[], String::new(), "letters"),
        ("data/.bywash", &[], String::new(), "letters"),
        ("data/a b", &[], String::new(), "letters"),
        ("other", &["s3://data"], String::new(), "not served"),
        ("web", &["web=https://h/x"], String::new(), "read-only"),
        ("memory", &["memory://"], String::new(), "lost"),
        ("data", &[], bucket("read-only = true"), "read-only"),
        (
            "data",
            &[],
            bucket("consistency = 'immutable'"),
            "revalidate",
        ),
        ("data", &[], bucket("consistency = 'ttl=2m'"), "revalidate"),
    ] {
        let failure = merged(wrong, origins, &toml).unwrap_err();
        assert_eq!(failure.kind, Kind::Usage, "{wrong}");
        assert!(failure.message.contains(reason), "{}", failure.message);
    }
}
