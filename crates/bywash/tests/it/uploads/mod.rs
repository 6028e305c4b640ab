//! The upload writer over a store that keeps any prefix, loses any response and lies; time is paused, so that backoff
//! takes none.

mod adversarial;
mod allocations;
mod buffering;
mod capture;
mod ends;
mod fake;
mod journal;
mod origins;
mod parallel;
mod passing_faults;
mod stream;
