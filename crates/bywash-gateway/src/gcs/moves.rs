//! Moves: an object gets another name in its bucket, by a rename of its store, else by a copy and the deletion of the version that was
//! copied.
//!
//! A rename is one step. A copy leaves both objects for a moment, and after a crash; its source is deleted only if it is still the
//! version that was copied. If it was replaced in between, the move begins again with that version.

use bywash::origin::ObjectRename;
use bywash::{Bucket, PutStreamOptions, ReadInfo};
use http::Response;
use object_store::path::Path;
use object_store::{
    Attributes, Error as StoreError, GetOptions, GetResult, PutResult, UpdateVersion,
};
use s3s::Body;

use super::condition::{WriteCondition, named, refuse_unbound_deletes};
use super::endpoint::{Endpoint, GcsRequest};
use super::error::{GcsError, GcsResult};
use super::generation::{Conditions, VersionNumbers};
use super::read::{head, head_written};
use super::resource::{self, ObjectResource};
use crate::copying::{Replaced, carried_attributes, is_replaced, version_of};
use crate::errors::{OperationContext, from_store, no_such_bucket};
use crate::keys::path_of;
use crate::limits::MAX_COPY_ATTEMPTS;
use crate::meta::{encode_metadata_for, keep_metageneration, refuse_text_for};
use crate::tags::Tags;

pub(crate) async fn object(
    endpoint: &Endpoint,
    request: &mut GcsRequest,
) -> GcsResult<Response<Body>> {
    let from = request.doing("move");
    let target = request.route.target.as_ref();
    let (bucket, object) = target.ok_or_else(|| no_such_bucket(""))?;
    let to = OperationContext::new("move to", bucket, object);
    if from.key == to.key {
        return Err(GcsError::invalid(format!(
            "{}: the source and the destination of a move have different names.",
            named(from)
        )));
    }
    let (bucket, from_path) = endpoint.existing_object(from.bucket, from.key)?;
    let moving = Moving {
        bucket,
        from_path,
        to_path: path_of(to.key)?,
        of_source: Conditions::of_source(&request.query)?,
        of_target: Conditions::of(&request.query)?,
        from,
        to,
    };
    let written = moving.run().await?;
    let (bucket, path) = (&moving.bucket, &moving.to_path);
    let found = head_written(bucket, path, written.e_tag.as_deref(), to).await?;
    let url = endpoint.url(&request.parts);
    resource::document(&ObjectResource::read(bucket, to.key, &found, &url))
}

/// A move of the current version of an object.
struct Moving<'a> {
    bucket: Bucket,
    from_path: Path,
    to_path: Path,
    of_source: Conditions,
    of_target: Conditions,
    from: OperationContext<'a>,
    to: OperationContext<'a>,
}

/// Result of an attempt.
enum Attempt {
    Moved(PutResult),
    /// The source was replaced.
    SourceReplaced,
    /// The source was replaced after it was copied. The copy is this version.
    CopiedReplaced(UpdateVersion),
}

