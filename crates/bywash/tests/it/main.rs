//! The engine through its public interface: one program of tests, linked once. `many_objects` (resident memory), `many_buckets` and
//! `folder_held_files` (open descriptors) count what a process has, and are programs of their own.
#![allow(clippy::unwrap_used, reason = "tests")]

mod cache_contents;
mod cached_reads;
mod cluster;
mod conditional_deletes;
mod conditional_puts;
mod conformance;
mod disk_identity;
mod disk_tier;
mod far_origin;
mod file_downloads;
mod folder_conformance;
mod folder_etags;
mod folder_full_disk;
mod folder_identity;
mod folder_left_out;
mod folder_model;
mod folder_renames;
mod folder_rewrites;
mod folder_sessions;
mod folder_store;
mod folder_sweep;
mod folder_uploads;
mod late_responses;
mod lying_origin;
mod odd_keys;
mod origin_options;
mod put_checksums;
mod refused_lists;
mod resumes;
mod s3_checksums;
mod s3_deletes;
mod s3_rewrites;
mod s3_tags;
mod scratch;
mod simulation;
mod stale_reads;
mod unordered_origin;
mod upload_load;
mod upload_parts;
mod upload_servers;
mod uploads;
mod web_origin;
mod write_cache;
