//! The judges: find violations in the facts of a case. Each has a negative control in its tests.

use std::time::Duration;

use crate::ceiling::resident_limit;
use crate::record::{Facts, Texts};

/// Max wait of the probe.
pub const MAX_PROBE_WAIT: Duration = Duration::from_secs(2);
/// Min share of well-behaved requests that succeed, in percent.
pub const MIN_WELL_PERCENT: u64 = 90;
/// Max growth over the state before, in percent.
pub const MAX_GROWTH_PERCENT: u64 = 10;
/// Max bytes of an idle server besides `--memory`: a quarter of the program's limit. Its bounded tables of 12 MiB
/// fill as clients name objects.
pub const MAX_RESTING_PROGRAM_BYTES: u64 = bywash_gateway::limits::MAX_PROGRAM_BYTES / 4;
/// A growth in descriptors or threads that is noise, though above a tenth.
const FEW: u64 = 4;

/// One reason for the failure of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub judge: &'static str,
    pub text: String,
}

impl Finding {
    /// Whether the finding may be due to a busy machine.
    #[must_use]
    pub fn is_of_time(&self) -> bool {
        TIME_JUDGES.contains(&self.judge)
    }
}

/// Judges that a busy machine affects. A case that fails by these alone runs once more, alone.
pub const TIME_JUDGES: [&str; 3] = ["availability", "probe", "latency"];

type Judge = fn(&Facts) -> Option<String>;

/// All judges, by the names in findings.
pub const JUDGES: [(&str, Judge); 12] = [
    ("responses", responses),
    ("availability", availability),
    ("slow-down", slow_down),
    ("writes", writes),
    ("memory", memory),
    ("descriptors", descriptors),
    ("probe", probe),
    ("latency", latency),
    ("alive", alive),
    ("afterwards", afterwards),
    ("watched", watched),
    ("case", case),
];

/// All findings.
#[must_use]
pub fn judge(facts: &Facts) -> Vec<Finding> {
    JUDGES
        .iter()
        .filter_map(|&(judge, look)| look(facts).map(|text| Finding { judge, text }))
        .collect()
}

