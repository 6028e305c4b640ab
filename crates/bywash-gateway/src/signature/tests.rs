//! Verdicts on signatures here and by `s3s`. The server does not use the verification of `s3s`, so it can judge.

#![allow(clippy::unwrap_used, reason = "tests")]

mod draw;
mod exceptions;
mod oracle;
