//! Other attributes for an object: in place where its store can, else an upload of parts that the store copies from the object
//! itself, completed as any other, or else a copy through the engine.
//!
//! Of an upload only the completion has the turn of the object, as only it changes the object. The copies may take minutes.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use bywash_store::{
    AttributeRewrite, Capability, CompleteOptions, ContentDigest, OriginError, PartSource,
    SessionPart, UploadSession, UploadedPart, WriteConflict, is_refusal, source_of,
};
use futures::StreamExt;
use object_store::path::Path;
use object_store::{
    Error, GetOptions, PutMode, PutMultipartOptions, PutResult, Result, UpdateVersion,
};

use crate::bucket::Bucket;

use crate::key_turns::HeldKeys;
use crate::retry::{once, with_retries};
use crate::write::PutStreamOptions;

/// Bytes of a part, unless an object would have too many parts. A store copies some hundred MiB a second, and sends nothing until
/// a part is done.
const PART_BYTES: u64 = 512 << 20;
/// Parts that a store copies at the same time.
const COPIES_IN_FLIGHT: usize = 4;

impl Bucket {
    /// Returns whether [`Self::replace_attributes`] has the store copy an object of this size.
    #[must_use]
    pub fn rewrites_by_copy(&self, size: u64) -> bool {
        let min = self.shared().origin.capabilities().min_rewritten_bytes;
        min.is_some_and(|min| size > min)
    }

    /// Waits until no other change of the object that begins with a read of it is in progress in this process. A store may compare
    /// versions by ETags of their bytes alone, and so not notice that another change came between the read and the write.
    #[must_use = "the turn ends when it is dropped"]
    pub async fn change_turn(&self, path: &Path) -> HeldKeys {
        self.shared().change_turns.alone(path.clone()).await
    }

    /// Requests the digest that the store states of the content of a version; `None` if it states none, or has another version. A
    /// copy that the store makes has none of its own.
    ///
    /// # Errors
    /// As any request. Not retried: it is for a digest that may be missing.
    pub async fn stated_digest(
        &self,
        path: &Path,
        version: &UpdateVersion,
    ) -> Result<Option<ContentDigest>> {
        let shared = self.shared();
        shared.counters.origin_request();
        let sent = shared.origin.content_digest(path);
        let found = once(
            shared.engine.retry.stall,
            "look for the digest of",
            path,
            sent,
        )
        .await?;
        let bare = |e_tag: &str| e_tag.trim_matches('"').to_owned();
        let wanted = version.e_tag.as_deref().map(bare);
        Ok(found
            .filter(|(e_tag, _)| Some(bare(e_tag)) == wanted)
            .map(|(_, digest)| digest))
    }

    /// Replaces the attributes and the tags of an object, if it is still this version. Its bytes are sent only if its store can neither
    /// keep them nor copy them.
    ///
    /// # Errors
    /// `Precondition` if it is another version, or [`crate::EngineError::VersionChanged`]; otherwise as a write.
    pub async fn replace_attributes(
        &self,
        path: &Path,
        rewrite: AttributeRewrite,
    ) -> Result<PutResult> {
        if let Some(put) = self.rewrite_in_place(path, &rewrite).await? {
            return Ok(put);
        }
        if let Some(put) = self.rewrite_by_copy(path, rewrite.clone()).await? {
            return Ok(put);
        }
        let AttributeRewrite {
            version,
            size,
            attributes,
            tags,
        } = rewrite;
        let memory = self.copy_memory(path, size, &tags).await?;
        let options = GetOptions {
            if_match: version.e_tag.clone(),
            ..GetOptions::default()
        };
        let read = self.get_for_copy(path, options, memory.reads()).await?;
        let put = PutStreamOptions {
            mode: PutMode::Update(version),
            attributes,
            tags,
            late_attributes: None,
            length: Some(read.meta.size),
            memory: Some(memory),
        };
        self.put_stream(path, put, read.into_stream()).await
    }

    /// Replaces the attributes of an object in one step, if it is still this version and its store can without the bytes; else
    /// returns `None`, and has changed nothing.
    ///
    /// # Errors
    /// `Precondition` if it is another version; otherwise as any request.
    pub async fn rewrite_in_place(
        &self,
        path: &Path,
        rewrite: &AttributeRewrite,
    ) -> Result<Option<PutResult>> {
        let shared = Arc::clone(self.shared());
        if !shared.origin.capabilities().rewrites_in_place {
            return Ok(None);
        }
        shared.counters.request();
        let rewrite = rewrite.clone();
        self.write(path, move |path| async move {
            shared.origin_request(Capability::Write);
            let sent = shared.origin.rewrite_in_place(&path, &rewrite);
            let limit = shared.engine.retry.stall;
            once(limit, "change the attributes of", &path, sent).await
        })
        .await
    }

    /// Replaces the attributes and the tags of an object, if it is still this version, by a copy that its store makes. Returns `None`,
    /// and has changed nothing, if the bytes of an object of this size have to be sent for it, or the store makes no copies.
    ///
    /// Runs in a task of its own: its upload is completed or dropped also if the caller is.
    ///
    /// # Errors
    /// `Precondition` if it is another version; otherwise as any request. If the response to the completion was lost, the upload
    /// stays: it may be completed.
    pub async fn rewrite_by_copy(
        &self,
        path: &Path,
        rewrite: AttributeRewrite,
    ) -> Result<Option<PutResult>> {
        if !self.rewrites_by_copy(rewrite.size) {
            return Ok(None);
        }
        self.shared().counters.request();
        let (bucket, path) = (self.clone(), path.clone());
        let task = tokio::spawn(async move { bucket.copy_onto_itself(&path, rewrite).await });
        task.await.map_err(|source| Error::JoinError { source })?
    }

