//! Sessions that are aborted: on request, or after a week.

use std::sync::Arc;

use http::StatusCode;
use tokio::time::Instant;

use super::super::error::{GcsError, GcsResult};
use super::record::Header;
use super::{Sessions, failed};
use crate::errors::OperationContext;
use crate::limits::{MAX_SESSION_AGE, SWEEP_INTERVAL};

impl Sessions {
    /// Removes sessions that are older than a week, once an hour at most.
    pub(super) fn sweep(self: &Arc<Self>) {
        let mut swept = self.swept.lock();
        if swept.is_some_and(|swept| swept.elapsed() < SWEEP_INTERVAL) {
            return;
        }
        *swept = Some(Instant::now());
        drop(swept);
        let sessions = Arc::clone(self);
        tokio::spawn(async move {
            for id in sessions.files.older_than(MAX_SESSION_AGE).await {
                if let Err(error) = sessions.expire(&id).await {
                    tracing::debug!(?error, "an expired session was not removed");
                }
            }
        });
    }

    /// Aborts an open session and forgets it. Returns the object of a finished one, which stays.
    pub(super) async fn cancel(&self, id: &str) -> GcsResult<Option<Vec<u8>>> {
        let _lock = self.locks.enter(id).await;
        self.abort(id).await
    }

    /// Aborts a session if it is still older than a week, and forgets it, finished or not.
    async fn expire(&self, id: &str) -> GcsResult<()> {
        let _lock = self.locks.enter(id).await;
        // A request may have written the file since the folder was listed.
        if !self.files.is_older_than(id, MAX_SESSION_AGE).await? {
            return Ok(());
        }
        match self.abort(id).await? {
            None => Ok(()),
            Some(_) => self.files.remove(id).await.map(drop),
        }
    }

    /// Does the work of [`Self::cancel`] for the holder of the lock.
    ///
    /// # Errors
    /// If the session is unknown, and if it may be aborted later: then its file stays.
    async fn abort(&self, id: &str) -> GcsResult<Option<Vec<u8>>> {
        let failed = match self.load(id).await {
            Ok(Err(resource)) => return Ok(Some(resource)),
            Ok(Ok(mut session)) => {
                let Header { bucket, key, .. } = &session.header;
                let doing = OperationContext::new("cancel the upload of", bucket, key);
                let aborted = session.upload.abort().await;
                aborted.err().map(|error| failed(doing, &error))
            }
            Err(error) => Some(error),
        };
        if let Some(error) = &failed
            && is_transient(error)
        {
            return failed.map_or(Ok(None), Err);
        }
        // Also if its bucket is gone, or its file damaged: it can never be continued.
        let was_open = self.files.remove(id).await?;
        match failed {
            Some(error) if !was_open => Err(error),
            Some(error) => {
                tracing::warn!(?error, "a session was removed that could not be aborted");
                Ok(None)
            }
            None => Ok(None),
        }
    }
}

/// Whether the same request may succeed later.
fn is_transient(error: &GcsError) -> bool {
    let status = error.status();
    status.is_server_error()
        || status == StatusCode::REQUEST_TIMEOUT
        || status == StatusCode::TOO_MANY_REQUESTS
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::fs;

    use bywash::{Engine, UploadOptions};
    use futures::FutureExt;
    use object_store::path::Path;

    use super::super::record::FileState;
    use super::*;
    use crate::limits::SESSION_ID_BYTES;

    /// Sessions with a limit of one, and an open one, of a bucket of this name.
    async fn one_open(home: &tempfile::TempDir, bucket: &str) -> (Sessions, String) {
        let engine = Engine::builder().memory(64 << 20).build().unwrap();
        let store = Arc::new(bywash::origin::memory::MemoryStore::new());
        let consistency = bywash::Consistency::default();
        let mounted = engine.mount("bucket", store, consistency).unwrap();
        let path = Path::from("key");
        let upload = mounted.upload(&path, UploadOptions::default());
        let upload = upload.await.unwrap();
        let sessions = Sessions::open(home.path().to_owned(), 1, engine).unwrap();
        let header = Header {
            bucket: bucket.to_owned(),
            key: "key".to_owned(),
            crc32c: String::new(),
            length: None,
            expected_crc32c: None,
            md5: None,
            expected_md5: None,
            keeps_md5: false,
            conditional: false,
        };
        let id = "0".repeat(SESSION_ID_BYTES);
        let token = upload.capture();
        let created = sessions.files.create(&id, &header, &token);
        created.await.unwrap();
        (sessions, id)
    }

    #[tokio::test]
    async fn cancel_that_waits_for_the_end_returns_the_object_and_keeps_its_record() {
        let home = tempfile::tempdir().unwrap();
        let (sessions, id) = one_open(&home, "bucket").await;
        let ending = sessions.locks.enter(&id).await;
        let mut cancelled = Box::pin(sessions.cancel(&id));
        assert!(cancelled.as_mut().now_or_never().is_none());
        sessions.files.finish(&id, b"object").await.unwrap();
        drop(ending);
        assert_eq!(cancelled.await.unwrap().unwrap(), b"object");
        let state = sessions.files.state(&id).await.unwrap();
        assert_eq!(state, FileState::Finished);
    }

    #[tokio::test]
    async fn sessions_that_cannot_be_continued_leave_the_limit() {
        for (bucket, damage) in [("absent", false), ("bucket", true)] {
            let home = tempfile::tempdir().unwrap();
            let (sessions, id) = one_open(&home, bucket).await;
            if damage {
                fs::write(home.path().join(format!("{id}.open")), "no line").unwrap();
            }
            assert!(sessions.cancel(&id).await.unwrap().is_none(), "{bucket}");
            assert_eq!(sessions.files.open_sessions(), 0, "{bucket}");
            let again = sessions.cancel(&id).await.err().unwrap();
            assert_eq!(again.status(), StatusCode::NOT_FOUND, "{bucket}");
        }
    }

    #[tokio::test]
    async fn session_that_was_written_since_it_was_listed_stays() {
        let home = tempfile::tempdir().unwrap();
        let (sessions, id) = one_open(&home, "bucket").await;
        sessions.expire(&id).await.unwrap();
        assert!(sessions.files.state(&id).await.is_ok());
        let path = home.path().join(format!("{id}.open"));
        let file = fs::File::options().append(true).open(path);
        let long_ago = std::time::SystemTime::now() - MAX_SESSION_AGE * 2;
        file.unwrap().set_modified(long_ago).unwrap();
        sessions.expire(&id).await.unwrap();
        assert_eq!(sessions.files.open_sessions(), 0);
    }

    #[tokio::test]
    async fn sessions_beyond_the_memory_are_refused_and_stay() {
        let home = tempfile::tempdir().unwrap();
        let (sessions, id) = one_open(&home, "bucket").await;
        let path = home.path().join(format!("{id}.open"));
        let file = fs::File::options().append(true).open(path).unwrap();
        file.set_len(1 << 30).unwrap();
        let error = sessions.cancel(&id).await.err().unwrap();
        assert_eq!(error.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(sessions.files.open_sessions(), 1);
    }
}
