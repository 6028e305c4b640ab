//! The endpoint of Google's storage: buckets of a [`bywash::Engine`] by the JSON API of Google's storage, and by its XML API.
//!
//! [`serve_gcs`] runs it on a listener until shutdown. It imports no file of the S3 endpoint, and
//! no file of that endpoint imports it; shared code is next to them.

mod access;
mod admit;
mod batch;
mod body;
mod buckets;
mod compose;
mod condition;
mod copy;
mod endpoint;
mod error;
mod fast;
mod fields;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod generation;
mod glob;
mod gunzip;
mod insert;
mod list;
mod metadata;
mod moves;
mod multipart;
mod patch;
mod query;
mod read;
mod related;
mod resource;
mod route;
mod serve;
mod sessions;
mod xml;

#[cfg(any(test, fuzzing))]
pub(crate) use access::fuzz_jwt;
pub use access::{GcsAccount, GcsAccountError, GcsTokenKeys};
pub use serve::{GcsConfig, GcsEndpoint, GcsServeError, serve_gcs};
pub use sessions::{GcsSessionTokens, gcs_session_tokens};
