//! `bywash serve` and `bywash env`: start, rejected settings, credentials, admin endpoints, stop.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use crate::common::{Server, bywash, data_dir, stderr, stdout};
use rustix::process::Signal;

#[test]
fn health_stats_and_metrics_agree() {
    let (home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &["--memory", "64MiB"]);
    assert_eq!(server.admin("/healthz"), (200, "ok\n".to_owned()));

    let file = home.path().join("file");
    std::fs::write(&file, b"hello").unwrap();
    server.run(&["cp", file.to_str().unwrap(), "s3://first/file"]);
    assert_eq!(server.run(&["cat", "s3://first/file"]), b"hello");

    let stats = server.stats();
    assert_eq!(stats["budget"]["limit"], 64 << 20);
    for field in ["used", "limit", "waiting", "idle"] {
        assert!(stats["budget"][field].is_u64(), "{stats}");
    }
    for field in [
        "flights",
        "evictions",
        "slow_evictions",
        "idle_evicted_bytes",
    ] {
        assert!(stats["pool"][field].is_u64(), "{stats}");
    }
    let bucket = stats["buckets"]["first"].as_object().unwrap();
    for field in [
        "requests",
        "bytes",
        "hits",
        "misses",
        "absences",
        "origin_requests",
        "origin_data_requests",
        "origin_bytes",
    ] {
        assert!(bucket[field].is_u64(), "{stats}");
    }
    assert!(bucket["bytes"].as_u64().unwrap() >= 5, "{stats}");

    let (status, metrics) = server.admin("/metrics");
    assert_eq!(status, 200);
    for (field, value) in bucket {
        let line = format!("bywash_{field}_total{{bucket=\"first\"}} {value}");
        assert!(
            metrics.lines().any(|found| found == line),
            "{line} is not in\n{metrics}"
        );
    }
    let line = format!("bywash_budget_limit_bytes {}", 64 << 20);
    assert!(
        metrics.lines().any(|found| found == line),
        "{line} is not in\n{metrics}"
    );
}

