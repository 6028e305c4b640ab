//! HTTP stores on 127.0.0.1 with injected faults.
//!
//! A [`Protocol`] responds to complete and truncated requests. [`Server`] owns the sockets, draws faults from a [`FaultPlan`]
//! and keeps a log. The server injects the faults of networks and front ends (cuts, stalls, lost responses, 503); it passes
//! those of the store itself to the protocol with the request. It can also falsify responses: see [`Lie`].

pub mod azure;
mod fault;
pub mod gcs;
mod lie;
pub mod objects;
mod request;
pub mod s3;
pub mod web;
mod wire;

use std::convert::Infallible;
use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

pub use fault::{FaultPlan, ServerFault, ServerFaultKind};
pub use lie::Lie;
pub use request::{HttpRequest, HttpResponse};

use self::lie::LieEffect;
use self::wire::WireStep;

/// Server side of a store's protocol.
pub trait Protocol: Send + Sync + 'static {
    /// Executes a request and returns the response. Concurrent calls are for different connections.
    ///
    /// If [`HttpRequest::complete`] is false, the connection broke within the body: the protocol stores what it stores of such a
    /// body, and the response is dropped.
    fn respond(&self, request: &HttpRequest) -> HttpResponse;
}

/// Log entry of one request.
#[derive(Debug, Clone)]
pub struct LoggedRequest {
    /// Method, path and query, as sent.
    pub line: String,
    /// Content-Range of the request, if any.
    pub content_range: Option<String>,
    /// Whose credentials signed it by its query, as `KEY/DATE/REGION/s3/aws4_request`.
    pub signed_by: Option<String>,
    /// All headers of the request.
    pub headers: http::HeaderMap,
    /// Bytes of the body that the server read.
    pub received: u64,
    /// Status of the response; `None` if none was sent.
    pub status: Option<u16>,
    /// Fault of the request.
    pub fault: Option<ServerFault>,
}

struct ServerShared {
    protocol: Arc<dyn Protocol>,
    address: SocketAddr,
    plan: Mutex<FaultPlan>,
    log: Mutex<Vec<LoggedRequest>>,
    /// Number of false responses so far; a plain counter, hence relaxed.
    lies: AtomicU64,
    /// Connections accepted so far; a plain counter, hence relaxed.
    connections: AtomicU64,
}

/// A running server. Dropping it closes its port and connections.
pub struct Server {
    shared: Arc<ServerShared>,
    accept: JoinHandle<()>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({})", self.shared.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accept.abort();
    }
}

impl Server {
    /// Starts a server without faults on a free port, on the current runtime.
    ///
    /// # Errors
    /// If no port can be bound.
    pub async fn start(protocol: Arc<dyn Protocol>) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let shared = Arc::new(ServerShared {
            protocol,
            address: listener.local_addr()?,
            plan: Mutex::new(FaultPlan::none()),
            log: Mutex::new(Vec::new()),
            lies: AtomicU64::new(0),
            connections: AtomicU64::new(0),
        });
        let accept = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { shared, accept })
    }

    /// Returns `http://127.0.0.1:PORT`, without a trailing slash.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.shared.address)
    }

    /// Sets the faults of future requests.
    pub fn set_fault_plan(&self, plan: FaultPlan) {
        *self.shared.plan.lock() = plan;
    }

    /// Injects `fault` into the next request whose Content-Range, or whose method, path and query, contains `text`. Faults of
    /// the same text apply in the order of the calls.
    pub fn script(&self, text: &str, fault: ServerFault) {
        self.shared.plan.lock().script(text, fault);
    }

    /// Takes the log of the requests so far.
    #[must_use]
    pub fn take_log(&self) -> Vec<LoggedRequest> {
        std::mem::take(&mut self.shared.log.lock())
    }

    /// Returns the number of connections accepted so far.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Relaxed)
    }
}

