//! The planted faults, and what must find each.

use super::catalog::Target;

/// Tests of the gate that are no seeded proof: those of a package whose name contains a text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tests {
    pub(super) package: &'static str,
    pub(super) target: Target,
    pub(super) filter: &'static str,
}

/// A fault that `planted!("NAME")` plants in a crate.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fault {
    pub(super) name: &'static str,
    /// What goes wrong.
    pub(super) what: &'static str,
    /// Names of the proofs that play seeds against it, in this order until one finds it.
    pub(super) proofs: &'static [&'static str],
    /// Tests that run against it if no proof has found it.
    pub(super) tests: Option<Tests>,
}

const fn fault(name: &'static str, what: &'static str, proofs: &'static [&'static str]) -> Fault {
    Fault {
        name,
        what,
        proofs,
        tests: None,
    }
}

impl Fault {
    const fn lib(self, package: &'static str, filter: &'static str) -> Self {
        self.tests(package, Target::Lib, filter)
    }

    const fn it(self, package: &'static str, filter: &'static str) -> Self {
        self.tests(package, Target::It, filter)
    }

    const fn tests(mut self, package: &'static str, target: Target, filter: &'static str) -> Self {
        self.tests = Some(Tests {
            package,
            target,
            filter,
        });
        self
    }
}

