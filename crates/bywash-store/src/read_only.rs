//! The layer that makes an origin read-only: every write is refused before a request is sent.

use std::sync::Arc;

use object_store::Result;
use object_store::path::Path;

use super::interface::{Capabilities, Origin};
use super::layer::{Layer, Policy};
use crate::error::OriginError;

/// An origin that fails every write with [`OriginError::ReadOnly`].
pub type ReadOnly = Layer<NoWrites>;

/// The policy of [`ReadOnly`].
#[derive(Debug, Clone)]
pub struct NoWrites {
    reason: &'static str,
}

impl ReadOnly {
    /// Makes any origin read-only, as the settings of its bucket say.
    pub fn new(origin: Arc<dyn Origin>) -> Self {
        let reason = "its settings say read-only; write to another bucket, or change them";
        Self::because(reason, origin)
    }

    /// As [`Self::new`], with another reason and remedy: the end of the message of each refused write.
    pub fn because(reason: &'static str, origin: Arc<dyn Origin>) -> Self {
        Self::over(origin, NoWrites { reason })
    }
}

impl Policy for NoWrites {
    const PASSES_ALL: bool = false;

    fn capabilities(&self, store: Capabilities) -> Capabilities {
        store.read_only()
    }

    fn allow(&self, operation: &'static str, path: &Path) -> Result<()> {
        Err(OriginError::ReadOnly {
            operation,
            object: path.to_string(),
            reason: self.reason,
        }
        .into())
    }
}