    async fn copy_onto_itself(
        &self,
        path: &Path,
        rewrite: AttributeRewrite,
    ) -> Result<Option<PutResult>> {
        let AttributeRewrite {
            version,
            size,
            attributes,
            tags,
        } = rewrite;
        let options = PutMultipartOptions {
            attributes,
            tags,
            ..PutMultipartOptions::default()
        };
        let upload = self.begin_upload(path, options).await?;
        let parts = match self.copy_parts(path, &upload, &version, size).await {
            Ok(parts) => parts,
            Err(error) => {
                self.drop_copy(path, &upload).await;
                if matches!(error, Error::Precondition { .. } | Error::NotFound { .. }) {
                    // The known version of the object is old.
                    self.shared().versions.invalidate(path);
                }
                return match error {
                    Error::NotImplemented { .. } => Ok(None),
                    error => Err(error),
                };
            }
        };
        let ending = CompleteOptions::from(PutMode::Update(version));
        let finished = self.finish_upload(path, &upload, &parts, ending).await;
        if finished.as_ref().is_err_and(is_refused) {
            self.drop_copy(path, &upload).await;
        }
        finished.map(Some)
    }

    /// Copies all parts. After a failure it starts no more, and returns when those in flight have ended: the upload may then be
    /// dropped.
    async fn copy_parts(
        &self,
        path: &Path,
        upload: &str,
        version: &UpdateVersion,
        size: u64,
    ) -> Result<Vec<UploadedPart>> {
        let max_parts = self.shared().origin.capabilities().chunk_rule.max_chunks;
        let session = &*self.numbered(path, upload, PutMode::Overwrite).await?;
        let e_tag = version.e_tag.as_deref().unwrap_or_default();
        // An advisory switch, hence relaxed.
        let failed = &AtomicBool::new(false);
        let copies = parts_of(size, max_parts).map(|(number, range)| async move {
            if failed.load(Relaxed) {
                return None;
            }
            let copied = self.copy_part(path, session, number, range, e_tag).await;
            failed.fetch_or(copied.is_err(), Relaxed);
            Some(copied)
        });
        // Collected first: a stream of a borrowing iterator is not `Send` in general.
        let copies: Vec<_> = copies.collect();
        let copied = futures::stream::iter(copies).buffered(COPIES_IN_FLIGHT);
        let copied: Vec<_> = copied.collect().await;
        copied.into_iter().flatten().collect()
    }

    /// Has the store copy `range` of the version `e_tag` as the part `number`.
    async fn copy_part(
        &self,
        path: &Path,
        session: &dyn UploadSession,
        number: u16,
        range: Range<u64>,
        e_tag: &str,
    ) -> Result<UploadedPart> {
        let retry = self.shared().retry().with_server_work();
        let copied = with_retries(retry, "copy a part of", path, || {
            self.shared().origin_request(Capability::Write);
            session.put(SessionPart {
                number: number.into(),
                place: None,
                length: range.end - range.start,
                source: PartSource::Copy {
                    e_tag: e_tag.to_owned(),
                    range: range.clone(),
                },
            })
        });
        let e_tag = copied.await?.e_tag;
        Ok(UploadedPart { number, e_tag })
    }

    async fn drop_copy(&self, path: &Path, upload: &str) {
        if let Err(error) = self.drop_upload(path, upload).await {
            tracing::debug!(%path, %error, "abort of a copy that failed");
        }
    }
}

/// Returns the numbers and ranges of the parts of an object.
fn parts_of(size: u64, max_parts: Option<u64>) -> impl Iterator<Item = (u16, Range<u64>)> {
    let least = max_parts.map_or(1, |max| size.div_ceil(max.max(1)));
    let part_bytes = PART_BYTES.max(least);
    let begins = (0..size).step_by(usize::try_from(part_bytes).unwrap_or(usize::MAX));
    let end = move |begin: u64| size.min(begin.saturating_add(part_bytes));
    (1..).zip(begins.map(move |begin| begin..end(begin)))
}

/// Returns whether an error of a completion is a response that refuses it. After any other the upload may be completed still.
fn is_refused(error: &Error) -> bool {
    let by_kind = matches!(
        error,
        Error::Precondition { .. }
            | Error::AlreadyExists { .. }
            | Error::NotFound { .. }
            | Error::PermissionDenied { .. }
            | Error::Unauthenticated { .. }
            | Error::NotImplemented { .. }
    );
    let invalid = matches!(
        OriginError::find(error),
        Some(OriginError::InvalidPart { .. })
    );
    by_kind || invalid || is_refusal(error) || source_of::<WriteConflict>(error).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_all_bytes_and_no_more_than_the_store_takes() {
        for (size, expected) in [
            (1, 1),
            (PART_BYTES, 1),
            (PART_BYTES + 1, 2),
            (10_000 * PART_BYTES + 1, 10_000),
        ] {
            let parts: Vec<_> = parts_of(size, Some(10_000)).collect();
            let end = parts.iter().fold(0, |end, (_, range)| {
                assert!(range.start == end && range.end > end);
                range.end
            });
            assert_eq!((end, parts.len()), (size, expected));
            assert_eq!(
                parts.last().map(|(number, _)| *number as usize),
                Some(expected)
            );
        }
    }
}