#[test]
fn makes_credentials_once_prints_them_once_and_keeps_them_private() {
    let (_home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &[]);
    let env = server.env();
    let value = |name: &str| {
        env.iter()
            .find(|(found, _)| found == name)
            .unwrap()
            .1
            .clone()
    };
    let (key, secret) = (value("AWS_ACCESS_KEY_ID"), value("AWS_SECRET_ACCESS_KEY"));
    assert!(
        server.startup_output.contains(&key) && server.startup_output.contains(&secret),
        "{}",
        server.startup_output
    );
    assert_eq!(value("AWS_ENDPOINT_URL"), server.s3);
    assert_eq!(value("AWS_REGION"), "us-east-1");
    assert_eq!(value("AWS_DEFAULT_REGION"), "us-east-1");
    for name in ["credentials.json", "session.json"] {
        let mode = std::fs::metadata(data.join(name))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    server.signal(Signal::TERM);
    assert!(server.wait().success());

    let server = Server::start(&data, &[]);
    assert!(
        !server.startup_output.contains(&secret),
        "{}",
        server.startup_output
    );
    let again = server.env();
    assert_eq!(
        again
            .iter()
            .find(|(name, _)| name == "AWS_SECRET_ACCESS_KEY")
            .unwrap()
            .1,
        secret
    );
    server.run(&["ls", "s3://first"]);
}

/// Sends requests, with some that fail, and an unsigned one without a client library.
fn requests(server: &Server) {
    for _ in 0..3 {
        server.run(&["ls", "s3://first"]);
        server.fail(&["cat", "s3://first/absent"]);
    }
    let mut socket = TcpStream::connect(server.s3.strip_prefix("http://").unwrap()).unwrap();
    socket
        .write_all(b"GET /first/x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut response = String::new();
    socket.read_to_string(&mut response).unwrap();
    assert!(response.starts_with("HTTP/1.1 4"), "{response}");
}

#[test]
fn requests_write_no_line_by_default() {
    let (home, data) = data_dir(&["first"]);
    let log = home.path().join("stderr");
    let mut command = bywash(&["serve", "--s3-addr=127.0.0.1:0", "--admin-addr=127.0.0.1:0"]);
    command.arg("--gcs-addr=off");
    command
        .arg("--data-dir")
        .arg(&data)
        .stderr(std::fs::File::create(&log).unwrap());
    let server = Server::spawn(command, &data);
    let before = std::fs::read_to_string(&log).unwrap();
    requests(&server);
    assert_eq!(std::fs::read_to_string(&log).unwrap(), before);
}

#[test]
fn access_log_has_each_request_and_sighup_reopens_it() {
    let (home, data) = data_dir(&["first"]);
    let log = home.path().join("access.log");
    let args = ["--access-log", log.to_str().unwrap()];
    let server = Server::start(&data, &args);
    requests(&server);
    // A line may be written after its response was sent.
    while !std::fs::read_to_string(&log)
        .unwrap()
        .contains("\"status\":403")
    {
        std::thread::yield_now();
    }
    let old = home.path().join("old");
    std::fs::rename(&log, &old).unwrap();
    server.signal(Signal::HUP);
    while !log.exists() {
        std::thread::yield_now();
    }
    assert_eq!(
        std::fs::metadata(&log).unwrap().permissions().mode() & 0o777,
        0o600
    );
    server.run(&["ls", "s3://first"]);
    server.signal(Signal::TERM);
    assert!(server.wait().success());
    let lines = crate::common::json_lines(&std::fs::read(&old).unwrap());
    let refused = lines.iter().filter(|line| line["status"] == 403);
    assert_eq!(refused.count(), 1, "{lines:?}");
    let absent = lines.iter().filter(|line| line["key"] == "absent");
    assert!(absent.clone().count() >= 3, "{lines:?}");
    for line in absent {
        assert_eq!(line["status"], 404);
        assert!(line["requester"].is_string(), "{line}");
    }
    let lines = crate::common::json_lines(&std::fs::read(&log).unwrap());
    assert!(
        lines
            .iter()
            .any(|line| line["operation"] == "ListObjectsV2"),
        "{lines:?}"
    );
}

#[test]
fn given_key_is_accepted_and_others_are_rejected() {
    let (_home, data) = data_dir(&["first"]);
    let server = Server::start(
        &data,
        &["--access-key", "k", "--secret-key", "it's a $ecret"],
    );
    assert!(!data.join("credentials.json").exists());
    server.run(&["ls", "s3://first"]);
    for (name, value) in [
        ("AWS_ACCESS_KEY_ID", "other"),
        ("AWS_SECRET_ACCESS_KEY", "other"),
    ] {
        let output = server
            .client(&["ls", "s3://first"])
            .env(name, value)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(4), "{name}: {}", stderr(&output));
    }
    let unsigned = bywash(&["ls", "s3://first", "--endpoint", &server.s3])
        .output()
        .unwrap();
    assert_eq!(unsigned.status.code(), Some(4), "{}", stderr(&unsigned));
}

#[test]
fn anonymous_server_accepts_signed_and_unsigned_requests() {
    let (_home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &["--anonymous"]);
    server.run(&["ls", "s3://first"]);
    let unsigned = bywash(&["ls", "s3://first", "--endpoint", &server.s3])
        .output()
        .unwrap();
    assert!(unsigned.status.success(), "{}", stderr(&unsigned));
}

#[test]
fn serves_given_origins_by_name() {
    let (home, data) = data_dir(&[]);
    let folder = home.path().join("things");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("a"), b"a").unwrap();
    let url = format!("file://{}", folder.display());
    let server = Server::start(&data, &[&url, &format!("named={url}"), "memory://"]);
    assert_eq!(server.run(&["cat", "s3://things/a"]), b"a");
    assert_eq!(server.run(&["cat", "s3://named/a"]), b"a");
    let names: Vec<_> = server.stats()["buckets"]
        .as_object()
        .unwrap()
        .keys()
        .cloned()
        .collect();
    assert_eq!(names, ["bywash-history", "memory", "named", "things"]);
    assert!(
        server.startup_output.contains(&format!("things = {url}")),
        "{}",
        server.startup_output
    );
}

