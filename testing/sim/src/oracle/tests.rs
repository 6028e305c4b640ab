//! Negative controls: the judge must catch what it is for.
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
    let body = crate::pattern(number, len);
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

struct World {
    oracle: Oracle,
    path: Path,
    one: Version,
    two: Version,
}

impl World {
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
async fn a_right_read_is_right() {
    let world = World::new().await;
    let seen = world.seen(&world.two, &world.two.body);
    assert_eq!(world.oracle.judge(&seen, &rules()), Ok(Verdict::Read(2)));
    let mut part = world.seen(&world.two, &world.two.body[90..]);
    part.options.range = Some(GetRange::Suffix(10));
    part.range = Some(90..100);
    assert_eq!(world.oracle.judge(&part, &rules()), Ok(Verdict::Read(2)));
}

#[tokio::test(start_paused = true)]
async fn a_torn_read_is_caught() {
    let world = World::new().await;
    let mut body = world.one.body[..40].to_vec();
    body.extend_from_slice(&world.two.body[40..]);
    // Both versions are visible to a read that lasted, and still no mixture of them is.
    let mut seen = world.seen(&world.two, &body);
    seen.start.at -= Duration::from_secs(6);
    seen.start.tick = 1;
    let Err(Violation::Torn {
        first: 1,
        second: 2,
        at: 40,
        ..
    }) = world.oracle.judge(&seen, &rules())
    else {
        panic!("{:?}", world.oracle.judge(&seen, &rules()));
    };
    seen.outcome = Outcome::Left;
    assert!(
        world.oracle.judge(&seen, &rules()).is_err(),
        "also in what a reader took that left"
    );
}

#[tokio::test(start_paused = true)]
async fn metadata_of_another_version_is_caught() {
    let world = World::new().await;
    let seen = world.seen(&world.one, &world.two.body);
    let judged = world.oracle.judge(&seen, &rules());
    assert!(
        matches!(judged, Err(Violation::WrongAnswer { .. })),
        "{judged:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_stale_read_is_caught_and_one_within_the_window_is_not() {
    let world = World::new().await;
    let mut seen = world.seen(&world.one, &world.one.body);
    let judged = world.oracle.judge(&seen, &rules());
    assert!(
        matches!(judged, Err(Violation::Stale { saw: 1, .. })),
        "{judged:?}"
    );
    seen.start.at -= Duration::from_millis(4_500);
    assert_eq!(world.oracle.judge(&seen, &rules()), Ok(Verdict::Read(1)));
    let immutable = Rules {
        window: None,
        ..rules()
    };
    let seen = world.seen(&world.one, &world.one.body);
    assert_eq!(world.oracle.judge(&seen, &immutable), Ok(Verdict::Read(1)));
}

#[tokio::test(start_paused = true)]
async fn one_reads_ones_own_writes_whatever_the_window() {
    let world = World::new().await;
    let immutable = Rules {
        window: None,
        ..rules()
    };
    let three = version(&world.path, 3, 10);
    let start = world.oracle.now();
    world.oracle.commit(&world.path, Some(three.clone()));
    let before = world.seen(&world.two, &world.two.body);
    assert_eq!(
        world.oracle.judge(&before, &immutable),
        Ok(Verdict::Read(2))
    );
    world
        .oracle
        .acknowledge(&world.path, start, Wrote::Body(&three.body))
        .unwrap();
    let after = world.seen(&world.two, &world.two.body);
    let judged = world.oracle.judge(&after, &immutable);
    assert!(
        matches!(judged, Err(Violation::Stale { saw: 2, .. })),
        "{judged:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn an_acknowledged_write_that_never_happened_is_caught() {
    let world = World::new().await;
    let start = world.oracle.now();
    let lie = world
        .oracle
        .acknowledge(&world.path, start, Wrote::Body(&world.two.body));
    assert!(
        matches!(lie, Err(Violation::FalseAcknowledgement { .. })),
        "{lie:?}"
    );
    assert!(
        world
            .oracle
            .acknowledge(&world.path, start, Wrote::Absence)
            .is_err()
    );
}

#[tokio::test(start_paused = true)]
async fn short_bodies_and_invented_bytes_are_caught() {
    let world = World::new().await;
    let mut seen = world.seen(&world.two, &world.two.body[..99]);
    let judged = world.oracle.judge(&seen, &rules());
    assert!(
        matches!(judged, Err(Violation::WrongAnswer { .. })),
        "{judged:?}"
    );
    seen.outcome = Outcome::Left;
    assert_eq!(world.oracle.judge(&seen, &rules()), Ok(Verdict::Read(2)));
    let seen = world.seen(&world.two, &[0; 100]);
    let judged = world.oracle.judge(&seen, &rules());
    assert!(
        matches!(judged, Err(Violation::Invented { .. })),
        "{judged:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn errors_need_an_excuse() {
    let world = World::new().await;
    let failed = |error| {
        let mut seen = world.seen(&world.two, &[]);
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
    assert!(world.oracle.judge(&failed(generic()), &rules()).is_err());
    assert!(world.oracle.judge(&failed(missing()), &rules()).is_err());
    world.oracle.note_fault(&world.path, &Fault::Unavailable);
    assert_eq!(
        world.oracle.judge(&failed(generic()), &rules()),
        Ok(Verdict::Excused)
    );
    assert!(
        world.oracle.judge(&failed(missing()), &rules()).is_err(),
        "a 503 does not excuse a 404"
    );
    world.oracle.commit(&world.path, None);
    assert_eq!(
        world.oracle.judge(&failed(missing()), &rules()),
        Ok(Verdict::Absent)
    );
}
