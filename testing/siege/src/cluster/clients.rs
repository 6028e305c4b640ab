//! Clients of a soak: readers and writers through random nodes, with a judge of each result.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use bywash_sim::{Moment, Observation, Oracle, Outcome, Rules, WriteEffect};
use bywash_support::http::HttpResponse;
use bywash_support::pattern;
use bywash_support::pattern::mix;
use object_store::path::Path;
use object_store::{Error, GetOptions, GetRange};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::Plan;
use super::history::{History, Span};
use super::nodes::{Cluster, Node};
use super::origin::{BUCKET, JudgedStore, meta};
use crate::client::{Client, Expect};
use crate::record::{Class, Record};

/// Time after which a request through an undisturbed node counts as hung. Writes that wait for a node that is stopped, and then for the
/// window, take 4 s.
const HUNG: Duration = Duration::from_secs(9);
/// Each so many keys one is of several blocks.
const LARGE_EVERY: u64 = 6;
/// Lengths of small and of large objects, in bytes.
const SMALL: Range<usize> = 16..4_000;
const LARGE: Range<usize> = 150_000..400_000;
/// Statuses that a server under faults may have: the judge looks at each.
const STATUSES: &[u16] = &[200, 204, 206, 404, 412, 500, 502, 503, 504];

/// State that the clients, the faults and the report of a soak share.
pub(super) struct Soak {
    pub(super) plan: Plan,
    pub(super) cluster: Cluster,
    pub(super) oracle: Arc<Oracle>,
    pub(super) rules: Rules,
    pub(super) store: Arc<JudgedStore>,
    pub(super) record: Arc<Record>,
    pub(super) begun: Instant,
    /// The history for the checker, if it judges.
    pub(super) history: Option<History>,
    /// Number of the next operation.
    pub(super) next: AtomicU64,
    /// Number of requests without success, by status; `none` without a response.
    pub(super) failed: Mutex<BTreeMap<String, u64>>,
    /// The first responses with status 500, which is not to be repeated by a client: request and response.
    pub(super) internal: Mutex<Vec<String>>,
    /// Whether no fault begins any more.
    pub(super) over: AtomicBool,
    /// The first wrong result, and the number of operations begun by then.
    pub(super) violation: Mutex<Option<(String, u64)>>,
    pub(super) reads: Times,
    pub(super) writes: Times,
    /// Number of faults by name.
    pub(super) faults: Mutex<BTreeMap<&'static str, u64>>,
    /// The latest faults: start, kind, node and length.
    pub(super) latest_faults: Mutex<VecDeque<String>>,
}

/// Times of operations that succeeded, in microseconds.
#[derive(Debug, Default)]
pub(super) struct Times(Mutex<Vec<u32>>);

impl Times {
    fn add(&self, time: Duration) {
        let micros = u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
        self.0.lock().push(micros);
    }

    /// Returns the number, the median, the 99th percentile and the maximum.
    pub(super) fn figures(&self) -> (usize, [Duration; 3]) {
        let mut times = self.0.lock().clone();
        times.sort_unstable();
        let at = |share: f64| {
            let index = (times.len() as f64 * share) as usize;
            let micros = times.get(index.min(times.len().saturating_sub(1)));
            Duration::from_micros(micros.copied().unwrap_or(0).into())
        };
        (times.len(), [at(0.5), at(0.99), at(1.0)])
    }
}

impl Soak {
    pub(super) fn is_violated(&self) -> bool {
        self.violation.lock().is_some()
    }

    /// Notes a result that the oracle finds wrong, unless its word is not taken.
    fn violate(&self, text: String) {
        if self.plan.judging.as_ref().is_some_and(|of| of.is_alone) {
            return;
        }
        self.fail(text);
    }

    /// Adds an operation to the history.
    fn add_to_history(
        &self,
        key: &str,
        operation: &Operation,
        response: Option<&HttpResponse>,
        begun: Instant,
        ended: Instant,
    ) {
        let Some(history) = &self.history else {
            return;
        };
        let span = Span {
            begun: begun.duration_since(self.begun),
            ended: ended.duration_since(self.begun),
        };
        if let Err(error) = history.add(key, operation, response, span) {
            self.fail(format!("the history cannot be written: {error}"));
        }
    }

    fn fail(&self, text: String) {
        // Relaxed: a figure.
        let ops = self.next.load(Relaxed);
        let at = self.begun.elapsed();
        let faults: Vec<String> = self.latest_faults.lock().iter().cloned().collect();
        let mut violation = self.violation.lock();
        violation.get_or_insert_with(|| {
            let faults = match faults.is_empty() {
                true => String::new(),
                false => format!("; latest faults: {}", faults.join("; ")),
            };
            (format!("{text} (at {at:.1?}{faults})"), ops)
        });
    }

