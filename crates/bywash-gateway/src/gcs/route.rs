//! Routes of the JSON API: which operation a method and a path name.

use http::Method;
use http::request::Parts;
use percent_encoding::percent_decode_str;

use super::error::{GcsError, GcsResult};
use super::query::Query;
use super::xml::{self, XmlOperation};

/// Paths of the JSON API: a path is one of these, or begins with one before a slash. All others are
/// of the XML API, also paths of buckets with the names `storage`, `upload`, `download` and
/// `batch`.
const OF_JSON: [&str; 5] = [
    "storage/v1",
    "upload/storage/v1",
    "resumable/upload/storage/v1",
    "download/storage/v1",
    "batch/storage/v1",
];

/// Operation of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    ListBuckets,
    InsertBucket,
    GetBucket,
    DeleteBucket,
    PatchBucket,
    GetStorageLayout,
    ListObjects,
    GetObject,
    ReadObject,
    DeleteObject,
    PatchObject,
    UpdateObject,
    Compose,
    Copy,
    Rewrite,
    Move,
    Insert,
    StartSession,
    Session,
    Batch,
    /// Of the XML API.
    Xml(XmlOperation),
}

impl Operation {
    /// Its name in metrics and in the access log, from Google's documentation.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ListBuckets => "storage.buckets.list",
            Self::InsertBucket => "storage.buckets.insert",
            Self::GetBucket => "storage.buckets.get",
            Self::DeleteBucket => "storage.buckets.delete",
            Self::PatchBucket => "storage.buckets.patch",
            Self::GetStorageLayout => "storage.buckets.getStorageLayout",
            Self::ListObjects => "storage.objects.list",
            Self::GetObject => "storage.objects.get",
            Self::ReadObject => "storage.objects.get.media",
            Self::DeleteObject => "storage.objects.delete",
            Self::PatchObject => "storage.objects.patch",
            Self::UpdateObject => "storage.objects.update",
            Self::Compose => "storage.objects.compose",
            Self::Copy => "storage.objects.copy",
            Self::Rewrite => "storage.objects.rewrite",
            Self::Move => "storage.objects.move",
            Self::Insert => "storage.objects.insert",
            Self::StartSession => "storage.objects.insert.start",
            Self::Session => "storage.objects.insert.resumable",
            Self::Batch => "storage.batch",
            Self::Xml(operation) => operation.name(),
        }
    }
}

/// An operation and the names of its path.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) operation: Operation,
    pub(crate) bucket: String,
    pub(crate) object: String,
    /// Bucket and object of a copy.
    pub(crate) target: Option<(String, String)>,
}

impl Route {
    fn new(operation: Operation, bucket: &str, object: &str) -> GcsResult<Self> {
        Ok(Self {
            operation,
            bucket: decoded(bucket)?,
            object: decoded(object)?,
            target: None,
        })
    }

    /// Finds the route of a request.
    pub(crate) fn find(parts: &Parts, query: &Query) -> GcsResult<Self> {
        let path = parts.uri.path().trim_start_matches('/');
        // gcloud starts its sessions below `resumable`.
        let upload = path.strip_prefix("resumable/").unwrap_or(path);
        if let Some(rest) = upload.strip_prefix("upload/storage/v1/b/") {
            return Self::upload(&parts.method, rest, query);
        }
        if let Some(rest) = path.strip_prefix("download/storage/v1/b/") {
            let (bucket, object) = rest
                .split_once("/o/")
                .ok_or_else(|| unknown(&parts.method, path))?;
            return match parts.method {
                Method::GET => Self::new(Operation::ReadObject, bucket, object),
                _ => Err(unknown(&parts.method, path)),
            };
        }
        if parts.method == Method::POST && matches!(path, "batch/storage/v1" | "batch") {
            return Self::new(Operation::Batch, "", "");
        }
        match path.strip_prefix("storage/v1/b") {
            Some(rest) => Self::plain(method_of(parts), rest, query)
                .unwrap_or_else(|| Err(unknown(&parts.method, path))),
            None if is_of_json(path) => Err(unknown(&parts.method, path)),
            None => xml::find(parts, query),
        }
    }

