//! A TCP relay that holds what the server sends once so many bytes went through.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

/// A relay to a server; its threads end with their connections.
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
    /// A relay to `server` (`http://host:port`), open.
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

    /// Lets so many bytes of answers through from now on.
    pub(crate) fn let_through(&self, limit: u64) {
        let (state, changed) = &*self.state;
        *state.lock().unwrap() = State { passed: 0, limit };
        changed.notify_all();
    }

    /// Bytes of answers that went through since.
    pub(crate) fn passed(&self) -> u64 {
        self.state.0.lock().unwrap().passed
    }

    /// Waits until as many went through as may.
    pub(crate) fn wait_until_shut(&self) {
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
    // Either side may be gone already.
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

/// How many bytes may go through; waits while it is none.
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