    fn note_internal(&self, text: String) {
        /// Responses that are kept.
        const KEPT: usize = 20;
        let mut internal = self.internal.lock();
        if internal.len() < KEPT {
            internal.push(text);
        }
    }

    /// Returns whether there is another operation to do.
    fn goes_on(&self) -> bool {
        // Relaxed: the numbers only have to be unique.
        !self.is_violated() && self.next.fetch_add(1, Relaxed) < self.plan.ops
    }
}

/// What a client does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Operation {
    Get,
    Range(Range<u64>),
    Head,
    Put(Bytes),
    /// A PUT for a key without an object: `If-None-Match: *`.
    Create(Bytes),
    Delete,
    /// A change behind the cluster's back.
    Behind(Bytes),
}

/// Clients' connections to the nodes, by node.
struct Connections(Vec<Option<Client>>);

impl Connections {
    /// Returns the connection to a node, a new one if its process is another.
    fn to(&mut self, node: usize, address: SocketAddr, record: &Arc<Record>) -> &mut Client {
        let known = &mut self.0[node];
        if known.as_ref().is_none_or(|known| known.address != address) {
            *known = Some(Client::new(address, Class::Excessive("faults"), record));
        }
        known.get_or_insert_with(|| Client::new(address, Class::Excessive("faults"), record))
    }
}

fn key(number: u64) -> String {
    format!("key-{number}")
}

/// Draws an operation. Low numbers of keys are hot.
fn draw(rng: &mut StdRng, plan: &Plan, unique: u64) -> (u64, Operation) {
    let (one, other) = (
        rng.random_range(0..plan.keys),
        rng.random_range(0..plan.keys),
    );
    let key = one.min(other);
    let is_large = key % LARGE_EVERY == LARGE_EVERY - 1;
    let mut body = || {
        let len = rng.random_range(if is_large { LARGE } else { SMALL });
        pattern(mix(plan.seed).wrapping_add(unique), len)
    };
    let drawn = (mix(plan.seed ^ mix(unique)) % 1000) as u32;
    let puts = plan.behind + plan.puts;
    let deletions = puts + plan.puts / 5;
    let creations = deletions + plan.puts / 5;
    let operation = match drawn {
        drawn if drawn < plan.behind => Operation::Behind(body()),
        drawn if drawn < puts => Operation::Put(body()),
        drawn if drawn < deletions => Operation::Delete,
        drawn if drawn < creations => Operation::Create(body()),
        drawn if drawn < creations + 80 => Operation::Head,
        _ if is_large && rng.random_bool(0.5) => {
            let start = rng.random_range(0..LARGE.start as u64 - 1);
            let end = rng.random_range(start + 1..LARGE.start as u64);
            Operation::Range(start..end)
        }
        _ => Operation::Get,
    };
    (key, operation)
}

/// Runs one client until the operations are done or a result is wrong.
pub(super) async fn run_client(soak: Arc<Soak>, number: u64) {
    let plan = &soak.plan;
    let mut rng = StdRng::seed_from_u64(mix(plan.seed ^ mix(number)));
    let mut connections = Connections(plan.nodes_without_clients());
    // Clients together have the rate of the plan.
    let pause = Duration::from_secs(plan.clients) / u32::try_from(plan.rate).unwrap_or(u32::MAX);
    let mut count = 0;
    while soak.goes_on() {
        tokio::time::sleep(pause.mul_f64(2.0 * rng.random::<f64>())).await;
        count += 1;
        let (at, operation) = draw(&mut rng, plan, number << 40 | count);
        if let Operation::Behind(body) = &operation {
            let begun = Instant::now();
            soak.store.put_behind(&key(at), body.clone());
            // Each read that begins a window later has to see it.
            let seen = Instant::now() + plan.window;
            soak.add_to_history(&key(at), &operation, None, begun, seen);
            continue;
        }
        let drawn = rng.random_range(0..plan.nodes);
        let Some((node, address)) = free_node(&soak, drawn).await else {
            return;
        };
        let client = connections.to(node.number(), address, &soak.record);
        // Relaxed: see `Cluster::pick`.
        node.in_flight.fetch_add(1, Relaxed);
        perform(&soak, &node, client, &key(at), &operation).await;
        node.in_flight.fetch_sub(1, Relaxed);
    }
}

