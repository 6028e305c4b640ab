//! The upload writer over a store that keeps any prefix, loses any response and states falsehoods; time is paused, so that backoff
//! takes none.

mod adversarial;
mod allocations;
mod ancestor;
mod blocking;
mod buffering;
mod capture;
mod chunks;
mod ends;
mod fake;
mod golden;
mod journal;
mod origins;
mod parallel;
mod passing_faults;
mod stream;
