//! The retry scenarios of Google's client conformance tests, at a server that follows the instructions of Google's
//! storage-testbench.
//!
//! The facts are from googleapis/conformance-tests, `storage/v1/retry_tests.json` (Apache-2.0); the instructions are
//! described in the README of googleapis/storage-testbench. That server selects requests by the header `x-retry-test-id`; here each
//! case has a server of its own, which applies the instructions to the requests of one call.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use bywash::upload::UploadOptions;
use bywash::{Bucket, Consistency, DeleteCondition, Engine, RetryPolicy};
use bywash_sim::advance_clock_by_ticks;
use bywash_sim::server::gcs::Gcs;
use bywash_sim::server::{Lie, Server, ServerFault};
use bywash_support::pattern;
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, Result};

use crate::upload_servers::gcs::{UNIT, client};

/// One of Google's scenarios. Scenario 4 has no method, and there is no 5.
struct Scenario {
    id: u8,
    cases: &'static [[&'static str; 2]],
    /// Those on objects, without their prefix `storage.`. The origin sends none on buckets, ACLs, HMAC keys, notifications and
    /// service accounts.
    methods: &'static [&'static str],
    /// Whether the client sends a precondition.
    precondition: bool,
    success: bool,
}

const PASSING: &[[&str; 2]] = &[
    ["return-503", "return-503"],
    ["return-reset-connection", "return-reset-connection"],
    ["return-reset-connection", "return-503"],
];
/// 403 is not in Google's file.
const LASTING: &[[&str; 2]] = &[
    ["return-400", "return-400"],
    ["return-401", "return-401"],
    ["return-403", "return-403"],
];
const CHANGES: &[&str] = &[
    "objects.compose",
    "objects.copy",
    "objects.delete",
    "objects.insert",
    "objects.patch",
    "objects.rewrite",
    "objects.update",
];

const SCENARIOS: [Scenario; 5] = [
    Scenario {
        id: 1,
        cases: PASSING,
        methods: &["objects.get", "objects.list"],
        precondition: false,
        success: true,
    },
    Scenario {
        id: 2,
        cases: PASSING,
        methods: CHANGES,
        precondition: true,
        success: true,
    },
    Scenario {
        id: 3,
        cases: PASSING,
        methods: CHANGES,
        precondition: false,
        success: false,
    },
    Scenario {
        id: 6,
        cases: LASTING,
        methods: &["objects.get", "objects.list"],
        precondition: false,
        success: false,
    },
    Scenario {
        id: 6,
        cases: LASTING,
        methods: CHANGES,
        precondition: false,
        success: false,
    },
];

/// Methods on objects that the origin never sends, with or without a precondition.
const NOT_USED: [(&str, bool); 8] = [
    ("objects.compose", false),
    ("objects.compose", true),
    ("objects.patch", false),
    ("objects.patch", true),
    // Copies are one request of the XML API.
    ("objects.rewrite", false),
    ("objects.rewrite", true),
    ("objects.update", false),
    ("objects.update", true),
];

/// A call. A new object is written under the precondition that it is absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Read,
    Head,
    List,
    Level,
    Put,
    PutNew,
    /// A resumable upload; the instructions apply to its start.
    Start,
    StartNew,
    /// A resumable upload; the instructions apply to chunks, status queries and the end.
    Chunks,
    ChunksNew,
    Copy,
    CopyNew,
    Delete,
    /// Of the generation that is there.
    DeleteSame,
}

/// Calls with Google's method, and whether they have a precondition.
const CALLS: [(Call, &str, bool); 14] = [
    (Call::Read, "objects.get", false),
    (Call::Head, "objects.get", false),
    (Call::List, "objects.list", false),
    (Call::Level, "objects.list", false),
    (Call::Put, "objects.insert", false),
    (Call::PutNew, "objects.insert", true),
    (Call::Start, "objects.insert", false),
    (Call::StartNew, "objects.insert", true),
    (Call::Chunks, "objects.insert", false),
    (Call::ChunksNew, "objects.insert", true),
    (Call::Copy, "objects.copy", false),
    (Call::CopyNew, "objects.copy", true),
    (Call::Delete, "objects.delete", false),
    (Call::DeleteSame, "objects.delete", true),
];

/// Where the engine does the opposite of Google's requirement for its clients, and why.
const DEVIATIONS: [(u8, Call, &str); 7] = [
    (
        2,
        Call::CopyNew,
        "tried once: after a lost response the copy would refuse its own writer",
    ),
    (
        2,
        Call::DeleteSame,
        "tried once: after a lost response the object is absent",
    ),
    (
        3,
        Call::Put,
        "repeated: the same bytes and checksum replace each other, and the last writer wins",
    ),
    (
        3,
        Call::Start,
        "repeated: an unused session makes no object, and the store forgets it",
    ),
    (
        3,
        Call::Chunks,
        "repeated: a chunk has its offset, and a session ends once",
    ),
    (
        3,
        Call::Copy,
        "repeated: the last copy wins, as the last writer",
    ),
    (3, Call::Delete, "repeated: what is deleted stays deleted"),
];

