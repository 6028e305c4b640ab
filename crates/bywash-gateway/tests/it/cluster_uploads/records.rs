//! Records of uploads in memory, which can be made unavailable.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard};

use async_trait::async_trait;
use bywash::cluster_uploads::{
    RecordedState, RecordedUpload, SharedPosition, SharedUpload, SharedUploadName, SharedUploads,
    SharedUploadsError,
};
use chrono::{DateTime, TimeDelta, Utc};

type Name = (String, String, String);

#[derive(Debug, Default)]
struct Tables {
    open: BTreeMap<Name, (SharedUpload, RecordedState)>,
    completed: BTreeMap<Name, String>,
    /// How much older an upload's record is than it.
    age: BTreeMap<Name, TimeDelta>,
    /// Number of records at each list of a bucket's records.
    lists: Vec<usize>,
}

#[derive(Debug, Default)]
pub struct Records {
    tables: Mutex<Tables>,
    pub down: AtomicBool,
    /// Calls fail after they have been done.
    pub lost: AtomicBool,
    /// The next attempt is acknowledged and not kept, which no record may do.
    pub drops_attempt: AtomicBool,
}

fn owned(name: SharedUploadName<'_>) -> Name {
    let text = str::to_owned;
    (text(name.bucket), text(name.key), text(name.id))
}

fn unavailable<T>() -> Result<T, SharedUploadsError> {
    Err(SharedUploadsError::Unavailable("no response".to_owned()))
}

fn changed(upload: &SharedUpload, age: Option<&TimeDelta>) -> DateTime<Utc> {
    upload.initiated - age.copied().unwrap_or_default()
}

fn revision(state: &RecordedState) -> u64 {
    match state {
        RecordedState::Open { attempts, .. } => attempts.len() as u64,
        _ => 0,
    }
}

impl Records {
    fn up(&self) -> Result<MutexGuard<'_, Tables>, SharedUploadsError> {
        if self.down.load(SeqCst) {
            unavailable()
        } else {
            Ok(self.tables.lock().unwrap())
        }
    }

    fn done<T>(&self, value: T) -> Result<T, SharedUploadsError> {
        if self.lost.load(SeqCst) {
            unavailable()
        } else {
            Ok(value)
        }
    }

    pub fn open(&self) -> usize {
        self.tables.lock().unwrap().open.len()
    }

    /// Makes the record of an upload older.
    pub fn make_older(&self, id: &str, by: TimeDelta) {
        let mut tables = self.tables.lock().unwrap();
        let name = tables.open.keys().find(|(_, _, of)| of == id).cloned();
        tables.age.insert(name.unwrap(), by);
    }

    /// Changes the store that the record of an upload names.
    pub fn set_origin(&self, id: &str, origin: Option<&str>) {
        let mut tables = self.tables.lock().unwrap();
        let mut open = tables.open.iter_mut();
        let found = open.find(|((_, _, of), _)| of == id);
        found.unwrap().1.0.origin = origin.map(str::to_owned);
    }

    /// Number of records at each list so far.
    pub fn lists(&self) -> Vec<usize> {
        self.tables.lock().unwrap().lists.clone()
    }

    /// Ids of the uploads that are recorded.
    pub fn ids(&self) -> Vec<String> {
        let tables = self.tables.lock().unwrap();
        tables.open.keys().map(|(_, _, id)| id.clone()).collect()
    }

    pub fn forget_completed(&self) {
        self.tables.lock().unwrap().completed.clear();
    }
}

#[async_trait]
impl SharedUploads for Records {
    async fn begun(&self, upload: &SharedUpload) -> Result<(), SharedUploadsError> {
        let mut tables = self.up()?;
        let name = owned(upload.name());
        if !tables.completed.contains_key(&name) {
            let state = RecordedState::Open {
                attempts: Vec::new(),
                since_begin: true,
            };
            tables
                .open
                .entry(name)
                .or_insert_with(|| (upload.clone(), state));
        }
        self.done(())
    }

    async fn attempt(
        &self,
        upload: &SharedUpload,
        parts: &str,
    ) -> Result<RecordedState, SharedUploadsError> {
        let mut tables = self.up()?;
        let name = owned(upload.name());
        if let Some(completed) = tables.completed.get(&name) {
            return self.done(RecordedState::Completed(completed.clone()));
        }
        let state = RecordedState::Open {
            attempts: Vec::new(),
            since_begin: false,
        };
        let entry = tables.open.entry(name);
        let (_, state) = entry.or_insert_with(|| (upload.clone(), state));
        if let RecordedState::Open { attempts, .. } = state
            && !self.drops_attempt.swap(false, SeqCst)
            && !attempts.iter().any(|known| known == parts)
        {
            attempts.push(parts.to_owned());
        }
        self.done(state.clone())
    }

    async fn state(
        &self,
        upload: SharedUploadName<'_>,
    ) -> Result<RecordedState, SharedUploadsError> {
        let tables = self.up()?;
        let name = owned(upload);
        self.done(
            match (tables.completed.get(&name), tables.open.get(&name)) {
                (Some(completed), _) => RecordedState::Completed(completed.clone()),
                (None, Some((_, state))) => state.clone(),
                (None, None) => RecordedState::Unknown,
            },
        )
    }

    async fn completed(
        &self,
        upload: SharedUploadName<'_>,
        parts: &str,
    ) -> Result<(), SharedUploadsError> {
        let mut tables = self.up()?;
        let name = owned(upload);
        tables.open.remove(&name);
        tables.completed.insert(name, parts.to_owned());
        self.done(())
    }

    async fn ended(&self, upload: SharedUploadName<'_>) -> Result<bool, SharedUploadsError> {
        let ended = self.up()?.open.remove(&owned(upload)).is_some();
        self.done(ended)
    }

    async fn list(
        &self,
        bucket: &str,
        from: SharedPosition<'_>,
        max: usize,
    ) -> Result<Vec<RecordedUpload>, SharedUploadsError> {
        let mut tables = self.up()?;
        let count = tables.open.len();
        tables.lists.push(count);
        let follows = |(of, key, id): &&Name| {
            of == bucket
                && match from {
                    SharedPosition::Key(first) => key.as_str() >= first,
                    SharedPosition::After(last, after) => {
                        (key.as_str(), id.as_str()) > (last, after)
                    }
                }
        };
        let names = tables.open.keys().filter(follows).take(max);
        let recorded = |name: &Name| {
            let (upload, state) = &tables.open[name];
            RecordedUpload {
                upload: upload.clone(),
                changed: changed(upload, tables.age.get(name)),
                revision: revision(state),
            }
        };
        let found = names.map(recorded).collect();
        self.done(found)
    }

    async fn forget(&self, listed: &RecordedUpload) -> Result<bool, SharedUploadsError> {
        let mut tables = self.up()?;
        let name = owned(listed.upload.name());
        let found = tables.open.get(&name);
        let unchanged = found.is_some_and(|(_, state)| revision(state) == listed.revision);
        if unchanged {
            tables.open.remove(&name);
        }
        self.done(unchanged)
    }
}
