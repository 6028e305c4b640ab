//! The disk tier on the page.

use bywash::DiskStats;
use maud::{Markup, html};

use super::format::{bytes, count, lasted};
use super::view::View;

/// Renders the disk tier, if there is one.
pub(super) fn section(view: &View) -> Markup {
    let Some(disk) = &view.stats.disk else {
        return html! {};
    };
    let declined = disk.queue_full
        + disk.index_full
        + disk.declined_large
        + disk.declined_state
        + disk.declined_segments
        + disk.declined_rate
        + disk.declined_new;
    let given_up = disk.mismatches + disk.failed_reads + disk.slow_reads;
    let rows = [
        ("State", state(disk)),
        (
            "Blocks",
            format!(
                "{} of {} objects",
                count(disk.blocks as f64),
                count(disk.versions as f64)
            ),
        ),
        ("Limit", bytes(disk.size as f64)),
        (
            "Read",
            format!(
                "{} blocks, {}",
                count(disk.hits as f64),
                bytes(disk.hit_bytes as f64)
            ),
        ),
        ("Reads left to the origin", count(given_up as f64)),
        (
            "Written",
            format!(
                "{} blocks, {}",
                count(disk.written_blocks as f64),
                bytes(disk.written_bytes as f64)
            ),
        ),
        ("Waiting to be written", count(disk.queued_blocks as f64)),
        ("Not written", count(declined as f64)),
    ];
    html! {
        h2 id="disk" { "Disk tier since the start" }
        div class="card" {
            table aria-labelledby="disk" {
                tbody {
                    @for (name, value) in rows {
                        tr { th scope="row" { (name) } td { (value) } }
                    }
                }
            }
        }
    }
}

fn state(disk: &DiskStats) -> String {
    let duration = std::time::Duration::from_secs(disk.state_seconds);
    format!("{} for {}", disk.state, lasted(duration))
}

/// Returns why the disk tier makes the server degraded, if it does.
pub(super) fn reason(disk: &DiskStats) -> Option<String> {
    let what = match disk.state.as_str() {
        "on" => return None,
        "off" => "is off, so reads go to the origins",
        _ => "is read-only, so blocks read from origins are not kept on it",
    };
    let error = disk.last_error.as_deref().unwrap_or("the disk failed");
    Some(format!(
        "the disk tier {what}: {error}; it tries again by itself"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failing_tier_is_a_reason_with_its_error() {
        let of = |state: &str| {
            reason(&DiskStats {
                state: state.to_owned(),
                last_error: Some("no space left".to_owned()),
                ..DiskStats::default()
            })
        };
        assert_eq!(of("on"), None);
        for state in ["off", "read-only"] {
            let reason = of(state).unwrap_or_default();
            assert!(
                reason.contains(state) && reason.contains("no space left"),
                "{reason}"
            );
        }
    }
}
