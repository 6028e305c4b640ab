//! Negative controls: the oracle must detect each kind of violation.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use object_store::{GetOptions, GetRange};

const WINDOW: Duration = Duration::from_secs(1);

fn rules() -> Rules {
    Rules {
        window: Some(WINDOW),
        tight_memory: false,
    }
}

fn version(path: &Path, number: u64, len: usize) -> Version {
    let body = bywash_support::pattern(number, len);
    Version {
        number,
        meta: ObjectMeta {
            location: path.clone(),
            last_modified: no_time(),
            size: body.len() as u64,
            e_tag: Some(format!("\"v{number}\"")),
            version: None,
        },
        body,
        attributes: Attributes::new(),
    }
}

struct Fixture {
    oracle: Oracle,
    path: Path,
    one: Version,
    two: Version,
}

impl Fixture {
    /// Version 1, then 2 s later version 2, then 5 s more.
    async fn new() -> Self {
        let (oracle, path) = (Oracle::default(), Path::from("a"));
        let (one, two) = (version(&path, 1, 100), version(&path, 2, 100));
        oracle.commit(&path, Some(one.clone()));
        tokio::time::advance(Duration::from_secs(2)).await;
        oracle.commit(&path, Some(two.clone()));
        tokio::time::advance(Duration::from_secs(5)).await;
        Self {
            oracle,
            path,
            one,
            two,
        }
    }