fn policy() -> RetryPolicy {
    RetryPolicy {
        initial_backoff: Duration::from_millis(1),
        max_backoff: Duration::from_millis(2),
        deadline: Duration::from_secs(10),
        stall: Duration::from_millis(500),
    }
}

/// Retries off: the deadline leaves no time for one.
fn once() -> RetryPolicy {
    RetryPolicy {
        deadline: Duration::ZERO,
        ..policy()
    }
}

/// Returns the fault of an instruction of the testbench; a broken stream cuts half of the body.
fn fault(instruction: &str) -> ServerFault {
    let rest = instruction.strip_prefix("return-");
    match (instruction, rest.and_then(|rest| rest.parse().ok())) {
        (_, Some(503)) => ServerFault::Unavailable,
        (_, Some(status)) => ServerFault::Refuse(status),
        ("return-reset-connection", _) => ServerFault::Reset,
        ("return-503-after-256K", _) => ServerFault::UnavailableAfter(256 << 10),
        ("return-broken-stream" | "return-broken-stream-after-256K", _) => {
            ServerFault::Lie(Lie::BodyShort)
        }
        ("stall-always", _) => ServerFault::StallResponse,
        _ => panic!("no such instruction: {instruction}"),
    }
}

/// A call at a store of its own.
struct Case {
    gcs: Arc<Gcs>,
    server: Server,
    bucket: Bucket,
    body: Bytes,
}

impl Case {
    async fn new(policy: RetryPolicy) -> Self {
        let gcs = Gcs::new();
        let server = Server::start(Arc::clone(&gcs) as _).await.unwrap();
        let engine = Engine::builder().memory(32 << 20).retry(policy);
        let engine = engine.build().unwrap();
        let store = Arc::new(client(&server));
        let bucket = engine.mount("test", store, Consistency::default()).unwrap();
        Self {
            gcs,
            server,
            bucket,
            body: pattern(1, 2 * UNIT),
        }
    }

    fn object(&self, key: &str) -> Option<Bytes> {
        Some(self.gcs.objects().get("data", key)?.bytes)
    }

    async fn upload(&self, mode: PutMode) -> Result<()> {
        let options = UploadOptions {
            mode,
            chunk: Some(UNIT as u64),
            ..UploadOptions::default()
        };
        let mut upload = self.bucket.upload(&Path::from("new"), options).await?;
        upload.write(self.body.clone()).await?;
        upload.finish().await.map(|_| ())
    }

    /// Performs the call. `Ok(false)` if it succeeded and its result is wrong.
    async fn perform(&self, call: Call) -> Result<bool> {
        let (old, new) = (Path::from("old"), Path::from("new"));
        let length = self.body.len() as u64;
        let written = |key: &str| self.object(key) == Some(self.body.clone());
        match call {
            Call::Read => Ok(self.bucket.get(&old).await?.bytes().await? == self.body),
            Call::Head => Ok(self.bucket.head(&old).await?.size == length),
            Call::List => {
                let found: Vec<_> = self.bucket.list(None).try_collect().await?;
                Ok(found.len() == 1 && found[0].location == old)
            }
            Call::Level => Ok(self.bucket.list_with_delimiter(None).await?.objects.len() == 1),
            Call::Put | Call::PutNew => {
                let mode = match call {
                    Call::Put => PutMode::Overwrite,
                    _ => PutMode::Create,
                };
                let options = PutOptions::from(mode);
                let payload = self.body.clone().into();
                self.bucket.put_opts(&new, payload, options).await?;
                Ok(written("p/new"))
            }
            Call::Start | Call::Chunks => {
                self.upload(PutMode::Overwrite).await?;
                Ok(written("p/new"))
            }
            Call::StartNew | Call::ChunksNew => {
                self.upload(PutMode::Create).await?;
                Ok(written("p/new"))
            }
            Call::Copy => {
                self.bucket.copy(&old, &new).await?;
                Ok(written("p/new"))
            }
            Call::CopyNew => {
                self.bucket.copy_if_not_exists(&old, &new).await?;
                Ok(written("p/new"))
            }
            Call::Delete => {
                self.bucket.delete(&old).await?;
                Ok(self.object("p/old").is_none())
            }
            Call::DeleteSame => {
                let stored = self.gcs.objects().get("data", "p/old").unwrap();
                let condition = DeleteCondition {
                    e_tag: Some(stored.e_tag.trim_matches('"').to_owned()),
                    version: Some(stored.generation.to_string()),
                    ..DeleteCondition::default()
                };
                self.bucket.delete_if(&old, condition).await?;
                Ok(self.object("p/old").is_none())
            }
        }
    }
}

