//! Uploads over real sockets, to servers that follow each store's protocol and fail on command.

mod drive;
mod gcs;
mod gcs_adversarial;
mod gcs_credentials;
mod gcs_retry_scenarios;
mod plan;
mod seeded;
mod signed;
