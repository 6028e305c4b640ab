//! The real program, started as a user starts it.

pub(crate) mod gate;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::task::block_in_place;

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs it beside servers of the same test.
pub(crate) fn succeeds(mut command: Command) -> Output {
    let output = block_in_place(|| command.output().unwrap());
    assert!(output.status.success(), "{}", stderr(&output));
    output
}

/// Runs it beside servers of the same test: what it told of its failure.
pub(crate) fn fails(mut command: Command) -> String {
    let output = block_in_place(|| command.output().unwrap());
    assert!(!output.status.success(), "{}", stdout(&output));
    stderr(&output)
}

/// The program, without the AWS and Bywash settings of whoever runs the tests.
pub(crate) fn bywash(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bywash"));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("AWS_") || text.starts_with("BYWASH_") || text.starts_with("AZURE_") {
            command.env_remove(&name);
        }
    }
    command
        .args(args)
        // Nor the profiles of that person.
        .env("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
        .env("AWS_CONFIG_FILE", "/dev/null")
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

/// Bytes that no shift or repetition of a part leaves unchanged.
pub(crate) fn pattern(length: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words
        .take(length.div_ceil(8))
        .flatten()
        .take(length)
        .collect()
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

/// The files below a folder by their names, without what Bywash keeps there for itself.
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

/// Makes a folder with these files.
pub(crate) fn write_tree(root: &Path, files: &BTreeMap<String, Vec<u8>>) {
    for (name, content) in files {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
}

/// Puts an empty object under any key, without credentials.
pub(crate) fn put_empty(server: &str, path: &str) {
    let host = server.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    write!(
        stream,
        "PUT {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

/// A new folder, and a data folder in it with these buckets.
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
    child: Child,
    pub(crate) s3: String,
    pub(crate) admin: SocketAddr,
    /// All it said before it was ready.
    pub(crate) said: String,
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
        ]);
        command.args(args).stderr(Stdio::inherit());
        Self::spawn(command, data)
    }

    pub(crate) fn spawn(mut command: Command, data: &Path) -> Self {
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut said = String::new();
        loop {
            let line = lines
                .next()
                .expect("the server ended before it was ready")
                .unwrap();
            said.push_str(&line);
            said.push('\n');
            let Some(ready) = line.strip_prefix("ready ") else {
                continue;
            };
            let value = |name: &str| {
                let word = ready
                    .split(' ')
                    .find_map(|word| word.strip_prefix(name))
                    .unwrap();
                word.to_owned()
            };
            let admin = value("admin=http://").parse().unwrap();
            return Self {
                child,
                s3: value("s3="),
                admin,
                said,
                data: data.to_owned(),
            };
        }
    }

    /// `GET path` from the admin endpoints: status and body.
    pub(crate) fn admin(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.admin).unwrap();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
            self.admin
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
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

    /// What `bywash env` prints for this server, as a shell reads it.
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

    /// A verb with this server's environment.
    pub(crate) fn client(&self, args: &[&str]) -> Command {
        let mut command = bywash(args);
        if matches!(args.first(), Some(&("cp" | "mv" | "sync"))) {
            // The server's own: they can share it.
            command.arg("--data-dir").arg(&self.data);
        }
        command.envs(self.env());
        command
    }

    /// Runs a verb that must succeed; gives its standard output.
    pub(crate) fn run(&self, args: &[&str]) -> Vec<u8> {
        let output = self.client(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        output.stdout
    }

    /// Runs a verb that must fail; gives its exit code and standard error.
    pub(crate) fn fail(&self, args: &[&str]) -> (i32, String) {
        let output = self.client(args).output().unwrap();
        (output.status.code().unwrap(), stderr(&output))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the end; fails the test if it does not come.
    pub(crate) fn wait(mut self) -> ExitStatus {
        let (sender, receiver) = mpsc::sync_channel(1);
        let pid = Pid::from_child(&self.child);
        // The guard must not kill what has ended: the thread owns it from here on.
        let waiter = std::thread::spawn(move || sender.send(self.child.wait().unwrap()));
        let Ok(status) = receiver.recv_timeout(PATIENCE) else {
            kill_process(pid, Signal::KILL).unwrap();
            panic!("the server did not end");
        };
        waiter.join().unwrap().unwrap();
        status
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
