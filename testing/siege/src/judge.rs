//! The judges, which find violations in the facts of a case. Each has a negative control in its tests.

use std::time::Duration;

use crate::ceiling::resident_limit;
use crate::record::{Facts, Messages};

/// Maximum wait of the probe.
pub const MAX_PROBE_WAIT: Duration = Duration::from_secs(2);
/// Minimum share of well-behaved requests that succeed, in percent.
pub const MIN_WELL_PERCENT: u64 = 90;
/// Maximum growth over the state before the attack, in percent.
pub const MAX_GROWTH_PERCENT: u64 = 10;
/// Maximum bytes of an idle server besides `--memory`: a quarter of the program's limit. Its bounded tables of 12 MiB
/// fill as clients name objects.
pub const MAX_RESTING_PROGRAM_BYTES: u64 = bywash_gateway::limits::MAX_PROGRAM_BYTES / 4;
/// Growth in descriptors or threads that is always permitted.
const FEW: u64 = 4;

/// One reason for the failure of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub judge: &'static str,
    pub text: String,
}

impl Finding {
    /// Returns whether a busy machine can cause the finding.
    #[must_use]
    pub fn is_timing(&self) -> bool {
        TIMING_JUDGES.contains(&self.judge)
    }
}

/// Judges that a busy machine affects. A case that fails by these alone runs once more, alone.
pub const TIMING_JUDGES: [&str; 3] = ["availability", "probe", "latency"];

type Judge = fn(&Facts) -> Option<String>;

/// All judges, by the names in findings.
pub const JUDGES: [(&str, Judge); 13] = [
    ("responses", responses),
    ("availability", availability),
    ("slow-down", slow_down),
    ("writes", writes),
    ("memory", memory),
    ("descriptors", descriptors),
    ("disk", disk),
    ("probe", probe),
    ("latency", latency),
    ("alive", alive),
    ("afterwards", afterwards),
    ("watched", watched),
    ("case", case),
];

/// Returns all findings.
#[must_use]
pub fn judge(facts: &Facts) -> Vec<Finding> {
    JUDGES
        .iter()
        .filter_map(|&(judge, look)| look(facts).map(|text| Finding { judge, text }))
        .collect()
}

fn some(what: &str, texts: &Messages) -> Option<String> {
    (texts.count > 0).then(|| format!("{} {what}: {}", texts.count, texts.first.join("; ")))
}

fn responses(facts: &Facts) -> Option<String> {
    some("wrong responses", &facts.wrong)
}

fn availability(facts: &Facts) -> Option<String> {
    let all = facts.well_right + facts.well_failed.count;
    (facts.well_right * 100 < all * MIN_WELL_PERCENT).then(|| {
        format!(
            "{} of {all} well-behaved requests succeeded, of which {MIN_WELL_PERCENT} % must: {}",
            facts.well_right,
            facts.well_failed.first.join("; ")
        )
    })
}

fn slow_down(facts: &Facts) -> Option<String> {
    (facts.slow_downs_to_well > 0).then(|| {
        format!(
            "{} SlowDown to clients within every limit",
            facts.slow_downs_to_well
        )
    })
}

fn writes(facts: &Facts) -> Option<String> {
    some("acknowledged writes lost", &facts.lost_writes)
}

fn memory(facts: &Facts) -> Option<String> {
    let worst = facts.worst?;
    if let Some(logged) = facts.logged_ceiling
        && facts.peak_rss > logged
    {
        return Some(format!(
            "{} MiB resident; the server logged {} MiB as its ceiling",
            facts.peak_rss >> 20,
            logged >> 20
        ));
    }
    let limit = resident_limit(facts.memory, &worst);
    (worst.rss > limit).then(|| {
        format!(
            "{} MiB resident with {} threads and {} descriptors; the ceiling is {} MiB",
            worst.rss >> 20,
            worst.threads,
            worst.descriptors,
            limit >> 20
        )
    })
}

/// One descriptor in a hundred must stay free: a server without free descriptors cannot accept connections.
fn descriptors(facts: &Facts) -> Option<String> {
    let limit = facts.descriptor_limit - facts.descriptor_limit / 100;
    (facts.samples > 0 && facts.peak_descriptors > limit).then(|| {
        format!(
            "{} of {} descriptors open",
            facts.peak_descriptors, facts.descriptor_limit
        )
    })
}

