//! Open uploads as their store knows them, for a caller that has no record of their parts.

use bywash_store::{Capability, ListedParts};
use object_store::path::Path;
use object_store::{GetOptions, GetResult, PutMode, Result};
use sha2::{Digest as _, Sha256};

use crate::bucket::Bucket;
use crate::retry::with_retries;

impl Bucket {
    /// Requests the parts of an open upload with numbers above `after`, at most `max` numbers; see
    /// [`bywash_store::UploadSession::parts`].
    pub async fn uploaded_parts(
        &self,
        path: &Path,
        upload: &str,
        after: u16,
        max: usize,
    ) -> Result<ListedParts> {
        let shared = self.shared();
        shared.counters.request();
        let session = self.numbered(path, upload, PutMode::Overwrite).await?;
        with_retries(shared.retry(), "list parts of", path, || {
            shared.origin_request(Capability::Write);
            session.parts(after, max)
        })
        .await
    }

    /// Whether its store refuses uploads that have ended; see [`bywash_store::Capabilities::knows_uploads`].
    #[must_use]
    pub fn knows_uploads(&self) -> bool {
        self.shared().origin.capabilities().knows_uploads
    }

    /// A digest of the address of its store, the same in each process and for no other store; it does not show the address.
    /// `None` for stores without one; see [`crate::Origin::identity`].
    #[must_use]
    pub fn origin_digest(&self) -> Option<String> {
        let address = self.shared().origin.identity()?.address;
        let digest = Sha256::digest(address);
        let first = digest.iter().take(16);
        Some(first.map(|byte| format!("{byte:02x}")).collect())
    }

    /// Requests the metadata of the object at `path` from the store, although a version is known here.
    pub async fn stored_now(&self, path: &Path) -> Result<GetResult> {
        let shared = self.shared();
        shared.counters.request();
        with_retries(shared.retry(), "look for", path, || {
            shared.origin_request(Capability::Write);
            let head = GetOptions {
                head: true,
                ..GetOptions::default()
            };
            shared.origin.get_opts(path, head)
        })
        .await
    }

    /// Ends a write of `path` that the store has, and whose own end may be missing: after `Ok` no node of a cluster returns the
    /// replaced version.
    ///
    /// # Errors
    /// [`crate::EngineError::WriteUnconfirmed`] if other nodes may return it for longer than a client is kept waiting.
    pub async fn confirm_write(&self, path: &Path) -> Result<()> {
        self.write(path, |_| std::future::ready(Ok(()))).await
    }
}
