//! What a proof said in its line `TRUST {..}`.

use std::collections::BTreeMap;

use serde_json::Value;

/// A class of faults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Class {
    /// Seeds in which a fault of the class happened.
    pub(super) seeds: u64,
    pub(super) hits: u64,
}

/// Sums of a proof over the seeds that it played.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Report {
    /// After the last seed.
    pub(super) end: u64,
    pub(super) seeds: u64,
    pub(super) operations: u64,
    pub(super) faults: BTreeMap<String, Class>,
    /// Pairs of classes that were active in one seed, and all pairs.
    pub(super) pairs: (u64, u64),
    pub(super) failed: Vec<u64>,
}

impl Report {
    /// Parses a line of a proof; `None` for any other line.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(line.strip_prefix("TRUST ")?).ok()?;
        let number = |name: &str| value[name].as_u64();
        let faults = value["faults"].as_object()?.iter();
        let faults = faults.map(|(name, class)| {
            let class = Class {
                seeds: class["seeds"].as_u64()?,
                hits: class["hits"].as_u64()?,
            };
            Some((name.clone(), class))
        });
        let failed = value["failed"].as_array()?.iter().map(Value::as_u64);
        Some(Self {
            end: number("end")?,
            seeds: number("seeds")?,
            operations: number("operations")?,
            faults: faults.collect::<Option<_>>()?,
            pairs: (number("pairs")?, number("all_pairs")?),
            failed: failed.collect::<Option<_>>()?,
        })
    }

    /// Returns the part of the seeds in which the class was active, in percent.
    pub(super) fn share(&self, class: &Class) -> f64 {
        100.0 * class.seeds as f64 / self.seeds.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_of_a_proof_is_read() {
        let line = r#"TRUST {"proof":"a","first":7,"end":10,"seeds":4,"operations":30,"faults":{"cut":{"seeds":1,"hits":3}},"pairs":0,"all_pairs":0,"failed":[8]}"#;
        let report = Report::parse(line).unwrap();
        assert_eq!((report.end, report.seeds, report.operations), (10, 4, 30));
        assert_eq!(
            (report.failed.as_slice(), report.pairs),
            ([8].as_slice(), (0, 0))
        );
        let cut = &report.faults["cut"];
        assert_eq!((cut.hits, report.share(cut)), (3, 25.0));
    }

    #[test]
    fn other_lines_are_none() {
        for line in ["test a ... ok", "TRUST", "TRUST {}", "TRUST {\"end\":1}"] {
            assert_eq!(Report::parse(line), None, "{line}");
        }
    }
}
