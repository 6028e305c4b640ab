//! Multipart uploads to a `bywash serve` over a folder, Google's protocol and Azure's that is killed at any moment.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use crate::common::{Server, bywash, data_dir};
use bywash_sim::server::azure::Azure;
use bywash_sim::server::gcs::Gcs;
use bywash_sim::server::{Protocol, Server as FakeServer};
use bywash_support::proof::{Proof, Trial};
use bywash_support::settings::setting;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::process::Signal;

/// Min length of all parts but the last.
const PART: usize = 5 << 20;
/// Number of kills over each store; overridden by `BYWASH_KILLS`. `BYWASH_SEED` sets the seed.
const KILLS: u64 = 10;
const KEY: &str = "/first/deep/key";

/// A complete response.
#[derive(Debug)]
struct Response {
    status: u16,
    e_tag: String,
    body: Vec<u8>,
}

impl Response {
    fn tags(&self, tag: &str) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.body).into_owned();
        let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
        let inner = |piece: &str| piece.split_once(&close).map(|(inner, _)| inner.to_owned());
        text.split(&open).skip(1).filter_map(inner).collect()
    }

    #[track_caller]
    fn expect(self, status: u16) -> Self {
        assert_eq!(
            self.status,
            status,
            "{}",
            String::from_utf8_lossy(&self.body)
        );
        self
    }
}

/// Moment of a kill, as the client observes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// This many bytes of the body of this request were sent.
    Sending { request: usize, bytes: usize },
    /// All of this request was sent; the kill does not wait for the response.
    Sent { request: usize },
    /// This many changes on disk were observed after this request was sent, or its response arrived.
    Changed { request: usize, changes: usize },
    /// The response to this request was received.
    Responded { request: usize },
}

/// Collects names and lengths of all files below a folder.
fn files(folder: &Path, found: &mut BTreeMap<PathBuf, u64>) {
    // Folders and files are created and removed concurrently.
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.metadata() {
            Ok(meta) if meta.is_dir() => files(&entry.path(), found),
            Ok(meta) => drop(found.insert(entry.path(), meta.len())),
            Err(_) => {}
        }
    }
}

/// A client of one server, which it kills at a chosen moment.
struct Client<'a> {
    server: &'a Server,
    kill_at: Option<Moment>,
    /// Number of requests sent.
    requests: usize,
}

impl<'a> Client<'a> {
    fn new(server: &'a Server, kill_at: Option<Moment>) -> Self {
        Self {
            server,
            kill_at,
            requests: 0,
        }
    }

    /// Kills the server if this is the chosen moment.
    fn reach(&self, moment: Moment) {
        if self.kill_at == Some(moment) {
            self.server.signal(Signal::KILL);
        }
    }

    /// Kills the server after `changes` changes on disk, or once its response arrives.
    fn watch(&self, socket: &TcpStream, changes: usize) -> std::io::Result<()> {
        let look = || {
            let mut found = BTreeMap::new();
            files(&self.server.data, &mut found);
            found
        };
        socket.set_nonblocking(true)?;
        let (mut seen, mut last) = (0, look());
        while seen < changes && socket.peek(&mut [0]).is_err() {
            let now = look();
            seen += usize::from(now != last);
            last = now;
        }
        self.server.signal(Signal::KILL);
        socket.set_nonblocking(false)
    }

    /// Sends a request on a new connection. Returns `None` if the server was killed before its response.
    fn send(&mut self, method: &str, target: &str, body: &[u8]) -> Option<Response> {
        let request = self.requests;
        self.requests += 1;
        let response = self.exchange(request, method, target, body).ok();
        assert!(
            response.is_some() || self.kill_at.is_some(),
            "{method} {target} gets a response"
        );
        self.reach(Moment::Responded { request });
        response
    }

    fn exchange(
        &self,
        request: usize,
        method: &str,
        target: &str,
        body: &[u8],
    ) -> std::io::Result<Response> {
        let address = self.server.s3.strip_prefix("http://").unwrap();
        let mut socket = TcpStream::connect(address)?;
        let length = body.len();
        write!(
            socket,
            "{method} {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
        )?;
        let split = match self.kill_at {
            Some(Moment::Sending { request: at, bytes }) if at == request => bytes.min(length),
            _ => 0,
        };
        let (first, rest) = body.split_at(split);
        socket.write_all(first)?;
        self.reach(Moment::Sending {
            request,
            bytes: split,
        });
        socket.write_all(rest)?;
        self.reach(Moment::Sent { request });
        if let Some(Moment::Changed {
            request: at,
            changes,
        }) = self.kill_at
            && at == request
        {
            self.watch(&socket, changes)?;
        }
        let mut raw = Vec::new();
        socket.read_to_end(&mut raw)?;
        parse(&raw).ok_or_else(|| std::io::ErrorKind::UnexpectedEof.into())
    }
}

