//! The seeded proofs: where each is, and which part of the time it gets.

/// Where the tests of a package are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    /// Beside the code.
    Lib,
    /// In `tests/it`.
    It,
}

/// A test that plays seeds and reports by `bywash_support::proof`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Proof {
    /// Its name in reports and in `testing/seeds.toml`.
    pub(super) name: &'static str,
    pub(super) package: &'static str,
    pub(super) target: Target,
    /// Full name of the test.
    pub(super) test: &'static str,
    /// What is drawn, and what is judged.
    pub(super) shows: &'static str,
    /// Share of the time, beside those of the others.
    pub(super) weight: f64,
    /// Whether it uses all processors.
    pub(super) is_wide: bool,
    /// Kills of a seed, where that is less than in the gate.
    pub(super) kills: Option<u64>,
}

const fn proof(
    name: &'static str,
    (package, target, test): (&'static str, Target, &'static str),
    shows: &'static str,
) -> Proof {
    Proof {
        name,
        package,
        target,
        test,
        shows,
        weight: 1.0,
        is_wide: false,
        kills: None,
    }
}

impl Proof {
    const fn wide(mut self) -> Self {
        self.is_wide = true;
        self
    }

    const fn kills(mut self, kills: u64) -> Self {
        self.kills = Some(kills);
        self
    }

    const fn weight(mut self, weight: f64) -> Self {
        self.weight = weight;
        self
    }
}

