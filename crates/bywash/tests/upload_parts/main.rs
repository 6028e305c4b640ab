//! Uploads to stores that take parts in any order, over real sockets: S3 and Azure.
#![allow(clippy::unwrap_used, reason = "tests")]

mod azure;
mod s3;
mod seeded;
