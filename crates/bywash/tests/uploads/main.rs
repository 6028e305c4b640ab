//! The upload writer over a store that keeps any prefix, loses any answer and lies; time is paused, so that retries cost none.
#![allow(clippy::unwrap_used, reason = "tests")]

mod allocations;
mod buffering;
mod capture;
mod ends;
mod fake;
mod hardest;
mod journal;
mod origins;
mod side_by_side;
mod stream;
