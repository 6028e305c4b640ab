//! Requests of the state machine, as requests to etcd.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use url::Url;

use super::error::{EtcdError, MESSAGE_CHARS, bad};
use super::keys::{ClusterName, member_text, parse_member, range_end};
use super::record::Record;
use super::version::check_version;
use super::watch::Watch;
use super::wire::{
    self, Header, KeyValue, LeaseResponse, RangeResponse, Streamed, TxnResponse, VersionResponse,
};
use crate::message::{ClaimGuard, EtcdReply, EtcdRequest};
use crate::names::{Boot, Epoch, Member, NodeId, Shard};

/// Limit of one request. A keepalive that takes longer is worth less than one to the next endpoint.
const REQUEST: Duration = Duration::from_millis(700);
/// Longest response. A list of 4,096 shards and 100 nodes has less than 1 MiB.
pub(super) const RESPONSE_BYTES: usize = 16 << 20;

/// etcd, as one node of one cluster uses it.
#[derive(Debug)]
pub struct Etcd {
    pub(super) name: ClusterName,
    node: NodeId,
    endpoints: Vec<Url>,
    /// Number of the endpoint that is asked next, modulo their count.
    current: AtomicUsize,
    /// `cluster_id` of the first response; 0 before it.
    cluster: AtomicU64,
    /// Whether its version is accepted.
    accepted: Arc<AtomicBool>,
    http: reqwest::Client,
}

impl Etcd {
    /// A client over `http`. Sends no request. There must be an endpoint.
    #[must_use]
    pub fn new(
        name: ClusterName,
        node: NodeId,
        endpoints: Vec<Url>,
        http: reqwest::Client,
    ) -> Self {
        Self {
            name,
            node,
            endpoints,
            current: AtomicUsize::new(0),
            cluster: AtomicU64::new(0),
            accepted: Arc::default(),
            http,
        }
    }

    /// Returns another client of the same etcd, for another task. Its version is accepted together
    /// with this client's.
    #[must_use]
    pub fn another(&self) -> Self {
        let (name, endpoints) = (self.name.clone(), self.endpoints.clone());
        Self {
            accepted: Arc::clone(&self.accepted),
            ..Self::new(name, self.node, endpoints, self.http.clone())
        }
    }

    /// Whether the version of etcd was checked, and accepted.
    pub(super) fn is_accepted(&self) -> bool {
        // Relaxed: nothing is published by it.
        self.accepted.load(Ordering::Relaxed)
    }

    pub(super) fn accept(&self) {
        // Relaxed as above.
        self.accepted.store(true, Ordering::Relaxed);
    }

    /// As [`Self::new`], with a client of its own: no proxy of the environment, certificates that the system trusts.
    ///
    /// # Errors
    /// [`EtcdError::NoClient`] if the system has no TLS.
    pub fn connect(
        name: ClusterName,
        node: NodeId,
        endpoints: Vec<Url>,
    ) -> Result<Self, EtcdError> {
        let http = bywash::origin::client_builder().no_proxy().build();
        let http = http.map_err(|source| EtcdError::NoClient { source })?;
        Ok(Self::new(name, node, endpoints, http))
    }

    /// The `cluster_id` of etcd, once a response named it.
    pub(crate) fn cluster_id(&self) -> Option<u64> {
        // Relaxed: it orders nothing.
        Some(self.cluster.load(Ordering::Relaxed)).filter(|id| *id != 0)
    }

    /// Checks the version of each endpoint that responds.
    ///
    /// # Errors
    /// If one is refused, or none responds with a version: rather the error of one that is no etcd than of one that
    /// [may respond later](EtcdError::may_pass).
    pub async fn check_versions(&self) -> Result<(), EtcdError> {
        let mut result: Option<Result<(), EtcdError>> = None;
        for endpoint in &self.endpoints {
            let request = self.http.get(address(endpoint, "version"));
            match self.send::<VersionResponse>(endpoint, request).await {
                Ok(version) => {
                    check_version(&version.etcdserver)?;
                    result = Some(Ok(()));
                }
                Err(error) => match &result {
                    Some(Ok(())) => {}
                    Some(Err(_)) if error.may_pass() => {}
                    _ => result = Some(Err(error)),
                },
            }
        }
        result.unwrap_or(Ok(()))?;
        self.accept();
        Ok(())
    }

