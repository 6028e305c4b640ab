//! Changes of an object's metadata: patch, which merges, and update, which replaces, if the object
//! is still the version that was read. Folders and memory keep the bytes; elsewhere the object is
//! written again, a longer one over S3 by a copy that the store makes.

use bywash::origin::AttributeRewrite;
use bywash::{Bucket, ReadInfo};
use http::Response;
use object_store::path::Path;
use object_store::{Attribute, Attributes, GetResult, PutResult};
use s3s::Body;

use super::body::document;
use super::condition::named;
use super::endpoint::{Endpoint, GcsRequest};
use super::error::{GcsError, GcsResult};
use super::generation::{Conditions, VersionNumbers};
use super::insert::body_of;
use super::metadata::{CONTENT, GivenMetadata};
use super::read::{head, head_written};
use super::resource::{self, ObjectResource};
use crate::copying::{carried_attributes, is_replaced, is_unmet, version_of};
use crate::digest::Checksum;
use crate::errors::{OperationContext, from_store};
use crate::limits::{MAX_COPY_ATTEMPTS, MAX_JSON_BYTES, MAX_METADATA_BYTES};
use crate::meta::{
    encode_metadata_for, keep_checksum, keep_metageneration, kept_checksum, refuse_text_for,
    remove_user_metadata, user_metadata_of,
};
use crate::tags::Tags;

/// Changes the properties that the document has, and removes properties that are null.
pub(crate) async fn patch(
    endpoint: &Endpoint,
    request: &mut GcsRequest,
) -> GcsResult<Response<Body>> {
    change(endpoint, request, false).await
}

/// Replaces all metadata by the document's.
pub(crate) async fn update(
    endpoint: &Endpoint,
    request: &mut GcsRequest,
) -> GcsResult<Response<Body>> {
    change(endpoint, request, true).await
}

async fn change(
    endpoint: &Endpoint,
    request: &mut GcsRequest,
    replaces: bool,
) -> GcsResult<Response<Body>> {
    let body = body_of(request);
    let doing = request.doing("change the metadata of");
    let given = {
        let documents = &request.documents;
        let _charge = documents.charge_document(MAX_JSON_BYTES, doing).await?;
        GivenMetadata::parse(&document(body).await?)?
    };
    let (bucket, path) = endpoint.existing_object(doing.bucket, doing.key)?;
    let conditions = Conditions::of(&request.query)?;
    conditions.refuse_unbound(&bucket)?;
    let changing = Changing {
        bucket,
        path,
        conditions,
        given,
        replaces,
        doing,
    };
    let turn = changing.bucket.change_turn(&changing.path).await;
    let mut attempts = 0..MAX_COPY_ATTEMPTS;
    let written = loop {
        if let Some(written) = changing.attempt().await? {
            break written;
        }
        if attempts.next().is_none() {
            return Err(GcsError::unavailable(format!(
                "{}: the object was replaced during each of {MAX_COPY_ATTEMPTS} attempts; try again.",
                named(doing)
            )));
        }
    };
    drop(turn);
    let (bucket, path) = (&changing.bucket, &changing.path);
    let found = head_written(bucket, path, written.e_tag.as_deref(), doing).await?;
    let url = endpoint.url(&request.parts);
    resource::document(&ObjectResource::read(bucket, doing.key, &found, &url))
}

/// A change of the metadata of an object.
struct Changing<'a> {
    bucket: Bucket,
    path: Path,
    conditions: Conditions,
    given: GivenMetadata,
    replaces: bool,
    doing: OperationContext<'a>,
}