    fn upload(method: &Method, rest: &str, query: &Query) -> GcsResult<Self> {
        let bucket = rest
            .strip_suffix("/o")
            .filter(|bucket| !bucket.contains('/'))
            .ok_or_else(|| unknown(method, "upload"))?;
        let object = query.get("name").unwrap_or_default();
        let operation = match (method, query.get("upload_id"), query.get("uploadType")) {
            (&Method::PUT | &Method::POST | &Method::DELETE, Some(_), _) => Operation::Session,
            (&Method::POST, None, Some("resumable")) => Operation::StartSession,
            (&Method::POST, None, _) => Operation::Insert,
            _ => return Err(unknown(method, "upload")),
        };
        Ok(Self {
            operation,
            bucket: decoded(bucket)?,
            object: object.to_owned(),
            target: None,
        })
    }

    /// Finds the route of a path after `storage/v1/b`; `None` without a route.
    fn plain(method: &Method, rest: &str, query: &Query) -> Option<GcsResult<Self>> {
        let is = |wanted: Method| *method == wanted;
        if rest.is_empty() || rest == "/" {
            return match *method {
                Method::GET => Some(Self::new(Operation::ListBuckets, "", "")),
                Method::POST => Some(Self::new(Operation::InsertBucket, "", "")),
                _ => None,
            };
        }
        let rest = rest.strip_prefix('/')?;
        let Some((bucket, of_bucket)) = rest.split_once('/') else {
            return match *method {
                Method::GET => Some(Self::new(Operation::GetBucket, rest, "")),
                Method::DELETE => Some(Self::new(Operation::DeleteBucket, rest, "")),
                Method::PATCH | Method::PUT => Some(Self::new(Operation::PatchBucket, rest, "")),
                _ => None,
            };
        };
        if of_bucket == "o" || of_bucket == "o/" {
            return is(Method::GET).then(|| Self::new(Operation::ListObjects, bucket, ""));
        }
        if of_bucket == "storageLayout" {
            return is(Method::GET).then(|| Self::new(Operation::GetStorageLayout, bucket, ""));
        }
        let object = of_bucket.strip_prefix("o/")?;
        if is(Method::POST) {
            return Self::copy(bucket, object);
        }
        let is_media = query.get("alt") == Some("media");
        if !is_media && names_permissions(object) {
            return None;
        }
        match *method {
            Method::GET if is_media => Some(Self::new(Operation::ReadObject, bucket, object)),
            Method::GET => Some(Self::new(Operation::GetObject, bucket, object)),
            Method::DELETE => Some(Self::new(Operation::DeleteObject, bucket, object)),
            Method::PATCH => Some(Self::new(Operation::PatchObject, bucket, object)),
            Method::PUT => Some(Self::new(Operation::UpdateObject, bucket, object)),
            _ => None,
        }
    }

    fn copy(bucket: &str, rest: &str) -> Option<GcsResult<Self>> {
        if let Some((object, target)) = rest.split_once("/moveTo/o/") {
            let route = Self::new(Operation::Move, bucket, object).and_then(|route| {
                let target = Some((route.bucket.clone(), decoded(target)?));
                Ok(Self { target, ..route })
            });
            return Some(route);
        }
        let verbs = [
            ("/copyTo/b/", Operation::Copy),
            ("/rewriteTo/b/", Operation::Rewrite),
        ];
        let found = verbs.into_iter().find_map(|(verb, operation)| {
            let (object, target) = rest.split_once(verb)?;
            Some((object, target, operation))
        });
        let Some((object, target, operation)) = found else {
            let object = rest.strip_suffix("/compose")?;
            return Some(Self::new(Operation::Compose, bucket, object));
        };
        let (to_bucket, to_object) = target.split_once("/o/")?;
        let route = Self::new(operation, bucket, object).and_then(|route| {
            let target = Some((decoded(to_bucket)?, decoded(to_object)?));
            Ok(Self { target, ..route })
        });
        Some(route)
    }
}