    /// Does a request of the state machine. `boot` is drawn for a registration, and `record` is its
    /// value.
    ///
    /// # Errors
    /// [`EtcdError::ClusterChanged`], for which the state machine has an event of its own. Every other failure is
    /// [`EtcdReply::Unknown`].
    pub async fn perform(
        &self,
        request: EtcdRequest,
        boot: Boot,
        record: &Record,
    ) -> Result<EtcdReply, EtcdError> {
        let result = match request {
            EtcdRequest::Register => self.register(boot, record).await,
            EtcdRequest::Keepalive(boot) => self.keep_alive(boot).await,
            EtcdRequest::Revoke(member) => self.revoke(member).await,
            EtcdRequest::Hand { shard, epoch, to } => {
                let held = wire::has_revision(&self.name.shard(shard), epoch.0);
                self.put_shard(shard, to, vec![held]).await
            }
            EtcdRequest::Claim { shard, guard, to } => {
                let key = self.name.shard(shard);
                let guards = match guard {
                    ClaimGuard::NoKey => vec![wire::exists(&key, false)],
                    ClaimGuard::Gone(old, epoch) => vec![
                        wire::has_revision(&key, epoch.0),
                        wire::exists(&self.name.node(old), false),
                    ],
                };
                self.put_shard(shard, to, guards).await
            }
        };
        match result {
            Err(error @ EtcdError::ClusterChanged { .. }) => Err(error),
            result => Ok(result.unwrap_or(EtcdReply::Unknown)),
        }
    }

    async fn register(&self, boot: Boot, record: &Record) -> Result<EtcdReply, EtcdError> {
        let ttl = crate::Timing::DEFAULT.lease.as_secs();
        // The lease has the boot's number, so that a keepalive needs no other.
        let grant = json!({"TTL": ttl.to_string(), "ID": lease_id(boot).to_string()});
        self.post::<LeaseResponse>("v3/lease/grant", &grant).await?;
        let member = Member {
            node: self.node,
            boot,
        };
        let key = self.name.node(member);
        let value = serde_json::to_string(record).unwrap_or_default();
        let txn = json!({
            "compare": [wire::exists(&key, false)],
            "success": [wire::put(&key, &value, lease_id(boot))],
        });
        let done: TxnResponse = self.post("v3/kv/txn", &txn).await?;
        Ok(if done.succeeded {
            EtcdReply::Registered(boot)
        } else {
            EtcdReply::Unknown
        })
    }

    /// Rewrites the record of a registration. Returns whether it is still registered.
    ///
    /// # Errors
    /// If etcd does not respond.
    pub async fn update(&self, boot: Boot, record: &Record) -> Result<bool, EtcdError> {
        let node = self.node;
        let key = self.name.node(Member { node, boot });
        let value = serde_json::to_string(record).unwrap_or_default();
        let txn = json!({
            "compare": [wire::exists(&key, true)],
            "success": [wire::put(&key, &value, lease_id(boot))],
        });
        let done: TxnResponse = self.post("v3/kv/txn", &txn).await?;
        Ok(done.succeeded)
    }

    async fn keep_alive(&self, boot: Boot) -> Result<EtcdReply, EtcdError> {
        let request = json!({"ID": lease_id(boot).to_string()});
        let kept: Streamed<LeaseResponse> = self.post("v3/lease/keepalive", &request).await?;
        // A lease that has ended is not an error: its time is 0.
        Ok(match kept.result.ttl {
            0 => EtcdReply::Gone,
            _ => EtcdReply::Alive,
        })
    }

    async fn revoke(&self, member: Member) -> Result<EtcdReply, EtcdError> {
        let request = json!({"ID": lease_id(member.boot).to_string()});
        self.post::<LeaseResponse>("v3/lease/revoke", &request)
            .await?;
        Ok(EtcdReply::Gone)
    }

    /// Gives a shard to a member that is registered, under these conditions.
    async fn put_shard(
        &self,
        shard: Shard,
        to: Member,
        mut conditions: Vec<Value>,
    ) -> Result<EtcdReply, EtcdError> {
        let key = self.name.shard(shard);
        conditions.push(wire::exists(&self.name.node(to), true));
        let txn = json!({
            "compare": conditions,
            "success": [wire::put(&key, &member_text(to), 0)],
            "failure": [wire::get(&key)],
        });
        let response: TxnResponse = self.post("v3/kv/txn", &txn).await?;
        if response.succeeded {
            return Ok(EtcdReply::Done(Epoch(response.header.revision)));
        }
        let found = response
            .responses
            .iter()
            .flat_map(|of| &of.response_range.kvs);
        let holder = |kv: &KeyValue| Some((parse_member(&kv.value)?, Epoch(kv.mod_revision)));
        Ok(EtcdReply::Refused(found.filter_map(holder).next()))
    }

