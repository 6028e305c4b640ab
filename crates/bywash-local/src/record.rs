//! Records of requests, as the HTTP endpoints write them: with the operations and the statuses of
//! S3.

use bywash_client::message::{Copy, Delete, ErrorCode, Failure, Head, List, Request};
use bywash_gateway::RequestRecord;
use http::{Method, StatusCode};

use crate::door::Door;

/// Status that an endpoint of HTTP has for a failure.
fn status(code: ErrorCode) -> StatusCode {
    match code {
        ErrorCode::NotFound | ErrorCode::NoSuchBucket | ErrorCode::UploadLost => {
            StatusCode::NOT_FOUND
        }
        ErrorCode::Precondition | ErrorCode::VersionChanged => StatusCode::PRECONDITION_FAILED,
        ErrorCode::NotModified => StatusCode::NOT_MODIFIED,
        ErrorCode::AlreadyExists => StatusCode::CONFLICT,
        ErrorCode::InvalidRange => StatusCode::RANGE_NOT_SATISFIABLE,
        ErrorCode::PermissionDenied => StatusCode::FORBIDDEN,
        ErrorCode::Unsupported => StatusCode::NOT_IMPLEMENTED,
        ErrorCode::SlowDown | ErrorCode::Unavailable | ErrorCode::Deadline => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        ErrorCode::Damaged | ErrorCode::Io | ErrorCode::Connection => {
            StatusCode::INTERNAL_SERVER_ERROR
        }
        // InvalidArgument, Limit, Protocol.
        _ => StatusCode::BAD_REQUEST,
    }
}

/// Notes the failure of a request.
pub(crate) fn fail(record: &mut RequestRecord, failure: &Failure) {
    record.fail(status(failure.code), &failure.message);
}

/// Begins the record of a read.
pub(crate) fn read(door: &Door, bucket: &str, key: &str) -> RequestRecord {
    door.recorder.begin("get_object", Method::GET, bucket, key)
}

/// Begins the record of a write.
pub(crate) fn write(door: &Door, bucket: &str, key: &str) -> RequestRecord {
    door.recorder.begin("put_object", Method::PUT, bucket, key)
}

/// Begins the record of a request with one reply. `None` for requests about the door itself.
pub(crate) fn of(door: &Door, request: &Request) -> Option<RequestRecord> {
    let recorder = &door.recorder;
    Some(match request {
        Request::Buckets(()) => recorder.begin("list_buckets", Method::GET, "", ""),
        Request::List(List { bucket, .. }) => {
            recorder.begin("list_objects_v2", Method::GET, bucket, "")
        }
        Request::Head(Head { bucket, key, .. }) => {
            recorder.begin("head_object", Method::HEAD, bucket, key)
        }
        Request::Copy(Copy {
            to_bucket, to_key, ..
        }) => recorder.begin("copy_object", Method::PUT, to_bucket, to_key),
        Request::Delete(Delete { bucket, keys, .. }) => match keys.as_slice() {
            [key] => recorder.begin("delete_object", Method::DELETE, bucket, key),
            _ => recorder.begin("delete_objects", Method::POST, bucket, ""),
        },
        Request::MakeBucket(bucket) => recorder.begin("create_bucket", Method::PUT, bucket, ""),
        Request::RemoveBucket(bucket) => {
            recorder.begin("delete_bucket", Method::DELETE, bucket, "")
        }
        _ => return None,
    })
}