/// Whether a path after `o/` names the permissions of an object. Clients encode the slashes of a name, so this path is no longer name:
/// taken for one, `DELETE o/a/acl/allUsers` would delete another object.
fn names_permissions(object: &str) -> bool {
    let Some((_, rest)) = object.split_once('/') else {
        return false;
    };
    matches!(rest, "acl" | "iam" | "iam/testPermissions")
        || rest
            .strip_prefix("acl/")
            .is_some_and(|entity| !entity.contains('/'))
}

/// Whether a path, without its first slash, is of the JSON API.
pub(super) fn is_of_json(path: &str) -> bool {
    OF_JSON.iter().any(|known| {
        let rest = path.strip_prefix(known);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

/// The method of a request. Clients whose transport has no PATCH state it in a header.
fn method_of(parts: &Parts) -> &Method {
    match parts.headers.get("x-http-method-override") {
        Some(method) if parts.method == Method::POST && method == "PATCH" => &Method::PATCH,
        _ => &parts.method,
    }
}

pub(crate) fn decoded(text: &str) -> GcsResult<String> {
    let decoded = percent_decode_str(text).decode_utf8();
    let decoded = decoded
        .map_err(|_| GcsError::invalid(format!("The name {text} is not UTF-8 when decoded.")))?;
    Ok(decoded.into_owned())
}

fn unknown(method: &Method, path: &str) -> GcsError {
    GcsError::not_served(format!(
        "{method} /{path} is not served here; docs/behaviour.md lists the methods of the JSON API that are."
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use http::Request;

    use super::*;

    fn find(method: &str, uri: &str) -> GcsResult<Route> {
        let request = Request::builder().method(method).uri(uri).body(()).unwrap();
        let (parts, ()) = request.into_parts();
        Route::find(&parts, &Query::new(&parts.uri))
    }

    #[test]
    fn paths_name_operations_buckets_and_objects() {
        use Operation::*;
        for (request, operation, name) in [
            ("GET /storage/v1/b?project=p", ListBuckets, ""),
            ("POST /storage/v1/b", InsertBucket, ""),
            ("POST /batch/storage/v1", Batch, ""),
            ("GET /storage/v1/b/data", GetBucket, "data"),
            ("DELETE /storage/v1/b/data", DeleteBucket, "data"),
            ("PATCH /storage/v1/b/data", PatchBucket, "data"),
            ("PUT /storage/v1/b/data", PatchBucket, "data"),
            (
                "GET /storage/v1/b/data/storageLayout?alt=json",
                GetStorageLayout,
                "data",
            ),
            ("GET /storage/v1/b/data/o", ListObjects, "data"),
            ("GET /storage/v1/b/data/o/a%2Fb", GetObject, "data:a/b"),
            (
                "GET /storage/v1/b/data/o/a%2Fb%20c?alt=media",
                ReadObject,
                "data:a/b c",
            ),
            (
                "GET /download/storage/v1/b/data/o/a+b",
                ReadObject,
                "data:a+b",
            ),
            ("DELETE /storage/v1/b/data/o/x", DeleteObject, "data:x"),
            (
                "POST /upload/storage/v1/b/data/o?uploadType=media&name=x%2Fy",
                Insert,
                "data:x/y",
            ),
            (
                "POST /upload/storage/v1/b/data/o?uploadType=resumable",
                StartSession,
                "data",
            ),
            (
                "POST /resumable/upload/storage/v1/b/data/o?uploadType=resumable",
                StartSession,
                "data",
            ),
            (
                "POST /upload/storage/v1/b/data/o?uploadType=resumable&upload_id=1",
                Session,
                "data",
            ),
        ] {
            let (method, uri) = request.split_once(' ').unwrap();
            let (bucket, object) = name.split_once(':').unwrap_or((name, ""));
            let route = find(method, uri).unwrap();
            let found = (route.operation, &*route.bucket, &*route.object);
            assert_eq!(found, (operation, bucket, object), "{request}");
        }
        for (path, operation, target) in [
            ("rewriteTo/b/c/o/z", Rewrite, ("c", "z")),
            ("copyTo/b/c/o/compose", Copy, ("c", "compose")),
            ("moveTo/o/z%2Fcompose", Move, ("a", "z/compose")),
            ("moveTo/o/z/compose", Move, ("a", "z/compose")),
        ] {
            let copy = find("POST", &format!("/storage/v1/b/a/o/x%2Fy/{path}")).unwrap();
            assert_eq!(copy.operation, operation, "{path}");
            assert_eq!((&*copy.bucket, &*copy.object), ("a", "x/y"));
            let (bucket, object) = target;
            assert_eq!(copy.target, Some((bucket.to_owned(), object.to_owned())));
        }
    }

    #[test]
    fn verbs_of_objects_are_methods_headers_or_the_end_of_the_path() {
        use Operation::*;
        let object = "/storage/v1/b/data/o/x";
        let compose = find("POST", "/storage/v1/b/data/o/a%2Fx/compose").unwrap();
        assert_eq!((compose.operation, &*compose.object), (Compose, "a/x"));
        assert_eq!(find("PATCH", object).unwrap().operation, PatchObject);
        assert_eq!(find("PUT", object).unwrap().operation, UpdateObject);
        let mut request = Request::post(object).body(()).unwrap();
        let method = http::HeaderValue::from_static("PATCH");
        request
            .headers_mut()
            .insert("x-http-method-override", method);
        let (parts, ()) = request.into_parts();
        let stated = Route::find(&parts, &Query::new(&parts.uri)).unwrap();
        assert_eq!(stated.operation, PatchObject);
    }

    #[test]
    fn buckets_with_the_first_names_of_json_paths_have_the_xml_api() {
        let read = Operation::Xml(XmlOperation::Get);
        for (uri, bucket, object) in [
            ("/storage/key", "storage", "key"),
            ("/storage/v1.csv", "storage", "v1.csv"),
            ("/storage/v2/b/data", "storage", "v2/b/data"),
            ("/upload/storage", "upload", "storage"),
            ("/upload/storage/v10/b", "upload", "storage/v10/b"),
            ("/download/a/storage/v1/b", "download", "a/storage/v1/b"),
            ("/resumable/upload/a", "resumable", "upload/a"),
            ("/batch/a", "batch", "a"),
        ] {
            let found = find("GET", uri).unwrap();
            let names = (&*found.bucket, &*found.object);
            assert_eq!((found.operation, names), (read, (bucket, object)), "{uri}");
        }
        let listed = find("GET", "/batch?list-type=2").unwrap();
        assert_eq!(listed.operation, Operation::Xml(XmlOperation::List));
    }

    #[test]
    fn other_paths_are_refused_by_name() {
        for (method, uri) in [
            ("GET", "/"),
            ("GET", "/batch"),
            ("GET", "/batch/storage/v1"),
            ("GET", "/storage/v1"),
            ("GET", "/upload/storage/v1/a"),
            ("PUT", "/resumable/upload/storage/v1/b/data/o"),
            ("GET", "/storage/v1/b/data/iam"),
            ("GET", "/storage/v1/b/data/o/x%2Fy/acl"),
            ("DELETE", "/storage/v1/b/data/o/x/acl/allUsers"),
            ("PUT", "/storage/v1/b/data/o/x/iam"),
            ("GET", "/storage/v1/b/data/o/x/iam/testPermissions"),
            ("POST", "/resumable/storage/v1/b/data/o"),
            ("PATCH", "/storage/v1/b/data/o"),
            ("PUT", "/upload/storage/v1/b/data/o?uploadType=media"),
        ] {
            let error = find(method, uri).unwrap_err();
            assert_eq!(error.status().as_u16(), 400, "{method} {uri}");
        }
        let error = find("GET", "/storage/v1/b/data/o/%FF").unwrap_err();
        assert_eq!(error.status().as_u16(), 400);
    }
}
