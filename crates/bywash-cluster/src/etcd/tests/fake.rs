//! A server of etcd's JSON gateway with one version, one cluster and one key space.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};
use std::sync::Mutex;
use tokio::net::TcpListener;
use tokio::sync::broadcast;
use url::Url;

#[derive(Debug)]
struct Keys {
    cluster: u64,
    revision: u64,
    version: String,
    by_key: BTreeMap<String, Entry>,
    leases: Vec<u64>,
    compacted: u64,
    history: Vec<(u64, Value)>,
    /// Requests get no response.
    down: bool,
    /// Transactions since the start.
    transactions: usize,
}

#[derive(Debug, Clone)]
struct Entry {
    value: String,
    created: u64,
    revision: u64,
    lease: u64,
}

/// Keys and leases at a time.
#[derive(Debug)]
pub(crate) struct Backup {
    by_key: BTreeMap<String, Entry>,
    leases: Vec<u64>,
    revision: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct Fake {
    keys: Arc<Mutex<Keys>>,
    changes: broadcast::Sender<Value>,
    /// Whether watches at this endpoint show no change.
    is_late: Arc<AtomicBool>,
}

fn decode(value: &Value) -> String {
    use base64::Engine as _;
    let engine = base64::engine::general_purpose::STANDARD;
    let bytes = engine.decode(value.as_str().unwrap_or_default()).unwrap();
    String::from_utf8(bytes).unwrap()
}

fn number(value: &Value) -> u64 {
    value.as_str().map_or(0, |text| text.parse().unwrap())
}

impl Keys {
    fn header(&self) -> Value {
        json!({"cluster_id": self.cluster.to_string(), "revision": self.revision.to_string()})
    }

    fn kv(&self, key: &str) -> Option<Value> {
        let entry = self.by_key.get(key)?;
        let mut kv = json!({"key": super::super::wire::bytes(key), "value": super::super::wire::bytes(&entry.value),
            "mod_revision": entry.revision.to_string(), "create_revision": entry.created.to_string()});
        if entry.lease != 0 {
            kv["lease"] = json!(entry.lease.to_string());
        }
        Some(kv)
    }

    fn holds(&self, condition: &Value) -> bool {
        let found = self.by_key.get(&decode(&condition["key"]));
        let revision = found.map_or(0, |entry| entry.revision);
        match (condition["target"].as_str(), condition["result"].as_str()) {
            (Some("MOD"), Some("EQUAL")) => revision == number(&condition["mod_revision"]),
            (Some("CREATE"), Some("EQUAL")) => found.is_none(),
            (Some("CREATE"), Some("GREATER")) => found.is_some(),
            other => panic!("{other:?}"),
        }
    }

    fn range(&self, request: &Value) -> Value {
        let first = decode(&request["key"]);
        let mut kvs: Vec<Value> = match request.get("range_end") {
            None => self.kv(&first).into_iter().collect(),
            Some(end) => {
                let range = (Bound::Included(first), Bound::Excluded(decode(end)));
                let keys = self.by_key.range(range).map(|(key, _)| key);
                keys.filter_map(|key| self.kv(key)).collect()
            }
        };
        let count = kvs.len().to_string();
        if request.get("count_only").is_some() {
            kvs.clear();
        }
        if let Some(limit) = request.get("limit") {
            kvs.truncate(usize::try_from(number(limit)).unwrap());
        }
        json!({"header": self.header(), "kvs": kvs, "count": count})
    }
}

impl Fake {
    pub(crate) async fn start(version: &str) -> (Self, Url) {
        let keys = Keys {
            down: false,
            transactions: 0,
            cluster: 14_841_639_068_965_178_418,
            revision: 1,
            version: version.to_owned(),
            by_key: BTreeMap::new(),
            leases: Vec::new(),
            compacted: 0,
            history: Vec::new(),
        };
        let fake = Self {
            keys: Arc::new(Mutex::new(keys)),
            changes: broadcast::Sender::new(1024),
            is_late: Arc::default(),
        };
        let endpoint = fake.serve().await;
        (fake, endpoint)
    }

    /// Serves the same keys at another endpoint. Its watches show no change while it is late.
    pub(crate) async fn another_endpoint(&self) -> (Self, Url) {
        let another = Self {
            is_late: Arc::default(),
            ..self.clone()
        };
        let endpoint = another.serve().await;
        (another, endpoint)
    }

    /// Lets watches at this endpoint show no change from now on.
    pub(crate) fn set_late(&self) {
        self.is_late.store(true, SeqCst);
    }

