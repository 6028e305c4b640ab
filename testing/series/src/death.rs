//! Kills the process at a chosen request to its store.

use std::fmt;

use async_trait::async_trait;
use bywash_support::hooked_store::{ObservedRequest, RequestHook};
use object_store::Result;

/// Number of the request, counted from 0, and whether to die after or before it.
#[derive(Debug, Clone, Copy)]
pub struct Death {
    /// Number of the request.
    pub request: u64,
    /// Whether the request is completed first.
    pub after: bool,
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.request, self.after)
    }
}

impl Death {
    /// Parses the output of `to_string`; `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (request, after) = text.split_once(' ')?;
        Some(Self {
            request: request.parse().ok()?,
            after: after.parse().ok()?,
        })
    }
}

/// As `kill -9` from outside: nothing is run, nothing is flushed.
fn die() {
    let this = rustix::process::getpid();
    rustix::process::kill_process(this, rustix::process::Signal::KILL)
        .expect("a process may kill itself");
}

#[async_trait]
impl RequestHook for Death {
    async fn before(&self, request: &ObservedRequest) -> Result<()> {
        if request.number == self.request && !self.after {
            die();
        }
        Ok(())
    }

    async fn after(&self, request: &ObservedRequest, _succeeded: bool) -> Result<()> {
        if request.number == self.request {
            die();
        }
        Ok(())
    }
}