async fn accept(listener: TcpListener, shared: Arc<ServerShared>) {
    // Dropped with this task, which closes the connections.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Ok((connection, _)) = listener.accept() => {
                shared.connections.fetch_add(1, Relaxed);
                connections.spawn(serve(connection, Arc::clone(&shared)));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(connection: TcpStream, shared: Arc<ServerShared>) {
    // Nagle's algorithm would delay a small response until the client's acknowledgement.
    let _ = connection.set_nodelay(true);
    // Bytes that a lie sends in place of a response.
    let steps: Arc<Mutex<Option<Vec<WireStep>>>> = Arc::default();
    let raw_steps = Arc::clone(&steps);
    let service = service_fn(move |request| {
        Box::pin(respond(
            Arc::clone(&shared),
            Arc::clone(&raw_steps),
            request,
        ))
    });
    let mut http = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(connection), service);
    // After an injected fault or a disconnect of the client, the connection is over.
    let _ = poll_fn(|context| http.poll_without_shutdown(context)).await;
    let steps = steps.lock().take();
    if let Some(steps) = steps {
        wire::perform(http.into_parts().io.into_inner(), steps).await;
    }
}

/// Closes the connection without a response.
#[derive(Debug)]
struct Cut;

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("connection closed by an injected fault")
    }
}

impl std::error::Error for Cut {}

async fn respond(
    shared: Arc<ServerShared>,
    raw_steps: Arc<Mutex<Option<Vec<WireStep>>>>,
    incoming: http::Request<Incoming>,
) -> Result<http::Response<Full<Bytes>>, Cut> {
    let (head, body) = incoming.into_parts();
    let mut request = HttpRequest::new(head, format!("http://{}", shared.address));
    let fault = shared.plan.lock().draw(&request);
    request.fault = fault;
    let cut = fault.and_then(ServerFault::cut);
    let mut body = body;
    let (received, complete) = read(&mut body, cut.unwrap_or(u64::MAX)).await;
    request.body = received;
    request.complete = complete && cut.is_none();
    if matches!(fault, Some(ServerFault::UnavailableAfter(_))) {
        // A response may not arrive if the connection closes with unread bytes, which would be another fault.
        while let Some(Ok(_)) = body.frame().await {}
    }
    let response = match fault {
        // The response to a reset is dropped.
        Some(ServerFault::Unavailable | ServerFault::Reset) => HttpResponse::status(503),
        Some(ServerFault::Refuse(status)) => HttpResponse::status(status),
        Some(ServerFault::UnavailableAfter(_)) => {
            shared.protocol.respond(&request);
            HttpResponse::status(503)
        }
        _ => shared.protocol.respond(&request),
    };
    let (response, steps) = match fault {
        Some(ServerFault::Lie(lie)) => {
            let number = shared.lies.fetch_add(1, Relaxed);
            match lie.apply(&*shared.protocol, &request, response, number) {
                LieEffect::Response(response) => (response, None),
                LieEffect::Wire(steps) => (HttpResponse::status(200), Some(steps)),
            }
        }
        _ => (response, None),
    };
    let mut logged = LoggedRequest {
        line: request.line(),
        content_range: request.header("content-range").map(str::to_owned),
        received: request.body.len() as u64,
        signed_by: request.query("X-Amz-Credential").map(str::to_owned),
        headers: request.headers,
        status: None,
        fault,
    };
    let (silent, cut) = match fault {
        Some(ServerFault::StallAfter(_) | ServerFault::StallResponse) => (true, false),
        Some(ServerFault::Reset | ServerFault::ResetAfter(_) | ServerFault::LoseResponse) => {
            (false, true)
        }
        _ => (false, steps.is_some()),
    };
    *raw_steps.lock() = steps;
    if !silent && !cut {
        logged.status = Some(response.status.as_u16());
    }
    shared.log.lock().push(logged);
    if silent {
        // Until the client cancels or the server stops.
        std::future::pending::<Infallible>().await;
    }
    if cut {
        return Err(Cut);
    }
    // The response to a HEAD has no body to corrupt.
    let corrupt = fault == Some(ServerFault::BadBody) && request.method != http::Method::HEAD;
    Ok(response.into_hyper(corrupt))
}

/// Reads at most `max` bytes of a body. Returns them, and whether they are the whole body.
async fn read(body: &mut Incoming, max: u64) -> (Bytes, bool) {
    let mut received = BytesMut::new();
    while (received.len() as u64) < max {
        match body.frame().await {
            None => return (received.freeze(), true),
            Some(Err(_)) => return (received.freeze(), false),
            Some(Ok(frame)) => {
                let Some(data) = frame.data_ref() else {
                    continue;
                };
                let room = usize::try_from(max).unwrap_or(usize::MAX) - received.len();
                received.extend_from_slice(&data[..data.len().min(room)]);
            }
        }
    }
    (received.freeze(), false)
}

#[cfg(test)]
mod tests;
