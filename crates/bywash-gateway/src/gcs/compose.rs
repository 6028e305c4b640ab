//! Objects composed of others of their bucket, one after the other.

use std::sync::{Arc, OnceLock};

use bywash::{Bucket, CopyReads, PartBody, PutStreamOptions};
use futures::future::join_all;
use futures::{StreamExt, TryStreamExt, stream};
use http::Response;
use object_store::path::Path;
use object_store::{GetOptions, GetResult, ObjectMeta, PutMode, PutResult, TagSet};
use s3s::Body;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::body::{document, kept};
use super::condition::{WriteCondition, named, refuse_unbound_deletes};
use super::endpoint::{Endpoint, GcsRequest};
use super::error::{GcsError, GcsResult};
use super::generation::{Conditions, VersionNumbers};
use super::insert::body_of;
use super::metadata::GivenMetadata;
use super::read::{head, head_written};
use super::resource::{self, ObjectResource};
use crate::copying::{Attempt, Guard, Replaced, is_unmet, lacks_conditions};
use crate::digest::{Algorithm, Checksum, ChecksumKind, combine};
use crate::errors::{OperationContext, from_store};
use crate::keys::path_of;
use crate::limits::{MAX_COMPOSE_SOURCES, MAX_COPY_ATTEMPTS, MAX_JSON_BYTES};
use crate::meta::{encode_metadata_for, keep_checksum, kept_checksum, refuse_text_for};
use crate::passing::{PassedDigests, PassingDigests};

/// The document of a request.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ComposeDocument {
    source_objects: Vec<SourceDocument>,
    destination: Option<Map<String, Value>>,
    #[serde(default)]
    delete_source_objects: Option<bool>,
}

/// A source as the document names it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SourceDocument {
    name: String,
    generation: Option<Value>,
    object_preconditions: Option<Preconditions>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Preconditions {
    if_generation_match: Option<Value>,
}

/// A source, and the condition on its version.
struct Source {
    name: String,
    path: Path,
    conditions: Conditions,
}

/// The version of a source that is read.
#[derive(Clone)]
struct SourceVersion {
    meta: ObjectMeta,
    crc32c: Option<Checksum>,
}

/// Returns a number that a document has as a number or as a text.
fn number(name: &str, value: Option<&Value>) -> GcsResult<Option<i64>> {
    let parsed = match value {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(text)) => text.parse().ok(),
        Some(value) => value.as_i64(),
    };
    let invalid = || GcsError::invalid(format!("{name} is a whole number."));
    parsed.map(Some).ok_or_else(invalid)
}

impl Source {
    fn new(document: SourceDocument) -> GcsResult<Self> {
        let named = number("generation", document.generation.as_ref())?;
        let matching = document
            .object_preconditions
            .and_then(|conditions| conditions.if_generation_match);
        let matching = number("ifGenerationMatch", matching.as_ref())?;
        Ok(Self {
            path: path_of(&document.name)?,
            name: document.name,
            conditions: Conditions::of_version(named, matching),
        })
    }
}

/// Parameters of a request.
struct ComposeRequest {
    sources: Vec<Source>,
    given: GivenMetadata,
    deletes_sources: bool,
}

/// Parses the document of a request.
fn parse(document: &[u8]) -> GcsResult<ComposeRequest> {
    let document: ComposeDocument = serde_json::from_slice(document)
        .map_err(|error| GcsError::parse("the request with sourceObjects", &error))?;
    let count = document.source_objects.len();
    if !(1..=MAX_COMPOSE_SOURCES).contains(&count) {
        return Err(GcsError::invalid(format!(
            "An object is composed of 1 to {MAX_COMPOSE_SOURCES} sourceObjects, not {count}."
        )));
    }
    let sources = document.source_objects.into_iter().map(Source::new);
    let sources: Vec<Source> = sources.collect::<GcsResult<_>>()?;
    let given = GivenMetadata::of(document.destination.unwrap_or_default())?;
    Ok(ComposeRequest {
        sources,
        given,
        deletes_sources: document.delete_source_objects == Some(true),
    })
}

