//! One connection: a hello, then requests in turn.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bywash_client::message::{
    ErrorCode, Failure, Hello, Kind, MAGIC, Reply, Request, VERSION, Welcome,
};
use bywash_client::wire::Wire;
use rustix::process::Uid;
use tokio::net::UnixStream;
use tokio::time::{Instant, timeout};

use crate::door::{Door, LocalTimes};
use crate::failure::failure;
use crate::frames::{Incoming, Outgoing, Payload, PayloadError};
use crate::leases::Leases;
use crate::limits::MAX_DEADLINE;
use crate::reads::Reader;
use crate::stats::add;
use crate::{operations, record, writes};

/// Tells a client why it is refused, and closes the connection.
pub(crate) async fn refuse(socket: UnixStream, reason: Failure) {
    let (_, sending) = socket.into_split();
    let mut outgoing = Outgoing::new(sending, LocalTimes::default());
    outgoing.put(&Reply::Error(reason));
    // A client that takes nothing does not read it.
    let _ = outgoing.flush().await;
}

pub(crate) fn other_user(uid: Uid) -> Failure {
    let message = format!(
        "this server serves processes of its own user, not of user {}; use its S3 or GCS endpoint",
        uid.as_raw()
    );
    failure(ErrorCode::PermissionDenied, message)
}

pub(crate) fn too_many() -> Failure {
    let message = "the server has as many local connections as it allows; close some, see `bywash local status`";
    failure(ErrorCode::Limit, message)
}

pub(crate) fn no_memory() -> Failure {
    let message = "the server has no memory for another local connection; try again, or raise its memory limit";
    failure(ErrorCode::SlowDown, message)
}

/// Moment at which a request fails.
pub(crate) fn deadline(milliseconds: u32) -> Instant {
    Instant::now() + Duration::from_millis(milliseconds.into()).min(MAX_DEADLINE)
}

/// Serves a connection until its client closes it.
///
/// # Errors
/// The reason for which the server closes it.
pub(crate) async fn serve(
    socket: UnixStream,
    door: &Arc<Door>,
    leases: &Arc<Leases>,
) -> io::Result<()> {
    let (receiving, sending) = socket.into_split();
    let times = door.config.times;
    let mut incoming = Incoming::new(receiving, times);
    let mut outgoing = Outgoing::new(sending, times);
    let greeted = timeout(times.message, greet(&mut incoming, &mut outgoing, door)).await;
    if !greeted.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))? {
        return Ok(());
    }
    let mut reader = Reader::new(door, leases);
    while let Some(head) = incoming.head().await? {
        outgoing.request = head.request;
        if head.kind != Kind::Request {
            return close_with(&mut outgoing, "a frame that is no request").await;
        }
        let payload = match incoming.payload(head, &door.engine).await {
            Ok(payload) => payload,
            Err(PayloadError::Io(error)) => return Err(error),
            Err(PayloadError::NoMemory) => {
                add(&door.counters.failures, 1);
                let message =
                    "no memory for a request of this length; try again, or ask for less at once";
                outgoing.put(&Reply::Error(failure(ErrorCode::SlowDown, message)));
                outgoing.flush().await?;
                continue;
            }
        };
        let Ok(request) = Request::decode(&payload.bytes) else {
            return close_with(&mut outgoing, "a request that cannot be decoded").await;
        };
        if let Request::Release(release) = request {
            leases.release(&release.leases);
            continue;
        }
        add(&door.counters.requests, 1);
        if !carry_out(
            request,
            payload,
            door,
            &mut reader,
            &mut incoming,
            &mut outgoing,
        )
        .await?
        {
            return Ok(());
        }
        outgoing.flush().await?;
    }
    Ok(())
}

/// Executes one request. Returns whether the connection can continue.
async fn carry_out(
    request: Request,
    payload: Payload,
    door: &Arc<Door>,
    reader: &mut Reader,
    incoming: &mut Incoming,
    outgoing: &mut Outgoing,
) -> io::Result<bool> {
    match request {
        Request::Get(get) => {
            let read = reader.get(get, outgoing);
            tokio::select! {
                read = read => read?,
                () = incoming.closed() => return Ok(false),
            }
        }
        Request::Put(_) | Request::Resume(_) => {
            let write = writes::run(door, request, incoming, outgoing);
            return write.await.inspect(|ended| {
                if !ended {
                    add(&door.counters.failures, 1);
                }
            });
        }
        Request::Hello(_) => {
            close_with(outgoing, "a second hello").await?;
            return Ok(false);
        }
        request => {
            let mut record = record::of(door, &request);
            let reply = operations::reply(door, request);
            let reply = tokio::select! {
                reply = reply => reply,
                () = incoming.closed() => return Ok(false),
            };
            if let Some(record) = &mut record {
                match &reply {
                    Ok(_) => record.begin_response(),
                    Err(failure) => record::fail(record, failure),
                }
                record.end();
            }
            let (reply, charge) = reply.unwrap_or_else(|failure| (Reply::Error(failure), None));
            if matches!(reply, Reply::Error(_)) {
                add(&door.counters.failures, 1);
            }
            outgoing.put(&reply);
            // The charge of a page covers its reply until it is sent.
            outgoing.flush().await?;
            drop(charge);
        }
    }
    drop(payload);
    Ok(true)
}

/// Closes a connection whose client does not speak the protocol.
async fn close_with(outgoing: &mut Outgoing, what: &str) -> io::Result<()> {
    let message = format!("the client sent {what}; install the same release of client and server");
    outgoing.put(&Reply::Error(failure(ErrorCode::Protocol, message)));
    outgoing.flush().await?;
    Err(io::Error::new(io::ErrorKind::InvalidData, what.to_owned()))
}

/// Exchanges the first messages. Returns whether the client speaks this version of the protocol.
async fn greet(incoming: &mut Incoming, outgoing: &mut Outgoing, door: &Door) -> io::Result<bool> {
    let Some(head) = incoming.head().await? else {
        return Ok(false);
    };
    outgoing.request = head.request;
    let hello = match incoming.payload(head, &door.engine).await {
        Ok(payload) => Request::decode(&payload.bytes).ok(),
        Err(PayloadError::Io(error)) => return Err(error),
        Err(PayloadError::NoMemory) => None,
    };
    let version = match hello {
        Some(Request::Hello(Hello {
            magic: MAGIC,
            version,
            ..
        })) => version,
        _ => {
            add(&door.counters.rejected, 1);
            close_with(outgoing, "no hello").await?;
            return Ok(false);
        }
    };
    if version != VERSION {
        add(&door.counters.rejected, 1);
        let message = format!(
            "this server (Bywash {}) speaks version {VERSION} of the local protocol and the client version {version}; install the same \
             release of both",
            door.config.program
        );
        outgoing.put(&Reply::Error(failure(ErrorCode::Protocol, message)));
        outgoing.flush().await?;
        return Ok(false);
    }
    let memory = door.engine.shared_memory();
    outgoing.put(&Reply::Welcome(Welcome {
        version: VERSION,
        program: door.config.program.clone(),
        memory: memory.map_or(0, |memory| memory.len),
        s3: door.config.s3.clone(),
        gcs: door.config.gcs.clone(),
        instance: door.instance,
    }));
    match memory {
        Some(memory) => outgoing.flush_with(memory.descriptor).await?,
        None => outgoing.flush().await?,
    }
    Ok(true)
}
