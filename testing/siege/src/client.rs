//! A lean S3 client that signs, compares and writes down what it got; and requests by hand for hostile ones.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use bywash_support::http::{Connection, HttpResponse, head};
use bywash_support::sign::{KEY, SECRET, Signer, borrow, date, sha256_hex};

use crate::record::{Class, End, Record};

/// Max wait for a whole response.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Seconds that signatures are ahead of this machine's clock: a case that steps the server's clock steps them too.
#[derive(Debug, Clone, Copy)]
pub struct Times(pub &'static AtomicI64);

impl Times {
    /// Signatures of now.
    #[must_use]
    pub fn real() -> Self {
        static NONE: AtomicI64 = AtomicI64::new(0);
        Self(&NONE)
    }

    fn date(self) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |now| now.as_secs() as i64);
        // Relaxed: a step is seen by one request or the next.
        date(now + self.0.load(Ordering::Relaxed))
    }
}

/// A key that requests are signed with.
#[derive(Debug, Clone)]
pub struct Account {
    pub access_key: String,
    pub secret_key: String,
}

impl Default for Account {
    fn default() -> Self {
        Self {
            access_key: KEY.to_owned(),
            secret_key: SECRET.to_owned(),
        }
    }
}

impl Account {
    /// The account's signer at this moment.
    #[must_use]
    pub fn signer(&self, times: Times) -> Signer {
        Signer {
            access_key: self.access_key.clone(),
            secret_key: self.secret_key.clone(),
            date: times.date(),
            ..Signer::default()
        }
    }
}

fn target(path: &str, query: &str) -> String {
    if query.is_empty() {
        path.to_owned()
    } else {
        format!("{path}?{query}")
    }
}

/// The head and body of a signed request of the server's own key, on a connection that stays open.
#[must_use]
pub fn signed(
    method: &str,
    path: &str,
    query: &str,
    headers: &[(&str, &str)],
    body: &[u8],
    times: Times,
) -> Vec<u8> {
    let mut request = signed_head(
        &Account::default().signer(times),
        (method, path, query),
        headers,
        &sha256_hex(body),
        Some(body.len() as u64),
    );
    request.extend_from_slice(body);
    request
}

/// The head alone, which announces `length` bytes.
#[must_use]
pub fn signed_head(
    signer: &Signer,
    (method, path, query): (&str, &str, &str),
    headers: &[(&str, &str)],
    payload: &str,
    length: Option<u64>,
) -> Vec<u8> {
    let (mut all, _) = signer.headers(method, path, query, payload, headers);
    if let Some(length) = length.filter(|length| *length > 0 || matches!(method, "PUT" | "POST")) {
        all.push(("content-length".to_owned(), length.to_string()));
    }
    let text = head(method, &target(path, query), &borrow(&all));
    text.replacen("Connection: close\r\n", "", 1).into_bytes()
}

/// What a client expects.
#[derive(Debug, Clone)]
pub enum Expect {
    /// 200 or 206 with just these bytes.
    Bytes(Bytes),
    /// One of these statuses.
    Status(&'static [u16]),
}

/// One client on one connection, which is opened anew after a failure.
pub struct Client {
    pub address: SocketAddr,
    pub account: Account,
    pub class: Class,
    pub times: Times,
    record: Arc<Record>,
    connection: Option<Connection>,
}

impl Client {
    #[must_use]
    pub fn new(address: SocketAddr, class: Class, record: &Arc<Record>) -> Self {
        Self {
            address,
            account: Account::default(),
            class,
            times: Times::real(),
            record: Arc::clone(record),
            connection: None,
        }
    }

    /// Sends a request, judges its response by `expect`, and returns it if there was one.
    pub async fn send(
        &mut self,
        (method, path, query): (&str, &str, &str),
        headers: &[(&str, &str)],
        body: &[u8],
        expect: &Expect,
    ) -> Option<HttpResponse> {
        let signer = self.account.signer(self.times);
        let mut request = signed_head(
            &signer,
            (method, path, query),
            headers,
            &sha256_hex(body),
            Some(body.len() as u64),
        );
        request.extend_from_slice(body);
        let got = tokio::time::timeout(PATIENCE, self.exchange(method, &request)).await;
        let got = match got {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no response in {} s", PATIENCE.as_secs())),
        };
        if got.is_err() {
            self.connection = None;
        }
        if let Ok(reply) = &got
            && reply.header("connection") == Some("close")
        {
            self.connection = None;
        }
        let what = format!("{method} {}", target(path, query));
        self.record.request(self.class, judge(&what, &got, expect));
        got.ok()
    }

