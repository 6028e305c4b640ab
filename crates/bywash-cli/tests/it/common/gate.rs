//! A TCP relay that passes a limited number of bytes from the server to its clients, and holds the rest.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

/// A relay to a server. Its threads end with their connections.
#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) url: String,
    state: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Debug)]
struct State {
    passed: u64,
    limit: u64,
    /// Responses that wait now.
    held: u64,
    /// Begin of the request from which on no response passes.
    hold_from: Option<&'static str>,
}

impl Gate {
    /// Starts a relay to `server` (`http://host:port`) without a limit.
    pub(crate) fn before(server: &str) -> Self {
        let server: SocketAddr = server.strip_prefix("http://").unwrap().parse().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = State {
            passed: 0,
            limit: u64::MAX,
            held: 0,
            hold_from: None,
        };
        let state = Arc::new((Mutex::new(state), Condvar::new()));
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(server)) else {
                    return;
                };
                let (to_server, from_server) = (server.try_clone(), server);
                let (to_client, from_client) = (client.try_clone(), client);
                let (requests, responses) = (Arc::clone(&shared), Arc::clone(&shared));
                thread::spawn(move || {
                    relay(from_client, to_server.unwrap(), |bytes| {
                        watch(&requests, bytes)
                    });
                });
                thread::spawn(move || {
                    relay(from_server, to_client.unwrap(), |bytes| {
                        take(&responses, bytes.len())
                    });
                });
            }
        });
        Self { url, state }
    }

    /// Sets the max bytes of responses passed from now on.
    pub(crate) fn set_limit(&self, limit: u64) {
        let (state, changed) = &*self.state;
        let mut state = state.lock().unwrap();
        (state.passed, state.limit) = (0, limit);
        changed.notify_all();
    }

    /// Holds all responses from the next request on that begins with this text.
    pub(crate) fn hold_from(&self, request: &'static str) {
        self.state.0.lock().unwrap().hold_from = Some(request);
    }

    /// Waits until a response is held.
    pub(crate) fn wait_for_held(&self) {
        let (state, changed) = &*self.state;
        let state = state.lock().unwrap();
        drop(changed.wait_while(state, |state| state.held == 0).unwrap());
    }

    /// The bytes of responses passed since the limit was set.
    pub(crate) fn passed(&self) -> u64 {
        self.state.0.lock().unwrap().passed
    }

    /// Waits until the limit is reached.
    pub(crate) fn wait_for_limit(&self) {
        let (state, changed) = &*self.state;
        let state = state.lock().unwrap();
        drop(
            changed
                .wait_while(state, |state| state.passed < state.limit)
                .unwrap(),
        );
    }
}

/// Passes bytes on; `pass` returns how many of those at hand may pass now.
fn relay(mut from: TcpStream, mut to: TcpStream, pass: impl Fn(&[u8]) -> usize) {
    let mut buffer = vec![0; 64 << 10];
    'relay: loop {
        let read = match from.read(&mut buffer) {
            Ok(0) | Err(_) => break 'relay,
            Ok(read) => read,
        };
        let mut sent = 0;
        while sent < read {
            let next = pass(&buffer[sent..read]);
            if to.write_all(&buffer[sent..sent + next]).is_err() {
                break 'relay;
            }
            sent += next;
        }
    }
    // Either side may have closed already.
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

/// Passes bytes of requests, and notices the one from which on responses are held.
fn watch((state, _): &(Mutex<State>, Condvar), bytes: &[u8]) -> usize {
    let mut state = state.lock().unwrap();
    if let Some(request) = state.hold_from
        && bytes.starts_with(request.as_bytes())
    {
        (state.passed, state.limit, state.hold_from) = (0, 0, None);
    }
    bytes.len()
}

/// Returns how many of `wanted` bytes of a response may pass. Waits while none may.
fn take((state, changed): &(Mutex<State>, Condvar), wanted: usize) -> usize {
    let mut state = state.lock().unwrap();
    if state.passed >= state.limit {
        state.held += 1;
        changed.notify_all();
        state = changed
            .wait_while(state, |state| state.passed >= state.limit)
            .unwrap();
        state.held -= 1;
    }
    let next = wanted.min(usize::try_from(state.limit - state.passed).unwrap_or(usize::MAX));
    state.passed += next as u64;
    changed.notify_all();
    next
}
