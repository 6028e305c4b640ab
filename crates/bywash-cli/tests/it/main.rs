//! Tests of the program as users start it, in one test binary, which is linked once.
#![allow(clippy::unwrap_used, reason = "tests")]

mod buckets;
mod cache;
mod changing;
mod common;
mod copy;
mod credentials;
mod damage;
mod digests;
mod downloads;
mod hostile;
mod keys;
mod listing;
mod local;
mod many;
mod multipart;
mod mv;
mod origins;
mod places;
mod rm;
mod series;
mod serve;
mod shell;
mod signed;
mod sync;
mod trees;
mod uploads;
mod uploads_stores;
mod verbs;
