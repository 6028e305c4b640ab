//! Uploads over real sockets, to servers that follow each store's protocol and fail on cue.
#![allow(clippy::unwrap_used, reason = "tests")]

mod drive;
mod gcs;
mod gcs_credentials;
mod gcs_hardest;
mod seeded;
