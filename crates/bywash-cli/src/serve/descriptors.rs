//! File descriptors: raises the soft limit at start, and limits connections so that accepting one never lacks a
//! descriptor.

use bywash::MAX_OPEN_FOLDERS;
use bywash_console::{MAX_ADMIN_CONNECTIONS, MAX_METRICS_CONNECTIONS};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors in addition to S3 connections and folders: logs, journals, listeners, the runtime,
/// pooled connections to origins, connections for admin and metrics.
const MAX_OTHER_DESCRIPTORS: u64 = 256 + (MAX_ADMIN_CONNECTIONS + MAX_METRICS_CONNECTIONS) as u64;
/// Descriptors of one connection: its socket, a file, and a connection to an origin or a second file.
const MAX_CONNECTION_DESCRIPTORS: u64 = 3;

/// Raises the soft limit of descriptors to the hard limit. Returns the limit in force, `None`
/// without a limit.
///
/// Systems start programs with a low soft limit because `select` fails with descriptors above 1023. This program does
/// not use it.
pub(super) fn raise_limit() -> Option<u64> {
    let limits = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limits.maximum,
        maximum: limits.maximum,
    };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limits.maximum,
        Err(error) => {
            tracing::warn!(%error, limit = limits.current, "the limit of descriptors stays as it was");
            limits.current
        }
    }
}

/// Returns how many connections fit the limit of descriptors in addition to `disk_files`, between
/// one and `wanted`. If the limit is below twice the other descriptors, half of it is for
/// connections: such a server has few folders.
pub(super) fn connections(limit: Option<u64>, wanted: usize, disk_files: u64) -> usize {
    let Some(limit) = limit else {
        return wanted;
    };
    let others = (MAX_OPEN_FOLDERS as u64 + MAX_OTHER_DESCRIPTORS + disk_files).min(limit / 2);
    let left = limit - others;
    let fitting = usize::try_from(left / MAX_CONNECTION_DESCRIPTORS).unwrap_or(usize::MAX);
    if fitting >= wanted {
        return wanted;
    }
    let fitting = fitting.max(1);
    tracing::warn!(
        descriptors = limit,
        connections = fitting,
        "few descriptors: fewer connections than {wanted} are served at once; raise the hard limit of open files"
    );
    fitting
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soft_limit_is_raised_to_the_hard_limit() {
        let raised = raise_limit();
        let limits = getrlimit(Resource::Nofile);
        assert_eq!((limits.current, raised), (limits.maximum, limits.maximum));
    }

    #[test]
    fn connections_folders_and_files_fit_the_limit() {
        assert_eq!(connections(None, 1024, 0), 1024);
        assert_eq!(connections(Some(1 << 20), 1024, 0), 1024);
        assert_eq!(connections(Some(0), 1024, 0), 1);
        for limit in [1312, 3583, 3584, 4096] {
            let connections = connections(Some(limit), 1024, 0) as u64;
            let used = connections * MAX_CONNECTION_DESCRIPTORS
                + MAX_OPEN_FOLDERS as u64
                + MAX_OTHER_DESCRIPTORS;
            assert!(
                used <= limit,
                "{connections} connections of {limit} descriptors"
            );
        }
    }

    #[test]
    fn segments_of_the_disk_tier_leave_fewer_connections() {
        let (without, with) = (
            connections(Some(4096), 1024, 0),
            connections(Some(4096), 1024, 1600),
        );
        assert_eq!(without, 1024);
        assert!(with < without && with >= 600, "{with}");
    }

    #[test]
    fn half_of_few_descriptors_is_for_connections() {
        assert_eq!(connections(Some(256), 1024, 0), 42);
        assert_eq!(connections(Some(1023), 1024, 0), 170);
    }
}
