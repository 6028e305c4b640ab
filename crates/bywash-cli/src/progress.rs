//! Progress bars of transfers.

use std::io::IsTerminal;

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};

use crate::escape::plain;
use crate::output::Output;

/// A bar with rate and remaining time on standard error if that is a terminal, otherwise a hidden
/// one. `bytes` is the total, if known.
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

/// The bar of a resumed upload: bytes stored before are shown, but not in the rate.
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