pub(crate) async fn compose(
    endpoint: &Endpoint,
    request: &mut GcsRequest,
) -> GcsResult<Response<Body>> {
    let body = body_of(request);
    let doing = request.doing("compose");
    let ComposeRequest {
        sources,
        mut given,
        deletes_sources,
    } = {
        let documents = &request.documents;
        let _charge = documents.charge_document(MAX_JSON_BYTES, doing).await?;
        parse(&document(body).await?)?
    };
    let names = given.names();
    let (bucket, path) = endpoint.object(doing.bucket, doing.key)?;
    refuse_text_for(&bucket, &given.attributes)?;
    encode_metadata_for(&bucket, &mut given.attributes)?;
    if deletes_sources {
        refuse_unbound_deletes(&bucket, doing)?;
    }
    let composing = Composing {
        bucket,
        path,
        sources,
        conditions: Conditions::of(&request.query)?,
        given,
        doing,
    };
    let (mut attempts, mut guard) = (0..MAX_COPY_ATTEMPTS, Guard::Condition);
    let composed = loop {
        match composing.attempt(guard).await? {
            Attempt::Done(composed) => break composed,
            Attempt::NoConditions => guard = Guard::LastLook,
            Attempt::Replaced => {
                if attempts.next().is_none() {
                    return Err(GcsError::unavailable(format!(
                        "{}: a source was replaced during each of {MAX_COPY_ATTEMPTS} attempts; try again.",
                        named(doing)
                    )));
                }
            }
        }
    };
    let (bucket, path) = (&composing.bucket, &composing.path);
    if deletes_sources {
        composing.delete(composed.sources).await;
    }
    let e_tag = composed.written.e_tag.as_deref();
    let found = head_written(bucket, path, e_tag, doing).await?;
    let url = endpoint.url(&request.parts);
    let resource = ObjectResource::read(bucket, doing.key, &found, &url);
    let resource = resource.with_names(&names);
    resource::document(&resource.with_hashes(composed.crc32c, None))
}

/// An object that was composed, of versions of its sources.
struct Composed {
    written: PutResult,
    crc32c: Option<String>,
    sources: Vec<SourceVersion>,
}

struct Composing<'a> {
    bucket: Bucket,
    path: Path,
    sources: Vec<Source>,
    conditions: Conditions,
    given: GivenMetadata,
    doing: OperationContext<'a>,
}

impl Composing<'_> {
    /// Composes the current versions of the sources. `guard`: if the object is a source too.
    async fn attempt(&self, guard: Guard) -> GcsResult<Attempt<Composed>> {
        let (bucket, doing) = (&self.bucket, self.doing);
        let mut versions = Vec::with_capacity(self.sources.len());
        for source in &self.sources {
            versions.push(self.version(source).await?);
        }
        let condition = WriteCondition::find(bucket, &self.path, &self.conditions, doing).await?;
        let mut attributes = self.given.attributes.clone();
        let known = combined(&versions);
        if let Some(known) = &known {
            keep_checksum(&mut attributes, known);
        }
        let computed = known.is_none().then_some(Algorithm::Crc32c);
        let digests = PassingDigests::new(false, computed);
        let passed = digests.clone();
        let found: Arc<OnceLock<PassedDigests>> = Arc::default();
        let late = Arc::clone(&found);
        let length = versions.iter().map(|version| version.meta.size).sum();
        let itself = versions
            .iter()
            .find(|version| version.meta.location == self.path);
        let itself = itself.map(|version| version.meta.clone());
        let itself = itself.filter(|_| condition.mode == PutMode::Overwrite);
        let tags = TagSet::default();
        let memory = bucket.copy_memory(&self.path, length, &tags).await;
        let memory = memory.map_err(|error| from_store(doing, &error))?;
        let body = digests.of(joined(bucket, versions.clone(), memory.reads()));
        let (mode, body) = match &itself {
            Some(read) => guard.apply(bucket, &self.path, read, body),
            None => (condition.mode.clone(), body),
        };
        let put = PutStreamOptions {
            mode,
            attributes,
            tags,
            late_attributes: Some(Box::new(move || {
                let passed = late.get_or_init(|| passed.finish());
                kept(passed, false)
            })),
            length: Some(length),
            memory: Some(memory),
        };
        let replaced = Replaced::default();
        match bucket
            .put_stream(&self.path, put, replaced.watch(body))
            .await
        {
            Ok(written) => {
                let computed = found.get().and_then(|found| found.checksum.clone());
                let checksum = known.or(computed);
                Ok(Attempt::Done(Composed {
                    written,
                    crc32c: checksum.map(|checksum| checksum.value),
                    sources: versions,
                }))
            }
            Err(_) if replaced.is_seen() => Ok(Attempt::Replaced),
            Err(error) if itself.is_some() && is_unmet(&error) => Ok(Attempt::Replaced),
            Err(error)
                if itself.is_some() && guard == Guard::Condition && lacks_conditions(&error) =>
            {
                Ok(Attempt::NoConditions)
            }
            Err(error) => Err(condition.error(doing, &error)),
        }
    }

    /// Finds the current version of a source.
    async fn version(&self, source: &Source) -> GcsResult<SourceVersion> {
        let doing = OperationContext::new("compose from", self.doing.bucket, &source.name);
        let found = head(&self.bucket, &source.path, doing).await?;
        let numbers = VersionNumbers::of(&self.bucket, &found);
        source.conditions.check_write(numbers, &named(doing))?;
        Ok(SourceVersion {
            crc32c: kept_checksum(&found.attributes),
            meta: found.meta,
        })
    }

    /// Deletes the versions that the object was composed of. It exists by now, so that a failure is
    /// no error of the request, which its client would repeat: the source stays.
    async fn delete(&self, mut sources: Vec<SourceVersion>) {
        sources.retain(|source| source.meta.location != self.path);
        // A source may be named several times.
        sources.sort_by(|one, other| one.meta.location.cmp(&other.meta.location));
        sources.dedup_by(|one, other| one.meta.location == other.meta.location);
        let deletes = sources.iter().map(|source| async {
            if let Err(error) = self.bucket.delete_version(&source.meta).await {
                let object = &source.meta.location;
                tracing::warn!(%object, %error, "a source of a composed object was not deleted");
            }
        });
        join_all(deletes).await;
    }
}