    fn seen(&self, version: &Version, body: &[u8]) -> Observation {
        let now = self.oracle.now();
        Observation {
            path: self.path.clone(),
            options: GetOptions::default(),
            start: now,
            end: now,
            meta: Some(version.meta.clone()),
            range: Some(0..version.meta.size),
            body: body.to_vec(),
            outcome: Outcome::Complete,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn correct_read_is_accepted() {
    let fixture = Fixture::new().await;
    let seen = fixture.seen(&fixture.two, &fixture.two.body);
    assert_eq!(fixture.oracle.judge(&seen, &rules()), Ok(Verdict::Read(2)));
    let mut part = fixture.seen(&fixture.two, &fixture.two.body[90..]);
    part.options.range = Some(GetRange::Suffix(10));
    part.range = Some(90..100);
    assert_eq!(fixture.oracle.judge(&part, &rules()), Ok(Verdict::Read(2)));
}

#[tokio::test(start_paused = true)]
async fn torn_read_is_detected() {
    let fixture = Fixture::new().await;
    let mut body = fixture.one.body[..40].to_vec();
    body.extend_from_slice(&fixture.two.body[40..]);
    // Both versions are visible to this long read, but no mixture of them is.
    let mut seen = fixture.seen(&fixture.two, &body);
    seen.start.at -= Duration::from_secs(6);
    seen.start.tick = 1;
    let Err(Violation::Torn {
        first: 1,
        second: 2,
        at: 40,
        ..
    }) = fixture.oracle.judge(&seen, &rules())
    else {
        panic!("{:?}", fixture.oracle.judge(&seen, &rules()));
    };
    seen.outcome = Outcome::Cancelled;
    assert!(
        fixture.oracle.judge(&seen, &rules()).is_err(),
        "also before a cancellation"
    );
}

#[tokio::test(start_paused = true)]
async fn metadata_of_another_version_is_detected() {
    let fixture = Fixture::new().await;
    let seen = fixture.seen(&fixture.one, &fixture.two.body);
    let judged = fixture.oracle.judge(&seen, &rules());
    assert!(
        matches!(judged, Err(Violation::WrongResponse { .. })),
        "{judged:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn stale_read_is_detected_and_one_within_the_window_is_accepted() {
    let fixture = Fixture::new().await;
    let mut seen = fixture.seen(&fixture.one, &fixture.one.body);
    let judged = fixture.oracle.judge(&seen, &rules());
    assert!(
        matches!(judged, Err(Violation::Stale { version: 1, .. })),
        "{judged:?}"
    );
    seen.start.at -= Duration::from_millis(4_500);
    assert_eq!(fixture.oracle.judge(&seen, &rules()), Ok(Verdict::Read(1)));
    let immutable = Rules {
        window: None,
        ..rules()
    };
    let seen = fixture.seen(&fixture.one, &fixture.one.body);
    assert_eq!(
        fixture.oracle.judge(&seen, &immutable),
        Ok(Verdict::Read(1))
    );
}

#[tokio::test(start_paused = true)]
async fn acknowledged_write_hides_older_versions_whatever_the_window() {
    let fixture = Fixture::new().await;
    let immutable = Rules {
        window: None,
        ..rules()
    };
    let three = version(&fixture.path, 3, 10);
    let start = fixture.oracle.now();
    fixture.oracle.commit(&fixture.path, Some(three.clone()));
    let before = fixture.seen(&fixture.two, &fixture.two.body);
    assert_eq!(
        fixture.oracle.judge(&before, &immutable),
        Ok(Verdict::Read(2))
    );
    fixture
        .oracle
        .acknowledge(&fixture.path, start, WriteEffect::Body(&three.body))
        .unwrap();
    let after = fixture.seen(&fixture.two, &fixture.two.body);
    let judged = fixture.oracle.judge(&after, &immutable);
    assert!(
        matches!(judged, Err(Violation::Stale { version: 2, .. })),
        "{judged:?}"
    );
}

/// Two clients delete an object, and a version is between. The acknowledgement of one deletion may be that of the first.
#[tokio::test(start_paused = true)]
async fn acknowledged_deletion_hides_no_version_after_the_first_one() {
    let fixture = Fixture::new().await;
    let (oracle, path) = (&fixture.oracle, &fixture.path);
    let start = oracle.now();
    let three = version(path, 3, 100);
    for state in [None, Some(three.clone()), None] {
        oracle.commit(path, state);
    }
    oracle
        .acknowledge(path, start, WriteEffect::Deleted)
        .unwrap();
    let seen = fixture.seen(&three, &three.body);
    assert_eq!(oracle.judge(&seen, &rules()), Ok(Verdict::Read(3)));
    let older = fixture.seen(&fixture.two, &fixture.two.body);
    assert!(matches!(
        oracle.judge(&older, &rules()),
        Err(Violation::Stale { .. })
    ));
}

#[tokio::test(start_paused = true)]
async fn false_acknowledgement_is_detected() {
    let fixture = Fixture::new().await;
    let start = fixture.oracle.now();
    let lie =
        fixture
            .oracle
            .acknowledge(&fixture.path, start, WriteEffect::Body(&fixture.two.body));
    assert!(
        matches!(lie, Err(Violation::FalseAcknowledgement { .. })),
        "{lie:?}"
    );
    assert!(
        fixture
            .oracle
            .acknowledge(&fixture.path, start, WriteEffect::Deleted)
            .is_err()
    );
}

#[tokio::test(start_paused = true)]
async fn short_bodies_and_bytes_of_no_version_are_detected() {
    let fixture = Fixture::new().await;
    let mut seen = fixture.seen(&fixture.two, &fixture.two.body[..99]);
    let judged = fixture.oracle.judge(&seen, &rules());
    assert!(
        matches!(judged, Err(Violation::WrongResponse { .. })),
        "{judged:?}"
    );
    seen.outcome = Outcome::Cancelled;
    assert_eq!(fixture.oracle.judge(&seen, &rules()), Ok(Verdict::Read(2)));
    let seen = fixture.seen(&fixture.two, &[0; 100]);
    let judged = fixture.oracle.judge(&seen, &rules());
    assert!(
        matches!(judged, Err(Violation::Unknown { .. })),
        "{judged:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn errors_without_a_cause_are_detected() {
    let fixture = Fixture::new().await;
    let failed = |error| {
        let mut seen = fixture.seen(&fixture.two, &[]);
        (seen.meta, seen.range) = (None, None);
        seen.outcome = Outcome::Failed(error);
        seen
    };
    let generic = || object_store::Error::Generic {
        store: "Sim",
        source: "503".into(),
    };
    let missing = || object_store::Error::NotFound {
        path: "a".into(),
        source: "404".into(),
    };
    assert!(fixture.oracle.judge(&failed(generic()), &rules()).is_err());
    assert!(fixture.oracle.judge(&failed(missing()), &rules()).is_err());
    fixture
        .oracle
        .note_fault(&fixture.path, &Fault::Unavailable);
    assert_eq!(
        fixture.oracle.judge(&failed(generic()), &rules()),
        Ok(Verdict::Explained)
    );
    assert!(
        fixture.oracle.judge(&failed(missing()), &rules()).is_err(),
        "a 503 does not explain a 404"
    );
    fixture.oracle.commit(&fixture.path, None);
    assert_eq!(
        fixture.oracle.judge(&failed(missing()), &rules()),
        Ok(Verdict::Absent)
    );
}

#[tokio::test(start_paused = true)]
async fn forgotten_states_are_not_visible_and_the_rest_is_judged_as_before() {
    let fixture = Fixture::new().await;
    let Fixture {
        oracle,
        path,
        one,
        two,
    } = &fixture;
    let start = oracle.now();
    let three = version(path, 3, 100);
    oracle.commit(path, Some(three.clone()));
    let wrote = WriteEffect::Body(&three.body);
    oracle.acknowledge(path, start, wrote).unwrap();
    oracle.forget_older(Duration::from_secs(4));
    // Version 1 ended 5 s ago, version 2 just now.
    let stale = oracle.judge(&fixture.seen(two, &two.body), &rules());
    assert!(
        matches!(stale, Err(Violation::Stale { version: 2, .. })),
        "{stale:?}"
    );
    let unknown = oracle.judge(&fixture.seen(one, &one.body), &rules());
    assert!(
        matches!(unknown, Err(Violation::Unknown { .. })),
        "{unknown:?}"
    );
    let current = oracle.judge(&fixture.seen(&three, &three.body), &rules());
    assert_eq!(current, Ok(Verdict::Read(3)));
    let mut absent = fixture.seen(&three, b"");
    absent.meta = None;
    absent.range = None;
    absent.outcome = Outcome::Failed(object_store::Error::NotFound {
        path: path.to_string(),
        source: "absent".into(),
    });
    assert!(oracle.judge(&absent, &rules()).is_err());
}
