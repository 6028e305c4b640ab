//! Batches: up to 100 calls in one request, each with its own response.
//!
//! The request is buffered within a limit, and so is each response: `multipart.rs` reads the one and writes the other. Calls
//! for the bytes of objects and for lists are requests of their own.

use std::sync::Arc;

use futures::future::join_all;
use http::header::{CONTENT_TYPE, HOST};
use http::request::Parts;
use http::{HeaderValue, Request, Response};
use s3s::Body;
use tokio::sync::Mutex;

use super::access::Caller;
use super::admit::Admission;
use super::body::limited;
use super::endpoint::{Endpoint, GcsRequest};
use super::error::{GcsError, GcsResult};
use super::gunzip::{GUNZIP_BYTES, is_compressed};
use super::insert::body_of;
use super::multipart::{BatchCall, boundary, calls, end_parts, write_part};
use super::query::Query;
use super::route::{Operation, Route};
use crate::body::RequestContext;
use crate::errors::OperationContext;
use crate::limits::{MAX_BATCH_BYTES, MAX_BATCH_CALLS, MAX_BATCH_RESPONSE_BYTES, MAX_JSON_BYTES};
use crate::meta::text;

/// Calls of a batch that are served at a time.
const CALLS_AT_ONCE: usize = 8;

/// A batch, as its calls see it.
#[derive(Clone, Copy)]
struct Outer<'a> {
    parts: &'a Parts,
    context: &'a Arc<RequestContext>,
    caller: (&'a Caller, Admission),
    /// Locked by the call that copies bytes: one at a time, so that a batch takes the memory of one copy.
    copying: &'a Mutex<()>,
}

/// Max bytes of the responses to this many calls, and of the calls that are served at a time: a
/// document, and the response before it is measured.
fn max_bytes(calls: usize) -> u64 {
    let in_progress = calls.min(CALLS_AT_ONCE) * 2 * MAX_JSON_BYTES;
    (calls * MAX_BATCH_RESPONSE_BYTES + in_progress) as u64
}

/// Charges a batch before it is read. It holds this while its calls wait for memory, which is of another kind.
pub(crate) async fn charge(request: &mut GcsRequest) -> GcsResult<()> {
    let opened = if is_compressed(request) {
        GUNZIP_BYTES
    } else {
        0
    };
    let bytes = MAX_BATCH_BYTES as u64 + max_bytes(MAX_BATCH_CALLS) + opened;
    let GcsRequest {
        documents, route, ..
    } = request;
    let doing = OperationContext::new("serve a batch", &route.bucket, &route.object);
    Ok(documents.charge_more(bytes, doing).await?)
}

pub(crate) async fn serve(
    endpoint: &Endpoint,
    request: &mut GcsRequest,
) -> GcsResult<Response<Body>> {
    let kind = text(&request.parts.headers, CONTENT_TYPE.as_str()).unwrap_or_default();
    let boundary = boundary(kind, "multipart/mixed").ok_or_else(|| {
        GcsError::invalid("The Content-Type of a batch is multipart/mixed with a boundary.")
    })?;
    let body = body_of(request);
    let body = limited(body, MAX_BATCH_BYTES, "The body of a batch").await?;
    let length = body.len() as u64;
    let calls = calls(&body.into(), &boundary)?;
    request.documents.shrink(length + max_bytes(calls.len()));
    let boundary = format!("batch_{}", request.context.id.as_str());
    let mut written = Vec::new();
    let copying = Mutex::new(());
    for some in calls.chunks(CALLS_AT_ONCE) {
        let outer = Outer {
            parts: &request.parts,
            context: &request.context,
            caller: (&request.caller, request.admission),
            copying: &copying,
        };
        let served = join_all(some.iter().map(|call| one(endpoint, outer, call))).await;
        for (call, response) in some.iter().zip(served) {
            write_part(&mut written, &boundary, call.id.as_deref(), &response);
        }
    }
    end_parts(&mut written, &boundary);
    let mut response = Response::new(Body::from(written));
    // Without quotes: there are clients that look for them in the body.
    let kind = HeaderValue::try_from(format!("multipart/mixed; boundary={boundary}"));
    let kind = kind.map_err(|error| GcsError::unavailable(error.to_string()))?;
    response.headers_mut().insert(CONTENT_TYPE, kind);
    Ok(response)
}

/// Serves a call. An error of it is its response.
async fn one(endpoint: &Endpoint, batch: Outer<'_>, call: &BatchCall) -> Response<Vec<u8>> {
    let served = call_of(endpoint, batch, call).await;
    let response = served.unwrap_or_else(GcsError::response);
    // Documents and errors are whole in memory.
    let length = response.body().bytes().map_or(0, |bytes| bytes.len());
    if length > MAX_BATCH_RESPONSE_BYTES {
        let error = GcsError::invalid(format!(
            "The call was served, but its response has {length} bytes, more than {MAX_BATCH_RESPONSE_BYTES} in a batch; ask \
             for it by a request of its own."
        ));
        return error.response().map(content);
    }
    response.map(content)
}

fn content(body: Body) -> Vec<u8> {
    body.bytes().map_or_else(Vec::new, |bytes| bytes.to_vec())
}

async fn call_of(
    endpoint: &Endpoint,
    batch: Outer<'_>,
    call: &BatchCall,
) -> GcsResult<Response<Body>> {
    let head = call.head().map_err(|reason| {
        GcsError::invalid(format!("A part of the batch is no request: {reason}."))
    })?;
    let mut request = Request::builder()
        .method(head.method)
        .uri(head.target)
        .body(())
        .map_err(|error| GcsError::invalid(error.to_string()))?;
    let headers = request.headers_mut();
    *headers = head.headers;
    if let Some(host) = batch.parts.headers.get(HOST) {
        headers.insert(HOST, host.clone());
    }
    let (parts, ()) = request.into_parts();
    let query = Query::new(&parts.uri);
    let route = Route::find(&parts, &query)?;
    if !is_served(route.operation) {
        return Err(GcsError::not_served(format!(
            "{} is not served in a batch; send it as a request of its own.",
            route.operation.name()
        )));
    }
    let _turn = if copies(route.operation) {
        Some(batch.copying.lock().await)
    } else {
        None
    };
    let body = call.body.clone();
    let (caller, admission) = batch.caller;
    let caller = (caller.clone(), admission);
    endpoint
        .call((parts, query, route), body, caller, batch.context)
        .await
}

/// Whether an operation may copy the bytes of objects through this server.
fn copies(operation: Operation) -> bool {
    matches!(
        operation,
        Operation::PatchObject
            | Operation::UpdateObject
            | Operation::Compose
            | Operation::Copy
            | Operation::Rewrite
    )
}

/// Whether the responses to an operation are short documents.
fn is_served(operation: Operation) -> bool {
    matches!(
        operation,
        Operation::GetBucket
            | Operation::GetStorageLayout
            | Operation::DeleteBucket
            | Operation::PatchBucket
            | Operation::GetObject
            | Operation::DeleteObject
            | Operation::PatchObject
            | Operation::UpdateObject
            | Operation::Compose
            | Operation::Copy
            | Operation::Rewrite
            | Operation::Move
    )
}