    async fn serve(&self) -> Url {
        let fake = self.clone();
        let router = Router::new()
            .route("/version", get(version_of))
            .route("/v3/lease/grant", post(grant))
            .route("/v3/lease/keepalive", post(keepalive))
            .route("/v3/lease/revoke", post(revoke))
            .route("/v3/kv/txn", post(txn))
            .route("/v3/kv/range", post(range))
            .route("/v3/watch", post(watch))
            .layer(middleware::from_fn_with_state(fake.clone(), answer))
            .with_state(fake);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        Url::parse(&format!("http://{address}")).unwrap()
    }

    /// Becomes another cluster, as after a restore.
    pub(crate) fn restore(&self) {
        self.keys.lock().unwrap().cluster += 1;
    }

    /// Contents of a backup.
    pub(crate) fn backup(&self) -> Backup {
        let keys = self.keys.lock().unwrap();
        Backup {
            by_key: keys.by_key.clone(),
            leases: keys.leases.clone(),
            revision: keys.revision,
        }
    }

    /// Becomes another cluster with the keys, leases and revision of a backup. Watches end.
    pub(crate) fn restore_from(&self, backup: Backup) {
        {
            let mut keys = self.keys.lock().unwrap();
            keys.cluster += 1;
            keys.by_key = backup.by_key;
            keys.leases = backup.leases;
            keys.revision = backup.revision;
            keys.history.clear();
        }
        self.end_watches();
    }

    /// Puts `count` keys that begin with `prefix`.
    pub(super) fn put_many(&self, prefix: &str, count: u64) {
        let mut keys = self.keys.lock().unwrap();
        for number in 0..count {
            let entry = Entry {
                value: "{}".to_owned(),
                created: 1,
                revision: 1,
                lease: 0,
            };
            keys.by_key.insert(format!("{prefix}{number}"), entry);
        }
    }

    /// Puts one key, and ends all watches, so that it is listed.
    pub(crate) fn put(&self, key: &str, value: &str) {
        {
            let mut keys = self.keys.lock().unwrap();
            keys.revision += 1;
            let entry = Entry {
                value: value.to_owned(),
                created: keys.revision,
                revision: keys.revision,
                lease: 0,
            };
            keys.by_key.insert(key.to_owned(), entry);
        }
        self.end_watches();
    }

    pub(crate) fn compact(&self) {
        let mut keys = self.keys.lock().unwrap();
        keys.compacted = keys.revision;
    }

    /// Responds to nothing, or responds again.
    pub(crate) fn set_down(&self, down: bool) {
        self.keys.lock().unwrap().down = down;
    }

    /// Ends all watches that there are.
    pub(crate) fn end_watches(&self) {
        let _ = self.changes.send(Value::Null);
    }

    pub(crate) fn transactions(&self) -> usize {
        self.keys.lock().unwrap().transactions
    }

    /// Ends the leases of all keys that contain `part`.
    pub(crate) fn expire(&self, part: &str) {
        let mut keys = self.keys.lock().unwrap();
        let of = |(key, entry): (&String, &Entry)| key.contains(part).then_some(entry.lease);
        let leases: Vec<u64> = keys.by_key.iter().filter_map(of).collect();
        for lease in leases {
            self.end_lease(&mut keys, lease);
        }
    }

    fn end_lease(&self, keys: &mut Keys, lease: u64) {
        keys.leases.retain(|other| *other != lease);
        keys.revision += 1;
        let revision = keys.revision.to_string();
        let of = |(key, entry): (&String, &Entry)| (entry.lease == lease).then(|| key.clone());
        let gone: Vec<String> = keys.by_key.iter().filter_map(of).collect();
        let mut events = Vec::new();
        for key in gone {
            keys.by_key.remove(&key);
            let kv = json!({"key": super::super::wire::bytes(&key), "mod_revision": revision});
            events.push(json!({"type": "DELETE", "kv": kv}));
        }
        self.changed(keys, events);
    }