fn disk(facts: &Facts) -> Option<String> {
    some(
        "samples of the disk tier above its size",
        &facts.disk_excesses,
    )
}

fn probe(facts: &Facts) -> Option<String> {
    some("probes failed", &facts.probe_errors).or_else(|| {
        (facts.longest_probe > MAX_PROBE_WAIT).then(|| {
            format!(
                "the probe waited {:.1} s without the machine's delay ({:.1} s by the clock); max {} s",
                facts.longest_probe.as_secs_f64(),
                facts.longest_probe_elapsed.as_secs_f64(),
                MAX_PROBE_WAIT.as_secs()
            )
        })
    })
}

fn latency(facts: &Facts) -> Option<String> {
    some("waits too long", &facts.late)
}

fn alive(facts: &Facts) -> Option<String> {
    facts
        .died
        .as_ref()
        .map(|how| format!("the server ended: {how}"))
}

fn afterwards(facts: &Facts) -> Option<String> {
    let rest = facts.rest_state?;
    let grown = |before: u64, after: u64, few: u64| {
        after > before + (before * MAX_GROWTH_PERCENT / 100).max(few)
    };
    let mut texts = Vec::new();
    // Cache and tables may fill up: below that a server has not grown.
    let full = facts.memory + MAX_RESTING_PROGRAM_BYTES;
    if grown(rest.before.rss.max(full), rest.after.rss, 0) {
        let (before, after) = (rest.before.rss >> 20, rest.after.rss >> 20);
        texts.push(format!("{after} MiB resident, {before} before"));
    }
    let (before, after) = (rest.before.descriptors, rest.after.descriptors);
    if grown(before, after, FEW) {
        texts.push(format!("{after} descriptors, {before} before"));
    }
    let (before, after) = (rest.before.threads, rest.after.threads);
    if grown(before, after, FEW) {
        texts.push(format!("{after} threads, {before} before"));
    }
    (!texts.is_empty()).then(|| format!("not back in the state before: {}", texts.join(", ")))
}

/// A case without requests proves nothing.
fn watched(facts: &Facts) -> Option<String> {
    (facts.requests == 0 && facts.case_findings.count == 0 && facts.skipped.is_empty())
        .then(|| "no request was made".to_owned())
}

