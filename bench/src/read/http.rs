//! Reads over HTTP: one connection per client, without a client library.

use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::HOST;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::load::{Cell, Load, Sample, consume, drive};
use crate::Failure;
use crate::origin::{COUNTERS, Counters};

/// A connection, whose requests go one after the other.
pub(crate) type Connection = SendRequest<Empty<Bytes>>;
type SharedConnection = std::sync::Arc<tokio::sync::Mutex<Connection>>;

pub(crate) async fn connect(server: SocketAddr) -> Result<Connection, Failure> {
    let socket = TcpStream::connect(server).await?;
    socket.set_nodelay(true)?;
    let (sender, connection) = handshake(TokioIo::new(socket)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

async fn get(
    connection: SharedConnection,
    server: SocketAddr,
    path: String,
) -> Result<Sample, Failure> {
    let begun = Instant::now();
    let mut sender = connection.lock().await;
    sender.ready().await?;
    let request = Request::get(&path)
        .header(HOST, server.to_string())
        .body(Empty::new())?;
    let response = sender.send_request(request).await?;
    if response.status() != StatusCode::OK {
        let status = response.status();
        let text = response.into_body().collect().await?.to_bytes();
        return Err(format!("GET {path}: {status}: {}", String::from_utf8_lossy(&text)).into());
    }
    let mut body = response.into_body();
    let (mut bytes, mut first_byte) = (0, None);
    while let Some(frame) = body.frame().await {
        first_byte.get_or_insert_with(|| begun.elapsed());
        bytes += frame?.data_ref().map_or(0, |data| consume(data));
    }
    Ok(Sample {
        bytes,
        first_byte: first_byte.unwrap_or_else(|| begun.elapsed()),
    })
}

/// Runs a cell against the bucket `bench` of an S3 server.
pub(crate) async fn load(server: SocketAddr, cell: &Cell) -> Result<Load, Failure> {
    drive(cell, |_client| async move {
        let connection = SharedConnection::new(connect(server).await?.into());
        Ok(move |key: String| {
            get(
                std::sync::Arc::clone(&connection),
                server,
                format!("/bench/{key}"),
            )
        })
    })
    .await
}

/// Returns the counters of the origin.
pub(crate) async fn counters(origin: SocketAddr) -> Result<Counters, Failure> {
    let mut connection = connect(origin).await?;
    let request = Request::get(COUNTERS)
        .header(HOST, origin.to_string())
        .body(Empty::new())?;
    let response = connection.send_request(request).await?;
    Ok(serde_json::from_slice(
        &response.into_body().collect().await?.to_bytes(),
    )?)
}
