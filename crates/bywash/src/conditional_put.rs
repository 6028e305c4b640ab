//! Conditional writes of whole objects by one request, whose response may be lost.
//!
//! The store refuses a repeated write that it has applied already. So each gets a unique mark, which the store keeps with the object:
//! an object with this mark is the result. A write that cannot have one is sent once.

use std::future::Future;

use bywash_store::{Capability, OriginError, WriteConflict, WriteMark, source_of};
use object_store::path::Path;
use object_store::{Error, GetOptions, ObjectStore, PutOptions, PutPayload, PutResult, Result};

use crate::EngineError;
use crate::retry::{BucketRetry, Retries, is_transient, once, stalled};
use crate::shared::BucketShared;

/// A conditional write.
pub(crate) struct ConditionalPut<'w> {
    pub(crate) shared: &'w BucketShared,
    pub(crate) path: &'w Path,
    pub(crate) payload: PutPayload,
    pub(crate) options: PutOptions,
    pub(crate) retry: BucketRetry,
}

impl ConditionalPut<'_> {
    /// Writes the object, with retries if the write has a mark.
    ///
    /// # Errors
    /// `AlreadyExists` or `Precondition` if the condition does not hold; [`EngineError::WriteUnproven`] if nothing shows how a write
    /// without a response ended.
    pub(crate) async fn send(mut self) -> Result<PutResult> {
        if !self.shared.origin.capabilities().keeps_marks {
            return self.limited("write", self.request()).await;
        }
        match WriteMark::new(&self.options.attributes) {
            Some(mark) => {
                self.options.extensions.insert(mark.clone());
                self.send_marked(&mark).await
            }
            None => {
                let put = self.limited("write", self.request()).await;
                put.map_err(|error| {
                    if is_transient(&error) || OriginError::is_unavailable(&error) {
                        self.unproven(error)
                    } else {
                        error
                    }
                })
            }
        }
    }

    async fn send_marked(&self, mark: &WriteMark) -> Result<PutResult> {
        let policy = self.retry.policy;
        let mut retries = Retries::new(self.retry.clone());
        // Whether an earlier attempt had no response that says how it ended.
        let mut in_doubt = false;
        loop {
            let failure = match tokio::time::timeout(policy.stall, self.request()).await {
                Ok(Ok(put)) => return Ok(put),
                Ok(Err(error)) => error,
                Err(_) => stalled(policy),
            };
            let is_final = !is_transient(&failure) || is_conflict(&failure);
            if is_final && !in_doubt {
                return Err(failure);
            }
            if is_refused(&failure) {
                match self.find(mark).await {
                    Ok(Some(found)) => return Ok(found),
                    Ok(None) => return Err(with_doubt(failure)),
                    Err(error) if !is_transient(&error) && !OriginError::is_unavailable(&error) => {
                        return Err(self.unproven(error));
                    }
                    Err(_) => {}
                }
            } else if !is_transient(&failure) {
                return Err(self.unproven(failure));
            }
            in_doubt = true;
            tracing::debug!(object = %self.path, error = %failure, "conditional write failed, retrying");
            if !retries.back_off().await {
                return match self.find(mark).await {
                    Ok(Some(found)) => Ok(found),
                    Ok(None) | Err(_) => Err(self.unproven(failure)),
                };
            }
        }
    }

    fn request(&self) -> impl Future<Output = Result<PutResult>> {
        let shared = self.shared;
        shared.origin_request(Capability::Write);
        let (payload, options) = (self.payload.clone(), self.options.clone());
        shared.origin.put_opts(self.path, payload, options)
    }

    async fn limited<T>(
        &self,
        operation: &'static str,
        sent: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        once(self.retry.policy.stall, operation, self.path, sent).await
    }

    /// Returns the object if it is the result of the write with this mark.
    async fn find(&self, mark: &WriteMark) -> Result<Option<PutResult>> {
        self.shared.origin_request(Capability::Write);
        let head = GetOptions {
            head: true,
            ..GetOptions::default()
        };
        let sent = self.shared.origin.get_opts(self.path, head);
        match self.limited("look for", sent).await {
            Ok(found) if mark.is_of(&found) => Ok(Some(PutResult {
                e_tag: found.meta.e_tag,
                version: found.meta.version,
                extensions: Default::default(),
            })),
            Ok(_) | Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn unproven(&self, source: Error) -> Error {
        EngineError::WriteUnproven {
            object: self.path.to_string(),
            failure: Box::new(source),
        }
        .into()
    }
}

fn is_refused(error: &Error) -> bool {
    matches!(
        error,
        Error::AlreadyExists { .. } | Error::Precondition { .. }
    )
}

/// Whether the store refused the write for another one in progress.
fn is_conflict(error: &Error) -> bool {
    source_of::<WriteConflict>(error).is_some()
}

/// Returns a refusal after an attempt without a response: the object, if there is one, is of another write.
fn with_doubt(refusal: Error) -> Error {
    const DOUBT: &str = "an earlier attempt of this write had no response: if it was applied, another write has replaced or deleted \
                         its object since; read the object before writing again";
    match refusal {
        Error::AlreadyExists { path, source } => Error::AlreadyExists {
            path,
            source: format!("{source}; {DOUBT}").into(),
        },
        Error::Precondition { path, source } => Error::Precondition {
            path,
            source: format!("{source}; {DOUBT}").into(),
        },
        other => other,
    }
}