fn parse(raw: &[u8]) -> Option<Response> {
    let end = raw.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&raw[..end]);
    let header = |name: &str| {
        let mut fields = head.lines().filter_map(|line| line.split_once(':'));
        let found = fields.find(|(found, _)| found.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.trim().to_owned())
    };
    let body = raw[end + 4..].to_vec();
    let length = header("content-length").map_or(0, |length| length.parse().unwrap());
    let response = Response {
        status: head.split(' ').nth(1)?.parse().ok()?,
        e_tag: header("etag").unwrap_or_default(),
        body,
    };
    (response.body.len() == length).then_some(response)
}

fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    StdRng::seed_from_u64(seed).fill(&mut bytes[..]);
    bytes
}

/// State of an upload at its client.
#[derive(Debug, Default)]
struct Upload {
    id: Option<String>,
    /// ETags of acknowledged parts.
    stored: BTreeMap<usize, String>,
    /// Whether its completion was requested.
    completion_sent: bool,
    completed: bool,
}

impl Upload {
    /// Sends the missing parts and the completion. Returns `None` if the server was killed.
    fn run(&mut self, client: &mut Client<'_>, parts: &[&[u8]]) -> Option<()> {
        let id = match &self.id {
            Some(id) => id.clone(),
            None => {
                let begun = client.send("POST", &format!("{KEY}?uploads"), b"")?;
                let id = begun.expect(200).tags("UploadId").remove(0);
                self.id.insert(id).clone()
            }
        };
        for (number, part) in (1..).zip(parts) {
            if self.stored.contains_key(&number) {
                continue;
            }
            let target = format!("{KEY}?partNumber={number}&uploadId={id}");
            let stored = client.send("PUT", &target, part)?.expect(200);
            self.stored.insert(number, stored.e_tag);
        }
        let named: String = self
            .stored
            .iter()
            .map(|(number, e_tag)| {
                format!("<Part><PartNumber>{number}</PartNumber><ETag>{e_tag}</ETag></Part>")
            })
            .collect();
        let xml = format!("<CompleteMultipartUpload>{named}</CompleteMultipartUpload>");
        let sent_before = std::mem::replace(&mut self.completion_sent, true);
        let target = format!("{KEY}?uploadId={id}");
        let response = client.send("POST", &target, xml.as_bytes())?;
        // Completed and removed before the kill, which lost the response.
        let gone = sent_before && response.status == 404;
        if !gone {
            response.expect(200);
        }
        self.completed = true;
        Some(())
    }

    /// Compares the state at the next server: all that was acknowledged, and possibly the request whose response was lost.
    fn check(&mut self, client: &mut Client<'_>, parts: &[&[u8]]) {
        let Some(id) = self.id.clone() else {
            return;
        };
        let open = client.send("GET", "/first?uploads", b"").unwrap();
        let open = open.expect(200).tags("UploadId").contains(&id);
        assert!(open || self.completion_sent, "an open upload is listed");
        let response = client.send("GET", &format!("{KEY}?uploadId={id}"), b"");
        let response = response.unwrap();
        if !open {
            response.expect(404);
            return;
        }
        let found = response.expect(200);
        let (numbers, e_tags) = (found.tags("PartNumber"), found.tags("ETag"));
        let listed: BTreeMap<usize, String> = numbers
            .iter()
            .map(|number| number.parse().unwrap())
            .zip(e_tags.iter().map(|e_tag| e_tag.replace("&quot;", "\"")))
            .collect();
        for (number, e_tag) in &self.stored {
            assert_eq!(
                listed.get(number),
                Some(e_tag),
                "part {number} was acknowledged"
            );
        }
        assert!(listed.len() <= self.stored.len() + 1, "{listed:?}");
        for (number, size) in listed.keys().zip(found.tags("Size")) {
            assert_eq!(size, parts[number - 1].len().to_string());
        }
        self.stored = listed;
    }
}

fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none())
}

/// Draws a moment of this class of an upload.
fn draw_moment(class: usize, rng: &mut StdRng, parts: &[&[u8]]) -> Moment {
    let request = rng.random_range(0..parts.len() + 2);
    match class {
        0 => {
            let body = request.checked_sub(1).and_then(|part| parts.get(part));
            let bytes = rng.random_range(0..=body.map_or(0, |body| body.len()));
            Moment::Sending { request, bytes }
        }
        1 => Moment::Sent { request },
        2 => {
            let changes = rng.random_range(1..8);
            Moment::Changed { request, changes }
        }
        _ => Moment::Responded { request },
    }
}

/// Origin of the server.
enum Store {
    Folder,
    Gcs(Arc<Gcs>, HttpStore),
    Azure(HttpStore),
}

/// A store behind HTTP, which outlives the servers over it.
struct HttpStore {
    server: FakeServer,
    _runtime: tokio::runtime::Runtime,
}

impl HttpStore {
    fn start(store: Arc<dyn Protocol>) -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        Self {
            server: runtime.block_on(FakeServer::start(store)).unwrap(),
            _runtime: runtime,
        }
    }
}

impl Store {
    fn gcs() -> Self {
        let store = Gcs::new();
        let server = HttpStore::start(Arc::<Gcs>::clone(&store));
        Self::Gcs(store, server)
    }

