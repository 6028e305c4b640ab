//! Negative controls of the soak: a rule of the protocol that is left out gives a wrong result within a stated number of operations.
//!
//! They need a build of the program with the feature `rules-left-out`. In each scenario the complete rules must pass first.

use std::path::PathBuf;
use std::time::Duration;

use super::{Faults, Judging, Plan, Report, run};
use crate::CaseError;

/// A rule, by its name in the build's environment variable, and the operations within which its absence is found.
#[derive(Debug, Clone, Copy)]
pub struct Control {
    pub rule: &'static str,
    pub faults: Faults,
    pub max_ops: u64,
    /// Window of the bucket, in milliseconds.
    window: u64,
    /// Changes behind the cluster's back, and PUTs, in per mille.
    behind: u32,
    puts: u32,
    keys: u64,
    /// Operations a second.
    rate: u64,
}

const fn control(rule: &'static str, faults: Faults, max_ops: u64) -> Control {
    Control {
        rule,
        faults,
        max_ops,
        window: 1_000,
        behind: 0,
        puts: 220,
        keys: 12,
        rate: 600,
    }
}

/// Rules whose absence processes show.
pub const CONTROLS: [Control; 9] = [
    // A write without its end leaves its mark for 20 s, by which the key is asked for at the origin: so writes are few.
    Control {
        puts: 5,
        keys: 60,
        ..control("end", Faults::SilentHolders, 40_000)
    },
    control("wait-out", Faults::SilentHolders, 2_000),
    // A write ends all leases: one lasts to its end only where writes are few.
    Control {
        behind: 20,
        puts: 5,
        ..control("lease-age", Faults::None, 10_000)
    },
    // A key that is always being written is asked for at the origin.
    Control {
        puts: 20,
        ..control("write-since", Faults::SlowOrigin, 10_000)
    },
    Control {
        window: 300,
        puts: 100,
        keys: 3,
        ..control("join-unsent", Faults::NoAuthority, 2_000)
    },
    control("lease-dropped", Faults::SlowHolders, 5_000),
    control("drain", Faults::Restarts, 40_000),
    control("claim-delay", Faults::Revoked, 5_000),
    Control {
        window: 2_000,
        ..control("own-deadline", Faults::Islands, 20_000)
    },
];

impl Control {
    fn plan(&self, binary: PathBuf, etcd: Option<PathBuf>, seed: u64) -> Plan {
        Plan {
            ops: self.max_ops,
            rate: self.rate,
            keys: self.keys,
            window: Duration::from_millis(self.window),
            faults: self.faults,
            behind: self.behind,
            puts: self.puts,
            ..Plan::new(binary, etcd, seed)
        }
    }
}

/// Result of a control: what was found without the rule, and with it.
#[derive(Debug)]
pub struct ControlResult {
    pub control: Control,
    pub without: Report,
    /// `None` if it was not run.
    pub with: Option<Report>,
}

impl ControlResult {
    #[must_use]
    pub fn is_right(&self) -> bool {
        let passes = |report: &Report| report.violation.is_none();
        self.without.violation.is_some() && self.with.as_ref().is_none_or(passes)
    }
}

/// Nodes that do not know each other: as soon as one writes, reads through the others are stale. One alone is right. Needs no build of
/// its own.
///
/// # Errors
/// If a process does not start.
pub async fn strangers(binary: PathBuf, nodes: usize, seed: u64) -> Result<Report, CaseError> {
    run(&strangers_plan(binary, nodes, seed)).await
}

fn strangers_plan(binary: PathBuf, nodes: usize, seed: u64) -> Plan {
    Plan {
        ops: 2_000,
        nodes,
        faults: Faults::None,
        ..Plan::new(binary, None, seed)
    }
}

/// Nodes that do not know each other, judged by the checker of linearizability alone: three nodes are wrong, one node is strictly
/// linearizable.
///
/// # Errors
/// If a process does not start, or the checker gives no verdict.
pub async fn checked_strangers(
    binary: PathBuf,
    nodes: usize,
    seed: u64,
    checker: PathBuf,
) -> Result<Report, CaseError> {
    let plan = Plan {
        behind: 0,
        ..strangers_plan(binary, nodes, seed)
    };
    let judging = Judging {
        is_strict: nodes == 1,
        ..plan.judging_by(checker)
    };
    run(&Plan {
        judging: Some(judging),
        ..plan
    })
    .await
}

/// Leaves a rule out. Then runs the same scenario with all rules for as many operations as it took, at least `least`, so that the
/// scenario alone is not what is found.
///
/// # Errors
/// If a process does not start, or ends by itself.
pub async fn run_control(
    control: Control,
    binary: PathBuf,
    etcd: Option<PathBuf>,
    (seed, least): (u64, u64),
) -> Result<ControlResult, CaseError> {
    let plan = control.plan(binary, etcd, seed);
    let left_out = Plan {
        leave_out: Some(control.rule.to_owned()),
        ..plan.clone()
    };
    let without = run(&left_out).await?;
    let with = match least {
        0 => None,
        least => {
            let ops = without.ops.max(least).min(control.max_ops);
            Some(run(&Plan { ops, ..plan }).await?)
        }
    };
    Ok(ControlResult {
        control,
        without,
        with,
    })
}