/// CRC32C of all bytes, if the CRC32C of each source is kept with it.
fn combined(versions: &[SourceVersion]) -> Option<Checksum> {
    let is_known = |version: &SourceVersion| {
        let kept = version.crc32c.as_ref();
        kept.is_some_and(Checksum::is_crc32c_of_all)
    };
    if !versions.iter().all(is_known) {
        return None;
    }
    let parts = versions
        .iter()
        .map(|version| (version.crc32c.as_ref(), version.meta.size));
    // The checksum of no bytes adds nothing.
    let mut filled: Vec<_> = parts.clone().filter(|(_, size)| *size > 0).collect();
    if filled.is_empty() {
        filled.extend(parts.take(1));
    }
    combine(&filled, ChecksumKind::FullObject)
}

/// The bytes of the versions, one after the other; each is opened when the one before it has ended.
fn joined(bucket: &Bucket, versions: Vec<SourceVersion>, memory: &CopyReads) -> PartBody {
    let (bucket, memory) = (bucket.clone(), memory.clone());
    let reads = stream::iter(versions).then(move |version| {
        let (bucket, memory) = (bucket.clone(), memory.clone());
        async move {
            let options = GetOptions {
                if_match: version.meta.e_tag,
                ..GetOptions::default()
            };
            let read = bucket
                .get_for_copy(&version.meta.location, options, &memory)
                .await;
            read.map(GetResult::into_stream)
        }
    });
    reads.try_flatten().boxed()
}

#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(document: &[u8]) {
    if let Ok(request) = parse(document) {
        assert!((1..=MAX_COMPOSE_SOURCES).contains(&request.sources.len()));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use futures::FutureExt;

    use super::*;

    #[test]
    fn checksum_is_combined_if_that_of_each_source_is_known() {
        let version = |value: Option<&str>, size| SourceVersion {
            meta: ObjectMeta {
                location: Path::from("a"),
                last_modified: chrono::DateTime::UNIX_EPOCH,
                size,
                e_tag: None,
                version: None,
            },
            crc32c: value.map(|value| Checksum {
                algorithm: Algorithm::Crc32c,
                value: value.to_owned(),
            }),
        };
        // Of `1234`, of nothing, of `56789`.
        let digest = |bytes: &[u8]| {
            let digests = PassingDigests::new(false, Some(Algorithm::Crc32c));
            let body = stream::iter([Ok(bytes::Bytes::copy_from_slice(bytes))]).boxed();
            let read = digests.of(body).collect::<Vec<_>>().now_or_never();
            assert_eq!(read.unwrap().len(), 1);
            digests.finish().checksum.unwrap().value
        };
        let (first, none, second) = (digest(b"1234"), digest(b""), digest(b"56789"));
        let parts = [
            version(Some(&first), 4),
            version(Some(&none), 0),
            version(Some(&second), 5),
        ];
        assert_eq!(combined(&parts).unwrap().value, "4waSgw==");
        assert_eq!(combined(&parts[1..2]).unwrap().value, none);
        let unknown = [version(Some(&first), 4), version(None, 5)];
        assert!(combined(&unknown).is_none());
    }

    #[test]
    fn documents_name_sources_with_generations_as_numbers_or_texts() {
        let document = br#"{"kind":"x","sourceObjects":[{"name":"a","generation":5},{"name":"b",
            "objectPreconditions":{"ifGenerationMatch":"7"}}],"destination":{"contentType":"text/x"}}"#;
        let request = parse(document).unwrap();
        let (sources, given) = (request.sources, request.given);
        assert!(!request.deletes_sources);
        assert_eq!(sources[0].conditions, Conditions::of_version(Some(5), None));
        assert_eq!(sources[1].conditions, Conditions::of_version(None, Some(7)));
        assert_eq!(given.attributes.len(), 1);
        let document = br#"{"sourceObjects":[{"name":"a"}],"deleteSourceObjects":true}"#;
        assert!(parse(document).unwrap().deletes_sources);
        for refused in [
            &b"{}"[..],
            br#"{"sourceObjects":[]}"#,
            br#"{"sourceObjects":[{"name":"a","generation":"x"}]}"#,
            br#"{"sourceObjects":[{"name":""}]}"#,
        ] {
            assert!(parse(refused).is_err());
        }
    }
}