    /// Watches all keys of nodes and shards from `revision` on.
    ///
    /// # Errors
    /// If etcd does not respond.
    pub async fn watch(&self, revision: u64) -> Result<Watch<'_>, EtcdError> {
        let create = json!({"create_request": {
            "key": wire::bytes(&self.name.nodes()),
            "range_end": wire::bytes(&range_end(&self.name.shards())),
            "start_revision": revision.to_string(),
        }});
        let endpoint = self.endpoint();
        let request = self.json(endpoint, "v3/watch", &create);
        let sent = tokio::time::timeout(REQUEST, request.send()).await;
        let response = match sent {
            Ok(Ok(response)) => response,
            Ok(Err(source)) => {
                self.next_endpoint();
                let endpoint = endpoint.clone();
                return Err(EtcdError::NoResponse { endpoint, source });
            }
            Err(_) => {
                self.next_endpoint();
                return Err(bad(endpoint, "no response to a watch within its limit"));
            }
        };
        Ok(Watch::new(self, endpoint.clone(), response))
    }

    /// Checks that a response is of the same cluster as the first.
    pub(super) fn check_cluster(&self, endpoint: &Url, header: Header) -> Result<(), EtcdError> {
        let new = header.cluster_id;
        if new == 0 {
            return Ok(());
        }
        // Relaxed: the number alone is compared, nothing is published by it.
        let first = self
            .cluster
            .compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed);
        match first {
            Err(known) if known != new => {
                // Relaxed as above.
                self.cluster.store(new, Ordering::Relaxed);
                let endpoint = endpoint.clone();
                Err(EtcdError::ClusterChanged { endpoint })
            }
            _ => Ok(()),
        }
    }

    /// Error of an etcd whose revision went back: it was restored.
    pub(crate) fn went_back(&self) -> EtcdError {
        let endpoint = self.endpoint().clone();
        EtcdError::ClusterChanged { endpoint }
    }

    fn endpoint(&self) -> &Url {
        // Relaxed: any endpoint will do.
        let current = self.current.load(Ordering::Relaxed);
        &self.endpoints[current % self.endpoints.len()]
    }

    pub(super) fn next_endpoint(&self) {
        // Relaxed: any endpoint will do.
        self.current.fetch_add(1, Ordering::Relaxed);
    }

    fn json(&self, endpoint: &Url, path: &str, body: &Value) -> reqwest::RequestBuilder {
        let request = self.http.post(address(endpoint, path));
        request
            .header("content-type", "application/json")
            .body(body.to_string())
    }

    /// Name of the cluster.
    pub(crate) fn name(&self) -> &ClusterName {
        &self.name
    }

    pub(super) async fn post<T: DeserializeOwned + HasHeader>(
        &self,
        path: &str,
        body: &Value,
    ) -> Result<T, EtcdError> {
        let endpoint = self.endpoint();
        let request = self.json(endpoint, path, body);
        let response: T = self.send(endpoint, request).await?;
        self.check_cluster(endpoint, response.header())?;
        Ok(response)
    }

    async fn send<T: DeserializeOwned>(
        &self,
        endpoint: &Url,
        request: reqwest::RequestBuilder,
    ) -> Result<T, EtcdError> {
        let result = self.send_once(endpoint, request).await;
        if result.is_err() {
            self.next_endpoint();
        }
        result
    }

    async fn send_once<T: DeserializeOwned>(
        &self,
        endpoint: &Url,
        request: reqwest::RequestBuilder,
    ) -> Result<T, EtcdError> {
        let no_response = |source| EtcdError::NoResponse {
            endpoint: endpoint.clone(),
            source,
        };
        let mut response = request.timeout(REQUEST).send().await.map_err(no_response)?;
        let status = response.status();
        let mut body = Vec::new();
        while let Some(piece) = response.chunk().await.map_err(no_response)? {
            if body.len() + piece.len() > RESPONSE_BYTES {
                return Err(bad(endpoint, "the response is too long"));
            }
            body.extend_from_slice(&piece);
            // The first message of a stream is all that is wanted of it.
            if body.last() == Some(&b'\n') && status.is_success() {
                break;
            }
        }
        if !status.is_success() {
            let message = String::from_utf8_lossy(&body);
            return Err(EtcdError::Refused {
                endpoint: endpoint.clone(),
                status: status.as_u16(),
                message: message.escape_debug().take(MESSAGE_CHARS).collect(),
            });
        }
        serde_json::from_slice(&body).map_err(|error| bad(endpoint, &error.to_string()))
    }
}

/// A response with a header.
pub(super) trait HasHeader {
    fn header(&self) -> Header;
}

impl HasHeader for TxnResponse {
    fn header(&self) -> Header {
        self.header
    }
}

impl HasHeader for LeaseResponse {
    fn header(&self) -> Header {
        self.header
    }
}

impl HasHeader for RangeResponse {
    fn header(&self) -> Header {
        self.header
    }
}

impl<T: HasHeader> HasHeader for Streamed<T> {
    fn header(&self) -> Header {
        self.result.header()
    }
}

/// Number of the lease of a registration: positive, as etcd's are.
fn lease_id(boot: Boot) -> u64 {
    (boot.0 & i64::MAX as u64).max(1)
}

fn address(endpoint: &Url, path: &str) -> String {
    format!("{}/{path}", endpoint.as_str().trim_end_matches('/'))
}