#[test]
fn second_server_on_a_data_folder_is_rejected() {
    let (_home, data) = data_dir(&[]);
    let server = Server::start(&data, &[]);
    let folder = data.to_str().unwrap();
    let second = [
        "serve",
        "--data-dir",
        folder,
        "--s3-addr",
        "127.0.0.1:0",
        "--admin-addr",
        "127.0.0.1:0",
        "--gcs-addr=off",
    ];
    let refused = bywash(&second).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        stderr(&refused).contains("in use by another bywash serve"),
        "{}",
        stderr(&refused)
    );
    assert!(!stdout(&refused).contains("ready"));
    // The lock ends with its process, also after a kill.
    server.signal(Signal::KILL);
    server.wait();
    Server::start(&data, &[]);
}

#[test]
fn data_folder_of_a_newer_format_is_rejected() {
    let (_home, data) = data_dir(&["first"]);
    std::fs::write(data.join("format"), "2\n").unwrap();
    for verb in ["serve", "env"] {
        let refused = bywash(&[verb, "--data-dir", data.to_str().unwrap()])
            .output()
            .unwrap();
        assert_eq!(refused.status.code(), Some(1), "{verb}");
        assert!(
            stderr(&refused).contains("format 2"),
            "{verb}: {}",
            stderr(&refused)
        );
    }
    assert_eq!(std::fs::read_to_string(data.join("format")).unwrap(), "2\n");
}

#[test]
fn exposed_addresses_without_credentials_or_tls_are_rejected() {
    let (_home, data) = data_dir(&[]);
    let folder = data.to_str().unwrap();
    for args in [
        &["--s3-addr", "0.0.0.0:0"][..],
        &["--s3-addr", "0.0.0.0:0", "--anonymous", "--insecure-http"],
        &["--admin-addr", "0.0.0.0:0"],
        &["--gcs-addr", "0.0.0.0:0"],
        &["--access-key", "k"],
        &["--anonymous", "--access-key", "k", "--secret-key", "s"],
    ] {
        let refused = bywash(&["serve", "--data-dir", folder])
            .args(args)
            .output()
            .unwrap();
        assert_eq!(
            refused.status.code(),
            Some(2),
            "{args:?}: {}",
            stderr(&refused)
        );
        assert!(!data.exists(), "{args:?} left a data folder");
    }
    let server = {
        let command = [
            "serve",
            "--data-dir",
            folder,
            "--s3-addr",
            "0.0.0.0:0",
            "--admin-addr",
            "127.0.0.1:0",
            "--gcs-addr=off",
            "--insecure-http",
        ];
        Server::spawn(bywash(&command), &data)
    };
    assert!(server.s3.starts_with("http://127.0.0.1:"), "{}", server.s3);
}

#[test]
fn busy_port_is_named_with_its_option() {
    let (_home, data) = data_dir(&[]);
    let busy = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = busy.local_addr().unwrap().to_string();
    let options = ["--s3-addr", "--admin-addr", "--gcs-addr"];
    for option in options {
        let mut command = bywash(&["serve", "--data-dir", data.to_str().unwrap()]);
        for other in options {
            let free = if other == option {
                &address
            } else {
                "127.0.0.1:0"
            };
            command.args([other, free]);
        }
        let refused = command.output().unwrap();
        assert_eq!(refused.status.code(), Some(1));
        let message = stderr(&refused);
        assert!(
            message.contains(&address) && message.contains(option),
            "{message}"
        );
    }
}

