//! How an upload begins: its session, its plan, its entry in the journal.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::Utc;
use object_store::{PutMultipartOptions, Result};

use super::{Upload, invalid_chunk};
use crate::origin::Ability;
use crate::retry::with_retries;
use crate::upload::driver::Driver;
use crate::upload::journal::Header;
use crate::upload::journaled::Journaled;
use crate::upload::link::Link;
use crate::upload::parts::{KeptPart, PartsSession};
use crate::upload::{ChunkPlan, SessionOptions};

impl Upload {
    pub(super) fn session_options(&self) -> SessionOptions {
        SessionOptions {
            mode: self.options.mode.clone(),
            attributes: self.options.attributes.clone(),
            length: self.options.length,
            transient: self.options.transient,
        }
    }

    /// Opens the session, once. What the store thinks a chunk is becomes known with it.
    pub(super) async fn open(&mut self) -> Result<()> {
        if self.driver.is_some() {
            return Ok(());
        }
        let link = self.open_link().await?;
        let exact = self.options.chunk.is_some();
        let chunk = self.plan.length_of(0);
        let plan = ChunkPlan::new(&link.rule, chunk, exact, self.options.length);
        let begun = match plan.map_err(invalid_chunk) {
            Ok(plan) => self.write_down(&link, &plan).await.map(|()| plan),
            Err(error) => Err(error),
        };
        match begun {
            Ok(plan) => self.plan = plan,
            Err(error) => {
                // Nobody would know of it.
                if let Err(left) = link.abort().await {
                    tracing::warn!(object = %self.path, error = %left, "abort of an upload that was not begun failed");
                }
                return Err(error);
            }
        }
        self.filling.fit(&self.plan);
        self.driver = Some(Driver::new(link));
        Ok(())
    }

    /// Puts the upload into the journal, if it shall be there, before its session carries bytes.
    async fn write_down(&mut self, link: &Link, plan: &ChunkPlan) -> Result<()> {
        let engine = &self.bucket.shared().engine;
        let (Some(journaling), Some(journal), None) =
            (&self.options.journal, &engine.journal, &self.parts)
        else {
            return Ok(());
        };
        let header = Header {
            url: journaling.url.clone(),
            endpoint: journaling.endpoint.clone(),
            bucket: self.bucket.name().to_owned(),
            object: self.path.clone(),
            options: self.session_options(),
            chunk: plan.length_of(0),
            session: link.session().token(),
            source: journaling.source.clone(),
            started: Utc::now(),
        };
        self.journaled = Some(Journaled::create(journal, header).await?);
        Ok(())
    }

    async fn open_link(&mut self) -> Result<Link> {
        let shared = Arc::clone(self.bucket.shared());
        if self.options.tags.encoded().is_empty() {
            let options = self.session_options();
            let policy = shared.engine.retry;
            let opened = with_retries(policy, "begin upload of", &self.path, || async {
                let opened = shared.origin.open_session(&self.path, &options).await;
                if !matches!(opened, Ok(None)) {
                    shared.origin_request(Ability::Write);
                }
                opened
            });
            if let Some(session) = opened.await? {
                return Ok(Link::new(&self.bucket, &self.path, Arc::from(session)));
            }
        }
        let create = PutMultipartOptions {
            tags: self.options.tags.clone(),
            attributes: self.options.attributes.clone(),
            ..PutMultipartOptions::default()
        };
        let id = self.bucket.begin_upload(&self.path, create).await?;
        Ok(self.over_parts(id, None))
    }

    pub(super) fn over_parts(&mut self, id: String, kept: Option<BTreeMap<u16, KeptPart>>) -> Link {
        let shared = self.bucket.shared();
        let session = Arc::new(PartsSession::new(
            &shared.origin,
            &self.path,
            id,
            self.options.mode.clone(),
            shared.engine.retry,
            kept.unwrap_or_default(),
        ));
        self.parts = Some(Arc::clone(&session));
        Link::new(&self.bucket, &self.path, session).remembering()
    }
}
