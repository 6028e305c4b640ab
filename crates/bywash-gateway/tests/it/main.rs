//! Tests of the endpoint over memory and folder origins, by raw HTTP and by a real client.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(missing_docs, unreachable_pub, reason = "tests")]

mod access;
mod allocations;
mod bodies;
mod buckets;
mod chained;
mod checksums;
mod client;
mod cluster_uploads;
mod conditions;
mod copies;
mod copy_memory;
mod deletes;
mod digest_in_key;
mod digests;
mod documents;
mod error_documents;
mod etags;
mod full_memory;
mod gcs;
mod gcs_access;
mod gcs_batch;
mod gcs_cluster;
mod gcs_deletes;
mod gcs_gunzip;
mod gcs_lists;
mod gcs_moves;
mod gcs_patch;
mod gcs_public;
mod gcs_server;
mod gcs_session_md5;
mod gcs_sessions;
mod gcs_xml;
mod heads;
mod keys;
mod limits;
mod lists;
mod log;
mod memory_limits;
mod multipart;
mod objects;
mod odd_keys;
mod odd_times;
mod operations;
mod parts;
mod public;
mod restart;
mod s3_origin;
mod self_copies;
mod sent_values;
mod server;
mod side_files;
mod signatures;
mod signed_chunks;
mod stale_reads;
mod tls;
mod traffic;

use bywash_support::{http, sign};
