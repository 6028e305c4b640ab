//! The S3 endpoint of Bywash: buckets of an [`bywash::Engine`] over the S3 protocol.
//!
//! [`serve_s3`] runs it on a listener until it is told to stop. Signatures, routing and XML are
//! those of the `s3s` crate; conditions, ranges, listings, multipart rules, digests and limits are
//! here.

#![forbid(unsafe_code)]

mod access_log;
mod addresses;
mod admission;
mod auth;
mod body;
mod chunked;
pub mod config;
mod connection;
mod digest;
mod documents;
mod doorway;
mod errors;
mod front;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod gateway;
mod host;
mod http_server;
mod idle;
mod keys;
pub mod limits;
mod listing;
mod meta;
mod ops;
mod range;
mod request_xml;
mod resident;
mod routes;
mod serve;
mod signature;
mod tags;
mod uploads;
mod verify;
mod xml;

pub use access_log::{AccessLog, AccessLogError, AccessLogFormat, AccessLogTarget};
pub use addresses::{Network, NetworkError};
pub use config::{Credential, Limits, S3Config, Scope, TlsError, load_tls};
pub use host::is_domain;
pub use http_server::{Drained, serve_http};
pub use resident::{max_resident_bytes, max_socket_bytes};
pub use serve::{ServeError, serve_s3};
pub use uploads::{OpenUpload, OpenUploads, open_uploads};