/// All seeded proofs, from the core up.
pub(super) const PROOFS: [Proof; 22] = [
    proof(
        "mem-stress",
        ("bywash-mem", Target::Lib, "stress::runs::seeds_in_turn"),
        "all operations of a pool on eight threads; each byte",
    )
    .wide(),
    proof(
        "disk-crashes",
        (
            "bywash-disk",
            Target::Lib,
            "tier::tests::crashes::kill_at_any_step_loses_at_most_what_was_being_written",
        ),
        "a disk tier with torn writes; found blocks, their bytes, erasures",
    ),
    proof(
        "disk-errors",
        (
            "bywash-disk",
            Target::Lib,
            "tier::tests::crashes::failure_of_any_call_costs_no_read_and_ends_with_the_failure",
        ),
        "a disk tier whose calls fail; no read fails, it recovers",
    ),
    proof(
        "disk-full",
        (
            "bywash-disk",
            Target::Lib,
            "tier::tests::crashes::other_tenant_filling_the_disk_stops_writes_only",
        ),
        "a disk that others fill; reads go on",
    )
    .weight(0.5),
    proof(
        "disk-kills",
        (
            "bywash-disk",
            Target::It,
            "kills::killed_processes_leave_right_bytes_and_stay_within_the_size",
        ),
        "processes with a disk tier, killed; bytes, size, warmth",
    )
    .kills(4),
    proof(
        "engine-reads",
        ("bywash", Target::It, "simulation::seeded_runs"),
        "reads, downloads, leases, writes over an origin with faults; each response by an oracle",
    )
    .wide()
    .weight(3.0),
    proof(
        "engine-calm",
        ("bywash", Target::It, "simulation::calm_runs"),
        "the same without faults; no error is excused, no block is sent twice",
    )
    .wide()
    .weight(0.3),
    proof(
        "engine-disk",
        (
            "bywash",
            Target::It,
            "simulation::disk::seeded_runs_over_a_bad_disk",
        ),
        "reads over a bad disk, with kills; each response by an oracle",
    )
    .wide(),
    proof(
        "uploads",
        (
            "bywash",
            Target::It,
            "upload_servers::seeded::seeded_uploads",
        ),
        "uploads to a GCS server with faults; the object or the right error",
    )
    .wide(),
    proof(
        "uploads-in-parts",
        (
            "bywash",
            Target::It,
            "upload_servers::seeded::seeded_uploads_in_parts",
        ),
        "uploads to S3 servers with faults; the object or the right error",
    )
    .wide(),
    proof(
        "folder-kills",
        (
            "bywash",
            Target::It,
            "folder_kills::killed_writers_of_a_folder_lose_no_acknowledged_operation",
        ),
        "processes that write a folder, killed; the acknowledged objects, whole",
    ),
    proof(
        "cluster-rules",
        (
            "bywash-cluster",
            Target::Lib,
            "simulation::no_read_is_stale_or_older_than_the_window",
        ),
        "three nodes, etcd, a network and an origin with faults; no stale read",
    )
    .wide(),
    proof(
        "cluster-uploads",
        (
            "bywash-gateway",
            Target::It,
            "cluster_uploads::exactly_once::at_most_one_list_of_parts_ever_succeeds",
        ),
        "completions of different lists at two nodes; at most one succeeds",
    ),
    proof(
        "series-log",
        (
            "bywash-series",
            Target::Lib,
            "db::tests::model::database_matches_a_sorted_map_under_random_operations",
        ),
        "a database with restarts and torn logs; a sorted map",
    ),
    proof(
        "series-files",
        (
            "bywash-series",
            Target::Lib,
            "manifest::tests::model::files_match_a_sorted_map_under_failures_compaction_and_retention",
        ),
        "data files over a store with faults; a sorted map",
    ),
    proof(
        "series-takeover",
        (
            "bywash-series",
            Target::Lib,
            "db::tests::machines::rows_of_several_machines_match_a_map_under_takeovers_and_failures",
        ),
        "three machines that take a store over; a map",
    ),
    proof(
        "series-kills",
        (
            "bywash-series-proofs",
            Target::It,
            "kills::case_5_random_kills_lose_and_duplicate_no_row",
        ),
        "processes that write series, killed; each row once",
    )
    .kills(5),
    proof(
        "local-clients",
        (
            "bywash-local",
            Target::It,
            "cut_clients::clients_cut_off_at_random_leave_nothing_and_views_keep_their_bytes",
        ),
        "clients of the local door, cut off; views keep their bytes, nothing stays held",
    ),
    proof(
        "copy-kills",
        (
            "bywash-cli",
            Target::It,
            "uploads::killed_copy_is_resumed_by_another_process",
        ),
        "`bywash cp` to a folder, killed; resumed without bytes sent twice",
    )
    .kills(2),
    proof(
        "store-kills",
        (
            "bywash-cli",
            Target::It,
            "uploads_stores::killed_copies_to_each_store_are_resumed",
        ),
        "`bywash cp` to each store, killed; resumed",
    )
    .kills(1),
    proof(
        "multipart-kills",
        (
            "bywash-cli",
            Target::It,
            "multipart::upload_continues_after_a_kill_of_the_server_at_any_moment",
        ),
        "`bywash serve` over a folder, killed during a multipart upload; it continues",
    )
    .kills(3),
    proof(
        "multipart-kills-gcs",
        (
            "bywash-cli",
            Target::It,
            "multipart::upload_to_gcs_continues_after_a_kill_of_the_server_at_any_moment",
        ),
        "the same over GCS",
    )
    .kills(3),
];

/// Returns the proof of this name.
pub(super) fn find(name: &str) -> Option<&'static Proof> {
    PROOFS.iter().find(|proof| proof.name == name)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::run::root;

    /// The file of the module that has the test, without knowing how deep its folders are.
    fn sources(folder: &std::path::Path, text: &mut String) {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                sources(&path, text);
            } else if path.extension().is_some_and(|found| found == "rs") {
                text.push_str(&fs::read_to_string(path).unwrap());
            }
        }
    }

    #[test]
    fn each_proof_has_a_name_of_its_own_and_a_test_that_reports_under_it() {
        let mut text = String::new();
        for folder in ["crates", "testing"] {
            sources(&root().join(folder), &mut text);
        }
        for (at, proof) in PROOFS.iter().enumerate() {
            assert!(PROOFS[..at].iter().all(|other| other.name != proof.name));
            let function = format!("fn {}(", proof.test.rsplit(':').next().unwrap());
            assert!(text.contains(&function), "no test {}", proof.test);
            // The core prints its line by itself, in which the quotes are escaped.
            let names = [
                format!("\"{}\"", proof.name),
                format!("\"{}\\\"", proof.name),
            ];
            let found = names.iter().any(|name| text.contains(name));
            assert!(found, "nothing reports as {}", proof.name);
        }
    }
}
