//! Figures of a soak.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use bywash_support::cluster::in_short;

use super::clients::{Soak, Times};

/// Result of a soak.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// The first wrong result.
    pub violation: Option<String>,
    /// Operations begun: all, or those until the first wrong result.
    pub ops: u64,
    /// Requests without success.
    pub failed: u64,
    pub took: Duration,
    /// Names and values, in order.
    pub figures: Vec<(&'static str, String)>,
}

fn times(times: &Times) -> String {
    let (count, [median, late, slowest]) = times.figures();
    format!("{count}, median {median:.2?}, 99th percentile {late:.2?}, slowest {slowest:.2?}")
}

fn counts<K: fmt::Display>(counts: &BTreeMap<K, u64>) -> String {
    let counts: Vec<String> = counts
        .iter()
        .map(|(name, n)| format!("{n} {name}"))
        .collect();
    counts.join(", ")
}

impl Report {
    /// Adds the verdict of the checker of linearizability, and whether the history is right.
    pub(super) fn add_verdict(&mut self, (words, is_right): (String, bool)) {
        if !is_right && self.violation.is_none() {
            self.violation = Some(format!("NOT LINEARIZABLE: {words}"));
        }
        self.figures.push(("porcupine", words));
    }

    pub(super) async fn of(soak: &Soak, settled: Option<Duration>) -> Self {
        let mut nodes = Vec::new();
        for node in &soak.cluster.nodes {
            let seen = node.sample().await;
            let left = seen.as_ref().map(|of| of["authority_left_ms"].clone());
            nodes.push(format!(
                "{}, authority {left:?} ms",
                in_short(seen.as_ref())
            ));
        }
        let stats = soak.cluster.stats();
        let facts = soak.record.facts();
        let origin = soak.store.counts();
        let faults = soak.faults.lock().clone();
        let failed = soak.failed.lock().clone();
        let (violation, ops) = match soak.violation.lock().clone() {
            Some((text, ops)) => (Some(text), ops),
            // What no operation expects, such as 400, is not judged by the oracle.
            None if facts.wrong.count > 0 => (Some(facts.wrong.first.join("; ")), soak.plan.ops),
            None => (None, soak.plan.ops),
        };
        let mut figures = vec![
            ("reads", times(&soak.reads)),
            ("writes", times(&soak.writes)),
            ("failed by status", counts(&failed)),
            ("faults", counts(&faults)),
            ("versions of reads from", stats.group("versions")),
            (
                "blocks from peers",
                format!(
                    "{} hits, {} KiB, {} of {} peeks hit",
                    stats.get("peer_hits"),
                    stats.get("peer_bytes") >> 10,
                    stats.get("peek_hits"),
                    stats.get("peeks")
                ),
            ),
            ("fallbacks", stats.group("fallbacks")),
            (
                "writes",
                format!(
                    "{} waited for the window, {} refused",
                    stats.get("writes_waited"),
                    stats.get("writes_refused")
                ),
            ),
            (
                "origin",
                format!(
                    "{} GETs of {} KiB, {} HEADs, {} writes",
                    origin.gets,
                    origin.bytes >> 10,
                    origin.heads,
                    origin.writes
                ),
            ),
        ];
        let internal = soak.internal.lock().clone();
        figures.extend(internal.into_iter().map(|text| ("status 500", text)));
        figures.push(("nodes at the end", nodes.join("; ")));
        if let Some(settled) = settled {
            figures.push(("all shards held after", format!("{settled:.1?}")));
        }
        Self {
            violation,
            ops,
            failed: failed.values().sum(),
            took: soak.begun.elapsed(),
            figures,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} operations in {:.1?}", self.ops, self.took)?;
        for (name, value) in &self.figures {
            writeln!(f, "  {name}: {value}")?;
        }
        match &self.violation {
            Some(text) => write!(f, "WRONG: {text}"),
            None => write!(f, "nothing stale, torn or lost"),
        }
    }
}
