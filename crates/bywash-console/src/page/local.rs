//! The local door on the page.

use maud::{Markup, html};

use super::format::{bytes, count, lasted};
use super::view::View;

/// Renders the local door, if there is one.
pub(super) fn section(view: &View) -> Markup {
    let Some(local) = &view.stats.local else {
        return html! {};
    };
    let oldest = std::time::Duration::from_secs(local.oldest_lease_seconds);
    let rows = [
        ("Connections", count(local.clients as f64)),
        (
            "Leases",
            format!(
                "{}, {}, the oldest for {}",
                count(local.leases as f64),
                bytes(local.leased_bytes as f64),
                lasted(oldest)
            ),
        ),
        ("Read in memory", bytes(local.shared_bytes as f64)),
        ("Copied", bytes(local.copied_bytes as f64)),
        ("Leases refused", count(local.refused as f64)),
        (
            "Requests",
            format!(
                "{}, of which {} failed",
                count(local.requests as f64),
                count(local.failures as f64)
            ),
        ),
    ];
    html! {
        h2 id="local" { "Local clients since the start" }
        div class="card" {
            table aria-labelledby="local" {
                tbody {
                    @for (name, value) in rows {
                        tr { th scope="row" { (name) } td { (value) } }
                    }
                }
            }
        }
    }
}
