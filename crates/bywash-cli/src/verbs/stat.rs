//! `bywash stat`: metadata of objects and files.

use std::collections::BTreeMap;

use bywash::origin::{ENCRYPTION, EXPIRES};
use chrono::{DateTime, SecondsFormat, Utc};
use object_store::{Attribute, Attributes};
use serde::Serialize;

use crate::endpoint::{Endpoint, Remote};
use crate::failure::Failure;
use crate::interrupt::or_interrupt;
use crate::output::Output;
use crate::transfer::jobs::Failures;
use crate::transfer::object::Object;
use crate::url::Url;

/// Print size, time, version, headers and metadata of objects or files
///
/// With --json, one line each: name, size, modified, and e_tag, version, headers and metadata if the object has them.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// s3://bucket/key, gs://bucket/key, az://container/key, https://host/path or a file path
    #[arg(required = true, value_name = "WHAT")]
    locations: Vec<Url>,
    #[command(flatten)]
    remote: Remote,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Serialize)]
struct Facts {
    name: String,
    size: u64,
    modified: DateTime<Utc>,
    #[serde(skip_serializing_if = "Option::is_none")]
    e_tag: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    /// Content headers, by their HTTP names.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    headers: BTreeMap<String, String>,
    /// User metadata.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    metadata: BTreeMap<String, String>,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let endpoint = Endpoint::with_short_deadline(&args.remote);
    let mut failures = Failures::new(args.output);
    for location in &args.locations {
        match or_interrupt(facts(location, &endpoint)).await {
            Ok(facts) => args.output.lines(&facts, || facts.text())?,
            Err(failure) => failures.push(failure),
        }
    }
    failures.end(args.locations.len(), "could not be read")
}

async fn facts(location: &Url, endpoint: &Endpoint) -> Result<Facts, Failure> {
    let name = location.to_string();
    match location {
        Url::Stdio => Err(Failure::usage(
            "- is no object; write s3://bucket/key or a file path",
        )),
        Url::File(path) | Url::Folder(path) => {
            let meta = std::fs::metadata(path)
                .map_err(|error| Failure::io(format!("cannot stat {name}"), &error))?;
            Ok(Facts {
                name,
                size: meta.len(),
                modified: meta.modified().map_or(DateTime::UNIX_EPOCH, DateTime::from),
                e_tag: None,
                version: None,
                headers: BTreeMap::new(),
                metadata: BTreeMap::new(),
            })
        }
        Url::Object(address) => {
            let Object {
                meta, attributes, ..
            } = Object::open(address, endpoint).await?;
            let (headers, metadata) = split(&attributes);
            Ok(Facts {
                name,
                size: meta.size,
                modified: meta.last_modified,
                e_tag: meta.e_tag,
                version: meta.version,
                headers,
                metadata,
            })
        }
    }
}

/// Content headers and user metadata.
fn split(attributes: &Attributes) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
    let (mut headers, mut metadata) = (BTreeMap::new(), BTreeMap::new());
    for (attribute, value) in attributes {
        let header = match attribute {
            expires if *expires == EXPIRES => "expires",
            encryption if *encryption == ENCRYPTION => "server-side-encryption",
            Attribute::ContentDisposition => "content-disposition",
            Attribute::ContentEncoding => "content-encoding",
            Attribute::ContentLanguage => "content-language",
            Attribute::ContentType => "content-type",
            Attribute::CacheControl => "cache-control",
            Attribute::StorageClass => "storage-class",
            Attribute::Metadata(name) => {
                metadata.insert(name.to_string(), value.to_string());
                continue;
            }
            _ => continue,
        };
        headers.insert(header.to_owned(), value.to_string());
    }
    (headers, metadata)
}

impl Facts {
    fn text(&self) -> Vec<String> {
        let mut lines = vec![
            ("name".to_owned(), self.name.clone()),
            ("size".to_owned(), self.size.to_string()),
            (
                "modified".to_owned(),
                self.modified.to_rfc3339_opts(SecondsFormat::Secs, true),
            ),
        ];
        lines.extend(
            self.e_tag
                .iter()
                .map(|tag| ("etag".to_owned(), tag.clone())),
        );
        lines.extend(
            self.version
                .iter()
                .map(|version| ("version".to_owned(), version.clone())),
        );
        lines.extend(self.headers.clone());
        lines.extend(
            self.metadata
                .iter()
                .map(|(name, value)| (format!("x-amz-meta-{name}"), value.clone())),
        );
        lines
            .into_iter()
            .map(|(name, value)| format!("{name}: {value}"))
            .collect()
    }
}
