//! Start of an upload: its session, its plan, its journal entry.

use std::sync::Arc;

use bywash_store::{Capability, SessionOptions};
use chrono::Utc;
use object_store::Result;

use super::Upload;
use crate::retry::with_retries;
use crate::upload::driver::Driver;
use crate::upload::journal::Header;
use crate::upload::journal_writer::JournalWriter;
use crate::upload::session_client::SessionClient;
use crate::written_blocks::WrittenBlocks;

impl Upload {
    pub(super) fn session_options(&self) -> SessionOptions {
        SessionOptions {
            mode: self.options.mode.clone(),
            attributes: self.options.attributes.clone(),
            tags: self.options.tags.clone(),
            length: self.options.length,
            transient: self.options.transient,
            stall: self.bucket.shared().engine.retry.stall,
            ..SessionOptions::default()
        }
    }

    /// Opens the session, once.
    pub(super) async fn open(&mut self) -> Result<()> {
        if self.driver.is_some() {
            return Ok(());
        }
        let client = self.open_client().await?;
        if let Err(error) = self.journal_upload(&client).await {
            // The session is in no journal: abort it.
            if let Err(left) = client.abort().await {
                tracing::warn!(object = %self.path, error = %left, "cannot abort an upload that failed to begin");
            }
            return Err(error);
        }
        self.driver = Some(Driver::new(client));
        self.written = WrittenBlocks::of_upload(self.bucket.shared());
        Ok(())
    }

    /// Journals the upload, if requested, before its session carries bytes.
    async fn journal_upload(&mut self, client: &SessionClient) -> Result<()> {
        let engine = &self.bucket.shared().engine;
        let (Some(journaling), Some(journal)) = (&self.options.journal, &engine.journal) else {
            return Ok(());
        };
        // A journal keeps no tags, and an upload begun again would lose them.
        let has_tags = !self.options.tags.encoded().is_empty();
        if has_tags || !client.session().can_be_continued() {
            return Ok(());
        }
        let header = Header {
            url: journaling.url.clone(),
            endpoint: journaling.endpoint.clone(),
            bucket: self.bucket.name().to_owned(),
            object: self.path.clone(),
            options: self.session_options(),
            chunk: self.plan.length_of(0),
            session: client.session().token(),
            source: journaling.source.clone(),
            started: Utc::now(),
        };
        self.journaled = Some(JournalWriter::create(journal, header).await?);
        Ok(())
    }

    async fn open_client(&mut self) -> Result<SessionClient> {
        let (shared, options) = (self.bucket.shared(), self.session_options());
        let opened = with_retries(shared.retry(), "begin upload of", &self.path, || {
            shared.origin_request(Capability::Write);
            shared.origin.open_session(&self.path, &options)
        });
        let session = Arc::from(opened.await?);
        Ok(SessionClient::new(&self.bucket, &self.path, session))
    }
}
