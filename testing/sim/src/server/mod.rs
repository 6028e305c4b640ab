//! HTTP stores on 127.0.0.1 that fail on cue.
//!
//! A [`Protocol`] answers whole or cut-off requests; [`Server`] owns the sockets, draws what goes wrong from a [`FaultPlan`]
//! and keeps a log. The server does to a request what networks and front ends do (cuts, stalls, lost answers, 503); what
//! only the store itself can do wrong is handed to the protocol with the request. Any of these stores also lies: see [`Lie`].

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
pub use request::{Asked, Reply};

use self::lie::Told;
use self::wire::Step;

/// A store's side of its protocol.
pub trait Protocol: Send + Sync + 'static {
    /// Carries out a request. May be called for several connections at once.
    ///
    /// If [`Asked::complete`] is false, the connection broke within the body: what the protocol keeps of such a body it
    /// keeps, and nobody reads the reply.
    fn answer(&self, asked: &Asked) -> Reply;
}

/// One request as the server saw it.
#[derive(Debug, Clone)]
pub struct Logged {
    /// Method, path and query, as sent.
    pub line: String,
    /// Its Content-Range, if any.
    pub content_range: Option<String>,
    /// All headers.
    pub headers: http::HeaderMap,
    /// Bytes of the body that were read before a fault stopped it.
    pub received: u64,
    /// The status it was answered with; `None` if no answer left.
    pub status: Option<u16>,
    /// What went wrong.
    pub fault: Option<ServerFault>,
}

struct Shared {
    protocol: Arc<dyn Protocol>,
    address: SocketAddr,
    plan: Mutex<FaultPlan>,
    log: Mutex<Vec<Logged>>,
    /// Lies told so far; a counter, hence relaxed.
    lies: AtomicU64,
    /// Connections accepted so far; a counter, hence relaxed.
    connections: AtomicU64,
}

/// A running server. Stops, and cuts its connections, when dropped.
pub struct Server {
    shared: Arc<Shared>,
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
    /// Starts on a free port, without faults, on the current runtime.
    ///
    /// # Errors
    /// If no port can be had.
    pub async fn start(protocol: Arc<dyn Protocol>) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let shared = Arc::new(Shared {
            protocol,
            address: listener.local_addr()?,
            plan: Mutex::new(FaultPlan::calm()),
            log: Mutex::new(Vec::new()),
            lies: AtomicU64::new(0),
            connections: AtomicU64::new(0),
        });
        let accept = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { shared, accept })
    }

    /// `http://127.0.0.1:PORT`, without a slash at its end.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.shared.address)
    }

    /// What goes wrong from now on.
    pub fn plan(&self, plan: FaultPlan) {
        *self.shared.plan.lock() = plan;
    }

    /// The next request whose Content-Range, or else method, path and query, contains `what`, meets `fault`. Several for
    /// the same text strike in the order written.
    pub fn script(&self, what: &str, fault: ServerFault) {
        self.shared.plan.lock().script(what, fault);
    }

    /// Takes the log of requests answered (or cut off) so far.
    #[must_use]
    pub fn take_log(&self) -> Vec<Logged> {
        std::mem::take(&mut self.shared.log.lock())
    }

    /// Returns the number of connections accepted so far.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Relaxed)
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    // Dropped with this task, which cuts the connections.
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

async fn serve(connection: TcpStream, shared: Arc<Shared>) {
    // A late small answer would otherwise wait for the client's acknowledgement.
    let _ = connection.set_nodelay(true);
    // What a lie puts in place of a response.
    let steps: Arc<Mutex<Option<Vec<Step>>>> = Arc::default();
    let told = Arc::clone(&steps);
    let service = service_fn(move |request| {
        Box::pin(answer(Arc::clone(&shared), Arc::clone(&told), request))
    });
    let mut http = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(connection), service);
    // An error is a fault of ours, or a client that went away: either way this connection is over.
    let _ = poll_fn(|context| http.poll_without_shutdown(context)).await;
    let steps = steps.lock().take();
    if let Some(steps) = steps {
        wire::perform(http.into_parts().io.into_inner(), steps).await;
    }
}

/// The connection ends without an answer.
#[derive(Debug)]
struct Cut;

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cut on cue")
    }
}

impl std::error::Error for Cut {}

async fn answer(
    shared: Arc<Shared>,
    told: Arc<Mutex<Option<Vec<Step>>>>,
    request: http::Request<Incoming>,
) -> Result<http::Response<Full<Bytes>>, Cut> {
    let (head, body) = request.into_parts();
    let mut asked = Asked::new(head, format!("http://{}", shared.address));
    let fault = shared.plan.lock().draw(&asked);
    asked.fault = fault;
    let cut = fault.and_then(ServerFault::cut);
    let mut body = body;
    let (kept, whole) = read(&mut body, cut.unwrap_or(u64::MAX)).await;
    asked.body = kept;
    asked.complete = whole && cut.is_none();
    if matches!(fault, Some(ServerFault::UnavailableAfter(_))) {
        // An answer on a connection that is closed with bytes unread may never arrive, which is another fault.
        while let Some(Ok(_)) = body.frame().await {}
    }
    let reply = match fault {
        Some(ServerFault::Unavailable) => Reply::status(503),
        Some(ServerFault::UnavailableAfter(_)) => {
            shared.protocol.answer(&asked);
            Reply::status(503)
        }
        _ => shared.protocol.answer(&asked),
    };
    let (reply, steps) = match fault {
        Some(ServerFault::Lie(lie)) => {
            let nth = shared.lies.fetch_add(1, Relaxed);
            match lie.tell(&*shared.protocol, &asked, reply, nth) {
                Told::Reply(reply) => (reply, None),
                Told::Wire(steps) => (Reply::status(200), Some(steps)),
            }
        }
        _ => (reply, None),
    };
    let mut logged = Logged {
        line: asked.line(),
        content_range: asked.header("content-range").map(str::to_owned),
        received: asked.body.len() as u64,
        headers: asked.headers,
        status: None,
        fault,
    };
    let (silent, cut) = match fault {
        Some(ServerFault::StallAfter(_) | ServerFault::StallAnswer) => (true, false),
        Some(ServerFault::ResetAfter(_) | ServerFault::AnswerLost) => (false, true),
        _ => (false, steps.is_some()),
    };
    *told.lock() = steps;
    if !silent && !cut {
        logged.status = Some(reply.status.as_u16());
    }
    shared.log.lock().push(logged);
    if silent {
        // Until the client gives up, or the server stops.
        std::future::pending::<Infallible>().await;
    }
    if cut {
        return Err(Cut);
    }
    // The answer to a HEAD has no body that could be spoilt.
    let garbled = fault == Some(ServerFault::BadBody) && asked.method != http::Method::HEAD;
    Ok(reply.response(garbled))
}

/// Reads a body until `most` bytes of it came; the rest stays unread. Whether it came whole.
async fn read(body: &mut Incoming, most: u64) -> (Bytes, bool) {
    let mut kept = BytesMut::new();
    while (kept.len() as u64) < most {
        match body.frame().await {
            None => return (kept.freeze(), true),
            Some(Err(_)) => return (kept.freeze(), false),
            Some(Ok(frame)) => {
                let Some(data) = frame.data_ref() else {
                    continue;
                };
                let room = usize::try_from(most).unwrap_or(usize::MAX) - kept.len();
                kept.extend_from_slice(&data[..data.len().min(room)]);
            }
        }
    }
    (kept.freeze(), false)
}

#[cfg(test)]
mod tests;