impl Plan {
    /// Returns the max requests in progress at one node, while another one runs: clients do not all wait for a node that is stopped.
    fn max_at_one_node(&self) -> usize {
        (self.clients as usize / self.nodes).max(1)
    }

    fn nodes_without_clients(&self) -> Vec<Option<Client>> {
        (0..self.nodes).map(|_| None).collect()
    }
}

/// Waits for a node that runs and is not waited for by too many. Returns `None` if a result is wrong meanwhile.
async fn free_node(soak: &Soak, drawn: usize) -> Option<(Arc<Node>, SocketAddr)> {
    while !soak.is_violated() {
        if let Some(found) = soak.cluster.pick(drawn, soak.plan.max_at_one_node()) {
            return Some(found);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    None
}

/// Sends a request to a node and judges its result. Returns whether it succeeded.
async fn perform(
    soak: &Soak,
    node: &Node,
    client: &mut Client,
    key: &str,
    operation: &Operation,
) -> bool {
    let path = format!("/{BUCKET}/{key}");
    let (begun, start) = (Instant::now(), soak.oracle.now());
    let range = match operation {
        Operation::Range(range) => format!("bytes={}-{}", range.start, range.end - 1),
        _ => String::new(),
    };
    let (method, body, headers): (_, &[u8], &[(&str, &str)]) = match operation {
        Operation::Get => ("GET", b"", &[]),
        Operation::Range(_) => ("GET", b"", &[("range", &range)]),
        Operation::Head => ("HEAD", b"", &[]),
        Operation::Put(body) | Operation::Behind(body) => ("PUT", body, &[]),
        Operation::Create(body) => ("PUT", body, &[("if-none-match", "*")]),
        Operation::Delete => ("DELETE", b"", &[]),
    };
    let expect = Expect::Status(STATUSES);
    let response = client
        .send((method, &path, ""), headers, body, &expect)
        .await;
    let ended = Instant::now();
    let time = ended - begun;
    soak.add_to_history(key, operation, response.as_ref(), begun, ended);
    let judged = judge(soak, key, start, operation, response.as_ref());
    if let Err(text) = &judged {
        let number = node.number();
        soak.violate(format!("{text}, through node {number} in {time:.3?}"));
    }
    let too_long = time > HUNG && !soak.plan.faults.slows_the_origin();
    if too_long && node.is_undisturbed_since(begun) {
        let number = node.number();
        soak.violate(format!(
            "HUNG {method} {path} through node {number}: {time:.1?}"
        ));
    }
    if let Some(response) = response.as_ref().filter(|response| response.status == 500) {
        soak.note_internal(format!(
            "{method} {path} through node {}: {}",
            node.number(),
            String::from_utf8_lossy(&response.body)
        ));
    }
    if judged != Ok(true) {
        let status = response.map_or("none".to_owned(), |response| response.status.to_string());
        *soak.failed.lock().entry(status).or_default() += 1;
        return false;
    }
    match operation {
        Operation::Get | Operation::Range(_) | Operation::Head => soak.reads.add(time),
        _ => soak.writes.add(time),
    }
    true
}

/// Judges a response. Returns whether it is a success; an error of the server is none, and may be explained by a fault.
fn judge(
    soak: &Soak,
    key: &str,
    start: Moment,
    operation: &Operation,
    response: Option<&HttpResponse>,
) -> Result<bool, String> {
    let path = Path::from(key);
    let Some(response) = response.filter(|response| response.status < 500) else {
        return Ok(false);
    };
    let wrote = match (operation, response.status) {
        (Operation::Put(body) | Operation::Create(body), 200) => WriteEffect::Body(body),
        // Whether the key had an object then is the checker's to judge.
        (Operation::Create(_), 412) => return Ok(true),
        (Operation::Delete, 204) => WriteEffect::Deleted,
        (Operation::Get | Operation::Range(_) | Operation::Head, _) => {
            let seen = observation(soak, &path, start, operation, response)?;
            let judged = soak.oracle.judge(&seen, &soak.rules);
            return judged.map(|_| true).map_err(|wrong| wrong.to_string());
        }
        (_, status) => return Err(format!("WRONG STATUS {status} for a write of {key}")),
    };
    let acknowledged = soak.oracle.acknowledge(&path, start, wrote);
    acknowledged
        .map(|()| true)
        .map_err(|wrong| wrong.to_string())
}

/// Returns what a read has seen.
fn observation(
    soak: &Soak,
    path: &Path,
    start: Moment,
    operation: &Operation,
    response: &HttpResponse,
) -> Result<Observation, String> {
    let is_head = *operation == Operation::Head;
    let options = GetOptions {
        head: is_head,
        range: match operation {
            Operation::Range(range) => Some(GetRange::Bounded(range.clone())),
            _ => None,
        },
        ..GetOptions::default()
    };
    let mut seen = Observation {
        path: path.clone(),
        options,
        start,
        end: soak.oracle.now(),
        meta: None,
        range: None,
        body: response.body.clone(),
        outcome: Outcome::Complete,
    };
    let (range, size) = match response.status {
        200 if is_head => {
            let size = response
                .header("content-length")
                .and_then(|n| n.parse().ok());
            let size = size.ok_or("a response to HEAD without a length")?;
            (0..size, size)
        }
        200 => (0..response.body.len() as u64, response.body.len() as u64),
        206 => {
            let range = response.header("content-range").and_then(content_range);
            range.ok_or("a partial response without its range")?
        }
        404 => {
            seen.body.clear();
            seen.outcome = Outcome::Failed(Error::NotFound {
                path: path.to_string(),
                source: "404".into(),
            });
            return Ok(seen);
        }
        status => return Err(format!("WRONG STATUS {status} for a read of {path}")),
    };
    seen.meta = Some(meta(path, size, response.header("etag")));
    seen.range = Some(range);
    Ok(seen)
}

/// Parses `bytes 0-9/100`.
fn content_range(text: &str) -> Option<(Range<u64>, u64)> {
    let (range, size) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    Some((
        first.parse().ok()?..last.parse::<u64>().ok()? + 1,
        size.parse().ok()?,
    ))
}

/// Without faults: each object is read through each node, and each node writes one that all others read. No request may fail.
pub(super) async fn look_at_all(soak: &Arc<Soak>) {
    let plan = &soak.plan;
    let mut connections = Connections(plan.nodes_without_clients());
    let mut rights = 0;
    let mut all = 0;
    for node in &soak.cluster.nodes {
        let Some(address) = node.address() else {
            return soak.violate(format!("node {} does not run", node.number()));
        };
        let client = connections.to(node.number(), address, &soak.record);
        let unique = u64::MAX - node.number() as u64;
        let body = pattern(mix(plan.seed).wrapping_add(unique), 2_000);
        let own = Operation::Put(body);
        rights += u64::from(perform(soak, node, client, &key(0), &own).await);
        all += 1;
        for reader in &soak.cluster.nodes {
            let Some(address) = reader.address() else {
                continue;
            };
            let client = connections.to(reader.number(), address, &soak.record);
            let get = Operation::Get;
            rights += u64::from(perform(soak, reader, client, &key(0), &get).await);
            all += 1;
        }
    }
    for number in 0..plan.keys {
        for node in &soak.cluster.nodes {
            let Some(address) = node.address() else {
                continue;
            };
            let client = connections.to(node.number(), address, &soak.record);
            let get = Operation::Get;
            rights += u64::from(perform(soak, node, client, &key(number), &get).await);
            all += 1;
        }
    }
    if rights < all {
        soak.violate(format!(
            "{} of {all} requests failed without faults",
            all - rights
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_draws_the_same_operations_of_all_kinds() {
        let plan = Plan::new("bywash".into(), None, 7);
        let all = |seed| {
            let mut rng = StdRng::seed_from_u64(seed);
            (0..1000)
                .map(|n| draw(&mut rng, &plan, n))
                .collect::<Vec<_>>()
        };
        let drawn = all(1);
        assert_eq!(drawn, all(1));
        let count = |wanted: fn(&Operation) -> bool| {
            let found = drawn.iter().filter(|(_, operation)| wanted(operation));
            found.count()
        };
        assert!(count(|operation| matches!(operation, Operation::Put(_))) > 150);
        assert!(count(|operation| matches!(operation, Operation::Range(_))) > 10);
        assert!(count(|operation| *operation == Operation::Delete) > 10);
        assert!(count(|operation| matches!(operation, Operation::Create(_))) > 10);
        assert!(count(|operation| matches!(operation, Operation::Behind(_))) > 5);
        let hot = drawn.iter().filter(|(key, _)| *key < plan.keys / 2);
        assert!(hot.count() > 700);
    }

    #[test]
    fn content_range_has_its_bytes_and_the_size() {
        assert_eq!(content_range("bytes 0-9/100"), Some((0..10, 100)));
        assert_eq!(content_range("bytes */100"), None);
    }
}
