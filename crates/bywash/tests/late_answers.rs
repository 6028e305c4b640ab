//! An answer of the origin that comes late must not undo a write that was acknowledged meanwhile.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bywash::origin::memory::MemoryStore;
use bywash::{Consistency, Engine, Origin, PartBody, UploadedPart};
use object_store::path::Path;
use object_store::{
    Error, GetOptions, GetResult, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions,
    PutPayload, PutResult, Result,
};
use tokio::sync::{Notify, Semaphore};

/// A store whose first read is answered at once but delivered only when the gate opens.
#[derive(Debug)]
struct Late {
    store: MemoryStore,
    answered: Notify,
    gate: Semaphore,
    reads: Semaphore,
}

impl Late {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            store: MemoryStore::new(),
            answered: Notify::new(),
            gate: Semaphore::new(0),
            reads: Semaphore::new(1),
        })
    }
}

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("late")
    }
}

bywash::forward_object_store! {
    impl[] ObjectStore for Late => store {
        async fn put_opts(
            &self,
            path: &Path,
            payload: PutPayload,
            options: PutOptions,
        ) -> Result<PutResult> {
            self.store.put_opts(path, payload, options).await
        }

        async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
            let answer = self.store.get_opts(path, options).await;
            if let Ok(first) = self.reads.try_acquire() {
                first.forget();
                self.answered.notify_one();
                self.gate.acquire().await.unwrap().forget();
            }
            answer
        }
    }
}

#[async_trait]
impl Origin for Late {
    fn kind(&self) -> &'static str {
        "memory"
    }

    async fn create_upload(&self, path: &Path, options: PutMultipartOptions) -> Result<String> {
        self.store.create_upload(path, options).await
    }

    async fn put_part(
        &self,
        path: &Path,
        id: &str,
        number: u16,
        length: u64,
        body: PartBody,
    ) -> Result<String> {
        self.store.put_part(path, id, number, length, body).await
    }

    async fn complete_upload(
        &self,
        path: &Path,
        id: &str,
        parts: &[UploadedPart],
        mode: PutMode,
    ) -> Result<PutResult> {
        self.store.complete_upload(path, id, parts, mode).await
    }

    async fn abort_upload(&self, path: &Path, id: &str) -> Result<()> {
        self.store.abort_upload(path, id).await
    }
}

#[derive(Clone, Copy, Debug)]
enum Write {
    Put,
    Upload,
    Delete,
}

/// A read is on its way with the old object; a write is acknowledged; who reads now sees the write.
async fn read_after_write(write: Write) {
    let origin = Late::new();
    let engine = Engine::builder().memory(16 << 20).build().unwrap();
    let origin_of_bucket: Arc<dyn Origin> = Arc::<Late>::clone(&origin);
    let bucket = engine
        .mount("late", origin_of_bucket, Consistency::Immutable)
        .unwrap();
    let path = Path::from("a");
    origin.store.put(&path, "old".into()).await.unwrap();

    let early = tokio::spawn({
        let (bucket, path) = (bucket.clone(), path.clone());
        async move { bucket.get(&path).await.unwrap().bytes().await.unwrap() }
    });
    origin.answered.notified().await;
    match write {
        Write::Put => drop(bucket.put(&path, "new".into()).await.unwrap()),
        Write::Upload => {
            let mut upload = bucket.put_multipart(&path).await.unwrap();
            upload.put_part("new".into()).await.unwrap();
            upload.complete().await.unwrap();
        }
        Write::Delete => bucket.delete(&path).await.unwrap(),
    }
    let check = async || match (write, bucket.get(&path).await) {
        (Write::Delete, Err(Error::NotFound { .. })) => {}
        (_, answer) => assert_eq!(answer.unwrap().bytes().await.unwrap(), "new", "{write:?}"),
    };
    check().await;
    origin.gate.add_permits(1);
    assert_eq!(early.await.unwrap(), "old", "it began before the write");
    check().await;
}

#[tokio::test]
async fn a_read_after_a_write_does_not_join_a_question_asked_before_it() {
    for write in [Write::Put, Write::Upload, Write::Delete] {
        read_after_write(write).await;
    }
}