/// All planted faults, from the core up.
pub(super) const FAULTS: [Fault; 70] = [
    fault(
        "mem-pin-of-another-key",
        "a pin does not compare the key of the block that it found",
        &["mem-stress"],
    ),
    fault(
        "mem-pin-of-an-erased-block",
        "a handle pins a block that was erased",
        &["mem-stress"],
    ),
    fault(
        "mem-waiters-without-pins",
        "a published block counts no pin for the readers that wait for it",
        &["mem-stress", "engine-reads"],
    ),
    fault(
        "mem-check-and-charge-apart",
        "a free limit is compared under one lock and charged under the next",
        &["mem-stress"],
    )
    .lib("bywash-mem", "check_and_charge"),
    fault(
        "mem-slot-freed-before-its-place",
        "an evicted block leaves its slot before its place in the policy",
        &["mem-stress"],
    ),
    fault(
        "mem-removal-by-tag",
        "the registry removes the entry of another slot with the same tag",
        &["mem-stress"],
    )
    .lib("bywash-mem", "registry"),
    fault(
        "mem-later-frame-replaces-first",
        "a second frame of a buffer's span replaces the first",
        &["mem-stress", "engine-reads"],
    )
    .lib("bywash-mem", "buffer"),
    fault(
        "mem-bytes-in-flight-count",
        "bytes that are being written count as written",
        &["engine-reads"],
    )
    .lib("bywash-mem", "buffer"),
    fault(
        "mem-slice-without-frame",
        "a slice of a buffer holds no reference to its frame",
        &["engine-reads"],
    )
    .lib("bywash-mem", "buffer"),
    fault(
        "disk-crc-not-compared",
        "a read does not compare the checksum of a block",
        &["disk-crashes", "engine-disk"],
    ),
    fault(
        "disk-erasure-of-a-failed-write-lost",
        "erasures of a batch that failed are not written again",
        &["disk-crashes"],
    )
    .lib("bywash-disk", "tier::tests"),
    fault(
        "disk-erasure-not-written",
        "a batch leaves its erasures out",
        &["disk-crashes"],
    ),
    fault(
        "disk-batch-of-an-older-generation",
        "recovery takes batches that a segment had before it was used again",
        &["disk-crashes"],
    ),
    fault(
        "disk-mark-not-written",
        "a version that is being compared is not marked in the file",
        &["engine-disk"],
    )
    .lib("bywash-disk", "tier::tests"),
    fault(
        "disk-one-segment-more",
        "the tier keeps one segment more than its size allows",
        &["disk-crashes"],
    ),
    fault(
        "disk-summary-not-compared",
        "recovery does not compare the checksum of a summary",
        &["disk-crashes"],
    )
    .lib("bywash-disk", "format::tests"),
    fault(
        "folder-file-not-synced",
        "a file gets its name before its bytes are on the disk",
        &["folder-kills"],
    )
    .lib("bywash-store", "folder::stage"),
    fault(
        "folder-etag-not-compared",
        "a write with If-Match does not compare the ETag",
        &["folder-kills"],
    )
    .it("bywash", "folder"),
    fault(
        "folder-create-not-checked",
        "a create does not look whether the object exists",
        &["folder-kills"],
    ),
    fault(
        "folder-attributes-after-the-file",
        "the side file with the attributes follows the object",
        &["folder-kills"],
    ),
    fault(
        "folder-change-during-a-read",
        "a read does not look whether its file was changed meanwhile",
        &[],
    )
    .it("bywash", "folder"),
    fault(
        "gcs-more-acknowledged-than-sent",
        "a store that acknowledges more than was sent is believed",
        &["uploads"],
    )
    .lib("bywash-store", "gcs"),
    fault(
        "gcs-offset-off-by-one",
        "the offset that a store acknowledges is read as one byte more",
        &["uploads"],
    ),
    fault(
        "gcs-length-not-compared",
        "the length of the completed object is not compared",
        &["uploads"],
    )
    .lib("bywash-store", "gcs"),
    fault(
        "s3-parts-with-a-gap",
        "parts after a gap are taken for those before it",
        &["uploads-in-parts"],
    )
    .lib("bywash-store", "s3"),
    fault(
        "engine-version-not-compared",
        "a response of another version is taken",
        &["engine-reads"],
    ),
    fault(
        "engine-range-not-compared",
        "a response of another range is taken",
        &["engine-reads"],
    ),
    fault(
        "engine-range-one-short",
        "a range is cut one byte before the end of the object",
        &["engine-reads"],
    ),
    fault(
        "engine-overtaken-response-recorded",
        "a response that a write overtook is recorded as current",
        &["engine-reads"],
    )
    .lib("bywash", "versions::tests"),
    fault(
        "engine-older-response-recorded",
        "a response to an older request replaces a newer one",
        &["engine-reads"],
    )
    .lib("bywash", "versions::tests"),
    fault(
        "engine-window-twice-as-long",
        "a version is trusted for two windows",
        &["engine-reads"],
    ),
    fault(
        "engine-absence-forever",
        "a key that was absent stays absent after the window",
        &["engine-reads"],
    ),
    fault(
        "engine-written-version-kept",
        "the version that a write replaced stays known",
        &["engine-reads"],
    ),
    fault(
        "engine-longer-body-accepted",
        "a body longer than its range is taken for right",
        &["engine-reads"],
    )
    .it("bywash", "simulation"),
    fault(
        "upload-recorded-before-acknowledged",
        "the journal records a MiB more than the store has",
        &["store-kills"],
    )
    .it("bywash", "uploads::journal"),
    fault(
        "upload-stored-part-not-compared",
        "a resumed upload does not compare the parts of the store with the source",
        &["store-kills"],
    )
    .lib("bywash", "resume::verify"),
    fault(
        "upload-source-not-compared",
        "a resumed upload does not compare its source with what was sent",
        &["copy-kills"],
    )
    .it("bywash", "resumes"),
    fault(
        "upload-journal-not-locked",
        "the entry of an upload in progress is not locked",
        &["copy-kills"],
    )
    .lib("bywash", "upload::journal"),
    fault(
        "series-older-row-wins",
        "of two rows of one time the older is returned",
        &["series-log"],
    ),
    fault(
        "series-lost-response-taken-for-success",
        "a manifest whose response was lost is taken for written",
        &["series-takeover", "series-files"],
    ),
    fault(
        "series-torn-end-not-cut",
        "the torn end of a log stays before new frames",
        &["series-log"],
    )
    .lib("bywash-series", "db::tests"),
    fault(
        "series-replay-out-of-order",
        "replay writes rows in the order of the log, not of their numbers",
        &["series-log"],
    )
    .lib("bywash-series", "db::tests"),
    fault(
        "series-frame-not-compared",
        "a frame of the log is read without comparing its checksum",
        &["series-log"],
    )
    .lib("bywash-series", "db::tests"),
    fault(
        "series-log-not-synced",
        "a write that waits for the disk does not sync the log",
        &["series-kills", "series-log"],
    )
    .lib("bywash-series", "db::tests"),
    fault(
        "series-log-deleted-too-early",
        "segments of the log are deleted before their rows are in files",
        &["series-log", "series-kills"],
    ),
    fault(
        "series-flush-in-part-taken-for-whole",
        "a flush that failed in part counts as whole",
        &["series-takeover"],
    ),
    fault(
        "cluster-own-deadline",
        "a node believes in its lease beyond its own deadline",
        &["cluster-rules"],
    ),
    fault(
        "cluster-claim-delay",
        "a shard is claimed without the delay",
        &["cluster-rules"],
    ),
    fault(
        "cluster-drain",
        "a shard is handed over while read leases hold",
        &["cluster-rules"],
    ),
    fault(
        "cluster-forget",
        "versions are believed after authority has lapsed and returned",
        &["cluster-rules"],
    )
    .lib("bywash-cluster", "node::tests"),
    fault(
        "cluster-begin",
        "the holder does not mark the key of a write before the origin has it",
        &["cluster-rules"],
    )
    .lib("bywash-cluster", "simulation::reads_are_linearizable"),
    fault(
        "cluster-end",
        "the holder does not forget a written key before it is acknowledged",
        &["cluster-rules"],
    ),
    fault(
        "cluster-wait-out",
        "a write without the holder does not wait for the window",
        &["cluster-rules"],
    ),
    fault(
        "cluster-lease-from-sending",
        "a reader counts a lease from its response",
        &["cluster-rules"],
    )
    .lib("bywash-cluster", "simulation::controls"),
    fault(
        "cluster-lease-age",
        "a lease does not end a window after the version was asked for",
        &["cluster-rules"],
    )
    .lib("bywash-cluster", "simulation::controls"),
    fault(
        "cluster-lease-dropped",
        "a lease is used whose key was dropped on its way",
        &["cluster-rules"],
    ),
    fault(
        "cluster-write-since",
        "a response is recorded that a write overtook",
        &["cluster-rules"],
    ),
    fault(
        "cluster-keepalive-sent",
        "authority counts from the response to a keepalive",
        &["cluster-rules"],
    )
    .lib("bywash-cluster", "simulation::controls"),
    fault(
        "gateway-if-match-ignored",
        "a read with If-Match of another version succeeds",
        &[],
    )
    .it("bywash-gateway", "conditions"),
    fault(
        "gateway-content-range-off-by-one",
        "Content-Range states one byte too much",
        &[],
    )
    .it("bywash-gateway", "objects"),
    fault(
        "gateway-expired-address-accepted",
        "a presigned address works after its time",
        &[],
    )
    .it("bywash-gateway", "signatures"),
    fault(
        "gateway-unsigned-header-accepted",
        "an `x-amz-` header that was not signed is accepted",
        &[],
    )
    .it("bywash-gateway", "signatures"),
    fault(
        "gateway-digest-not-compared",
        "a digest that the client states is not compared",
        &[],
    )
    .it("bywash-gateway", "checksums"),
    fault(
        "gateway-attempt-not-recorded",
        "a completion is sent without the record of its attempt",
        &["cluster-uploads"],
    )
    .it("bywash-gateway", "cluster_uploads::completion"),
    fault(
        "local-lease-of-another-released",
        "a release ends the next lease instead",
        &["local-clients"],
    )
    .it("bywash-local", "leases::lease"),
    fault(
        "local-leases-outlive-their-client",
        "leases of a connection that has ended stay",
        &["local-clients"],
    ),
    fault(
        "client-lease-released-early",
        "a lease is released when its view begins",
        &["local-clients"],
    )
    .it("bywash-local", "leases"),
    fault(
        "cli-kept-part-not-compared",
        "a resumed download takes parts whose bytes are others",
        &[],
    )
    .it("bywash-cli", "downloads"),
    fault(
        "cli-other-version-continued",
        "a download continues with the parts of another version",
        &[],
    )
    .it("bywash-cli", "downloads"),
    fault(
        "cli-digest-not-compared",
        "a download is not compared with the digest of the object",
        &[],
    )
    .it("bywash-cli", "digests"),
];

