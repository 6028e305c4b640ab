//! `bywash keys` and `bywash env --gcs`: service accounts of a running server, and the needs of
//! their clients.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Output;

use bywash_support::account::{EMAIL, KEY_ID, NAME, PEM};
use serde_json::Value;

use crate::common::{Server, bywash, data_dir, json_lines, stderr, stdout, text};

/// Without it gcsfs waits a minute before each operation.
const GCSFS_LINE: &str = "export GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT='false'\n";

fn keys(data: &Path, args: &[&str]) -> Output {
    let mut command = bywash(&["keys"]);
    command.args(args).arg("--data-dir").arg(data);
    command.output().unwrap()
}

#[test]
fn key_file_names_the_server_that_runs_and_the_account_is_listed_and_removed() {
    let (home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &[]);
    let gcs = server.gcs.clone().unwrap();
    assert!(server.startup_output.contains("bywash keys create --gcs"));
    let pem = home.path().join("key.pem");
    std::fs::write(&pem, PEM).unwrap();
    let given = ["create", "--gcs", "--name", NAME, "--key-file", text(&pem)];
    let scope = ["--bucket", "first", "--read-only"];
    let made = keys(&data, &[&given[..], &scope[..]].concat());
    assert!(made.status.success(), "{}", stderr(&made));
    assert!(stderr(&made).contains("chmod 600"), "{}", stderr(&made));
    let file: Value = serde_json::from_str(&stdout(&made)).unwrap();
    for (name, value) in [
        ("client_email", EMAIL),
        ("private_key_id", KEY_ID),
        ("private_key", PEM),
        ("token_uri", &format!("{gcs}/token")),
    ] {
        assert_eq!(file[name], value, "{name}");
    }
    let again = keys(&data, &given);
    assert_eq!(again.status.code(), Some(1));
    assert!(stderr(&again).contains("already"), "{}", stderr(&again));
    let listed = keys(&data, &["ls", "--json"]);
    let listed = json_lines(&listed.stdout);
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0]["name"], NAME);
    assert_eq!(listed[0]["buckets"], serde_json::json!(["first"]));
    assert_eq!(listed[0]["read_only"], true);
    assert_eq!(
        stdout(&keys(&data, &["ls"])),
        format!("{NAME} reads first\n")
    );
    let table = stdout(&keys(&data, &["ls", "--toml"]));
    let (head, rest) = table.split_once("public-key = ").unwrap();
    assert_eq!(head, format!("[[gcs-account]]\nname = \"{NAME}\"\n"));
    let rest = rest.split_once('\n').unwrap().1;
    let scope = "buckets = [\"first\"]\nread-only = true\n";
    assert_eq!(rest, format!("endpoint = \"{gcs}\"\n{scope}"));
    let mode = std::fs::metadata(data.join("gcs-accounts"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o700);
    assert!(keys(&data, &["rm", NAME]).status.success());
    assert_eq!(keys(&data, &["rm", NAME]).status.code(), Some(3));
    assert_eq!(stdout(&keys(&data, &["ls"])), "");
}

#[test]
fn wrong_uses_of_keys_are_explained() {
    let (home, data) = data_dir(&[]);
    let pem = home.path().join("key.pem");
    std::fs::write(
        &pem,
        "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
    )
    .unwrap();
    let endpoint = ["--endpoint", "http://h:1"];
    for (args, code, reason) in [
        (&["create"][..], 2, "--gcs"),
        (&["create", "--gcs"], 3, "no server has used"),
        (
            &["create", "--gcs", "--key-file", "/absent"],
            3,
            "no server has used",
        ),
        (
            &[
                &["create", "--gcs", "--key-file", text(&pem)][..],
                &endpoint,
            ]
            .concat(),
            2,
            "RSA",
        ),
        (
            &[&["create", "--gcs", "--key-file", "/absent"][..], &endpoint].concat(),
            3,
            "/absent",
        ),
        (&["rm", "absent"], 3, "no service account"),
    ] {
        let refused = keys(&data, args);
        assert_eq!(
            refused.status.code(),
            Some(code),
            "{args:?}: {}",
            stderr(&refused)
        );
        assert!(
            stderr(&refused).contains(reason),
            "{args:?}: {}",
            stderr(&refused)
        );
    }
}

#[test]
fn env_names_a_key_file_or_the_emulator() {
    let (home, data) = data_dir(&["first"]);
    let env = |more: &[&str]| {
        let mut command = bywash(&["env", "--gcs"]);
        command.args(more).arg("--data-dir").arg(&data);
        command.output().unwrap()
    };
    let server = Server::start(&data, &[]);
    let gcs = server.gcs.clone().unwrap();
    let refused = env(&[]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        stderr(&refused).contains("bywash keys create --gcs"),
        "{}",
        stderr(&refused)
    );
    let file = home.path().join("key.json");
    std::fs::write(&file, "{}").unwrap();
    let printed = env(&["--key-file", text(&file)]);
    let file = file.canonicalize().unwrap();
    let expected = format!(
        "export GOOGLE_APPLICATION_CREDENTIALS='{}'\nexport API_ENDPOINT_OVERRIDE='{gcs}'\n{GCSFS_LINE}",
        file.display()
    );
    assert_eq!(stdout(&printed), expected);
    assert_eq!(env(&["--key-file", "/absent"]).status.code(), Some(3));
    drop(server);
    let server = Server::start(&data, &["--anonymous"]);
    let expected = format!(
        "export STORAGE_EMULATOR_HOST='{}'\n{GCSFS_LINE}",
        server.gcs.clone().unwrap()
    );
    assert_eq!(stdout(&env(&[])), expected);
}