#[test]
fn server_with_itself_as_origin_does_not_start() {
    let (_home, data) = data_dir(&[]);
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let own = format!("127.0.0.1:{port}");
    let args = [
        "serve",
        "s3://data",
        "--data-dir",
        data.to_str().unwrap(),
        "--s3-addr",
        &own,
        "--admin-addr",
        "127.0.0.1:0",
        "--gcs-addr=off",
    ];
    let refused = bywash(&args)
        .env("AWS_ENDPOINT_URL", format!("http://localhost:{port}"))
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    assert!(
        stderr(&refused).contains("env -u AWS_ENDPOINT_URL"),
        "{}",
        stderr(&refused)
    );
}

#[test]
fn server_can_be_the_origin_of_another() {
    let (_home, data) = data_dir(&["deep"]);
    let origin = Server::start(&data, &[]);
    let (_home, data) = data_dir(&[]);
    let command = [
        "serve",
        "s3://deep",
        "--data-dir",
        data.to_str().unwrap(),
        "--s3-addr",
        "127.0.0.1:0",
        "--admin-addr",
        "127.0.0.1:0",
        "--gcs-addr=off",
    ];
    let mut command = bywash(&command);
    command.envs(origin.env());
    let server = Server::spawn(command, &data);
    let file = data.join("file");
    std::fs::write(&file, b"through two").unwrap();
    server.run(&["cp", file.to_str().unwrap(), "s3://deep/key"]);
    assert_eq!(origin.run(&["cat", "s3://deep/key"]), b"through two");
    assert_eq!(server.run(&["cat", "s3://deep/key"]), b"through two");
}

#[test]
fn options_win_over_the_file_and_unknown_keys_are_named() {
    let (home, data) = data_dir(&[]);
    let file = home.path().join("bywash.toml");
    let toml = "memory = '64MiB'\naccess-key = 'k'\nsecret-key = 's'\n[[bucket]]\nname = 'mem'\nurl = 'memory://'\nconsistency = 'immutable'\n";
    std::fs::write(&file, toml).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let server = Server::start(
        &data,
        &["--config", file.to_str().unwrap(), "--memory", "32MiB"],
    );
    let stats = server.stats();
    assert_eq!(stats["budget"]["limit"], 32 << 20);
    assert!(stats["buckets"]["mem"].is_object(), "{stats}");
    assert_eq!(server.env()[0].1, "k");

    std::fs::write(&file, "memory = '64MiB'\ncolour = 'red'\n").unwrap();
    let refused = bywash(&["serve", "--config", file.to_str().unwrap()])
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("colour"), "{}", stderr(&refused));
}

