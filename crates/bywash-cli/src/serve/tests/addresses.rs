//! Addresses of servers and origins that are refused.

use super::*;

#[test]
fn s3_address_beyond_loopback_requires_credentials_and_tls() {
    let everyone = || Args {
        s3_addr: text("0.0.0.0:8420"),
        ..Args::default()
    };
    let refused = |args: Args, reason: &str| {
        let failure = merge(args, "").unwrap_err();
        assert_eq!(failure.kind, Kind::Usage);
        assert!(failure.message.contains(reason), "{}", failure.message);
    };
    refused(everyone(), "--tls-cert");
    refused(
        Args {
            anonymous: true,
            ..everyone()
        },
        "--anonymous",
    );
    refused(
        Args {
            anonymous: true,
            insecure_http: true,
            ..everyone()
        },
        "--anonymous",
    );
    refused(
        Args {
            admin_addr: text("0.0.0.0:8422"),
            ..Args::default()
        },
        "--admin-addr",
    );
    refused(
        Args {
            admin_addr: text("[::]:8422"),
            insecure_http: true,
            ..Args::default()
        },
        "--admin-addr",
    );

    assert!(
        merge(
            Args {
                insecure_http: true,
                ..everyone()
            },
            ""
        )
        .is_ok()
    );
    let tls = Args {
        tls_cert: Some("c".into()),
        tls_key: Some("k".into()),
        ..everyone()
    };
    assert!(merge(tls, "").is_ok());
    assert!(
        merge(
            Args {
                s3_addr: text("[::1]:8420"),
                anonymous: true,
                ..Args::default()
            },
            ""
        )
        .is_ok()
    );
}

#[test]
fn metrics_address_beyond_loopback_requires_credentials_and_tls() {
    let refused = |args: Args| {
        let failure = merge(args, "").unwrap_err();
        assert_eq!(failure.kind, Kind::Usage);
        assert!(
            failure.message.contains("--metrics-addr"),
            "{}",
            failure.message
        );
    };
    let metrics = |address: &str| Args {
        metrics_addr: text(address),
        ..Args::default()
    };
    refused(metrics("0.0.0.0:8424"));
    refused(Args {
        anonymous: true,
        ..metrics("127.0.0.1:8424")
    });
    assert!(merge(metrics("127.0.0.1:8424"), "").is_ok());
    assert!(
        merge(
            Args {
                insecure_http: true,
                ..metrics("0.0.0.0:8424")
            },
            ""
        )
        .is_ok()
    );
}

#[test]
fn own_address_as_s3_origin_is_rejected() {
    let args = Args {
        origins: vec!["s3://data".to_owned()],
        ..Args::default()
    };
    let settings = merge(args, "").unwrap();
    let own = "127.0.0.1:8420".parse().unwrap();
    let ambient = |url: &str| Some(("AWS_ENDPOINT_URL", Url::parse(url).unwrap()));
    for url in [
        "http://127.0.0.1:8420",
        "http://localhost:8420/",
        "http://0.0.0.0:8420",
    ] {
        let failure = refuse_loop(&settings, own, ambient(url)).unwrap_err();
        assert!(
            failure.message.contains("env -u AWS_ENDPOINT_URL"),
            "{url}: {}",
            failure.message
        );
    }
    assert!(
        refuse_loop(
            &settings,
            "0.0.0.0:8420".parse().unwrap(),
            ambient("http://127.0.0.1:8420")
        )
        .is_err()
    );
    for url in [
        "http://127.0.0.1:9000",
        "http://127.0.0.2:8420",
        "https://127.0.0.1",
    ] {
        assert!(refuse_loop(&settings, own, ambient(url)).is_ok(), "{url}");
    }
    assert!(refuse_loop(&settings, own, None).is_ok());
    let options = |endpoint: &str| {
        let file = format!(
            "[[bucket]]\nurl = 's3://data'\noptions = {{ region = 'r', endpoint = '{endpoint}' }}"
        );
        merge(Args::default(), &file).unwrap()
    };
    let failure = refuse_loop(&options("http://127.0.0.1:8420"), own, None).unwrap_err();
    assert!(
        failure.message.contains("option endpoint"),
        "{}",
        failure.message
    );
    // Options of a bucket override the environment's endpoint.
    let elsewhere = options("http://127.0.0.1:9000");
    assert!(refuse_loop(&elsewhere, own, ambient("http://127.0.0.1:8420")).is_ok());
    let profile = Some((
        PROFILE_ENDPOINT,
        Url::parse("http://127.0.0.1:8420").unwrap(),
    ));
    let failure = refuse_loop(&settings, own, profile).unwrap_err();
    assert!(
        failure.message.contains("AWS_PROFILE"),
        "{}",
        failure.message
    );
    let folders = merge(Args::default(), "").unwrap();
    assert!(
        refuse_loop(&folders, own, ambient("http://127.0.0.1:8420")).is_ok(),
        "no s3 origin, no loop"
    );
}

#[test]
fn own_address_as_web_origin_is_rejected() {
    let own = "127.0.0.1:8420".parse().unwrap();
    let web = |url: &str| {
        let args = Args {
            origins: vec![format!("web={url}")],
            ..Args::default()
        };
        refuse_loop(&merge(args, "").unwrap(), own, None)
    };
    let failure = web("http://me:hidden@localhost:8420/data?sig=hidden").unwrap_err();
    assert!(
        failure.message.contains("bucket web"),
        "{}",
        failure.message
    );
    assert!(!failure.message.contains("hidden"), "{}", failure.message);
    assert!(web("http://127.0.0.1:8421/data").is_ok());
}
