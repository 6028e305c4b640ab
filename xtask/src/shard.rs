//! Which of the slow tests a commit runs. The gate has a budget of minutes and the slowest tests need more, so the commit's hash chooses a shard of each;
//! a few commits run all, and so do the stages by name (`--only`) and the verbs.

use crate::run::Step;

/// Shards of slow unit tests, of slow files of clients, and of the siege's cases.
pub(crate) const SHARDS: usize = 3;

/// Tests of more than about ten seconds on two cores, the slowest first.
const SLOW_TESTS: [&str; 24] = [
    "many::memory_does_not_grow_with_the_number_of_names",
    "memory_limits::every_door_works_at_every_limit_after_any_sequence_of_changes",
    "cached_reads::warm_set_that_was_read_twice_outlasts_scans_of_more_than_memory",
    "uploads_stores::killed_copies_to_each_store_are_resumed",
    "simulation::absences::full_table_evicts_the_oldest_absent_keys",
    "simulation::cases::case_5_leases_that_all_end_make_no_read_stale",
    "upload_servers::gcs::errors_and_debug_output_contain_no_session_url",
    "disk_tier::blocks_in_steady_use_are_on_the_disk_after_it_was_written_over_and_a_kill",
    "simulation::no_read_is_stale_or_older_than_the_window",
    "simulation::disk::seeded_runs_over_a_bad_disk",
    "copy_memory::readers_are_served_while_copies_wait_for_their_sources",
    "uploads::killed_copy_is_resumed_by_another_process",
    "cache::slow_evictions_are_counted_by_the_settings_of_the_server",
    "lying_origin::lying_s3_origin_returns_no_wrong_bytes_and_recovers",
    "simulation::cases::case_16_leases_end_in_time_on_the_slowest_and_the_fastest_clock",
    "uploads_stores::copy_from_a_pipe_survives_transient_faults",
    "lying_origin::lying_web_origin_returns_no_wrong_bytes_and_recovers",
    "folder_sweep::killed_put_is_removed_and_live_puts_and_open_uploads_stay",
    "odd_times::files_of_any_time_have_one_time_and_distinct_generations",
    "upload_parts::azure::seeded_faults_that_pass_never_stop_an_upload",
    "signed::killed_copy_to_presigned_parts_is_continued",
    "lists::large_folders_are_skipped",
    "multipart::upload_to_gcs_continues_after_a_kill_of_the_server_at_any_moment",
    "cluster_uploads::exactly_once::at_most_one_list_of_parts_ever_succeeds",
];

/// Files of the clients' suite that take more than a minute of one worker, the slowest first.
const SLOW_FILES: [&str; 8] = [
    "test_cluster.py",
    "test_crash.py",
    "test_aws_cli.py",
    "wide/test_wide_gcs.py",
    "test_dashboard.py",
    "test_local.py",
    "test_series_bucket.py",
    "wide/test_wide_tables.py",
];

/// Returns the current commit's first digits as a number, or 0 outside of a repository.
pub(crate) fn commit() -> usize {
    let head = Step::new("git").args(["rev-parse", "HEAD"]).output();
    let digits = head.unwrap_or_default();
    usize::from_str_radix(digits.get(..7).unwrap_or_default(), 16).unwrap_or_default()
}

/// Returns all slow tests.
pub(crate) fn slow_tests() -> &'static [&'static str] {
    &SLOW_TESTS
}

/// Returns the slow tests that `commit` leaves to others.
pub(crate) fn tests_left_out(commit: usize) -> Vec<&'static str> {
    others(&SLOW_TESTS, SHARDS, commit)
}

/// Returns the slow files of the clients' suite that `commit` leaves to others.
pub(crate) fn files_left_out(commit: usize) -> Vec<&'static str> {
    others(&SLOW_FILES, SHARDS, commit)
}

/// Returns the S3 server that is the origin of clients.
pub(crate) fn origin(commit: usize) -> &'static str {
    // Not by the same remainder as the files, so that each file meets each origin.
    ["moto", "versitygw"][commit / SHARDS % 2]
}

fn others(all: &[&'static str], shards: usize, commit: usize) -> Vec<&'static str> {
    let left = all.iter().enumerate();
    let left = left.filter(|(index, _)| index % shards != commit % shards);
    left.map(|(_, name)| *name).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::run::root;

    #[test]
    fn as_many_commits_as_shards_run_all() {
        let left_by_all = |left: &dyn Fn(usize) -> Vec<&'static str>, shards: usize| {
            let first = left(0);
            let mut names = first.iter();
            names.any(|name| (1..shards).all(|commit| left(commit).contains(name)))
        };
        assert!(!left_by_all(&tests_left_out, SHARDS));
        assert!(!left_by_all(&files_left_out, SHARDS));
        assert_eq!(tests_left_out(1).len(), 16);
        let met: Vec<_> = (0..6)
            .map(|commit| (commit % SHARDS, origin(commit)))
            .collect();
        assert!((1..6).all(|at| !met[..at].contains(&met[at])));
    }

    fn text_of(folder: &Path, text: &mut String) {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                text_of(&path, text);
            } else if path.extension().is_some_and(|found| found == "rs") {
                text.push_str(&fs::read_to_string(path).unwrap());
            }
        }
    }

    #[test]
    fn slow_tests_and_files_exist() {
        let mut text = String::new();
        text_of(&root().join("crates"), &mut text);
        for name in SLOW_TESTS {
            let function = format!("fn {}(", name.rsplit(':').next().unwrap());
            assert!(text.contains(&function), "no test {name}");
        }
        for file in SLOW_FILES {
            assert!(
                root().join("testing/clients").join(file).is_file(),
                "{file}"
            );
        }
    }
}
