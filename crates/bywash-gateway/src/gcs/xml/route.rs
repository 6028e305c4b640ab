//! Routes of the XML API: which operation a method and a path name.

use http::Method;
use http::request::Parts;

use super::super::error::{GcsError, GcsResult};
use super::super::query::Query;
use super::super::route::{Operation, Route, decoded};
use crate::meta::text;

/// Operation of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum XmlOperation {
    List,
    Get,
    Head,
    Put,
    Copy,
    Delete,
    StartSession,
    CreateUpload,
    PutPart,
    CompleteUpload,
    AbortUpload,
}

impl XmlOperation {
    /// Its name in metrics and in the access log.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::List => "storage.xml.list",
            Self::Get => "storage.xml.get",
            Self::Head => "storage.xml.head",
            Self::Put => "storage.xml.put",
            Self::Copy => "storage.xml.copy",
            Self::Delete => "storage.xml.delete",
            Self::StartSession => "storage.xml.resumable",
            Self::CreateUpload => "storage.xml.multipart.create",
            Self::PutPart => "storage.xml.multipart.put",
            Self::CompleteUpload => "storage.xml.multipart.complete",
            Self::AbortUpload => "storage.xml.multipart.abort",
        }
    }
}

/// The parts of an object or a bucket that the XML API names by a parameter, and that are not served.
const NOT_SERVED: [&str; 14] = [
    "acl",
    "billing",
    "compose",
    "cors",
    "defaultObjectAcl",
    "encryptionConfig",
    "lifecycle",
    "location",
    "logging",
    "storageClass",
    "tagging",
    "versioning",
    "versions",
    "websiteConfig",
];

/// Finds the route of a path that is not of the JSON API.
pub(crate) fn find(parts: &Parts, query: &Query) -> GcsResult<Route> {
    let path = parts.uri.path().trim_start_matches('/');
    let (bucket, object) = path.split_once('/').unwrap_or((path, ""));
    let (bucket, object) = (decoded(bucket)?, decoded(object)?);
    let unknown = || {
        GcsError::not_served(format!(
            "{} /{path} is not served here; docs/behaviour.md lists the methods that are.",
            parts.method
        ))
    };
    if let Some(name) = NOT_SERVED.into_iter().find(|name| query.has(name)) {
        return Err(GcsError::not_served(format!(
            "The parameter {name} is not served here; leave it out."
        )));
    }
    if bucket.is_empty() {
        return Err(unknown());
    }
    let operation = if object.is_empty() {
        of_bucket(&parts.method, query)
    } else {
        of_object(parts, query)
    };
    let operation = operation.ok_or_else(unknown)?;
    let of = |bucket, object, target| Route {
        operation: Operation::Xml(operation),
        bucket,
        object,
        target,
    };
    match (operation, copy_source(parts)) {
        (XmlOperation::Copy, Some(source)) => {
            let source = decoded(source.trim_start_matches('/'))?;
            let (from, name) = source.split_once('/').ok_or_else(|| {
                GcsError::invalid("The source of a copy is BUCKET/OBJECT, encoded.")
            })?;
            let target = Some((bucket, object));
            Ok(of(from.to_owned(), name.to_owned(), target))
        }
        _ => Ok(of(bucket, object, None)),
    }
}

fn of_bucket(method: &Method, query: &Query) -> Option<XmlOperation> {
    let is_list = *method == Method::GET && query.get("list-type") == Some("2");
    is_list.then_some(XmlOperation::List)
}

fn of_object(parts: &Parts, query: &Query) -> Option<XmlOperation> {
    let upload = query.has("uploadId");
    let starts = text(&parts.headers, "x-goog-resumable") == Some("start");
    match parts.method {
        Method::GET if !upload => Some(XmlOperation::Get),
        Method::HEAD => Some(XmlOperation::Head),
        Method::PUT if upload && copy_source(parts).is_none() => Some(XmlOperation::PutPart),
        Method::PUT if !upload => Some(match copy_source(parts) {
            Some(_) => XmlOperation::Copy,
            None => XmlOperation::Put,
        }),
        Method::POST if starts => Some(XmlOperation::StartSession),
        Method::POST if query.has("uploads") => Some(XmlOperation::CreateUpload),
        Method::POST if upload => Some(XmlOperation::CompleteUpload),
        Method::DELETE if upload => Some(XmlOperation::AbortUpload),
        Method::DELETE => Some(XmlOperation::Delete),
        _ => None,
    }
}

fn copy_source(parts: &Parts) -> Option<&str> {
    let source = |name| text(&parts.headers, name);
    source("x-goog-copy-source").or_else(|| source("x-amz-copy-source"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use http::Request;

    use super::*;

    fn route(method: &str, target: &str, headers: &[(&str, &str)]) -> GcsResult<Route> {
        let mut request = Request::builder().method(method).uri(target);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        find(&parts, &Query::new(&parts.uri))
    }

    #[test]
    fn methods_and_parameters_name_operations() {
        use XmlOperation::*;
        let start = [("x-goog-resumable", "start")];
        for (method, target, headers, operation) in [
            ("GET", "/b?list-type=2&prefix=a", &[][..], List),
            ("GET", "/b/?list-type=2", &[], List),
            ("GET", "/b/a%2Fb?generation=5", &[], Get),
            ("HEAD", "/b/a", &[], Head),
            ("PUT", "/b/a", &[], Put),
            ("DELETE", "/b/a", &[], Delete),
            ("POST", "/b/a?X-Goog-Signature=00", &start, StartSession),
            ("POST", "/b/a?uploads", &[], CreateUpload),
            ("POST", "/b/a?uploads=", &[], CreateUpload),
            ("PUT", "/b/a?partNumber=1&uploadId=u", &[], PutPart),
            ("POST", "/b/a?uploadId=u", &[], CompleteUpload),
            ("DELETE", "/b/a?uploadId=u", &[], AbortUpload),
        ] {
            let found = route(method, target, headers).unwrap();
            assert_eq!(
                found.operation,
                Operation::Xml(operation),
                "{method} {target}"
            );
        }
        let found = route("GET", "/data/a%2Fb/c%20d", &[]).unwrap();
        assert_eq!((&*found.bucket, &*found.object), ("data", "a/b/c d"));
        let parts = Request::get("/batches/a").body(()).unwrap().into_parts().0;
        let found = Route::find(&parts, &Query::new(&parts.uri)).unwrap();
        assert_eq!(
            (found.operation, &*found.bucket),
            (Operation::Xml(Get), "batches")
        );
        let copied = [("x-goog-copy-source", "/from/a%2Fb")];
        let found = route("PUT", "/data/to", &copied).unwrap();
        assert_eq!(found.operation, Operation::Xml(Copy));
        assert_eq!((&*found.bucket, &*found.object), ("from", "a/b"));
        assert_eq!(found.target, Some(("data".to_owned(), "to".to_owned())));
    }

    #[test]
    fn other_requests_are_refused_by_name() {
        for (method, target) in [
            ("GET", "/"),
            ("GET", "/b"),
            ("PUT", "/b"),
            ("GET", "/b?acl"),
            ("GET", "/b/a?acl="),
            ("GET", "/b/a?uploadId=u"),
            ("POST", "/b/a"),
            ("PATCH", "/b/a"),
        ] {
            let error = route(method, target, &[]).unwrap_err();
            assert_eq!(error.status().as_u16(), 400, "{method} {target}");
        }
        let copied = [("x-amz-copy-source", "nothing")];
        let error = route("PUT", "/b/a", &copied).unwrap_err();
        assert_eq!(error.status().as_u16(), 400);
    }
}