impl Changing<'_> {
    /// Changes the current version. Returns `None` if it was concurrently replaced.
    async fn attempt(&self) -> GcsResult<Option<PutResult>> {
        let Self { bucket, path, .. } = self;
        let found = head(bucket, path, self.doing).await?;
        let numbers = VersionNumbers::of(bucket, &found);
        self.conditions.check_write(numbers, &named(self.doing))?;
        if found.meta.e_tag.is_none() {
            return Err(GcsError::not_served(format!(
                "{}: the origin has no ETags, so a change of metadata could replace another writer's object.",
                named(self.doing)
            )));
        }
        let mut attributes = self.attributes(&found, numbers)?;
        let stated = found
            .extensions
            .get::<ReadInfo>()
            .map_or(0, |info| info.tags);
        let mut rewrite = AttributeRewrite {
            version: version_of(&found.meta),
            size: found.meta.size,
            tags: Tags::of_object(bucket, path, stated, &mut attributes)
                .await
                .map_err(|error| from_store(self.doing, &error))??,
            attributes,
        };
        self.keep_stated_checksum(&mut rewrite).await;
        match bucket.replace_attributes(path, rewrite).await {
            Ok(written) => Ok(Some(written)),
            Err(error) if is_unmet(&error) || is_replaced(&error) => Ok(None),
            Err(error) => Err(from_store(self.doing, &error).into()),
        }
    }

    /// Returns the attributes of the changed object.
    fn attributes(&self, read: &GetResult, numbers: VersionNumbers) -> GcsResult<Attributes> {
        let bucket = &self.bucket;
        let mut attributes = carried_attributes(bucket, read);
        self.given.apply(&mut attributes, self.replaces)?;
        refuse_text_for(bucket, &attributes)?;
        encode_metadata_for(bucket, &mut attributes)?;
        keep_metageneration(&mut attributes, numbers.metageneration + 1);
        Ok(attributes)
    }

    /// Adds the checksum that the store states of a version to the metadata of a copy that it
    /// makes: it states none for the copy.
    async fn keep_stated_checksum(&self, rewrite: &mut AttributeRewrite) {
        let Self { bucket, path, .. } = self;
        let is_kept = kept_checksum(&rewrite.attributes).is_some();
        if is_kept || !bucket.rewrites_by_copy(rewrite.size) {
            return;
        }
        match bucket.stated_digest(path, &rewrite.version).await {
            Ok(stated) => {
                if let Some(checksum) = stated.as_ref().and_then(Checksum::of_content) {
                    keep_checksum(&mut rewrite.attributes, &checksum);
                }
            }
            // The copy is as good without.
            Err(error) => tracing::debug!(%path, %error, "no checksum for a copy"),
        }
    }
}

/// Removes an attribute; a name of user metadata in any case, as headers have none.
fn remove(attributes: &mut Attributes, removed: &Attribute) {
    let alone = Attributes::from_iter([(removed.clone(), "")]);
    match user_metadata_of(&alone).next() {
        Some((name, _)) => {
            remove_user_metadata(attributes, |found| found.eq_ignore_ascii_case(name));
        }
        None => drop(attributes.remove(removed)),
    }
}

impl GivenMetadata {
    /// Applies a change to the attributes of an object. `replaces`: whether properties that the
    /// document lacks are removed.
    fn apply(&self, attributes: &mut Attributes, replaces: bool) -> GcsResult<()> {
        if replaces {
            for (_, attribute) in CONTENT {
                attributes.remove(&attribute);
            }
        }
        if replaces || self.removes_user_metadata {
            remove_user_metadata(attributes, |_| true);
        }
        for removed in &self.removed {
            remove(attributes, removed);
        }
        for (name, value) in &self.attributes {
            remove(attributes, name);
            attributes.insert(name.clone(), value.clone());
        }
        let length = |(name, value): (&str, &str)| name.len() + value.len();
        let total: usize = user_metadata_of(attributes).map(length).sum();
        if total > MAX_METADATA_BYTES {
            Err(GcsError::invalid(format!(
                "The object's metadata would have {total} bytes, more than {MAX_METADATA_BYTES}."
            )))
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn user(name: &str) -> Attribute {
        Attribute::Metadata(name.to_owned().into())
    }

    fn changed(document: &str, replaces: bool) -> GcsResult<Attributes> {
        let mut attributes = Attributes::from_iter([
            (Attribute::ContentType, "text/x"),
            (Attribute::CacheControl, "no-store"),
            (user("a"), "1"),
            (user("b"), "2"),
            (user("bywash-tags"), "t=1"),
        ]);
        let given = GivenMetadata::parse(document.as_bytes()).unwrap();
        given.apply(&mut attributes, replaces).map(|()| attributes)
    }

    #[test]
    fn patch_merges_removes_nulls_and_keeps_what_is_reserved() {
        let document =
            r#"{"contentType":"text/y","cacheControl":null,"metadata":{"A":"3","b":null,"c":"4"}}"#;
        let expected = Attributes::from_iter([
            (Attribute::ContentType, "text/y"),
            (user("A"), "3"),
            (user("c"), "4"),
            (user("bywash-tags"), "t=1"),
        ]);
        assert_eq!(changed(document, false).unwrap(), expected);
        let none = changed(r#"{"metadata":null}"#, false).unwrap();
        assert_eq!(user_metadata_of(&none).count(), 0);
        assert_eq!(none.len(), 3);
    }

    #[test]
    fn update_replaces_all_but_what_is_reserved() {
        let expected = Attributes::from_iter([(user("c"), "4"), (user("bywash-tags"), "t=1")]);
        let document = r#"{"metadata":{"c":"4"}}"#;
        assert_eq!(changed(document, true).unwrap(), expected);
    }

    #[test]
    fn merged_metadata_beyond_its_limit_is_refused() {
        let long = "x".repeat(MAX_METADATA_BYTES - 3);
        let document = format!(r#"{{"metadata":{{"c":"{long}"}}}}"#);
        assert!(changed(&document, true).is_ok());
        assert!(changed(&document, false).is_err());
    }
}
