//! The real program, started as a user starts it.

pub(crate) mod gate;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};

pub(crate) use bywash_support::http::pattern;
use bywash_support::process::{BywashProcess, without_settings};
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::task::block_in_place;

/// Runs a program that must succeed. Servers in the same process keep running.
pub(crate) fn succeeds(mut command: Command) -> Output {
    let output = block_in_place(|| command.output().unwrap());
    assert!(output.status.success(), "{}", stderr(&output));
    output
}

/// Runs a program that must fail, and returns its standard error. Servers in the same process keep running.
pub(crate) fn fails(mut command: Command) -> String {
    let output = block_in_place(|| command.output().unwrap());
    assert!(!output.status.success(), "{}", stdout(&output));
    stderr(&output)
}

/// A command that runs the program without the environment's AWS, Azure and Bywash settings.
pub(crate) fn bywash(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bywash"));
    without_settings(&mut command)
        .args(args)
        // Also without the user's profiles.
        .env("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
        .env("AWS_CONFIG_FILE", "/dev/null")
        // No local socket: another test's server may listen at the well-known one.
        .env("BYWASH_LOCAL", "/dev/null/local.sock")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

pub(crate) fn json_lines(bytes: &[u8]) -> Vec<serde_json::Value> {
    String::from_utf8_lossy(bytes)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// The files below a folder by name, without Bywash's own.
pub(crate) fn tree(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.file_name().unwrap() == ".bywash" {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(root).unwrap().to_str().unwrap();
            found.insert(name.to_owned(), std::fs::read(&path).unwrap());
        }
    }
    found
}

/// Creates a folder with these files.
pub(crate) fn write_tree(root: &Path, files: &BTreeMap<String, Vec<u8>>) {
    for (name, content) in files {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
}

/// Puts an empty object under any key, without credentials.
pub(crate) fn put_empty(server: &str, path: &str) {
    put(server, path, "");
}

/// Puts an object under any key, without credentials.
pub(crate) fn put(server: &str, path: &str, content: &str) {
    let host = server.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    write!(
        stream,
        "PUT {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{content}",
        content.len()
    )
    .unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
}

/// Creates a temporary folder, and in it a data folder with these buckets.
pub(crate) fn data_dir(buckets: &[&str]) -> (TempDir, PathBuf) {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    for bucket in buckets {
        std::fs::create_dir_all(data.join("buckets").join(bucket)).unwrap();
    }
    (home, data)
}

/// A running `bywash serve`; killed when dropped.
pub(crate) struct Server {
    process: BywashProcess,
    pub(crate) s3: String,
    pub(crate) admin: SocketAddr,
    /// URL of the GCS endpoint, unless it is off.
    pub(crate) gcs: Option<String>,
    /// Standard output up to the `ready` line.
    pub(crate) startup_output: String,
    pub(crate) data: PathBuf,
}

impl Server {
    /// Starts a server on free ports and waits until it is ready.
    pub(crate) fn start(data: &Path, args: &[&str]) -> Self {
        let folder = data.to_str().unwrap();
        let mut command = bywash(&[
            "serve",
            "--data-dir",
            folder,
            "--s3-addr",
            "127.0.0.1:0",
            "--admin-addr",
            "127.0.0.1:0",
            "--gcs-addr",
            "127.0.0.1:0",
        ]);
        command.args(args).stderr(Stdio::inherit());
        Self::spawn(command, data)
    }

    pub(crate) fn spawn(mut command: Command, data: &Path) -> Self {
        let process = BywashProcess::start(&mut command).unwrap();
        Self {
            s3: process.addresses.s3.clone(),
            admin: process.addresses.admin,
            gcs: process.addresses.gcs.clone(),
            startup_output: process.output.clone(),
            process,
            data: data.to_owned(),
        }
    }

    /// Sends `GET path` to the admin endpoints. Returns status and body.
    pub(crate) fn admin(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.admin).unwrap();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
            self.admin
        )
        .unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        (
            head.split(' ').nth(1).unwrap().parse().unwrap(),
            body.to_owned(),
        )
    }

    pub(crate) fn stats(&self) -> serde_json::Value {
        let (status, body) = self.admin("/stats");
        assert_eq!(status, 200);
        serde_json::from_str(&body).unwrap()
    }

    /// The variables that `bywash env` prints for this server, as a shell evaluates them.
    pub(crate) fn env(&self) -> Vec<(String, String)> {
        let printed = bywash(&["env", "--data-dir", self.data.to_str().unwrap()])
            .output()
            .unwrap();
        assert!(printed.status.success(), "{}", stderr(&printed));
        let script = format!("{}\nprintf '%s\\0' ", stdout(&printed));
        let names = [
            "AWS_ACCESS_KEY_ID",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_ENDPOINT_URL",
            "AWS_REGION",
            "AWS_DEFAULT_REGION",
        ];
        let script = names
            .iter()
            .fold(script, |script, name| format!("{script} \"${name}\""));
        let shell = Command::new("sh")
            .args(["-euc", &script])
            .env_clear()
            .output()
            .unwrap();
        assert!(shell.status.success(), "{}", stderr(&shell));
        let values = stdout(&shell);
        names
            .iter()
            .map(|name| (*name).to_owned())
            .zip(values.split('\0').map(str::to_owned))
            .collect()
    }

    /// A command that runs a verb with this server's environment.
    pub(crate) fn client(&self, args: &[&str]) -> Command {
        let mut command = bywash(args);
        if matches!(args.first(), Some(&("cp" | "mv" | "sync"))) {
            // A server and verbs can share a data folder.
            command.arg("--data-dir").arg(&self.data);
        }
        command.envs(self.env());
        command
    }

    /// Runs a verb that must succeed. Returns its standard output.
    pub(crate) fn run(&self, args: &[&str]) -> Vec<u8> {
        let output = self.client(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        output.stdout
    }

    /// Runs a verb. Returns its exit code and standard error.
    pub(crate) fn fail(&self, args: &[&str]) -> (i32, String) {
        let output = self.client(args).output().unwrap();
        (output.status.code().unwrap(), stderr(&output))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.process.signal(signal).unwrap();
    }

    /// Waits for the end; fails the test if it does not come.
    pub(crate) fn wait(self) -> ExitStatus {
        self.process.wait().unwrap()
    }
}
