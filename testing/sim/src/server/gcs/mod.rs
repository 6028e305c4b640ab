//! The part of Google Cloud Storage that uploads need: resumable sessions of the JSON API (`session.rs`), whole objects and
//! multipart uploads of the XML API, which object_store uses, and metadata and media of the JSON API.

mod session;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use http::Method;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::objects::{Dialect, Objects, StoredObject, error_response};
use super::request::decode;
use super::s3::S3;
use super::{HttpRequest, HttpResponse, Protocol};

use session::Session;

const DIALECT: Dialect = Dialect {
    metadata_prefix: "x-goog-meta-",
    copy_source: "x-goog-copy-source",
    version: "x-goog-generation",
};
const UPLOAD: &str = "/upload/storage/v1/b/";
const JSON: &str = "/storage/v1/b/";

/// The store. Pass it to [`super::Server::start`], and keep a reference to inspect its objects.
#[derive(Debug)]
pub struct Gcs {
    objects: Arc<Objects>,
    /// Multipart uploads, which use S3's protocol.
    multipart: S3,
    sessions: Mutex<HashMap<String, Session>>,
    token: Mutex<Option<String>>,
}

impl Gcs {
    /// Creates an empty store that needs no credentials.
    #[must_use]
    pub fn new() -> Arc<Self> {
        let objects = Arc::default();
        Arc::new(Self {
            multipart: S3::of(&objects, DIALECT),
            objects,
            sessions: Mutex::default(),
            token: Mutex::default(),
        })
    }

    /// Returns the number of multipart uploads that are neither completed nor aborted.
    #[must_use]
    pub fn open_uploads(&self) -> usize {
        self.multipart.open_uploads()
    }

    /// Opens future sessions only for this bearer token.
    pub fn require_token(&self, token: &str) {
        *self.token.lock() = Some(token.to_owned());
    }

    /// Returns the objects of the store.
    #[must_use]
    pub fn objects(&self) -> &Objects {
        &self.objects
    }

    /// Returns the number of sessions that are neither finished, cancelled nor forgotten.
    #[must_use]
    pub fn open_sessions(&self) -> usize {
        let sessions = self.sessions.lock();
        sessions
            .values()
            .filter(|session| session.is_open())
            .count()
    }

    /// Forgets all sessions, as a store does after a week.
    pub fn forget_sessions(&self) {
        for session in self.sessions.lock().values_mut() {
            session.forget();
        }
    }

    fn json(&self, request: &HttpRequest, rest: &str) -> HttpResponse {
        let Some((bucket, rest)) = rest.split_once("/o") else {
            return json_error(404, "notFound");
        };
        let (bucket, key) = (decode(bucket), decode(rest.trim_start_matches('/')));
        if key.is_empty() {
            let prefix = request.query("prefix").unwrap_or_default();
            let keys = self.objects.keys(&bucket);
            let found = keys.iter().filter(|key| key.starts_with(prefix));
            let items: Vec<Value> = found
                .filter_map(|key| Some(resource(&bucket, key, &self.objects.get(&bucket, key)?)))
                .collect();
            return body(&json!({"kind": "storage#objects", "items": items}));
        }
        match (&request.method, self.objects.get(&bucket, &key)) {
            (_, None) => json_error(404, "notFound"),
            (&Method::GET, Some(stored)) if request.query("alt") == Some("media") => {
                HttpResponse::status(200).body(stored.bytes)
            }
            (&Method::GET, Some(stored)) => body(&resource(&bucket, &key, &stored)),
            (&Method::DELETE, Some(_)) => {
                self.objects.delete(&bucket, &key);
                HttpResponse::status(204)
            }
            _ => json_error(405, "methodNotAllowed"),
        }
    }

    fn authorised(&self, request: &HttpRequest) -> bool {
        let token = self.token.lock();
        token.as_ref().is_none_or(|token| {
            request.header("authorization") == Some(format!("Bearer {token}").as_str())
        })
    }
}

impl Protocol for Gcs {
    fn respond(&self, request: &HttpRequest) -> HttpResponse {
        let signed_start =
            request.method == Method::POST && request.header("x-goog-resumable").is_some();
        if signed_start {
            return self.start_signed(request);
        }
        if let Some(rest) = request.path.strip_prefix(UPLOAD) {
            return match request.query("upload_id") {
                Some(id) => self.in_session(request, id),
                None if !self.authorised(request) => json_error(401, "authError"),
                None => self.start(request, rest),
            };
        }
        if let Some(rest) = request.path.strip_prefix(JSON) {
            return self.json(request, rest);
        }
        if request.query("upload_id").is_some() {
            return error_response(404, "NoSuchUpload");
        }
        self.multipart.respond(request)
    }
}

fn body(value: &Value) -> HttpResponse {
    HttpResponse::status(200)
        .with("content-type", "application/json; charset=UTF-8")
        .body(value.to_string())
}

/// Creates an error of the JSON API.
fn json_error(status: u16, reason: &str) -> HttpResponse {
    let error =
        json!({"error": {"code": status, "message": reason, "errors": [{"reason": reason}]}});
    let mut response = body(&error);
    response.status = HttpResponse::status(status).status;
    response
}

fn base64_text(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::prelude::BASE64_STANDARD.encode(bytes)
}

fn crc_text(crc32c: u32) -> String {
    base64_text(&crc32c.to_be_bytes())
}

/// Formats an object for the JSON API, with 64-bit numbers as text.
fn resource(bucket: &str, key: &str, stored: &StoredObject) -> Value {
    let metadata: BTreeMap<&str, &str> = stored
        .headers
        .iter()
        .filter_map(|(name, value)| Some((name.strip_prefix("x-goog-meta-")?, value.as_str())))
        .collect();
    let mut resource = json!({
        "kind": "storage#object",
        "bucket": bucket,
        "name": key,
        "generation": stored.generation.to_string(),
        "metageneration": "1",
        "size": stored.bytes.len().to_string(),
        "crc32c": crc_text(stored.crc32c),
        "md5Hash": base64_text(&stored.md5),
        // Different from the ETag of the XML API.
        "etag": base64_text(&stored.generation.to_be_bytes()),
        "updated": stored.updated.to_rfc3339(),
        "metadata": metadata,
    });
    for (header, field) in session::CONTENT_FIELDS {
        if let Some(value) = stored.headers.get(header) {
            resource[field] = json!(value);
        }
    }
    resource
}

#[cfg(test)]
mod tests;