fn case(facts: &Facts) -> Option<String> {
    some("findings", &facts.case_findings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Class, Outcome, Record, RestState};
    use crate::watch::Sample;

    const MIB: u64 = 1 << 20;

    fn resting() -> Sample {
        Sample {
            rss: 90 * MIB,
            descriptors: 30,
            threads: 20,
        }
    }

    /// A case without violations.
    fn healthy() -> Record {
        let record = Record::default();
        record.server(64 * MIB, 1024, Some(200 * MIB));
        record.sample(resting());
        for _ in 0..100 {
            record.request(Class::WellBehaved, Outcome::Correct);
        }
        record.request(Class::Excessive("MAX_OPEN_UPLOADS"), Outcome::SlowDown);
        let moment = Duration::from_millis(20);
        record.probe(moment, moment, None);
        let (before, after) = (resting(), resting());
        record.rest_state(RestState { before, after });
        record
    }

    #[track_caller]
    fn assert_only(judge_name: &str, record: &Record) {
        let found = judge(&record.facts());
        let judges: Vec<_> = found.iter().map(|finding| finding.judge).collect();
        assert_eq!(judges, [judge_name], "{found:?}");
    }

    fn after(change: impl Fn(&mut Sample)) -> Record {
        let record = healthy();
        let mut after = resting();
        change(&mut after);
        let before = resting();
        record.rest_state(RestState { before, after });
        record
    }

    #[test]
    fn healthy_case_has_no_findings() {
        assert_eq!(judge(&healthy().facts()), []);
    }

    #[test]
    fn finds_one_wrong_response_among_many_correct_ones() {
        let record = healthy();
        record.request(
            Class::WellBehaved,
            Outcome::Wrong("GET /a: byte 7 differs".to_owned()),
        );
        assert_only("responses", &record);
        let record = healthy();
        record.request(Class::Excessive("hostile"), Outcome::Wrong("2".to_owned()));
        assert_only("responses", &record);
    }

    #[test]
    fn finds_more_than_ten_percent_failures() {
        let record = healthy();
        for _ in 0..11 {
            record.request(Class::WellBehaved, Outcome::Failed("500".to_owned()));
        }
        assert_eq!(judge(&record.facts()), []);
        record.request(Class::WellBehaved, Outcome::Failed("500".to_owned()));
        assert_only("availability", &record);
    }

    #[test]
    fn finds_a_slow_down_to_a_client_within_limits() {
        let record = healthy();
        record.request(Class::WellBehaved, Outcome::SlowDown);
        assert_only("slow-down", &record);
    }

    #[test]
    fn finds_a_lost_write() {
        let record = healthy();
        record.lost_write("a/b".to_owned());
        assert_only("writes", &record);
    }

    #[test]
    fn finds_one_sample_above_the_ceiling() {
        let record = healthy();
        let sample = resting();
        let rss = resident_limit(64 * MIB, &sample);
        record.sample(Sample { rss, ..sample });
        assert_eq!(judge(&record.facts()), []);
        let rss = rss + 1;
        record.sample(Sample { rss, ..sample });
        record.sample(resting());
        assert_only("memory", &record);
    }

    #[test]
    fn finds_one_sample_above_the_logged_ceiling() {
        let record = healthy();
        // The formula allows more for these threads.
        let rss = 200 * MIB;
        let busy = Sample {
            rss,
            threads: 1000,
            ..resting()
        };
        record.sample(busy);
        assert_eq!(judge(&record.facts()), []);
        record.sample(Sample {
            rss: rss + 1,
            ..busy
        });
        assert_only("memory", &record);
    }

    #[test]
    fn finds_descriptors_near_their_limit() {
        let record = healthy();
        let descriptors = 1020;
        record.sample(Sample {
            descriptors,
            ..resting()
        });
        assert_only("descriptors", &record);
    }

    #[test]
    fn finds_one_sample_of_the_disk_tier_above_its_size() {
        let record = healthy();
        record.disk_excess(41 * MIB, 40 * MIB);
        assert_only("disk", &record);
    }

    #[test]
    fn finds_a_late_probe_and_a_failed_one() {
        let record = healthy();
        let late = Duration::from_millis(2_001);
        record.probe(late, late, None);
        assert_only("probe", &record);
        let record = healthy();
        record.probe(Duration::ZERO, Duration::ZERO, Some("refused".to_owned()));
        assert_only("probe", &record);
        // Delays of the machine do not count.
        let record = healthy();
        record.probe(Duration::from_secs(2), Duration::from_secs(5), None);
        assert_eq!(judge(&record.facts()), []);
    }

    #[test]
    fn finds_a_latency_that_a_case_measured() {
        let record = healthy();
        record.late("the 99.9th percentile is 3 s");
        assert_only("latency", &record);
    }

    #[test]
    fn only_findings_of_timing_are_repeated() {
        let record = healthy();
        record.late("3 s");
        assert!(judge(&record.facts()).iter().all(Finding::is_timing));
        record.lost_write("a/b".to_owned());
        assert!(!judge(&record.facts()).iter().all(Finding::is_timing));
        for name in TIMING_JUDGES {
            assert!(JUDGES.iter().any(|(judge, _)| *judge == name), "{name}");
        }
    }

    #[test]
    fn finds_a_server_that_ended() {
        let record = healthy();
        record.died("signal 9".to_owned());
        assert_only("alive", &record);
    }

    #[test]
    fn finds_memory_descriptors_and_threads_not_released() {
        // 90 MiB were resident before; a tenth more is allowed.
        assert_only("afterwards", &after(|sample| sample.rss = 100 * MIB));
        assert_only("afterwards", &after(|sample| sample.descriptors += 5));
        assert_only("afterwards", &after(|sample| sample.threads += 5));
        assert_eq!(judge(&after(|sample| sample.rss = 99 * MIB).facts()), []);
    }

    #[test]
    fn finds_a_case_without_requests_and_findings_of_the_case() {
        assert_only("watched", &Record::default());
        let record = healthy();
        record.finding("the object was renamed");
        assert_only("case", &record);
    }
}
