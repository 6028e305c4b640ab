//! Parts that tests of the S3 endpoint share: HTTP by hand ([`http`]) and a signer ([`sign`]).
//!
//! Both are independent of the code under test: a mistake there cannot cancel out one here.

#![forbid(unsafe_code)]
#![allow(
    missing_docs,
    missing_debug_implementations,
    clippy::unwrap_used,
    reason = "helpers of tests; a panic is a failed test"
)]

pub mod http;
pub mod sign;
