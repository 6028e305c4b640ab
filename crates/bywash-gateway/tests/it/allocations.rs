//! Allocations of a warm read, counted on the thread of the server.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use bywash::origin::memory::MemoryStore;
use bywash::{Consistency, Engine};
use bywash_gateway::{Credential, S3Config, serve_s3};
use bywash_support::sign::{KEY, SECRET, Signer, sha256_hex};
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// Max allocations of a hit, including the HTTP library's.
const MAX_PER_REQUEST: u64 = 8;
const REQUESTS: u64 = 200;
const LENGTH: usize = 4096;

/// A client on a thread of its own, whose allocations are not counted.
struct Client(TcpStream);

impl Client {
    fn request(&mut self, request: &str, body: usize) {
        self.0.write_all(request.as_bytes()).unwrap();
        let (mut received, mut piece) = (Vec::new(), [0; 16 << 10]);
        loop {
            let length = self.0.read(&mut piece).unwrap();
            assert!(length > 0, "{}", String::from_utf8_lossy(&received));
            received.extend_from_slice(&piece[..length]);
            let end = received.windows(4).position(|four| four == b"\r\n\r\n");
            if let Some(end) = end
                && received.len() >= end + 4 + body
            {
                assert!(received.starts_with(b"HTTP/1.1 200"));
                assert_eq!(received.len(), end + 4 + body);
                return;
            }
        }
    }
}

/// Sends a request repeatedly; returns when all were answered.
fn sent(address: SocketAddr, request: &str, body: usize) -> oneshot::Receiver<()> {
    let (end, ended) = oneshot::channel();
    let request = request.to_owned();
    std::thread::spawn(move || {
        let mut client = Client(TcpStream::connect(address).unwrap());
        for _ in 0..REQUESTS {
            client.request(&request, body);
        }
        end.send(()).unwrap();
    });
    ended
}

fn requests() -> [(String, usize); 3] {
    let signer = Signer::default();
    let target = signer.presign("GET", "/data/key", 600);
    let head = |method: &str, target: &str, headers: &[(String, String)]| {
        let lines: String = headers
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect();
        format!("{method} {target} HTTP/1.1\r\nhost: 127.0.0.1\r\n{lines}\r\n")
    };
    let signed = |method: &str| {
        let (headers, _) = signer.headers(method, "/data/key", "", &sha256_hex(b""), &[]);
        head(method, "/data/key", &headers)
    };
    [
        (head("GET", &target, &[]), LENGTH),
        (signed("GET"), LENGTH),
        (signed("HEAD"), 0),
    ]
}

#[test]
fn warm_reads_allocate_little() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let address = runtime.block_on(async {
        let engine = Engine::builder().memory(64 << 20).build().unwrap();
        let store = Arc::new(MemoryStore::new());
        let bucket = engine.mount("data", store, Consistency::Immutable).unwrap();
        let body = PutPayload::from(vec![7; LENGTH]);
        bucket.put(&Path::from("key"), body).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let config = S3Config::signed(Credential::new(KEY, SECRET));
        let serving = serve_s3(engine, listener, config, std::future::pending());
        tokio::spawn(async move { Box::pin(serving).await.map(drop) });
        address
    });
    for (request, body) in requests() {
        let run = || runtime.block_on(sent(address, &request, body)).unwrap();
        run();
        let counted = allocation_counter::measure(run);
        let each = counted.count_total / REQUESTS;
        // The connection's own are spread over its requests.
        assert!(
            each <= MAX_PER_REQUEST,
            "{each} allocations for {}",
            request.lines().next().unwrap()
        );
    }
}
