//! A minimal S3 client that signs requests, compares responses and records outcomes; and raw requests for hostile clients.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use bywash_support::http::{Connection, HttpResponse, head};
use bywash_support::sign::{KEY, SECRET, Signer, borrow, date, sha256_hex};

use crate::record::{Class, Outcome, Record};

/// Maximum wait for a complete response.
pub const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Offset of signature dates from this machine's clock, in seconds, for a case that steps the server's clock.
#[derive(Debug, Clone, Copy)]
pub struct ClockOffset(pub &'static AtomicI64);

impl ClockOffset {
    /// Returns no offset.
    #[must_use]
    pub fn real() -> Self {
        static NONE: AtomicI64 = AtomicI64::new(0);
        Self(&NONE)
    }

    fn date(self) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |now| now.as_secs() as i64);
        // Relaxed: a step applies to one request or the next.
        date(now + self.0.load(Ordering::Relaxed))
    }
}

/// Access key that signs requests.
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
    /// Returns a signer with the present date.
    #[must_use]
    pub fn signer(&self, clock_offset: ClockOffset) -> Signer {
        Signer {
            access_key: self.access_key.clone(),
            secret_key: self.secret_key.clone(),
            date: clock_offset.date(),
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

/// Formats a request signed with the server's own key, for a connection that stays open.
#[must_use]
pub fn signed(
    method: &str,
    path: &str,
    query: &str,
    headers: &[(&str, &str)],
    body: &[u8],
    clock_offset: ClockOffset,
) -> Vec<u8> {
    let mut request = signed_head(
        &Account::default().signer(clock_offset),
        (method, path, query),
        headers,
        &sha256_hex(body),
        Some(body.len() as u64),
    );
    request.extend_from_slice(body);
    request
}

/// Formats the head of a signed request, which announces `length` bytes.
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

/// Expected response.
#[derive(Debug, Clone)]
pub enum Expect {
    /// 200 or 206 with exactly these bytes.
    Bytes(Bytes),
    /// One of these statuses.
    Status(&'static [u16]),
}

/// A client with one connection, which it reopens after a failure.
pub struct Client {
    pub address: SocketAddr,
    pub account: Account,
    pub class: Class,
    pub clock_offset: ClockOffset,
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
            clock_offset: ClockOffset::real(),
            record: Arc::clone(record),
            connection: None,
        }
    }

    /// Sends a request and records the outcome by `expect`. Returns the response, if there was one.
    pub async fn send(
        &mut self,
        (method, path, query): (&str, &str, &str),
        headers: &[(&str, &str)],
        body: &[u8],
        expect: &Expect,
    ) -> Option<HttpResponse> {
        let signer = self.account.signer(self.clock_offset);
        let mut request = signed_head(
            &signer,
            (method, path, query),
            headers,
            &sha256_hex(body),
            Some(body.len() as u64),
        );
        request.extend_from_slice(body);
        let got = tokio::time::timeout(RESPONSE_TIMEOUT, self.exchange(method, &request)).await;
        let got = match got {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no response in {} s", RESPONSE_TIMEOUT.as_secs())),
        };
        if got.is_err() {
            self.connection = None;
        }
        if let Ok(response) = &got
            && response.header("connection") == Some("close")
        {
            self.connection = None;
        }
        let what = format!("{method} {}", target(path, query));
        self.record.request(self.class, judge(&what, &got, expect));
        got.ok()
    }

    async fn exchange(&mut self, method: &str, request: &[u8]) -> std::io::Result<HttpResponse> {
        let open = self.connection.take();
        let mut connection = match open {
            Some(connection) => connection,
            None => Connection::open(self.address).await?,
        };
        let response = connection.exchange(method, request).await?;
        self.connection = Some(connection);
        Ok(response)
    }

    /// Reads an object, and expects `body`.
    pub async fn get(&mut self, path: &str, body: &Bytes) -> Option<HttpResponse> {
        let expect = Expect::Bytes(body.clone());
        self.send(("GET", path, ""), &[], b"", &expect).await
    }

    /// Writes an object. Returns whether the server acknowledged it.
    pub async fn put(&mut self, path: &str, body: &Bytes) -> bool {
        let response = self
            .send(("PUT", path, ""), &[], body, &Expect::Status(&[200]))
            .await;
        response.is_some_and(|response| response.status == 200)
    }
}

/// Returns the outcome of a request.
#[must_use]
pub fn judge(what: &str, got: &Result<HttpResponse, String>, expect: &Expect) -> Outcome {
    let response = match got {
        Ok(response) => response,
        Err(text) => return Outcome::Failed(format!("{what}: {text}")),
    };
    let short: String = response.text().chars().take(200).collect();
    match expect {
        Expect::Status(good) if good.contains(&response.status) => Outcome::Correct,
        Expect::Bytes(body) if matches!(response.status, 200 | 206) => {
            if response.body == *body {
                return Outcome::Correct;
            }
            let differ = response.body.iter().zip(body).position(|(a, b)| a != b);
            Outcome::Wrong(format!(
                "{what}: {} bytes for {}, different from byte {differ:?}",
                response.body.len(),
                body.len()
            ))
        }
        _ if response.status == 503 && response.text().contains("SlowDown") => Outcome::SlowDown,
        _ if response.status >= 500 => {
            Outcome::Failed(format!("{what}: {} {short}", response.status))
        }
        _ => Outcome::Wrong(format!("{what}: {} {short}", response.status)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    /// Returns the facts that a client records for a server with this response.
    async fn facts_for(response: &'static str, expect: Expect) -> crate::record::Facts {
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
        let mut client = Client::new(address, Class::WellBehaved, &record);
        client.send(("GET", "/b/k", ""), &[], b"", &expect).await;
        server.abort();
        record.facts()
    }

    fn bytes(text: &'static str) -> Expect {
        Expect::Bytes(Bytes::from_static(text.as_bytes()))
    }

    #[tokio::test]
    async fn wrong_responses_are_recorded() {
        let facts = facts_for(
            "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc",
            bytes("abc"),
        )
        .await;
        assert_eq!((facts.well_right, facts.wrong.count), (1, 0));
        let facts = facts_for(
            "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabd",
            bytes("abc"),
        )
        .await;
        assert_eq!((facts.well_right, facts.wrong.count), (0, 1));
        let facts = facts_for(
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nab",
            bytes("abc"),
        )
        .await;
        assert_eq!(facts.wrong.count, 1, "too short");
        let facts = facts_for(
            "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
            bytes("abc"),
        )
        .await;
        assert_eq!(facts.wrong.count, 1, "404 for an existing object");
        let facts = facts_for(
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            Expect::Status(&[404]),
        )
        .await;
        assert_eq!(facts.wrong.count, 1, "200 for an absent object");
    }

    #[tokio::test]
    async fn truncated_and_refused_responses_are_failures() {
        let facts = facts_for(
            "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\na",
            bytes("abc"),
        )
        .await;
        assert_eq!((facts.well_failed.count, facts.wrong.count), (1, 0));
        let facts = facts_for("HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n", bytes("abc")).await;
        assert_eq!(facts.well_failed.count, 1);
        let busy = "HTTP/1.1 503 No\r\ncontent-length: 21\r\n\r\n<Code>SlowDown</Code>";
        assert_eq!(facts_for(busy, bytes("abc")).await.slow_downs_to_well, 1);
    }
}
