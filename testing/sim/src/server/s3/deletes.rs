//! Deletes of many objects by one request.

use std::fmt::Write as _;

use crate::server::objects::{Objects, escape};
use crate::server::{HttpRequest, HttpResponse};

/// Deletes the objects that a document names; absent ones count as deleted.
pub(super) fn respond(objects: &Objects, request: &HttpRequest, bucket: &str) -> HttpResponse {
    let document = String::from_utf8_lossy(&request.body);
    let keys = document.split("<Key>").skip(1);
    let mut deleted = String::new();
    for key in keys.filter_map(|rest| rest.split_once("</Key>")) {
        let key = key.0.replace("&lt;", "<").replace("&gt;", ">");
        let key = key
            .replace("&quot;", "\"")
            .replace("&apos;", "'")
            .replace("&amp;", "&");
        objects.delete(bucket, &key);
        let _ = write!(deleted, "<Deleted><Key>{}</Key></Deleted>", escape(&key));
    }
    HttpResponse::status(200).body(format!("<DeleteResult>{deleted}</DeleteResult>"))
}
