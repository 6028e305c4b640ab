//! Conditional deletes: a DELETE of the XML API, on the condition of a generation.
//!
//! A server that does not know the condition deletes any version, as fake-gcs-server does. So the request is sent to Google, and
//! to another server only if the setting of its bucket states that it heeds the condition.

use http::Method;
use object_store::path::Path;
use object_store::{ObjectStoreExt, Result};
use url::Url;

use super::client::{STORE, generic};
use super::{GcsClient, GcsStore};
use crate::cloud::CloudClient;
use crate::delete_condition::version_deletes;
use crate::http_client::Request;
use crate::interface::{DeleteCondition, VersionDeletes, lacks};
use crate::multipart_xml::ErrorDocument;
use crate::network::is_google_host;
use crate::odd_keys::check;

/// Names of the setting, among the settings of `object_store`.
pub(super) const SETTING: [&str; 2] = ["conditional_delete", "google_conditional_delete"];
/// The setting in the environment.
pub(super) const VARIABLE: &str = "GOOGLE_CONDITIONAL_DELETE";
const NOT_SENT: &str = "conditional deletes, as far as is known (set google_conditional_delete to generation if it heeds \
                        x-goog-if-generation-match of a DELETE)";
const NO_GENERATIONS: &str = "generations, and so no conditional deletes";

impl GcsStore {
    /// Returns the store with this setting, as `google_conditional_delete` of the options has it: `generation` if the server heeds
    /// x-goog-if-generation-match of a DELETE, `disabled` if not. Without one, only Google does.
    ///
    /// # Errors
    /// If the setting has another value.
    pub fn with_conditional_delete(mut self, setting: Option<&str>) -> Result<Self> {
        let known = self.client.version_deletes == VersionDeletes::ByStore;
        let name = ("google_conditional_delete", "generation");
        let stated = version_deletes(setting, name, known);
        self.client.version_deletes = stated.map_err(generic)?;
        Ok(self)
    }

    pub(super) async fn delete_matching(
        &self,
        path: &Path,
        condition: &DeleteCondition,
    ) -> Result<()> {
        if self.client.version_deletes != VersionDeletes::ByStore {
            return Err(lacks(&self.address(), NOT_SENT));
        }
        check(path)?;
        let deleted = async {
            let generation = self.generation_of(path, condition).await?;
            let key = self.full_path(path);
            self.client
                .delete_generation(path, &key, generation.as_deref())
                .await
        };
        condition.ended(deleted.await)
    }

    /// Returns the generation to which a delete is bound; `None` if it may delete any. If the condition does not name one, the current
    /// version has to meet the condition, and the result is its generation: a generation never changes.
    async fn generation_of(
        &self,
        path: &Path,
        condition: &DeleteCondition,
    ) -> Result<Option<String>> {
        if !condition.has_size_or_time() {
            match (condition.wanted_e_tag(), &condition.version) {
                (None, None) => return Ok(None),
                (Some(_), Some(generation)) => return Ok(Some(generation.clone())),
                _ => {}
            }
        }
        let found = self.head(path).await?;
        condition.check(path, &found)?;
        match found.version {
            Some(generation) => Ok(Some(generation)),
            None => Err(lacks(&self.address(), NO_GENERATIONS)),
        }
    }
}

impl GcsClient {
    /// Deletes the object, if it is of this generation.
    async fn delete_generation(
        &self,
        path: &Path,
        key: &Path,
        generation: Option<&str>,
    ) -> Result<()> {
        let mut request = Request::new(Method::DELETE);
        if let Some(generation) = generation {
            request = request.text("x-goog-if-generation-match", generation);
        }
        let response = self.send(key, request).await?;
        if response.status.is_success() {
            return Ok(());
        }
        let document = ErrorDocument::parse(&response.body);
        let code = document.map_or_else(String::new, |error| error.code);
        Err(response.error(STORE, "delete", path.as_ref(), &code))
    }
}

/// Returns whether an endpoint is Google's.
pub(super) fn is_google(endpoint: &str) -> bool {
    let url = Url::parse(endpoint).ok();
    let host = url.as_ref().and_then(Url::host_str);
    host.is_some_and(is_google_host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn google_is_known_by_its_hosts() {
        for (endpoint, expected) in [
            ("https://storage.googleapis.com", true),
            ("https://storage.me-central2.rep.googleapis.com/", true),
            ("https://storage-example.p.googleapis.com", true),
            ("https://storage.googleapis.com.example", false),
            ("https://storagegoogleapis.com", false),
            ("http://127.0.0.1:4443", false),
            ("storage.googleapis.com", false),
        ] {
            assert_eq!(is_google(endpoint), expected, "{endpoint}");
        }
    }
}
