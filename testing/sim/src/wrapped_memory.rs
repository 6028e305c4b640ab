//! An origin in memory behind a wrapped store.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bywash::origin::memory::MemoryStore;
use bywash::origin::{Capabilities, NewSession, SessionOptions, SessionToken};
use bywash::{DeleteCondition, Origin};
use object_store::path::Path;
use object_store::{GetOptions, GetResult, ObjectStore, PutOptions, PutPayload, PutResult, Result};

/// An origin whose requests for objects go through a store that a test has wrapped around its memory, for example one that
/// injects faults. Its uploads go to the memory itself.
#[derive(Debug)]
pub struct WrappedMemory {
    objects: Arc<dyn ObjectStore>,
    memory: MemoryStore,
}

impl WrappedMemory {
    /// Creates an origin over `memory`, with its objects behind `objects`.
    #[must_use]
    pub fn new(objects: Arc<dyn ObjectStore>, memory: MemoryStore) -> Self {
        Self { objects, memory }
    }
}

impl fmt::Display for WrappedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.objects.fmt(f)
    }
}

bywash_support::forward_object_store! {
    impl[] ObjectStore for WrappedMemory => objects {
        async fn put_opts(
            &self,
            path: &Path,
            payload: PutPayload,
            options: PutOptions,
        ) -> Result<PutResult> {
            self.objects.put_opts(path, payload, options).await
        }

        async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
            self.objects.get_opts(path, options).await
        }
    }
}

#[async_trait]
impl Origin for WrappedMemory {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            takes_late_attributes: true,
            ..Capabilities::of("memory")
        }
    }

    async fn delete_if(&self, path: &Path, condition: &DeleteCondition) -> Result<()> {
        self.memory.delete_if(path, condition).await
    }

    async fn open_session(&self, path: &Path, options: &SessionOptions) -> Result<NewSession> {
        self.memory.open_session(path, options).await
    }

    async fn resume_session(
        &self,
        path: &Path,
        options: &SessionOptions,
        token: &SessionToken,
    ) -> Result<NewSession> {
        self.memory.resume_session(path, options, token).await
    }
}
