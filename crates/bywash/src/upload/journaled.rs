//! Writes an upload down while it goes on: each record while the next chunk is already on its way.

use object_store::Result;
use tokio::task::JoinHandle;

use super::Upload;
use super::journal::{Entry, Header, Journal, JournalError, Progress, SourceIdentity, Whole};
use crate::error::EngineError;

/// What the journal is to say of an upload, beside what the writer knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Journaling {
    /// The object's address, as people write it. Without secrets.
    pub url: String,
    /// Where requests go, if the address does not say it.
    pub endpoint: Option<String>,
    /// The file the bytes come from; `None` if they cannot be read again.
    pub source: Option<SourceIdentity>,
}

/// An entry, and what became of the write before.
type Written = (Entry, Result<(), JournalError>);

#[derive(Debug)]
enum State {
    Idle(Box<Entry>),
    /// A record is on its way to the disk. It gets there when nobody waits for it, too.
    Writing(JoinHandle<Written>),
    /// The task that wrote was killed with its runtime, or the entry was removed.
    Gone,
}

/// The journal's entry of an upload under way, locked for as long as this lives.
#[derive(Debug)]
pub(super) struct Journaled {
    id: String,
    state: State,
}

impl Upload {
    /// Its id in the journal, while it is written down there and goes on.
    #[must_use]
    pub fn journal_id(&self) -> Option<&str> {
        self.journaled.as_ref().map(|journaled| &*journaled.id)
    }
}

impl Journaled {
    /// Writes an upload down. Its session must not carry bytes before this has returned.
    pub(super) async fn create(journal: &Journal, header: Header) -> Result<Self> {
        let journal = journal.clone();
        let created = tokio::task::spawn_blocking(move || journal.create(&header));
        let entry = created.await?.map_err(EngineError::from)?;
        Ok(Self::over(entry))
    }

    /// Goes on with an entry that was taken.
    pub(super) fn over(entry: Entry) -> Self {
        Self {
            id: entry.id().to_owned(),
            state: State::Idle(Box::new(entry)),
        }
    }

    /// Waits for the record under way. Cancel by dropping: it is waited for the next time.
    async fn ready(&mut self) -> Result<()> {
        let State::Writing(task) = &mut self.state else {
            return Ok(());
        };
        let joined = task.await;
        self.state = State::Gone;
        let (entry, written) = joined?;
        self.state = State::Idle(Box::new(entry));
        written.map_err(|error| EngineError::from(error).into())
    }

    fn begin(
        &mut self,
        write: impl FnOnce(&mut Entry) -> Result<(), JournalError> + Send + 'static,
    ) {
        match std::mem::replace(&mut self.state, State::Gone) {
            State::Idle(mut entry) => {
                let task = tokio::task::spawn_blocking(move || {
                    let written = write(&mut entry);
                    (*entry, written)
                });
                self.state = State::Writing(task);
            }
            other => self.state = other,
        }
    }

    /// Begins to write down that the store keeps everything below `offset`. Waits for the record before only.
    ///
    /// # Errors
    /// That of the record before; this one is begun all the same.
    pub(super) async fn acknowledged(&mut self, offset: u64, crc32c: u32) -> Result<()> {
        let before = self.ready().await;
        self.begin(move |entry| {
            entry.acknowledged(&Progress {
                offset,
                crc32c,
                beyond: Vec::new(),
            })
        });
        before
    }

    /// Writes down what the object will be. Its end must not be asked for before this has returned.
    pub(super) async fn finishing(&mut self, whole: Whole) -> Result<()> {
        // An older record that failed is made up for by this one.
        let _ = self.ready().await;
        self.begin(move |entry| entry.finishing(whole));
        self.ready().await
    }

    /// Ends the upload in the journal.
    pub(super) async fn remove(&mut self) -> Result<()> {
        let _ = self.ready().await;
        let State::Idle(entry) = std::mem::replace(&mut self.state, State::Gone) else {
            return Ok(());
        };
        let removed = tokio::task::spawn_blocking(move || entry.remove());
        removed
            .await?
            .map_err(|error| EngineError::from(error).into())
    }
}
