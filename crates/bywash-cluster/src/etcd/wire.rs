//! Bodies of etcd's JSON gateway: 64-bit numbers are texts, keys and values are base64, and zero or
//! false fields are left out.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

/// Encodes a key or a value.
pub(super) fn bytes(text: &str) -> Value {
    Value::String(STANDARD.encode(text))
}

fn number<'de, D: Deserializer<'de>>(input: D) -> Result<u64, D::Error> {
    let value = Value::deserialize(input)?;
    let number = match &value {
        Value::String(text) => text.parse().ok(),
        value => value.as_u64(),
    };
    number.ok_or_else(|| D::Error::custom("not a number"))
}

fn text<'de, D: Deserializer<'de>>(input: D) -> Result<String, D::Error> {
    let encoded = String::deserialize(input)?;
    let bytes = STANDARD.decode(encoded).map_err(D::Error::custom)?;
    String::from_utf8(bytes).map_err(D::Error::custom)
}

/// Header of a response.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Header {
    #[serde(deserialize_with = "number")]
    pub(super) cluster_id: u64,
    #[serde(deserialize_with = "number")]
    pub(super) revision: u64,
}

/// A key with its value.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct KeyValue {
    #[serde(deserialize_with = "text")]
    pub(super) key: String,
    #[serde(deserialize_with = "text")]
    pub(super) value: String,
    #[serde(deserialize_with = "number")]
    pub(super) create_revision: u64,
    #[serde(deserialize_with = "number")]
    pub(super) mod_revision: u64,
    #[serde(deserialize_with = "number")]
    pub(super) lease: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RangeResponse {
    pub(super) header: Header,
    pub(super) kvs: Vec<KeyValue>,
    /// Keys in the range, also of a response without them.
    #[serde(deserialize_with = "number")]
    pub(super) count: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct DeleteResponse {
    #[serde(deserialize_with = "number")]
    pub(super) deleted: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct LeaseResponse {
    pub(super) header: Header,
    #[serde(rename = "ID", deserialize_with = "number")]
    pub(super) id: u64,
    /// 0 if there is no such lease.
    #[serde(rename = "TTL", deserialize_with = "number")]
    pub(super) ttl: u64,
}

/// One message of a stream.
#[derive(Debug, Deserialize)]
pub(super) struct Streamed<T> {
    pub(super) result: T,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct TxnResponse {
    pub(super) header: Header,
    pub(super) succeeded: bool,
    pub(super) responses: Vec<OpResponse>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct OpResponse {
    pub(super) response_range: RangeResponse,
    pub(super) response_delete_range: DeleteResponse,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct WatchResponse {
    pub(super) header: Header,
    pub(super) created: bool,
    pub(super) canceled: bool,
    #[serde(deserialize_with = "number")]
    pub(super) compact_revision: u64,
    pub(super) events: Vec<WatchEvent>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct WatchEvent {
    /// `DELETE`, or nothing for a put.
    pub(super) r#type: String,
    pub(super) kv: KeyValue,
}

#[derive(Debug, Deserialize)]
pub(super) struct VersionResponse {
    pub(super) etcdserver: String,
}

/// The condition that `key` has this revision.
pub(super) fn has_revision(key: &str, revision: u64) -> Value {
    json!({"key": bytes(key), "target": "MOD", "result": "EQUAL", "mod_revision": revision.to_string()})
}

/// The condition that `key` exists, or that it does not.
pub(super) fn exists(key: &str, exists: bool) -> Value {
    let result = if exists { "GREATER" } else { "EQUAL" };
    json!({"key": bytes(key), "target": "CREATE", "result": result, "create_revision": "0"})
}

pub(super) fn put(key: &str, value: &str, lease: u64) -> Value {
    json!({"requestPut": {"key": bytes(key), "value": bytes(value), "lease": lease.to_string()}})
}

pub(super) fn get(key: &str) -> Value {
    json!({"requestRange": {"key": bytes(key)}})
}

pub(super) fn delete(key: &str) -> Value {
    json!({"requestDeleteRange": {"key": bytes(key)}})
}

/// Counts the keys of a range.
pub(super) fn count(first: &str, end: &str) -> Value {
    json!({"requestRange": {"key": bytes(first), "range_end": bytes(end), "count_only": true}})
}

pub(super) fn get_range(first: &str, end: &str) -> Value {
    json!({"requestRange": {"key": bytes(first), "range_end": bytes(end)}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_fields_are_zero_and_numbers_are_texts() {
        let gone: Streamed<LeaseResponse> = serde_json::from_str(
            r#"{"result":{"header":{"cluster_id":"14","revision":"9"},"ID":"77"}}"#,
        )
        .unwrap();
        assert_eq!((gone.result.id, gone.result.ttl), (77, 0));
        assert_eq!(gone.result.header.cluster_id, 14);
        let event: WatchResponse = serde_json::from_str(
            r#"{"header":{"revision":"4"},"events":[{"type":"DELETE","kv":{"key":"YQ==","mod_revision":"4"}}]}"#,
        )
        .unwrap();
        assert_eq!(event.events[0].kv.key, "a");
        assert_eq!(event.events[0].kv.value, "");
        assert!(serde_json::from_str::<KeyValue>(r#"{"key":"*"}"#).is_err());
        assert!(serde_json::from_str::<Header>(r#"{"revision":"-1"}"#).is_err());
    }
}
