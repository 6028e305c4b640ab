//! The progress bar of a transfer, and its interruption.

use std::future::Future;
use std::io::IsTerminal;

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use tokio::signal::unix::{SignalKind, signal};

use crate::failure::Failure;
use crate::output::Output;
use crate::plain::plain;

/// A bar with rate and time left on standard error if that is a terminal; else one that shows
/// nothing. `bytes` is the total, when known.
pub(crate) fn bar(bytes: Option<u64>, name: String, output: Output) -> ProgressBar {
    if output.json || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let (bar, template) = match bytes {
        Some(bytes) => (
            ProgressBar::new(bytes),
            "{msg} [{bar:30}] {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}, {eta} left",
        ),
        None => (
            ProgressBar::new_spinner(),
            "{msg} {spinner} {binary_bytes} {binary_bytes_per_sec}",
        ),
    };
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.with_style(style)
        .with_message(plain(&name).into_owned())
}

/// The bar of an upload that is gone on with: what was there already is told apart, and not in the rate.
pub(crate) fn resumed_bar(
    bytes: Option<u64>,
    resumed_bytes: u64,
    name: &str,
    output: Output,
) -> ProgressBar {
    let name = format!("{name} ({} were there)", HumanBytes(resumed_bytes));
    let bar = bar(bytes, name, output);
    bar.set_position(resumed_bytes);
    bar.reset_eta();
    bar
}

/// Runs `work` until it ends, or until SIGINT or SIGTERM drops it.
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
