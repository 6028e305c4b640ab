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
                let shared = Arc::clone(&shared);
                thread::spawn(move || relay(from_client, to_server.unwrap(), None));
                thread::spawn(move || relay(from_server, to_client.unwrap(), Some(&shared)));
            }
        });
        Self { url, state }
    }

    /// Sets the max bytes of responses passed from now on.
    pub(crate) fn set_limit(&self, limit: u64) {
        let (state, changed) = &*self.state;
        *state.lock().unwrap() = State { passed: 0, limit };
        changed.notify_all();
    }

    /// Returns the bytes of responses passed since the limit was set.
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

fn relay(mut from: TcpStream, mut to: TcpStream, gate: Option<&(Mutex<State>, Condvar)>) {
    let mut buffer = vec![0; 64 << 10];
    'relay: loop {
        let read = match from.read(&mut buffer) {
            Ok(0) | Err(_) => break 'relay,
            Ok(read) => read,
        };
        let mut sent = 0;
        while sent < read {
            let next = match gate {
                Some(gate) => take(gate, read - sent),
                None => read - sent,
            };
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

/// Returns how many of `wanted` bytes may pass. Waits while none may.
fn take((state, changed): &(Mutex<State>, Condvar), wanted: usize) -> usize {
    let state = state.lock().unwrap();
    let mut state = changed
        .wait_while(state, |state| state.passed >= state.limit)
        .unwrap();
    let next = wanted.min(usize::try_from(state.limit - state.passed).unwrap_or(usize::MAX));
    state.passed += next as u64;
    changed.notify_all();
    next
}
