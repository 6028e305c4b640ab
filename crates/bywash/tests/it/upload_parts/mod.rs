//! Uploads to stores that take parts in any order, over real sockets: S3 and Azure.

mod azure;
mod s3;
mod seeded;
