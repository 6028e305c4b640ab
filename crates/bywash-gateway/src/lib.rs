//! The S3 endpoint of Bywash: buckets of an [`bywash::Engine`] over the S3 protocol.
//!
//! [`serve_s3`] runs it on a listener until it is told to stop. Signatures, routing and XML are
//! those of the `s3s` crate; conditions, ranges, listings, multipart rules, digests and limits are
//! here.

#![forbid(unsafe_code)]

mod auth;
mod body;
mod chunked;
pub mod config;
mod digest;
mod errors;
mod front;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod gateway;
mod idle;
mod keys;
mod listing;
mod meta;
mod ops;
mod serve;
mod tags;
mod uploads;
mod verify;

pub use config::{Credential, Limits, S3Config, Scope, TlsError, load_tls};
pub use serve::{Drained, ServeError, serve_s3};
pub use uploads::{OpenUpload, open_uploads};