    fn azure() -> Self {
        Self::Azure(HttpStore::start(Azure::new()))
    }

    fn serve(&self, data: &Path) -> Server {
        let url = match self {
            Self::Folder => return Server::start(data, &["--anonymous", "--memory", "64MiB"]),
            Self::Gcs(..) => "gs://first",
            Self::Azure(_) => "az://first",
        };
        let mut command = bywash(&["serve", url, "--anonymous", "--memory", "64MiB"]);
        command.arg("--data-dir").arg(data);
        command.args(["--s3-addr", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0"]);
        command.arg("--gcs-addr=off");
        command.stderr(Stdio::inherit());
        match self {
            Self::Folder => {}
            Self::Gcs(_, store) => drop(command.env("STORAGE_EMULATOR_HOST", store.server.url())),
            Self::Azure(store) => {
                let endpoint = format!("{}/account", store.server.url());
                command
                    .env("AZURE_STORAGE_ACCOUNT_NAME", "account")
                    .env("AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0")
                    .env("AZURE_STORAGE_ENDPOINT", endpoint);
            }
        }
        Server::spawn(command, data)
    }

    /// Whether the store has no open uploads.
    fn is_clear(&self, data: &Path) -> bool {
        match self {
            Self::Folder => is_empty(&data.join("buckets/first/.bywash/uploads")),
            Self::Gcs(store, _) => store.open_uploads() == 0,
            // A commit drops all uncommitted blocks.
            Self::Azure(_) => true,
        }
    }
}

/// Kills a server at some moment of an upload, and continues the upload at another server.
fn kill_and_continue(store: &Store, kill_at: Moment, content: &[u8]) {
    let parts: Vec<&[u8]> = content.chunks(PART).collect();
    let (_home, data) = data_dir(&["first"]);
    let server = store.serve(&data);
    let mut upload = Upload::default();
    upload.run(&mut Client::new(&server, Some(kill_at)), &parts);
    assert_eq!(server.wait().code(), None, "it was killed");

    let server = store.serve(&data);
    let mut client = Client::new(&server, None);
    let begun = upload.id.is_some();
    upload.check(&mut client, &parts);
    if !upload.completed {
        upload.run(&mut client, &parts).unwrap();
    }
    assert!(upload.completed);
    let found = client.send("GET", KEY, b"").unwrap().expect(200);
    assert!(found.body == content, "the object is exact");
    let uploads = client.send("GET", "/first?uploads", b"").unwrap();
    let left = uploads.expect(200).tags("UploadId");
    // If the first response was lost, the client has no id, and its upload stays open.
    assert!(left.is_empty() || !begun, "{left:?} are still open");
    if begun {
        assert!(is_empty(&data.join("multipart")));
        assert!(store.is_clear(&data), "an upload is open at the store");
    }
}

/// Runs all kills, each over a new store, so that leftovers of one do not affect the next.
fn kills(name: &'static str, repeat: &'static str, store: impl Fn() -> Store) {
    let proof = Proof::new(name, repeat, 1..2, &MOMENTS);
    while let Some(mut trial) = proof.next() {
        kill_servers(&mut trial, &store);
    }
}

/// Classes of the moments at which servers are killed.
const MOMENTS: [&str; 4] = [
    "kill within a body",
    "kill after a body",
    "kill after changes on disk",
    "kill after a response",
];

fn kill_servers(trial: &mut Trial<'_>, store: impl Fn() -> Store) {
    let seed = trial.seed();
    let content = bytes(seed, 2 * PART + 54321);
    let parts: Vec<&[u8]> = content.chunks(PART).collect();
    let mut rng = StdRng::seed_from_u64(seed);
    for kill in 0..setting("BYWASH_KILLS", KILLS) {
        // In turn: a seed of fewer kills than classes leaves some out, and the next seed others.
        let class = usize::try_from((seed + kill) % MOMENTS.len() as u64).unwrap();
        let kill_at = draw_moment(class, &mut rng, &parts);
        // Printed if the test fails.
        println!("BYWASH_SEED={seed}, kill {kill}: {kill_at:?}");
        trial.operations(1);
        trial.fault(MOMENTS[class], 1);
        kill_and_continue(&store(), kill_at, &content);
    }
}

#[test]
fn upload_continues_after_a_kill_of_the_server_at_any_moment() {
    let repeat = "cargo test -p bywash-cli --test it upload_continues_after_a_kill";
    kills("multipart-kills", repeat, || Store::Folder);
}

#[test]
fn upload_to_gcs_continues_after_a_kill_of_the_server_at_any_moment() {
    let repeat = "cargo test -p bywash-cli --test it upload_to_gcs_continues";
    kills("multipart-kills-gcs", repeat, Store::gcs);
}

#[test]
fn upload_to_azure_continues_after_a_kill_of_the_server_at_any_moment() {
    let repeat = "cargo test -p bywash-cli --test it upload_to_azure_continues";
    kills("multipart-kills-azure", repeat, Store::azure);
}