#[test]
fn stops_on_a_signal_though_clients_hold_connections() {
    for signal in [Signal::TERM, Signal::INT] {
        let (_home, data) = data_dir(&["first"]);
        let server = Server::start(&data, &[]);
        // One connection is idle after a response, the other has sent nothing.
        let address = server.s3.strip_prefix("http://").unwrap().to_owned();
        let mut idle = TcpStream::connect(&address).unwrap();
        write!(idle, "GET / HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
        let mut first = [0; 12];
        idle.read_exact(&mut first).unwrap();
        assert_eq!(&first, b"HTTP/1.1 403");
        let _silent = TcpStream::connect(&address).unwrap();
        server.signal(signal);
        assert_eq!(server.wait().code(), Some(0));
    }
}

/// Sends a request without a signature on an open connection, and reads the refusal. Returns false if the server closed it.
fn is_served(connection: &mut TcpStream) -> bool {
    let _ = write!(connection, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let (mut response, mut piece) = (Vec::new(), [0; 4096]);
    while !response.ends_with(b"</Error>") {
        match connection.read(&mut piece) {
            Ok(length @ 1..) => response.extend_from_slice(&piece[..length]),
            Ok(_) | Err(_) => return false,
        }
    }
    response.starts_with(b"HTTP/1.1 403")
}

#[test]
fn idle_connection_beyond_the_set_limit_gives_way_to_a_new_one() {
    let (home, data) = data_dir(&["first"]);
    let log = home.path().join("log");
    for limit in [2, 3] {
        let mut command = bywash(&["--log", "info", "serve", "--data-dir"]);
        command.arg(&data);
        command.args(["--s3-addr", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0"]);
        command.args(["--gcs-addr", "off"]);
        command.args(["--max-connections", &limit.to_string()]);
        command.stderr(std::fs::File::create(&log).unwrap());
        let server = Server::spawn(command, &data);
        let address = server.s3.strip_prefix("http://").unwrap();
        let mut connections: Vec<_> = (0..3)
            .map(|_| {
                let mut connection = TcpStream::connect(address).unwrap();
                assert!(is_served(&mut connection));
                connection
            })
            .collect();
        // With one connection too many, the one that was idle longest was closed.
        let open = connections.iter_mut().map(is_served);
        assert_eq!(open.collect::<Vec<_>>(), [limit == 3, true, true]);
        drop(server);
        // Connections to the admin and metrics addresses are counted too.
        let counted = format!("connections={}", limit + 128 + 16);
        let log = std::fs::read_to_string(&log).unwrap();
        let line = log.lines().find(|line| line.contains("max memory"));
        assert!(line.unwrap().contains(&counted), "{log}");
    }
}

#[test]
fn buckets_are_made_at_start_and_settings_are_variables_too() {
    let (_home, data) = data_dir(&["old"]);
    let named = |server: &Server| {
        let stats = server.stats();
        let buckets = stats["buckets"].as_object().unwrap();
        ["old", "first", "second"].map(|name| buckets.contains_key(name))
    };
    let server = Server::start(&data, &["--bucket", "old", "--bucket", "first"]);
    assert!(data.join("buckets/first").is_dir());
    assert_eq!(named(&server)[1..], [true, false]);
    // The next step names a bucket that is there: to make it again would fail.
    let advice = &server.startup_output;
    assert!(advice.contains("aws s3 cp FILE s3://old/"), "{advice}");
    assert!(!advice.contains(" mb "), "{advice}");
    drop(server);
    let mut command = bywash(&["serve", "--data-dir"]);
    command.arg(&data).args(["--memory", "48MiB"]);
    command.env("BYWASH_BUCKET", "first,second");
    command.env("BYWASH_MEMORY", "32MiB");
    for name in ["BYWASH_S3_ADDR", "BYWASH_ADMIN_ADDR"] {
        command.env(name, "127.0.0.1:0");
    }
    command.env("BYWASH_GCS_ADDR", "off");
    let server = Server::spawn(command, &data);
    assert!(data.join("buckets/second").is_dir());
    // Options override variables.
    assert_eq!(server.stats()["budget"]["limit"], 48 << 20);
    drop(server);
    for (arguments, text) in [
        (["serve", "--bucket", "No", "--data-dir"], "--bucket No"),
        (["serve", "--bucket", "b", "memory://"], "--bucket"),
    ] {
        let refused = bywash(&arguments).arg(&data).output().unwrap();
        assert_eq!(refused.status.code(), Some(2));
        assert!(stderr(&refused).contains(text), "{}", stderr(&refused));
    }
}

#[test]
fn env_of_an_unused_folder_names_the_next_step() {
    let (home, _) = data_dir(&[]);
    let folder = home.path().join("nothing");
    let refused = bywash(&["env", "--data-dir", folder.to_str().unwrap()])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(3));
    assert!(
        stderr(&refused).contains("bywash serve --data-dir"),
        "{}",
        stderr(&refused)
    );
    assert!(!folder.exists());
}

/// Sends a GET of a URL without a client library. Returns the status and the whole response.
pub(crate) fn get(url: &str) -> (u16, String) {
    let (address, target) = url
        .strip_prefix("http://")
        .unwrap()
        .split_once('/')
        .unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    let head = format!("GET /{target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    let status = response.split(' ').nth(1).unwrap().parse().unwrap();
    (status, response)
}

#[test]
fn signatures_are_in_no_log_and_no_response_whatever_the_level() {
    let (home, data) = data_dir(&["first"]);
    std::fs::write(data.join("buckets/first/key"), b"data").unwrap();
    let log = home.path().join("log");
    let mut command = bywash(&["--log", "trace,s3s=trace,s3s::ops=trace", "serve"]);
    command.arg("--data-dir").arg(&data);
    command.args(["--s3-addr", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0"]);
    command.arg("--gcs-addr=off");
    command.stderr(std::fs::File::create(&log).unwrap());
    let server = Server::spawn(command, &data);
    let url = String::from_utf8(server.run(&["presign", "s3://first/key"])).unwrap();
    let (before, signature) = url.trim().split_once("X-Amz-Signature=").unwrap();
    assert_eq!(get(url.trim()).0, 200);
    // The server computes the right signature to compare it with this one.
    let wrong = format!("{before}X-Amz-Signature={}", "0".repeat(signature.len()));
    let (status, response) = get(&wrong);
    assert_eq!(status, 403);
    assert!(response.contains("SignatureDoesNotMatch") && !response.contains(signature));
    server.signal(Signal::TERM);
    assert!(server.wait().success());
    let log = std::fs::read_to_string(log).unwrap();
    assert!(
        log.contains("DEBUG") && log.contains("SignatureDoesNotMatch"),
        "{log}"
    );
    assert!(!log.contains(signature), "{log}");
}

#[test]
fn domains_of_option_and_file_map_hosts_to_buckets() {
    let (home, data) = data_dir(&["first"]);
    std::fs::write(data.join("buckets/first/key"), b"data").unwrap();
    let file = home.path().join("settings.toml");
    std::fs::write(
        &file,
        "domain = ['one.example', 'two.example']\nanonymous = true\n",
    )
    .unwrap();
    let config = ["--config", file.to_str().unwrap()];
    let of_file = Server::start(&data, &config);
    let get = |server: &Server, host: &str| {
        let mut stream = TcpStream::connect(server.s3.strip_prefix("http://").unwrap()).unwrap();
        write!(
            stream,
            "GET /key HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        response
    };
    for host in ["first.one.example", "first.two.example", "first.localhost"] {
        let response = get(&of_file, host);
        assert!(response.ends_with("\r\n\r\ndata"), "{response}");
    }
    let response = get(&of_file, "first.three.example");
    assert!(response.starts_with("HTTP/1.1 400") && response.contains("--domain three.example"));
    drop(of_file);
    let options = ["--domain", "three.example", config[0], config[1]];
    let of_option = Server::start(&data, &options);
    assert!(get(&of_option, "first.three.example").ends_with("\r\n\r\ndata"));
}

#[test]
fn gcs_endpoint_is_named_by_env_unless_it_is_off() {
    let (_home, data) = data_dir(&["first"]);
    let env = ["env", "--gcs", "--data-dir", data.to_str().unwrap()];
    let server = Server::start(&data, &["--anonymous"]);
    let url = server.gcs.clone().unwrap();
    let printed = bywash(&env).output().unwrap();
    let expected = format!("export STORAGE_EMULATOR_HOST='{url}'\n");
    assert!(stdout(&printed).starts_with(&expected));
    assert_eq!(get(&format!("{url}/storage/v1/b/first")).0, 200);
    drop(server);
    let mut command = bywash(&["serve", "--s3-addr=127.0.0.1:0", "--admin-addr=127.0.0.1:0"]);
    command.args(["--gcs-addr=off", "--data-dir"]).arg(&data);
    let server = Server::spawn(command, &data);
    assert!(server.gcs.is_none());
    let refused = bywash(&env).output().unwrap();
    assert!(!refused.status.success());
    assert!(
        stderr(&refused).contains("--gcs-addr off"),
        "{}",
        stderr(&refused)
    );
}

#[test]
fn server_that_nobody_uses_ends_by_itself_with_idle_exit() {
    let (_home, data) = data_dir(&["data"]);
    let server = Server::start(&data, &["--idle-exit", "200ms"]);
    assert!(server.wait().success());
    // Its folder is free for the next one.
    Server::start(&data, &[]);
}
