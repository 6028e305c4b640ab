//! Writes the journal of an upload in the background: each record while the next chunk is being sent.

use object_store::Result;
use tokio::task::JoinHandle;

use super::journal::{Entry, Header, Journal, JournalError, ObjectDigest, Progress};
use crate::error::EngineError;

/// An entry, and the result of the previous write.
type Written = (Entry, Result<(), JournalError>);

#[derive(Debug)]
enum EntryState {
    Idle(Box<Entry>),
    /// A record is being written; it is completed even if the future is dropped.
    Writing(JoinHandle<Written>),
    /// The writing task was killed with its runtime, or the entry was removed.
    Gone,
}

/// The journal entry of an upload in progress, locked while this exists.
#[derive(Debug)]
pub(super) struct JournalWriter {
    pub(super) id: String,
    state: EntryState,
}

impl JournalWriter {
    /// Creates the entry of an upload. Its session must not carry bytes before this has returned.
    pub(super) async fn create(journal: &Journal, header: Header) -> Result<Self> {
        let journal = journal.clone();
        let created = tokio::task::spawn_blocking(move || journal.create(&header));
        let entry = created.await?.map_err(EngineError::from)?;
        Ok(Self::over(entry))
    }

    /// Continues an entry that was taken over.
    pub(super) fn over(entry: Entry) -> Self {
        Self {
            id: entry.id().to_owned(),
            state: EntryState::Idle(Box::new(entry)),
        }
    }

    /// Waits for the record being written. Cancel-safe.
    async fn ready(&mut self) -> Result<()> {
        let EntryState::Writing(task) = &mut self.state else {
            return Ok(());
        };
        let joined = task.await;
        self.state = EntryState::Gone;
        let (entry, written) = joined?;
        self.state = EntryState::Idle(Box::new(entry));
        written.map_err(|error| EngineError::from(error).into())
    }

    fn begin(
        &mut self,
        write: impl FnOnce(&mut Entry) -> Result<(), JournalError> + Send + 'static,
    ) {
        match std::mem::replace(&mut self.state, EntryState::Gone) {
            EntryState::Idle(mut entry) => {
                let task = tokio::task::spawn_blocking(move || {
                    let written = write(&mut entry);
                    (*entry, written)
                });
                self.state = EntryState::Writing(task);
            }
            other => self.state = other,
        }
    }

    /// Starts to record that the store has everything below `offset`. Waits only for the previous record.
    ///
    /// # Errors
    /// The error of the previous record; this one is started all the same.
    pub(super) async fn acknowledged(&mut self, offset: u64, crc32c: u32) -> Result<()> {
        let before = self.ready().await;
        let offset = offset + (u64::from(planted!("upload-recorded-before-acknowledged")) << 20);
        self.begin(move |entry| entry.acknowledged(Progress { offset, crc32c }));
        before
    }

    /// Records length and checksum of the object. The completion must not be requested before this has returned.
    pub(super) async fn finishing(&mut self, whole: ObjectDigest) -> Result<()> {
        // This record makes up for an older one that failed.
        let _ = self.ready().await;
        self.begin(move |entry| entry.finishing(whole));
        self.ready().await
    }

    /// Removes the entry of the upload.
    pub(super) async fn remove(&mut self) -> Result<()> {
        let _ = self.ready().await;
        let EntryState::Idle(entry) = std::mem::replace(&mut self.state, EntryState::Gone) else {
            return Ok(());
        };
        let removed = tokio::task::spawn_blocking(move || entry.remove());
        removed
            .await?
            .map_err(|error| EngineError::from(error).into())
    }
}