/// Performs a call under instructions, and returns differences from the expectation.
///
/// A success must have met all instructions, and a failure the first only, without a change at the store.
async fn judge(
    call: Call,
    instructions: &[&str],
    policy: RetryPolicy,
    success: bool,
) -> std::result::Result<(), String> {
    let case = Case::new(policy).await;
    let old = case.body.clone();
    let objects = case.gcs.objects();
    objects.put("data", "p/old", old.clone(), BTreeMap::new(), |_| true);
    let requests = match call {
        Call::Start | Call::StartNew => "POST ",
        Call::Chunks | Call::ChunksNew => "PUT ",
        // All of the bucket.
        _ => "data",
    };
    for instruction in instructions {
        case.server.script(requests, fault(instruction));
    }
    let result = case.perform(call).await;
    let log = case.server.take_log();
    let met = log.iter().filter(|one| one.fault.is_some()).count();
    let name = format!("{call:?} {instructions:?}");
    match result {
        Ok(_) if !success => Err(format!("{name}: succeeded")),
        Ok(false) => Err(format!("{name}: wrong result")),
        Ok(true) if met != instructions.len() => Err(format!("{name}: met {met} instructions")),
        Err(error) if success => Err(format!("{name}: {error}")),
        Err(_) if met != 1 => Err(format!("{name}: failed after {met} instructions")),
        Err(_) if case.object("p/new").is_some() || case.object("p/old") != Some(old) => {
            Err(format!("{name}: failed and changed the store"))
        }
        _ => Ok(()),
    }
}

/// Returns the calls of a method of a scenario.
fn calls(scenario: &Scenario, method: &str) -> Vec<Call> {
    let fits = |(_, named, condition): &&(Call, &str, bool)| {
        *named == method && *condition == scenario.precondition
    };
    CALLS.iter().filter(fits).map(|(call, ..)| *call).collect()
}

#[tokio::test]
async fn scenarios_end_as_google_says_or_as_a_named_deviation() {
    advance_clock_by_ticks();
    let (mut judged, mut wrong) = (0, Vec::new());
    let mut deviated = Vec::new();
    for scenario in &SCENARIOS {
        for method in scenario.methods {
            let calls = calls(scenario, method);
            let unused = NOT_USED.contains(&(method, scenario.precondition));
            assert_eq!(calls.is_empty(), unused, "{}: {method}", scenario.id);
            for call in calls {
                let deviation = DEVIATIONS
                    .iter()
                    .position(|(id, other, _)| (*id, *other) == (scenario.id, call));
                deviated.extend(deviation);
                let success = scenario.success != deviation.is_some();
                for case in scenario.cases {
                    judged += 1;
                    if let Err(text) = judge(call, case, policy(), success).await {
                        wrong.push(format!("scenario {}: {text}", scenario.id));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // 4 calls of scenario 1, 5 of 2 and 5 of 3 in three cases; 9 of 6 in three.
    assert_eq!(judged, 3 * (4 + 5 + 5 + 9));
    assert_eq!(
        deviated.len(),
        DEVIATIONS.len(),
        "an unused row: {deviated:?}"
    );
}

/// Control: a client without retries fails where the scenarios require success.
#[tokio::test]
async fn client_without_retries_fails_the_scenarios() {
    advance_clock_by_ticks();
    let once_only = [Call::CopyNew, Call::DeleteSame];
    for (call, ..) in CALLS {
        if once_only.contains(&call) {
            continue;
        }
        for case in PASSING {
            let text = judge(call, case, once(), true).await;
            assert!(text.is_err(), "{call:?} {case:?}");
        }
    }
}

/// The testbench's other instructions: bodies that break off, stall, or are stored in part.
#[tokio::test]
async fn broken_and_stalled_streams_are_continued() {
    advance_clock_by_ticks();
    const STREAMS: [(Call, &[&str]); 5] = [
        (
            Call::Read,
            &["return-broken-stream", "return-broken-stream"],
        ),
        (
            Call::Read,
            &["return-broken-stream-after-256K", "return-reset-connection"],
        ),
        (Call::Read, &["stall-always"]),
        (
            Call::ChunksNew,
            &["return-reset-connection", "return-503-after-256K"],
        ),
        (Call::ChunksNew, &["return-503-after-256K"]),
    ];
    for (call, instructions) in STREAMS {
        assert_eq!(judge(call, instructions, policy(), true).await, Ok(()));
        let control = judge(call, instructions, once(), true).await;
        assert!(control.is_err(), "{call:?} {instructions:?}");
    }
}
