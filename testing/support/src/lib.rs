//! Helpers that tests share.
//!
//! For tests of the S3 endpoint: HTTP without a client library ([`http`]) and a signer ([`sign`]), both independent of the
//! code under test, so that their errors cannot cancel out. For the GCS endpoint: a service account ([`account`]). For tests of the program: its process ([`process`]). For tests
//! above an object store: a macro for stores that pass calls on ([`forward_object_store!`]), a store with a hook around each request ([`hooked_store`]), and one that injects faults
//! ([`faulty_store`]). For tests of parsers: seeds and mutations ([`fuzz_corpus`]). For all of them: contents of objects
//! ([`pattern()`]), and seeds from the environment
//! ([`settings`]), the classes of faults that a seed has ([`swarm`]), and their report ([`proof`]). For programs under a memory limit: a control group ([`group`]). For several programs that act as one: etcd and the
//! options of a node ([`cluster`]), and links between processes that a test cuts ([`link`]).

#![forbid(unsafe_code)]
#![allow(
    missing_docs,
    missing_debug_implementations,
    clippy::unwrap_used,
    reason = "helpers of tests; a panic is a failed test"
)]

pub mod account;
pub mod cluster;
pub mod faulty_store;
mod forward;
pub mod fuzz_corpus;
pub mod group;
pub mod hooked_store;
pub mod http;
pub mod link;
pub mod pattern;
pub mod process;
pub mod proof;
pub mod settings;
pub mod sign;
pub mod swarm;

pub use pattern::pattern;
