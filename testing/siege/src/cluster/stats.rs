//! Sums of the counters of nodes.

use std::collections::BTreeMap;

use serde_json::Value;

/// Counters below `cluster` that are summed. Those in groups are named `group.name`.
const COUNTED: [&str; 10] = [
    "versions",
    "peer_hits",
    "peer_bytes",
    "peeks",
    "peek_hits",
    "fallbacks",
    "served",
    "served_bytes",
    "writes_waited",
    "writes_refused",
];

/// Sums of counters by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Stats(BTreeMap<String, u64>);

impl Stats {
    /// Returns the counters of the `cluster` object of `/stats`.
    #[must_use]
    pub(crate) fn of(cluster: &Value) -> Self {
        let mut found = BTreeMap::new();
        for name in COUNTED {
            match &cluster[name] {
                Value::Object(group) => {
                    for (inner, value) in group {
                        let value = value.as_u64().unwrap_or(0);
                        found.insert(format!("{name}.{inner}"), value);
                    }
                }
                value => {
                    if let Some(value) = value.as_u64() {
                        found.insert(name.to_owned(), value);
                    }
                }
            }
        }
        Self(found)
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (name, value) in &other.0 {
            *self.0.entry(name.clone()).or_default() += value;
        }
    }

    #[must_use]
    pub(crate) fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// Returns the members of a group as `name count`, separated by commas.
    #[must_use]
    pub(crate) fn group(&self, name: &str) -> String {
        let members = self.0.iter().filter_map(|(full, value)| {
            let inner = full.strip_prefix(name)?.strip_prefix('.')?;
            Some(format!("{inner} {value}"))
        });
        members.collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(state: &str, shards: u64) -> Option<Value> {
        Some(json!({
            "state": state, "shards": shards, "shards_total": 10, "members": [{}, {}], "peer_hits": 3,
            "versions": {"lease": 1, "origin": 4}, "fallbacks": {}
        }))
    }

    #[test]
    fn counters_are_summed_by_name() {
        let mut sum = Stats::default();
        for _ in 0..2 {
            sum.add(&Stats::of(&node("up", 1).unwrap_or_default()));
        }
        assert_eq!((sum.get("peer_hits"), sum.get("versions.origin")), (6, 8));
        assert_eq!(sum.get("shards"), 0, "the present number is no counter");
        assert_eq!(sum.group("versions"), "lease 2, origin 8");
    }
}