    fn changed(&self, keys: &mut Keys, events: Vec<Value>) {
        let message = json!({"result": {"header": keys.header(), "events": events}});
        keys.history.push((keys.revision, message.clone()));
        let _ = self.changes.send(message);
    }
}

/// Responds, unless it is down: then a request gets an error, as from a proxy whose server is gone.
async fn answer(State(fake): State<Fake>, request: Request, next: Next) -> Response {
    if fake.keys.lock().unwrap().down {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    next.run(request).await
}

async fn version_of(State(fake): State<Fake>) -> String {
    let version = &fake.keys.lock().unwrap().version;
    json!({"etcdserver": version, "etcdcluster": "3.6.0"}).to_string()
}

fn parse(body: &Bytes) -> Value {
    serde_json::from_slice(body).unwrap()
}

async fn grant(State(fake): State<Fake>, body: Bytes) -> String {
    let request = parse(&body);
    let mut keys = fake.keys.lock().unwrap();
    let lease = match number(&request["ID"]) {
        // etcd chooses one.
        0 => 1_000_000 + keys.leases.len() as u64,
        lease => lease,
    };
    keys.leases.push(lease);
    json!({"header": keys.header(), "ID": lease.to_string(), "TTL": request["TTL"]}).to_string()
}

async fn keepalive(State(fake): State<Fake>, body: Bytes) -> String {
    let request = parse(&body);
    let keys = fake.keys.lock().unwrap();
    let mut result = json!({"header": keys.header(), "ID": request["ID"]});
    if keys.leases.contains(&number(&request["ID"])) {
        result["TTL"] = json!("5");
    }
    format!("{}\n", json!({"result": result}))
}

async fn revoke(State(fake): State<Fake>, body: Bytes) -> Response {
    let lease = number(&parse(&body)["ID"]);
    let mut keys = fake.keys.lock().unwrap();
    if !keys.leases.contains(&lease) {
        let error = json!({"code": 5, "message": "etcdserver: requested lease not found"});
        return (StatusCode::NOT_FOUND, error.to_string()).into_response();
    }
    fake.end_lease(&mut keys, lease);
    json!({"header": keys.header()}).to_string().into_response()
}

async fn range(State(fake): State<Fake>, body: Bytes) -> String {
    fake.keys.lock().unwrap().range(&parse(&body)).to_string()
}

async fn txn(State(fake): State<Fake>, body: Bytes) -> Response {
    let request = parse(&body);
    let mut keys = fake.keys.lock().unwrap();
    let list = |name: &str| request[name].as_array().cloned().unwrap_or_default();
    let succeeded = list("compare")
        .iter()
        .all(|condition| keys.holds(condition));
    keys.transactions += 1;
    let conditions = list("compare").len().max(list("success").len());
    if conditions > 128 {
        let error = json!({"code": 3, "message": "etcdserver: too many operations in txn request"});
        return (StatusCode::BAD_REQUEST, error.to_string()).into_response();
    }
    let revision = keys.revision + 1;
    let mut events = Vec::new();
    let mut responses = Vec::new();
    for op in list(if succeeded { "success" } else { "failure" }) {
        if let Some(put) = op.get("requestPut") {
            let lease = number(&put["lease"]);
            if lease != 0 && !keys.leases.contains(&lease) {
                let error = json!({"code": 5, "message": "etcdserver: requested lease not found"});
                return (StatusCode::NOT_FOUND, error.to_string()).into_response();
            }
            keys.revision = revision;
            let (key, value) = (decode(&put["key"]), decode(&put["value"]));
            let old = keys.by_key.get(&key);
            let entry = Entry {
                value,
                created: old.map_or(revision, |old| old.created),
                revision,
                lease,
            };
            keys.by_key.insert(key.clone(), entry);
            events.push(json!({"kv": keys.kv(&key)}));
            responses.push(json!({"response_put": {"header": keys.header()}}));
        } else if let Some(delete) = op.get("requestDeleteRange") {
            let key = decode(&delete["key"]);
            let deleted = keys.by_key.remove(&key).map_or(0, |_| 1);
            keys.revision += deleted;
            let response = json!({"header": keys.header(), "deleted": deleted.to_string()});
            responses.push(json!({"response_delete_range": response}));
        } else {
            responses.push(json!({"response_range": keys.range(&op["requestRange"])}));
        }
    }
    if !events.is_empty() {
        fake.changed(&mut keys, events);
    }
    let mut response = json!({"header": keys.header(), "responses": responses});
    if succeeded {
        response["succeeded"] = json!(true);
    }
    response.to_string().into_response()
}

async fn watch(State(fake): State<Fake>, body: Bytes) -> Body {
    let from = number(&parse(&body)["create_request"]["start_revision"]);
    let (first, changes) = {
        let keys = fake.keys.lock().unwrap();
        let created = json!({"result": {"header": keys.header(), "created": true}});
        let mut lines = vec![created];
        if from <= keys.compacted {
            let compacted = keys.compacted.to_string();
            let end =
                json!({"header": keys.header(), "canceled": true, "compact_revision": compacted});
            lines.push(json!({"result": end}));
        } else {
            let old = keys
                .history
                .iter()
                .filter(|(revision, _)| *revision >= from);
            lines.extend(old.map(|(_, message)| message.clone()));
        }
        (lines, fake.changes.subscribe())
    };
    let line = |value: &Value| Ok::<_, std::io::Error>(Bytes::from(format!("{value}\n")));
    let first: Vec<_> = first.iter().map(line).collect();
    let later = futures::stream::unfold((changes, fake), move |(mut changes, fake)| async move {
        let mut message = changes.recv().await.ok()?;
        while fake.is_late.load(SeqCst) {
            message = changes.recv().await.ok()?;
        }
        if message.is_null() {
            return None;
        }
        Some((line(&message), (changes, fake)))
    });
    Body::from_stream(futures::StreamExt::chain(
        futures::stream::iter(first),
        later,
    ))
}
