//! Conditional deletes: If-Match of Delete Blob, which is part of Azure's protocol. Each write gives a blob another ETag.

use http::Method;
use http::header::IF_MATCH;
use object_store::path::Path;
use object_store::{ObjectStoreExt, Result};

use super::AzureStore;
use crate::http_client::Request;
use crate::interface::{DeleteCondition, lacks};

impl AzureStore {
    pub(super) async fn delete_matching(
        &self,
        path: &Path,
        condition: &DeleteCondition,
    ) -> Result<()> {
        let deleted = async {
            let e_tag = self.e_tag_of(path, condition).await?;
            let condition = e_tag.map(|e_tag| (IF_MATCH, e_tag));
            let request = Request::new(Method::DELETE).texts(condition);
            let response = self.send(path, request).await?;
            if response.status.is_success() {
                Ok(())
            } else {
                Err(self.refused("delete", path, &response, false))
            }
        };
        condition.ended(deleted.await)
    }

    /// Returns the ETag to which a delete is bound; `None` if it may delete any version. A size or a time is compared with the
    /// current version, whose ETag it is then.
    async fn e_tag_of(&self, path: &Path, condition: &DeleteCondition) -> Result<Option<String>> {
        if !condition.has_size_or_time() {
            let wanted = condition.wanted_e_tag();
            return Ok(wanted.map(|e_tag| format!("\"{e_tag}\"")));
        }
        let found = self.head(path).await?;
        condition.check(path, &found)?;
        match found.e_tag {
            Some(e_tag) => Ok(Some(e_tag)),
            None => Err(lacks(
                &self.address(),
                "ETags, and so no conditional deletes",
            )),
        }
    }
}