fn some(what: &str, texts: &Texts) -> Option<String> {
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
    some("acknowledged writes are not there", &facts.lost_writes)
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

/// A server that uses its last descriptor cannot accept: one in a hundred must stay free.
fn descriptors(facts: &Facts) -> Option<String> {
    let limit = facts.descriptor_limit - facts.descriptor_limit / 100;
    (facts.samples > 0 && facts.peak_descriptors > limit).then(|| {
        format!(
            "{} of {} descriptors open",
            facts.peak_descriptors, facts.descriptor_limit
        )
    })
}

fn probe(facts: &Facts) -> Option<String> {
    some("probes failed", &facts.probe_trouble).or_else(|| {
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
    some("times too long", &facts.late)
}

fn alive(facts: &Facts) -> Option<String> {
    facts
        .died
        .as_ref()
        .map(|how| format!("the server ended: {how}"))
}

fn afterwards(facts: &Facts) -> Option<String> {
    let rest = facts.rest?;
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
    (!texts.is_empty()).then(|| format!("not back to what it was: {}", texts.join(", ")))
}

/// A case without observations proves nothing.
fn watched(facts: &Facts) -> Option<String> {
    (facts.requests == 0 && facts.found.count == 0 && facts.skipped.is_empty())
        .then(|| "no request was made".to_owned())
}

fn case(facts: &Facts) -> Option<String> {
    some("findings", &facts.found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Class, End, Record, Rest};
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
    fn calm() -> Record {
        let record = Record::default();
        record.server(64 * MIB, 1024, Some(200 * MIB));
        record.sample(resting());
        for _ in 0..100 {
            record.request(Class::Well, End::Right);
        }
        record.request(Class::Past("MAX_OPEN_UPLOADS"), End::SlowDown);
        let moment = Duration::from_millis(20);
        record.probe(moment, moment, None);
        let (before, after) = (resting(), resting());
        record.rest(Rest { before, after });
        record
    }

    #[track_caller]
    fn only(judge_name: &str, record: &Record) {
        let found = judge(&record.facts());
        let judges: Vec<_> = found.iter().map(|finding| finding.judge).collect();
        assert_eq!(judges, [judge_name], "{found:?}");
    }

    fn after(change: impl Fn(&mut Sample)) -> Record {
        let record = calm();
        let mut after = resting();
        change(&mut after);
        let before = resting();
        record.rest(Rest { before, after });
        record
    }

    #[test]
    fn finds_nothing_in_a_calm_case() {
        assert_eq!(judge(&calm().facts()), []);
    }

    #[test]
    fn finds_one_wrong_response_among_many_right_ones() {
        let record = calm();
        record.request(Class::Well, End::Wrong("GET /a: byte 7 differs".to_owned()));
        only("responses", &record);
        let record = calm();
        record.request(Class::Past("hostile"), End::Wrong("2".to_owned()));
        only("responses", &record);
    }

    #[test]
    fn finds_eleven_failures_a_hundred_but_not_ten() {
        let record = calm();
        for _ in 0..11 {
            record.request(Class::Well, End::Failed("500".to_owned()));
        }
        assert_eq!(judge(&record.facts()), []);
        record.request(Class::Well, End::Failed("500".to_owned()));
        only("availability", &record);
    }

    #[test]
    fn finds_a_slow_down_to_a_client_within_limits() {
        let record = calm();
        record.request(Class::Well, End::SlowDown);
        only("slow-down", &record);
    }

    #[test]
    fn finds_a_lost_write() {
        let record = calm();
        record.lost("a/b".to_owned());
        only("writes", &record);
    }

    #[test]
    fn finds_one_sample_above_the_ceiling() {
        let record = calm();
        let sample = resting();
        let rss = resident_limit(64 * MIB, &sample);
        record.sample(Sample { rss, ..sample });
        assert_eq!(judge(&record.facts()), []);
        let rss = rss + 1;
        record.sample(Sample { rss, ..sample });
        record.sample(resting());
        only("memory", &record);
    }

    #[test]
    fn finds_one_sample_above_the_logged_ceiling() {
        let record = calm();
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
        only("memory", &record);
    }

    #[test]
    fn finds_descriptors_near_their_limit() {
        let record = calm();
        let descriptors = 1020;
        record.sample(Sample {
            descriptors,
            ..resting()
        });
        only("descriptors", &record);
    }

    #[test]
    fn finds_a_late_probe_and_a_failed_one() {
        let record = calm();
        let late = Duration::from_millis(2_001);
        record.probe(late, late, None);
        only("probe", &record);
        let record = calm();
        record.probe(Duration::ZERO, Duration::ZERO, Some("refused".to_owned()));
        only("probe", &record);
        // Delays of the machine alone are not the server's.
        let record = calm();
        record.probe(Duration::from_secs(2), Duration::from_secs(5), None);
        assert_eq!(judge(&record.facts()), []);
    }

    #[test]
    fn finds_a_latency_that_a_case_measured() {
        let record = calm();
        record.late("the 99.9th percentile is 3 s");
        only("latency", &record);
    }

    #[test]
    fn repeats_what_was_late_and_nothing_else() {
        let record = calm();
        record.late("3 s");
        assert!(judge(&record.facts()).iter().all(Finding::is_of_time));
        record.lost("a/b".to_owned());
        assert!(!judge(&record.facts()).iter().all(Finding::is_of_time));
        for name in TIME_JUDGES {
            assert!(JUDGES.iter().any(|(judge, _)| *judge == name), "{name}");
        }
    }

    #[test]
    fn finds_a_server_that_ended() {
        let record = calm();
        record.died("signal 9".to_owned());
        only("alive", &record);
    }

    #[test]
    fn finds_memory_descriptors_and_threads_that_stay() {
        // 90 MiB were resident before; a tenth more is allowed.
        only("afterwards", &after(|sample| sample.rss = 100 * MIB));
        only("afterwards", &after(|sample| sample.descriptors += 5));
        only("afterwards", &after(|sample| sample.threads += 5));
        assert_eq!(judge(&after(|sample| sample.rss = 99 * MIB).facts()), []);
    }

    #[test]
    fn finds_a_case_that_did_nothing_and_what_a_case_found_itself() {
        only("watched", &Record::default());
        let record = calm();
        record.found("the object was renamed");
        only("case", &record);
    }
}
