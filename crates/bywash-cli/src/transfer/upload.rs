//! Uploads a source, and explains how to resume after a failure.

use std::time::Duration;

use bywash::OriginError;
use bywash::upload::journal::SourceIdentity;
use bywash::upload::{JournalOptions, Upload, UploadOptions, UploadResult};
use indicatif::ProgressBar;
use object_store::PutMode;

use crate::endpoint::Target;
use crate::failure::{Failure, Kind};
use crate::interrupt::or_interrupt;
use crate::transfer::part::ahead;
use crate::transfer::source::Source;

/// Max time to abort a failed upload at the store.
const ABORT_TIMEOUT: Duration = Duration::from_secs(10);

/// Uploads all of `source` as a new object. A file as the source makes the upload resumable.
pub(crate) async fn new_object(
    source: &mut Source,
    target: &Target,
    bar: &ProgressBar,
) -> Result<UploadResult, Failure> {
    let file = source.identity()?;
    let options = UploadOptions {
        mode: target.mode.clone(),
        attributes: source.attributes.clone(),
        length: source.bytes,
        chunk: Some(target.chunk),
        // Parts are uploaded without a copy.
        parallel: ahead(target.chunk.max(source.part_bytes)),
        journal: Some(JournalOptions {
            url: target.url.clone(),
            endpoint: target.endpoint.clone(),
            source: file.clone(),
        }),
        ..UploadOptions::default()
    };
    let begin = target.bucket.upload(&target.path, options);
    let mut upload = or_interrupt(async {
        begin
            .await
            .map_err(|error| Failure::write(&target.url, &target.mode, &error))
    })
    .await?;
    // A source that changes ends its stream with a failure.
    match rest(source, &mut upload, &target.url, &target.mode, None, bar).await {
        // Of a changed source a later process could not send the rest.
        Err(failure) => Err(leave(failure, upload, &target.url, source.is_unchanged()).await),
        done => done,
    }
}

/// Uploads the rest of a source and completes the upload. `file`: required identity of the source,
/// if it was opened again.
pub(crate) async fn rest(
    source: &mut Source,
    upload: &mut Upload,
    url: &str,
    mode: &PutMode,
    file: Option<&SourceIdentity>,
    bar: &ProgressBar,
) -> Result<UploadResult, Failure> {
    let failed = |error| Failure::write(url, mode, &error);
    or_interrupt(async {
        while let Some(part) = source.next().await? {
            let bytes = part.len() as u64;
            // A chunk in one piece is sent without a copy into the upload's buffer.
            upload.write(part.into_contiguous()).await.map_err(failed)?;
            bar.inc(bytes);
        }
        if let Some(before) = file
            && let Some(now) = source.identity()?
            && let Some(difference) = before.difference(&now)
        {
            let path = before.path.display();
            return Err(Failure::failed(format!(
                "cannot write {url}: {path} changed while it was read: {difference}; try again"
            )));
        }
        upload.finish().await.map_err(failed)
    })
    .await
}

/// Keeps a resumable upload and explains how to resume it. Aborts any other at the store.
async fn leave(mut failure: Failure, mut upload: Upload, url: &str, rewindable: bool) -> Failure {
    let id = upload.journal_id().map(str::to_owned);
    // A condition that failed, and content that was refused, fail again.
    let can_resume = rewindable && failure.kind != Kind::Usage && !failure.is_final;
    if let Some(id) = id.filter(|_| can_resume) {
        failure.message = format!(
            "{}; to resume it: bywash uploads resume {id}",
            failure.message
        );
        return failure;
    }
    // Best effort: report the original failure.
    match tokio::time::timeout(ABORT_TIMEOUT, upload.abort()).await {
        Ok(Ok(())) => {}
        Ok(Err(error))
            if matches!(
                OriginError::find(&error),
                Some(OriginError::UploadEnded { .. })
            ) => {}
        Ok(Err(error)) => tracing::warn!("{url}: parts may be left at the endpoint: {error}"),
        Err(_) => {
            tracing::warn!(
                "{url}: parts may be left at the endpoint: no response within {ABORT_TIMEOUT:?}"
            );
        }
    }
    failure
}
