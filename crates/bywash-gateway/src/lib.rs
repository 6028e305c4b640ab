//! Endpoints of Bywash: they serve buckets of a [`bywash::Engine`] by the S3 protocol and by the API of Google's storage.
//!
//! [`serve_s3`] and [`serve_gcs`] run them on a listener until shutdown. The `s3s` crate decodes requests and encodes responses.
//! Signatures, conditions, ranges, listings, multipart rules, digests and limits are implemented here.

#![forbid(unsafe_code)]

#[macro_use]
mod planted;

mod acceptor;
mod access_log;
mod addresses;
mod admission;
mod auth;
mod body;
mod body_pace;
mod bucket_rules;
mod chunked;
mod completion;
mod conditions;
pub mod config;
mod connection;
mod copy_source;
mod copying;
mod cors;
mod digest;
mod documents;
mod encoded_word;
mod encryption;
mod errors;
mod fast;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod gateway;
mod gcs;
mod health_paths;
mod host;
mod http2;
mod http_server;
mod idle;
mod keys;
pub mod limits;
mod listing;
mod memory_ceiling;
mod meta;
mod middleware;
mod object_parts;
pub mod objects;
mod ops;
mod other_sites;
mod passing;
mod public_access;
mod range;
mod record;
mod recorder;
mod request_xml;
mod resident;
mod response;
mod routes;
mod sent;
mod serve;
mod shared_state;
mod signature;
mod sigv4;
mod tags;
mod uploads;
mod values;
mod verify;
mod xml;

pub use access_log::{AccessLog, AccessLogError, AccessLogFormat, AccessLogTarget};
pub use addresses::{Network, NetworkError};
pub use config::{
    Credential, ETagStyle, EncryptedDisks, Limits, PublicAccess, S3Config, Scope, TlsError,
    load_tls,
};
pub use gcs::{
    GcsAccount, GcsAccountError, GcsConfig, GcsEndpoint, GcsServeError, GcsSessionTokens,
    GcsTokenKeys, gcs_session_tokens, serve_gcs,
};
pub use host::is_domain;
pub use http_server::{Drained, RequestBody, serve_http};
pub use memory_ceiling::{max_resident_bytes, max_socket_bytes};
pub use recorder::{RequestRecord, RequestRecorder};
pub use serve::{S3Endpoint, ServeError, serve_s3};
pub use shared_state::SharedState;
pub use uploads::{
    AbortError, ClusterUpload, ClusterUploads, HmacSeal, OpenUpload, OpenUploads, open_uploads,
};
