//! A cache behind a server of HTTP: its client.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Mutex;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::header::{HOST, RANGE};
use hyper::{Request, StatusCode};

use super::worker::{Cache, FILL_BYTES, MAX_PASSES, OBJECT_BYTES, WorkerArgs, origin};
use crate::Failure;
use crate::read::load::consume;
use crate::read::{Connection, connect, counters};

pub(super) struct HttpCache {
    server: SocketAddr,
    origin: SocketAddr,
    /// Connections that no reader uses.
    idle: Mutex<Vec<Connection>>,
    value_bytes: u64,
    values: u64,
}

impl HttpCache {
    pub(super) fn open(args: &WorkerArgs) -> Result<Self, Failure> {
        Ok(Self {
            server: args.server.ok_or("a server is needed")?,
            origin: origin()?,
            idle: Mutex::default(),
            value_bytes: args.value_bytes as u64,
            values: args.values,
        })
    }

    fn idle(&self) -> Option<Connection> {
        let mut idle = self.idle.lock().ok()?;
        // A server that was killed has closed its connections.
        std::iter::from_fn(|| idle.pop()).find(|connection| !connection.is_closed())
    }

    async fn get(&self, range: Range<u64>) -> Result<u64, Failure> {
        let mut connection = match self.idle() {
            Some(connection) => connection,
            None => connect(self.server).await?,
        };
        let object = range.start / OBJECT_BYTES;
        let first = range.start % OBJECT_BYTES;
        let last = first + (range.end - range.start) - 1;
        let request = Request::get(format!("/bench/s{OBJECT_BYTES}/data-{object}"))
            .header(HOST, self.server.to_string())
            .header(RANGE, format!("bytes={first}-{last}"))
            .body(Empty::<Bytes>::new())?;
        connection.ready().await?;
        let response = connection.send_request(request).await?;
        if response.status() != StatusCode::PARTIAL_CONTENT {
            return Err(format!("a ranged GET: {}", response.status()).into());
        }
        let mut body = response.into_body();
        let mut bytes = 0;
        while let Some(frame) = body.frame().await {
            bytes += frame?.data_ref().map_or(0, |data| consume(data));
        }
        if let Ok(mut idle) = self.idle.lock() {
            idle.push(connection);
        }
        Ok(bytes)
    }
}

impl Cache for HttpCache {
    /// Reads all values until a pass takes none from the origin.
    async fn fill(&self) -> Result<(), Failure> {
        let end = self.values * self.value_bytes;
        let mut before = counters(self.origin).await?.bytes;
        for _ in 0..MAX_PASSES {
            for start in (0..end).step_by(FILL_BYTES as usize) {
                self.get(start..end.min(start + FILL_BYTES)).await?;
            }
            let after = counters(self.origin).await?.bytes;
            if after == before {
                return Ok(());
            }
            before = after;
        }
        Err(format!("the last of {MAX_PASSES} passes still read the origin").into())
    }

    async fn read(&self, value: u64) -> Result<bool, Failure> {
        let start = value * self.value_bytes;
        let bytes = self.get(start..start + self.value_bytes).await?;
        (bytes == self.value_bytes)
            .then_some(true)
            .ok_or_else(|| format!("value {value} has {bytes} bytes").into())
    }

    async fn missed(&self) -> Result<u64, Failure> {
        Ok(counters(self.origin).await?.bytes / self.value_bytes)
    }
}
