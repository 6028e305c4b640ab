//! The XML API of Google's storage: `/BUCKET/OBJECT`, as clients built on `object_store` and those with HMAC keys send it.
//!
//! A request becomes one of the JSON API: its headers become the parameters of that request, and
//! its result becomes headers and XML. Only lists of keys and uploads in parts are of this API
//! alone.
//!
//! * `route.rs` is which operation a request names.
//! * `names.rs` translates headers to parameters, and to the names of Amazon that the shared modules read.
//! * `object.rs` reads, writes, copies and deletes objects, and starts resumable sessions of signed URLs.
//! * `list.rs` lists keys.
//! * `parts.rs` are uploads in parts.

mod list;
mod names;
mod object;
mod parts;
mod route;

pub(crate) use self::route::{XmlOperation, find};

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response};
use s3s::Body;

use super::endpoint::{Endpoint, GcsRequest};
use super::error::{GcsError, GcsResult};
use crate::xml::{self, DECLARATION};

/// Serves a request.
pub(crate) async fn serve(
    endpoint: &Endpoint,
    request: &mut GcsRequest,
    operation: XmlOperation,
) -> GcsResult<Response<Body>> {
    names::refuse_not_served(request)?;
    names::to_parameters(request);
    match operation {
        XmlOperation::List => list::keys(endpoint, request).await,
        XmlOperation::Get => object::get(endpoint, request).await,
        XmlOperation::Head => object::head(endpoint, request).await,
        XmlOperation::Put => object::put(endpoint, request).await,
        XmlOperation::Copy => object::copy(endpoint, request).await,
        XmlOperation::Delete => object::delete(endpoint, request).await,
        XmlOperation::StartSession => object::start_session(endpoint, request).await,
        XmlOperation::CreateUpload => parts::create(endpoint, request).await,
        XmlOperation::PutPart => parts::put(endpoint, request).await,
        XmlOperation::CompleteUpload => parts::complete(endpoint, request).await,
        XmlOperation::AbortUpload => parts::abort(endpoint, request).await,
    }
}

/// A response with an XML document of the root `root` with `inner`. Documents of uploads in parts
/// have the namespace of Amazon's, which Google's Python client looks for; others have Google's
/// own.
fn document(root: &str, inner: &str) -> Response<Body> {
    let namespace = if root.contains("MultipartUpload") {
        "http://s3.amazonaws.com/doc/2006-03-01/"
    } else {
        "http://doc.s3.amazonaws.com/2006-03-01"
    };
    let text = format!("{DECLARATION}<{root} xmlns=\"{namespace}\">{inner}</{root}>");
    let mut response = Response::new(Body::from(text));
    let kind = HeaderValue::from_static("application/xml; charset=UTF-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// The response of an error.
pub(crate) fn error(error: GcsError) -> Response<Body> {
    let code = error.code().to_owned();
    let text: String = error
        .message()
        .chars()
        .filter(|character| xml::fits(*character))
        .collect();
    let mut response = error.response();
    // A 304 has no body, and neither has the response to a HEAD request: HTTP removes it.
    if response.status() != http::StatusCode::NOT_MODIFIED {
        // Google's Python client needs both texts.
        let elements = [("Code", &code), ("Message", &text), ("Details", &text)];
        let document = xml::error_document(elements);
        *response.body_mut() = Body::from(document);
        let kind = HeaderValue::from_static("application/xml; charset=UTF-8");
        response.headers_mut().insert(CONTENT_TYPE, kind);
    }
    response
}
