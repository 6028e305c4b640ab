//! Buckets: list, insert, get, delete, and changes that change nothing.

use bywash::{BucketInfo, EngineError};
use http::{Method, Response, StatusCode};
use s3s::Body;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::body::document;
use super::endpoint::{Endpoint, GcsRequest};
use super::error::{GcsError, GcsResult};
use super::generation::{Conditions, VersionNumbers};
use super::insert::body_of;
use super::resource::{self, BucketResource};
use crate::errors::{OperationContext, from_engine, no_such_bucket};
use crate::limits::{MAX_JSON_BYTES, MAX_LIST_BUCKETS};

/// Bytes of a bucket in a list: its value, and its JSON in a buffer that grows by doubling.
const BUCKET_BYTES: u64 = 1600;

/// Reads the root folder: blocking.
async fn all(endpoint: &Endpoint) -> GcsResult<Vec<BucketInfo>> {
    let engine = endpoint.engine.clone();
    let found = tokio::task::spawn_blocking(move || engine.buckets()).await;
    found.map_err(|error| GcsError::unavailable(error.to_string()))
}

pub(crate) async fn list(
    endpoint: &Endpoint,
    request: &mut GcsRequest,
) -> GcsResult<Response<Body>> {
    let query = &request.query;
    let max = match query.number("maxResults")? {
        None => MAX_LIST_BUCKETS,
        Some(max) => usize::try_from(max).unwrap_or(1).clamp(1, MAX_LIST_BUCKETS),
    };
    let doing = OperationContext::new("list buckets", "", "");
    let charge = max as u64 * BUCKET_BYTES;
    request.documents.charge_more(charge, doing).await?;
    let prefix = query.get("prefix").unwrap_or_default();
    let after = query.get("pageToken").unwrap_or_default();
    let mut found = all(endpoint).await?;
    let caller = &request.caller;
    found.retain(|bucket| {
        bucket.name.starts_with(prefix) && bucket.name.as_str() > after && caller.sees(&bucket.name)
    });
    let more = found.len() > max;
    found.truncate(max);
    let url = endpoint.url(&request.parts);
    let items: Vec<_> = found
        .iter()
        .map(|info| BucketResource::new(info, &url))
        .collect();
    let mut page = json!({ "kind": "storage#buckets", "items": items });
    if let Some(last) = found.last().filter(|_| more) {
        page["nextPageToken"] = last.name.as_str().into();
    }
    resource::document(&page)
}

/// The document that creates a bucket. Properties that are not here are refused.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NewBucket {
    name: String,
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// Properties of a new bucket that are taken and have no effect: all buckets are alike.
const IGNORED: [&str; 6] = [
    "kind",
    "location",
    "locationType",
    "storageClass",
    "timeCreated",
    "iamConfiguration",
];

pub(crate) async fn insert(
    endpoint: &Endpoint,
    request: &mut GcsRequest,
) -> GcsResult<Response<Body>> {
    let doing = OperationContext::new("create bucket", "", "");
    let charge = MAX_JSON_BYTES as u64;
    request.documents.charge_more(charge, doing).await?;
    let body = body_of(request);
    let url = endpoint.url(&request.parts);
    let new: NewBucket = serde_json::from_slice(&document(body).await?)
        .map_err(|error| GcsError::parse("the bucket", &error))?;
    let other = new
        .others
        .iter()
        .find(|(name, value)| !IGNORED.contains(&name.as_str()) && !is_empty(value));
    if let Some((name, _)) = other {
        return Err(not_served(name));
    }
    request.caller.check(&request.parts.method, &new.name)?;
    let doing = OperationContext::new("create bucket", &new.name, "");
    match endpoint.engine.create_bucket(&new.name) {
        Err(EngineError::BucketExists(name)) => Err(GcsError::new(
            StatusCode::CONFLICT,
            "conflict",
            format!("The bucket {name} exists already."),
        )),
        created => {
            created.map_err(|error| from_engine(doing, &error))?;
            describe(endpoint, &new.name, &url).await
        }
    }
}

/// Whether a property says nothing: Google's Go client sends an empty list of rules.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.values().all(is_empty),
        Value::Array(list) => list.is_empty(),
        value => value.is_null() || *value == false,
    }
}

fn not_served(name: &str) -> GcsError {
    GcsError::not_served(format!(
        "The property {name} of a bucket is not served here; leave it out."
    ))
}

async fn resource(endpoint: &Endpoint, name: &str, url: &str) -> GcsResult<BucketResource> {
    let found = all(endpoint).await?;
    let info = found.iter().find(|info| info.name == name);
    let info = info.ok_or_else(|| no_such_bucket(name))?;
    Ok(BucketResource::new(info, url))
}

async fn describe(endpoint: &Endpoint, name: &str, url: &str) -> GcsResult<Response<Body>> {
    resource::document(&resource(endpoint, name, url).await?)
}

/// Checks the conditions on a bucket's metadata, which are never changed.
fn check(request: &GcsRequest) -> GcsResult<()> {
    let numbers = VersionNumbers {
        generation: 1,
        metageneration: 1,
    };
    let conditions = Conditions::of(&request.query)?;
    let name = &request.route.bucket;
    match request.parts.method {
        Method::GET => conditions.check_read(numbers, name),
        _ => conditions.check_write(numbers, name),
    }
}

/// Accepts a change that changes nothing: buckets have no settings here.
pub(crate) async fn patch(
    endpoint: &Endpoint,
    request: &mut GcsRequest,
) -> GcsResult<Response<Body>> {
    let body = body_of(request);
    let doing = request.doing("change the bucket");
    let given: Map<String, Value> = {
        let documents = &request.documents;
        let _charge = documents.charge_document(MAX_JSON_BYTES, doing).await?;
        serde_json::from_slice(&document(body).await?)
            .map_err(|error| GcsError::parse("the bucket", &error))?
    };
    endpoint.bucket(doing.bucket)?;
    check(request)?;
    let url = endpoint.url(&request.parts);
    let current = resource(endpoint, doing.bucket, &url).await?;
    let current = serde_json::to_value(&current);
    let current = current.map_err(|error| GcsError::unavailable(error.to_string()))?;
    let other = given
        .iter()
        .find(|(name, value)| !is_empty(value) && current.get(name) != Some(value));
    match other {
        Some((name, _)) => Err(not_served(name)),
        None => resource::document(&current),
    }
}

pub(crate) async fn get(
    endpoint: &Endpoint,
    request: &mut GcsRequest,
) -> GcsResult<Response<Body>> {
    endpoint.bucket(&request.route.bucket)?;
    check(request)?;
    let url = endpoint.url(&request.parts);
    describe(endpoint, &request.route.bucket, &url).await
}

/// Describes where a bucket's objects are: without folders other than their names.
pub(crate) fn layout(endpoint: &Endpoint, request: &GcsRequest) -> GcsResult<Response<Body>> {
    let name = &request.route.bucket;
    endpoint.bucket(name)?;
    resource::document(&json!({
        "kind": "storage#storageLayout",
        "bucket": name,
        "location": resource::LOCATION,
        "locationType": resource::LOCATION_TYPE,
        "hierarchicalNamespace": { "enabled": false },
    }))
}

pub(crate) async fn delete(
    endpoint: &Endpoint,
    request: &mut GcsRequest,
) -> GcsResult<Response<Body>> {
    let name = &request.route.bucket;
    endpoint.bucket(name)?;
    check(request)?;
    let deleted = endpoint.shared.delete_bucket(&endpoint.engine, name);
    deleted.await?;
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    Ok(response)
}