impl Moving<'_> {
    async fn run(&self) -> GcsResult<PutResult> {
        let mut copied = None;
        for _ in 0..=MAX_COPY_ATTEMPTS {
            match self.attempt(copied.as_ref()).await? {
                Attempt::Moved(written) => return Ok(written),
                Attempt::SourceReplaced => {}
                Attempt::CopiedReplaced(version) => copied = Some(version),
            }
        }
        Err(GcsError::unavailable(format!(
            "{}: the object was replaced during each of {MAX_COPY_ATTEMPTS} attempts; try again.",
            named(self.from)
        )))
    }

    /// Moves the current version. `copied`: the copy that an earlier attempt made, which this one replaces.
    async fn attempt(&self, copied: Option<&UpdateVersion>) -> GcsResult<Attempt> {
        let Self { bucket, .. } = self;
        let found = head(bucket, &self.from_path, self.from).await?;
        let numbers = VersionNumbers::of(bucket, &found);
        self.of_source.check_write(numbers, &named(self.from))?;
        let condition = match copied {
            None => WriteCondition::find(bucket, &self.to_path, &self.of_target, self.to).await?,
            Some(version) => WriteCondition::of_version(version.clone()),
        };
        if found.meta.e_tag.is_none() {
            return self.copy(found, condition).await;
        }
        let mut attributes = found.attributes.clone();
        keep_metageneration(&mut attributes, 1);
        let rename = ObjectRename {
            version: version_of(&found.meta),
            attributes,
            mode: condition.mode.clone(),
        };
        let (from, to) = (&self.from_path, &self.to_path);
        match bucket.rename_version(from, to, rename).await {
            Ok(Some(renamed)) => Ok(Attempt::Moved(renamed)),
            Ok(None) => self.copy(found, condition).await,
            Err(error) if is_of(&error, from) => Ok(Attempt::SourceReplaced),
            Err(error) => Err(condition.error(self.to, &error)),
        }
    }

    /// Copies the version that was found, or the current one of an origin without ETags, and deletes it.
    async fn copy(&self, found: GetResult, condition: WriteCondition) -> GcsResult<Attempt> {
        let Self { bucket, .. } = self;
        refuse_unbound_deletes(bucket, self.from)?;
        let stated = (found.extensions.get::<ReadInfo>()).map_or(0, |info| info.tags);
        let mut attributes = self.attributes(&found)?;
        let tags = Tags::of_object(bucket, &self.from_path, stated, &mut attributes).await;
        let tags = tags.map_err(|error| from_store(self.from, &error))??;
        let memory = bucket
            .copy_memory(&self.to_path, found.meta.size, &tags)
            .await;
        let memory = memory.map_err(|error| from_store(self.to, &error))?;
        let options = GetOptions {
            if_match: found.meta.e_tag.clone(),
            ..GetOptions::default()
        };
        let read = bucket.get_for_copy(&self.from_path, options, memory.reads());
        let read = match read.await {
            Ok(read) => read,
            Err(error) if is_replaced(&error) => return Ok(Attempt::SourceReplaced),
            Err(error) => return Err(from_store(self.from, &error).into()),
        };
        let current = VersionNumbers::of(bucket, &read);
        self.of_source.check_write(current, &named(self.from))?;
        let source = read.meta.clone();
        let put = PutStreamOptions {
            mode: condition.mode.clone(),
            tags,
            attributes,
            late_attributes: None,
            length: Some(source.size),
            memory: Some(memory),
        };
        let replaced = Replaced::default();
        let body = replaced.watch(read.into_stream());
        let written = match bucket.put_stream(&self.to_path, put, body).await {
            Ok(written) => written,
            Err(_) if replaced.is_seen() => return Ok(Attempt::SourceReplaced),
            Err(error) => return Err(condition.error(self.to, &error)),
        };
        match bucket.delete_version(&source).await {
            Ok(()) => Ok(Attempt::Moved(written)),
            Err(StoreError::Precondition { .. }) => Ok(Attempt::CopiedReplaced(UpdateVersion {
                e_tag: written.e_tag,
                version: written.version,
            })),
            Err(StoreError::NotFound { .. }) => Err(GcsError::not_found(format!(
                "{}: another request deleted or moved the object after it was copied to {}; the copy stays.",
                named(self.from),
                named(self.to)
            ))),
            Err(error) => Err(from_store(self.from, &error).into()),
        }
    }

    /// Returns the attributes of the copy.
    fn attributes(&self, read: &GetResult) -> GcsResult<Attributes> {
        let bucket = &self.bucket;
        let mut attributes = carried_attributes(bucket, read);
        keep_metageneration(&mut attributes, 1);
        refuse_text_for(bucket, &attributes)?;
        encode_metadata_for(bucket, &mut attributes)?;
        Ok(attributes)
    }
}

/// Whether an error is that the object of `path` is not the version of the request.
fn is_of(error: &StoreError, path: &Path) -> bool {
    match error {
        StoreError::Precondition { path: of, .. } | StoreError::NotFound { path: of, .. } => {
            of == path.as_ref()
        }
        _ => false,
    }
}