    async fn exchange(&mut self, method: &str, request: &[u8]) -> std::io::Result<HttpResponse> {
        let kept = self.connection.take();
        let mut connection = match kept {
            Some(connection) => connection,
            None => Connection::open(self.address).await?,
        };
        let reply = connection.exchange(method, request).await?;
        self.connection = Some(connection);
        Ok(reply)
    }

    /// Reads an object that has `body`.
    pub async fn get(&mut self, path: &str, body: &Bytes) -> Option<HttpResponse> {
        let expect = Expect::Bytes(body.clone());
        self.send(("GET", path, ""), &[], b"", &expect).await
    }

    /// Writes an object; `true` if the server acknowledged it.
    pub async fn put(&mut self, path: &str, body: &Bytes) -> bool {
        let reply = self
            .send(("PUT", path, ""), &[], body, &Expect::Status(&[200]))
            .await;
        reply.is_some_and(|reply| reply.status == 200)
    }
}

/// Judges one response.
#[must_use]
pub fn judge(what: &str, got: &Result<HttpResponse, String>, expect: &Expect) -> End {
    let reply = match got {
        Ok(reply) => reply,
        Err(text) => return End::Failed(format!("{what}: {text}")),
    };
    let short: String = reply.text().chars().take(200).collect();
    match expect {
        Expect::Status(good) if good.contains(&reply.status) => End::Right,
        Expect::Bytes(body) if matches!(reply.status, 200 | 206) => {
            if reply.body == *body {
                return End::Right;
            }
            let differ = reply.body.iter().zip(body).position(|(a, b)| a != b);
            End::Wrong(format!(
                "{what}: {} bytes for {}, different from byte {differ:?}",
                reply.body.len(),
                body.len()
            ))
        }
        _ if reply.status == 503 && reply.text().contains("SlowDown") => End::SlowDown,
        _ if reply.status >= 500 => End::Failed(format!("{what}: {} {short}", reply.status)),
        _ => End::Wrong(format!("{what}: {} {short}", reply.status)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    /// What a client writes down about a server that gives this response to anything.
    async fn met(response: &'static str, expect: Expect) -> crate::record::Facts {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .unwrap_or_else(|e| panic!("{e}"));
        let address = listener.local_addr().unwrap_or_else(|e| panic!("{e}"));
        let server = tokio::spawn(async move {
            let Ok((mut socket, _)) = listener.accept().await else {
                return;
            };
            let _ = socket.read(&mut [0; 4096]).await;
            let _ = socket.write_all(response.as_bytes()).await;
        });
        let record = Arc::new(Record::default());
        let mut client = Client::new(address, Class::Well, &record);
        client.send(("GET", "/b/k", ""), &[], b"", &expect).await;
        server.abort();
        record.facts()
    }

    fn bytes(text: &'static str) -> Expect {
        Expect::Bytes(Bytes::from_static(text.as_bytes()))
    }

    #[tokio::test]
    async fn a_lying_server_is_found_out() {
        let facts = met(
            "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc",
            bytes("abc"),
        )
        .await;
        assert_eq!((facts.well_right, facts.wrong.count), (1, 0));
        let facts = met(
            "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabd",
            bytes("abc"),
        )
        .await;
        assert_eq!((facts.well_right, facts.wrong.count), (0, 1));
        let facts = met(
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nab",
            bytes("abc"),
        )
        .await;
        assert_eq!(facts.wrong.count, 1, "too short");
        let facts = met(
            "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
            bytes("abc"),
        )
        .await;
        assert_eq!(facts.wrong.count, 1, "an object that is there");
        let facts = met(
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            Expect::Status(&[404]),
        )
        .await;
        assert_eq!(facts.wrong.count, 1, "an object that is not there");
    }

    #[tokio::test]
    async fn a_server_that_cuts_off_or_refuses_has_failed() {
        let facts = met(
            "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\na",
            bytes("abc"),
        )
        .await;
        assert_eq!((facts.well_failed.count, facts.wrong.count), (1, 0));
        let facts = met("HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n", bytes("abc")).await;
        assert_eq!(facts.well_failed.count, 1);
        let busy = "HTTP/1.1 503 No\r\ncontent-length: 21\r\n\r\n<Code>SlowDown</Code>";
        assert_eq!(met(busy, bytes("abc")).await.slow_downs_to_well, 1);
    }
}