/// Returns the file and line below `crates` of each fault that is planted there.
pub(super) fn places(sources: &[(String, String)]) -> Vec<(String, String)> {
    let mut places = Vec::new();
    for (path, text) in sources {
        for (number, line) in text.lines().enumerate() {
            for part in line.split("planted!(\"").skip(1) {
                let name = part.split('"').next().unwrap_or_default();
                places.push((name.to_owned(), format!("{path}:{}", number + 1)));
            }
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::catalog;
    use crate::trust::planted::sources;

    #[test]
    fn each_fault_is_planted_in_one_file_and_has_proofs_that_exist() {
        let sources = sources().unwrap();
        let places = places(&sources);
        for fault in &FAULTS {
            let mut files: Vec<_> = places
                .iter()
                .filter(|(name, _)| name == fault.name)
                .map(|(_, place)| place.split(':').next())
                .collect();
            files.dedup();
            assert_eq!(files.len(), 1, "{}: {files:?}", fault.name);
            assert!(!fault.proofs.is_empty() || fault.tests.is_some());
            for proof in fault.proofs {
                assert!(catalog::find(proof).is_some(), "no proof {proof}");
            }
        }
        for (name, place) in &places {
            let is_known = FAULTS.iter().any(|fault| fault.name == name);
            assert!(is_known, "{place}: {name} is not listed");
        }
    }

    #[test]
    fn faults_are_many_and_in_each_crate() {
        assert!(FAULTS.len() >= 40);
        let sources = sources().unwrap();
        let places = places(&sources);
        for package in [
            "bywash-mem",
            "bywash-disk",
            "bywash-store",
            "bywash",
            "bywash-series",
            "bywash-cluster",
            "bywash-gateway",
            "bywash-local",
            "bywash-client",
            "bywash-cli",
        ] {
            let folder = format!("crates/{package}/");
            let found = places.iter().any(|(_, place)| place.starts_with(&folder));
            assert!(found, "no fault in {package}");
        }
    }

    #[test]
    fn switch_is_the_same_in_each_crate() {
        let sources = sources().unwrap();
        let is_switch = |path: &str| path.ends_with("/src/planted.rs");
        let mut switches = sources.iter().filter(|(path, _)| is_switch(path));
        let (_, first) = switches.next().unwrap();
        let others: Vec<_> = switches.collect();
        assert_eq!(others.len(), 9);
        for (path, text) in others {
            assert!(text == first, "{path} differs");
        }
    }

    /// A build for use must have no fault: the feature is no default, and no other feature has it.
    #[test]
    fn feature_is_in_no_other_feature_and_no_dependency_asks_for_it() {
        let root = crate::run::root();
        for folder in std::fs::read_dir(root.join("crates")).unwrap().flatten() {
            let manifest = folder.path().join("Cargo.toml");
            let text = std::fs::read_to_string(&manifest).unwrap();
            let lines = text.lines().filter(|line| !line.trim().starts_with('#'));
            for line in lines.filter(|line| line.contains("planted-faults")) {
                assert_eq!(line, "planted-faults = []", "{}", manifest.display());
            }
        }
    }
}
