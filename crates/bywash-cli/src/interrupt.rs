//! Ctrl-C: SIGINT or SIGTERM ends a verb. The server's own handling is in `serve.rs`.

use std::future::Future;

use tokio::signal::unix::{SignalKind, signal};

use crate::failure::Failure;

/// Runs `work` to its end, or drops it on SIGINT or SIGTERM.
pub(crate) async fn or_interrupt<T>(
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let listen = |kind| {
        signal(kind).map_err(|error| Failure::failed(format!("cannot listen for signals: {error}")))
    };
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    tokio::select! {
        outcome = work => outcome,
        _ = interrupt.recv() => Err(Failure::interrupted()),
        _ = terminate.recv() => Err(Failure::interrupted()),
    }
}
