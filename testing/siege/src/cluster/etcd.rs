//! Requests to the members of etcd, and signals.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use bywash_support::cluster::Etcd;
use bywash_support::http::{Connection, head};
use parking_lot::Mutex;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::clients::Soak;
use crate::CaseError;

/// Limit of a request to a member, which may be stopped.
const LIMIT: Duration = Duration::from_secs(1);

/// Sends a signal to all members.
pub(super) fn signal_all(soak: &Soak, signal: Signal) -> Result<(), CaseError> {
    for member in &soak.cluster.etcd {
        member.lock().signal(signal)?;
    }
    Ok(())
}

/// Sends a request to a member's JSON gateway. Returns `None` if it does not respond in time.
async fn ask(address: SocketAddr, path: &str, body: &Value) -> Option<Value> {
    let body = body.to_string();
    let length = body.len().to_string();
    let mut request = head("POST", path, &[("Content-Length", &length)]).into_bytes();
    request.extend_from_slice(body.as_bytes());
    let exchange = async {
        let mut connection = Connection::open(address).await.ok()?;
        let response = connection.exchange("POST", &request).await.ok()?;
        serde_json::from_slice(&response.body).ok()
    };
    tokio::time::timeout(LIMIT, exchange).await.ok()?
}

/// Sends a request to one member after the other, until one responds.
async fn ask_any(soak: &Soak, path: &str, body: &Value) -> Option<Value> {
    for member in &soak.cluster.etcd {
        let address = member.lock().address();
        if let Some(response) = ask(address, path, body).await {
            return Some(response);
        }
    }
    None
}

/// Returns the leader; the first member if none responds as one.
pub(super) async fn leader(soak: &Soak) -> &Mutex<Etcd> {
    for member in &soak.cluster.etcd {
        let address = member.lock().address();
        let status = ask(address, "/v3/maintenance/status", &json!({})).await;
        if status.is_some_and(|of| of["leader"] == of["header"]["member_id"]) {
            return member;
        }
    }
    &soak.cluster.etcd[0]
}

/// Returns the leases that there are.
pub(super) async fn leases(soak: &Soak) -> BTreeSet<String> {
    let found = ask_any(soak, "/v3/lease/leases", &json!({})).await;
    let found = found.unwrap_or_default();
    let ids = found["leases"].as_array().into_iter().flatten();
    ids.filter_map(|lease| Some(lease["ID"].as_str()?.to_owned()))
        .collect()
}

/// Revokes leases of live nodes, at most `max`: what etcd does by itself when its leader was stopped.
pub(super) async fn revoke(soak: &Soak, max: usize) {
    for lease in leases(soak).await.into_iter().take(max) {
        ask_any(soak, "/v3/lease/revoke", &json!({"ID": lease})).await;
    }
}
